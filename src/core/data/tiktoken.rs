//! Tokenizers that are published as tiktoken ranks only: `qwen.tiktoken` (Qwen 1) and `tiktoken.model` (Kimi).
//!
//! A line is a token in base64 and its rank. Byte-level BPE with the same ranks splits alike: tokens are merged by rank,
//! and a word that is a token is one. The merges, which the file lacks, are what merging by lower ranks makes of each
//! token, as transformers' `TikTokenConverter` has it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use super::error::DataError;

/// A family's file, how it splits words, and its special tokens, which follow the ranks.
struct Kind {
    file: &'static str,
    pattern: &'static str,
    special: fn() -> Vec<String>,
}

const KINDS: [Kind; 2] = [
    Kind {
        file: "qwen.tiktoken",
        pattern: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        special: || {
            let named = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
            named.into_iter().chain((0..205).map(|index| format!("<|extra_{index}|>"))).collect()
        },
    },
    Kind {
        file: "tiktoken.model",
        pattern: r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        special: || (0..256).map(|index| format!("<|reserved_token_{index}|>")).collect(),
    },
];

type Ranks = BTreeMap<Vec<u8>, u32>;

/// Returns the tokenizer of a folder with such a file, and the file; `None` where there is none.
///
/// # Errors
/// The file cannot be read or is not of this form.
pub fn read(model_dir: &Path, tokenizer_config: &Json) -> Result<Option<(tokenizers::Tokenizer, PathBuf)>, DataError> {
    let found = KINDS.iter().map(|kind| (kind, model_dir.join(kind.file))).find(|(_, path)| path.exists());
    let Some((kind, path)) = found else { return Ok(None) };
    let text = crate::files::read_text(&path).map_err(|error| DataError::read(&path, error))?;
    let ranks = parse(&text).map_err(|reason| DataError::file(&path, reason))?;
    let json = tokenizer_json(&ranks, kind, tokenizer_config);
    let tokenizer =
        tokenizers::Tokenizer::from_bytes(json.to_string()).map_err(|error| DataError::file(&path, error))?;
    Ok(Some((tokenizer, path)))
}

/// Reads the lines of a file of ranks.
///
/// # Errors
/// A line is not a token in base64 and its rank; the reason names it.
pub(super) fn parse(text: &str) -> Result<Ranks, String> {
    let mut ranks = Ranks::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = || format!("line {}: expected a token in base64 and its rank", index + 1);
        let (token, rank) = line.split_once(' ').ok_or_else(wrong)?;
        let token = base64(token).ok_or_else(wrong)?;
        ranks.insert(token, rank.trim().parse().map_err(|_| wrong())?);
    }
    let last = ranks.values().max().map_or(0, |&rank| rank as usize + 1);
    if last != ranks.len() || (0..=255u8).any(|byte| !ranks.contains_key(&[byte][..])) {
        return Err("must have every rank and every byte exactly once".to_owned());
    }
    Ok(ranks)
}

fn tokenizer_json(ranks: &Ranks, kind: &Kind, tokenizer_config: &Json) -> Json {
    let letters = byte_letters();
    let spell = |bytes: &[u8]| bytes.iter().map(|&byte| letters[usize::from(byte)]).collect::<String>();
    let mut vocab: Vec<(u32, &Vec<u8>)> = ranks.iter().map(|(token, &rank)| (rank, token)).collect();
    vocab.sort_unstable();
    let merges: Vec<Json> = vocab
        .iter()
        .filter(|(_, token)| token.len() > 1)
        .filter_map(|(rank, token)| split(ranks, token, *rank))
        .map(|(left, right)| json!([spell(left), spell(right)]))
        .collect();
    let num_ranks = ranks.len() as u64;
    let mut special: BTreeMap<u64, String> = (num_ranks..).zip((kind.special)()).collect();
    for (id, token) in tokenizer_config["added_tokens_decoder"].as_object().into_iter().flatten() {
        if let (Ok(id), Some(token)) = (id.parse::<u64>(), token["content"].as_str())
            && id >= num_ranks
        {
            special.insert(id, token.to_owned());
        }
    }
    let added = special.iter().map(|(id, token)| {
        json!({
            "id": id, "content": token, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    });
    let vocab: Map<String, Json> = vocab.iter().map(|(rank, token)| (spell(token), json!(rank))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": kind.pattern}, "behavior": "Isolated", "invert": false},
            byte_level,
        ]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocab, "merges": merges,
        },
    })
}

