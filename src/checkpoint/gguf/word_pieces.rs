//! Tokenizers of SentencePiece's kind BPE, with byte tokens (LLaMA 2, Mistral 7B): tokens with scores.

use super::tokens::{BYTE, CONTROL, Files, NORMAL, Token, UNKNOWN, UNUSED, USER_DEFINED, put_added, unused};
use loongforge_core::data::PieceKind;
use serde_json::Value as Json;
use std::collections::HashMap;

const BLANK: &str = "▁";

/// Returns whether a text begins with a blank that it does not have.
///
/// # Errors
/// The text is changed in another way that llama.cpp does not know.
pub fn begins_with_blank(tokenizer: &Json) -> Result<bool, String> {
    let normalizer = &tokenizer["normalizer"];
    let steps: Vec<&Json> = match normalizer["normalizers"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => Some(normalizer).filter(|it| !it.is_null()).into_iter().collect(),
    };
    let mut begins = false;
    for step in steps {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == BLANK => begins = true,
            Some("Replace") if step["pattern"]["String"] == " " && step["content"] == BLANK => {}
            _ => return Err(format!("normalizer has the step {step}, which llama.cpp does not support")),
        }
    }
    match tokenizer["pre_tokenizer"]["type"].as_str() {
        None => Ok(begins),
        // Gemma's, which finds no blank any more.
        Some("Split") if tokenizer["pre_tokenizer"]["pattern"]["String"] == " " => Ok(begins),
        Some("Metaspace") if tokenizer["pre_tokenizer"]["split"] == false => {
            Ok(begins || tokenizer["pre_tokenizer"]["prepend_scheme"] != "never")
        }
        _ => Err(format!(
            "pre_tokenizer is {}, but llama.cpp does not split with such a tokenizer",
            tokenizer["pre_tokenizer"]
        )),
    }
}

/// # Errors
/// The model is of another kind, or has tokens that a file of pieces does not have.
pub fn tokens(files: &Files, rows: usize) -> Result<Vec<Token>, String> {
    if files.json["model"]["byte_fallback"] != true {
        return Err(
            "model is BPE without ByteLevel and without byte_fallback, which llama.cpp does not support".to_owned()
        );
    }
    let known = files.tokens(rows)?;
    let mut tokens: Vec<Token> = (0..rows).map(unused).collect();
    match &files.pieces {
        Some((_, false)) => return Err("tokenizer.model is not BPE, which llama.cpp does not support".to_owned()),
        Some((pieces, true)) => {
            for (id, piece) in pieces.iter().enumerate() {
                let kind = match piece.kind {
                    PieceKind::Normal => NORMAL,
                    PieceKind::Unknown => UNKNOWN,
                    PieceKind::Control => CONTROL,
                    PieceKind::UserDefined => USER_DEFINED,
                    PieceKind::Unused => UNUSED,
                    PieceKind::Byte => BYTE,
                };
                let other = known.get(&id).filter(|text| **text != piece.text && piece.kind == PieceKind::Normal);
                if let Some(other) = other {
                    return Err(format!(
                        "token {id} is {other:?} in tokenizer.json and {:?} in tokenizer.model",
                        piece.text
                    ));
                }
                let Some(token) = tokens.get_mut(id) else {
                    return Err(format!(
                        "tokenizer.model has {} pieces, but the model has only {rows} rows",
                        pieces.len()
                    ));
                };
                *token = Token { text: piece.text.clone(), kind, score: piece.score };
            }
        }
        None => {
            let scores = scores(&files.json["model"])?;
            for (id, text) in known {
                let is_byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
                let kind = if is_byte { BYTE } else { NORMAL };
                let score = scores.get(text).copied().unwrap_or(-(scores.len() as f32) - 1.0);
                tokens[id] = Token { text: text.to_owned(), kind, score };
            }
            let unknown = files.json["model"]["unk_token"].as_str();
            let unknown = tokens.iter_mut().find(|token| Some(token.text.as_str()) == unknown);
            unknown.into_iter().for_each(|token| token.kind = UNKNOWN);
        }
    }
    put_added(&mut tokens, files)?;
    Ok(tokens)
}

/// Returns minus the number of the first merge that makes a token. llama.cpp merges by the score of what is made, so that the merges of
/// one token must have no merge of another between them, as those that were made of a SentencePiece model.
///
/// # Errors
/// They have, or their form is another one.
fn scores(model: &Json) -> Result<HashMap<String, f32>, String> {
    let mut scores: HashMap<String, f32> = HashMap::new();
    let mut last = String::new();
    for (rank, merge) in model["merges"].as_array().into_iter().flatten().enumerate() {
        let sides = match merge {
            Json::String(text) => text.split_once(' '),
            other => other.get(0).and_then(Json::as_str).zip(other.get(1).and_then(Json::as_str)),
        };
        let (left, right) =
            sides.ok_or_else(|| format!("model.merges has an entry that is not a pair: {merge:.80}"))?;
        let whole = format!("{left}{right}");
        if whole != last && scores.contains_key(&whole) {
            return Err(format!(
                "merges that make {whole:?} are not next to each other: llama.cpp, which has one score per token, would split \
                 texts differently; put the tokenizer.model beside tokenizer.json"
            ));
        }
        scores.entry(whole.clone()).or_insert(-(rank as f32));
        last = whole;
    }
    Ok(scores)
}
