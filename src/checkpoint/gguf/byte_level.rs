//! Tokenizers of merged bytes (GPT-2's alphabet): tokens, merges, and which rule of llama.cpp's cuts a text into words.

use super::tokens::{Files, NORMAL, Token, put_added, unused};
use serde_json::Value as Json;

const CONTRACTIONS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";

/// Returns the regular expressions of published tokenizers, what llama.cpp calls their rule, and whether it takes a word that is a token
/// whole, whatever the merges (`ignore_merges`).
fn rules() -> [(String, &'static str, bool); 7] {
    let end = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let upper = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+";
    let lower = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*";
    let slashed = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let letters = r"[^\r\n\p{L}\p{N}]?\p{L}+";
    let marks = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let llama3 = format!(r"{CONTRACTIONS}|{letters}|\p{{N}}{{1,3}}|{end}");
    [
        (llama3.clone(), "llama-bpe", true),
        (llama3, "dbrx", false),
        (format!(r"{CONTRACTIONS}|{letters}|\p{{N}}|{end}"), "qwen2", false),
        (format!("{CONTRACTIONS}|{marks}"), "qwen35", false),
        (format!(r"{upper}|{lower}|\p{{N}}|{slashed}"), "tekken", true),
        (format!(r"{upper}{CONTRACTIONS}?|{lower}{CONTRACTIONS}?|\p{{N}}{{1,3}}|{slashed}"), "gpt-4o", false),
        (String::new(), "gpt-2", false),
    ]
}

/// Returns the steps of a pre-tokenizer.
fn steps(pre_tokenizer: &Json) -> Vec<&Json> {
    match pre_tokenizer["pretokenizers"].as_array() {
        Some(steps) => steps.iter().flat_map(steps_of).collect(),
        None => steps_of(pre_tokenizer),
    }
}

fn steps_of(step: &Json) -> Vec<&Json> {
    if step.is_null() { Vec::new() } else { vec![step] }
}

/// Returns whether a text becomes GPT-2's letters for bytes.
pub fn is_in(pre_tokenizer: &Json) -> bool {
    steps(pre_tokenizer).iter().any(|step| step["type"] == "ByteLevel")
}

/// Returns llama.cpp's name for the rule by which this `tokenizer.json` cuts a text into words.
///
/// # Errors
/// It has none that does the same: says which step.
pub fn pre_tokenizer(tokenizer: &Json) -> Result<&'static str, String> {
    let normalizer = tokenizer["normalizer"]["type"].as_str();
    // Qwen's NFC, which llama.cpp leaves out.
    if !matches!(normalizer, None | Some("NFC")) {
        return Err(format!("normalizer is {}, which llama.cpp does not support", tokenizer["normalizer"]));
    }
    let steps = steps(&tokenizer["pre_tokenizer"]);
    if steps.iter().any(|step| step["type"] == "ByteLevel" && step["add_prefix_space"] == true) {
        return Err("pre_tokenizer has add_prefix_space, which llama.cpp does not support".to_owned());
    }
    let ignores_merges = tokenizer["model"]["ignore_merges"] == true;
    let kinds: Vec<&str> = steps.iter().map(|step| step["type"].as_str().unwrap_or_default()).collect();
    let regex = match (kinds.as_slice(), steps.as_slice()) {
        (["ByteLevel"], [bytes]) if bytes["use_regex"] != false => "",
        (["Digits", "ByteLevel"], [digits, bytes])
            if digits["individual_digits"] == true && bytes["use_regex"] != false && !ignores_merges =>
        {
            return Ok("smollm");
        }
        (["Split", "ByteLevel"], [split, bytes])
            if bytes["use_regex"] == false && is_whole(split) && split["pattern"]["Regex"].is_string() =>
        {
            split["pattern"]["Regex"].as_str().unwrap_or_default()
        }
        _ => return Err(format!("pre_tokenizer has the steps {kinds:?} with settings that llama.cpp has no rule for")),
    };
    let rule = rules().into_iter().find(|(rule, _, ignores)| rule == regex && *ignores == ignores_merges);
    rule.map(|(_, name, _)| name).ok_or_else(|| {
        format!(
            "pre_tokenizer splits by {regex:?} with ignore_merges: {ignores_merges}, for which llama.cpp has no rule"
        )
    })
}

/// Returns whether a split keeps all of a text: what matches as well as what lies between.
fn is_whole(split: &Json) -> bool {
    split["behavior"] == "Isolated" && split["invert"] != true
        || split["behavior"] == "Removed" && split["invert"] == true
}

/// # Errors
/// An id is not below `rows`.
pub fn tokens(files: &Files, rows: usize) -> Result<Vec<Token>, String> {
    let known = files.tokens(rows)?;
    let row = |row: usize| match known.get(&row) {
        Some(text) => Token { text: (*text).to_owned(), kind: NORMAL, score: 0.0 },
        None => unused(row),
    };
    let mut tokens: Vec<Token> = (0..rows).map(row).collect();
    put_added(&mut tokens, files)?;
    Ok(tokens)
}

/// Returns both sides of each merge with a blank between them.
///
/// # Errors
/// They have another form than `tokenizer.json`'s.
pub fn merges(model: &Json) -> Result<Vec<String>, String> {
    let merges = model["merges"].as_array().filter(|merges| !merges.is_empty()).ok_or("model.merges is empty")?;
    let merge = |merge: &Json| match (merge, merge.get(0).and_then(Json::as_str), merge.get(1).and_then(Json::as_str)) {
        (Json::String(text), ..) => Ok(text.clone()),
        // A blank within a side has the letter that GPT-2's alphabet has for it.
        (_, Some(left), Some(right)) => Ok([left, right].map(|side| side.replace(' ', "Ġ")).join(" ")),
        _ => Err(format!("model.merges has an entry that is not a pair: {merge:.80}")),
    };
    merges.iter().map(merge).collect()
}