/// Returns the two parts from which a token is merged last; `None` where merging by lower ranks does not lead to two.
fn split<'a>(ranks: &Ranks, token: &'a [u8], rank: u32) -> Option<(&'a [u8], &'a [u8])> {
    let mut ends: Vec<usize> = (1..=token.len()).collect();
    while ends.len() > 2 {
        let begin = |index: usize| if index == 0 { 0 } else { ends[index - 1] };
        let pair = |index: usize| ranks.get(&token[begin(index)..ends[index + 1]]).copied();
        let (best, index) = (0..ends.len() - 1).filter_map(|index| Some((pair(index)?, index))).min()?;
        if best >= rank {
            return None;
        }
        ends.remove(index);
    }
    Some(token.split_at(ends[0]))
}

/// Returns the printable characters by which byte-level BPE writes the 256 bytes (GPT-2's `bytes_to_unicode`).
pub fn byte_letters() -> [char; 256] {
    let mut next = 256;
    std::array::from_fn(|byte| {
        let byte = byte as u32;
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        if !printable {
            next += 1;
        }
        char::from_u32(if printable { byte } else { next - 1 }).expect("far below the surrogates")
    })
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut num_bits) = (0u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        num_bits += 6;
        if num_bits >= 8 {
            num_bits -= 8;
            bytes.push((bits >> num_bits) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    fn encode(bytes: &[u8]) -> String {
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let bits = chunk.iter().chain([&0, &0]).take(3).fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
            for index in 0..=chunk.len() {
                text.push(char::from(LETTERS[(bits >> (18 - 6 * index) & 63) as usize]));
            }
        }
        while !text.len().is_multiple_of(4) {
            text.push('=');
        }
        text
    }

    /// Bytes and a few words, each made from two that are there.
    fn file(words: &[&str]) -> String {
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        let tokens = bytes.chain(words.iter().map(|word| word.as_bytes().to_vec()));
        tokens.enumerate().map(|(rank, token)| format!("{} {rank}\n", encode(&token))).collect()
    }

    const WORDS: [&str; 9] = ["lo", "he", "el", "hel", "hello", " w", "or", "wor", "数"];

    /// Returns the ids of one word as tiktoken makes them: merges the pair of lowest rank while there is one.
    fn tiktoken(ranks: &Ranks, word: &[u8]) -> Vec<u32> {
        let mut parts: Vec<Vec<u8>> = word.iter().map(|&byte| vec![byte]).collect();
        while let Some((_, index)) = (0..parts.len().saturating_sub(1))
            .filter_map(|i| Some((*ranks.get(&[&parts[i][..], &parts[i + 1][..]].concat())?, i)))
            .min()
        {
            let right = parts.remove(index + 1);
            parts[index].extend(right);
        }
        parts.iter().map(|part| ranks[part]).collect()
    }

    #[test]
    fn merges_by_rank_as_tiktoken_does() {
        let folder = tempfile::tempdir().unwrap();
        // The bytes of 数 merge in two steps, so the first needs a token.
        let words: Vec<&str> = WORDS.iter().copied().filter(|word| *word != "数").collect();
        let text = file(&words);
        for (file, first_special) in [("qwen.tiktoken", "<|endoftext|>"), ("tiktoken.model", "<|reserved_token_0|>")] {
            std::fs::write(folder.path().join(file), &text).unwrap();
            let config = json!({"added_tokens_decoder": {"270": {"content": "<|mine|>"}}});
            let (tokenizer, path) = read(folder.path(), &config).unwrap().unwrap();
            assert!(path.ends_with(file));
            let ranks = parse(&text).unwrap();
            let ids = |text: &str| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
            for word in ["hello", "helhello", "worlo", "hellor", "数", "xyz"] {
                let expected = if ranks.contains_key(word.as_bytes()) {
                    vec![ranks[word.as_bytes()]]
                } else {
                    tiktoken(&ranks, word.as_bytes())
                };
                assert_eq!(ids(word), expected, "{word} {file}");
            }
            assert_eq!(tokenizer.token_to_id(first_special), Some(264));
            assert_eq!(ids("hello<|mine|>"), [ranks["hello".as_bytes()], 270]);
            assert_eq!(tokenizer.decode(&ids("hello 数 wor!"), true).unwrap(), "hello 数 wor!");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn damaged_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qwen.tiktoken");
        for (text, part) in [("AA== 0\n", "every byte"), ("AA==", "line 1"), ("*A== 0", "line 1"), ("AA== x", "line 1")]
        {
            std::fs::write(&path, text).unwrap();
            let error = read(folder.path(), &Json::Null).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("qwen.tiktoken"), "{error}");
        }
        assert!(read(Path::new("no/such"), &Json::Null).unwrap().is_none());
    }
}
