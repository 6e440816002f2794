//! A SentencePiece model as a `tokenizer.json`.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value as Json, json};

use super::proto::{Model, PieceKind, SentencePiece};
use crate::data::tokenizer_file::token_text;

/// Rows that tokens added beside the model may leave empty.
const MAX_GAP: usize = 1 << 16;
const BLANK: &str = "▁";

/// # Errors
/// The model is of a kind that is not read; the added tokens contradict it.
pub(super) fn tokenizer_json(mut model: Model, config: &Json, added: &Json) -> Result<Json, String> {
    if let Some(kind) = model.other_kind {
        return Err(format!("is a SentencePiece model of kind {kind}; only unigram (1) and BPE (2) are supported"));
    }
    if model.whitespace_is_suffix {
        return Err("puts blanks after words (treat_whitespace_as_suffix), which is not supported".to_owned());
    }
    if !model.escape_whitespaces {
        return Err("leaves blanks as they are (escape_whitespaces is false), which is not supported".to_owned());
    }
    if model.unk >= model.pieces.len() as u64 {
        return Err(format!("has unk_id {}, but only {} pieces", model.unk, model.pieces.len()));
    }
    let prefix = model.add_dummy_prefix && config["add_prefix_space"] != false;
    write_blanks(&mut model, prefix);
    let added = with_added(&mut model.pieces, config, added)?;
    let (normalizer, pre_tokenizer) = normalizer(&model, prefix, config["legacy"] != false);
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": BLANK}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizer},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor(&model, config),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": if model.is_bpe { bpe(&model) } else { unigram(&model) },
    }))
}

/// Gives user-defined pieces the blanks that texts have: as added tokens they are looked for in a text as it is written. Where a blank
/// is put before texts, or they are changed in another way, pieces stay as they are, as with transformers, and a warning says so.
fn write_blanks(model: &mut Model, prefix: bool) {
    let keeps_blanks = !model.remove_extra_whitespaces;
    let keeps_texts = keeps_blanks && !prefix && model.charsmap.is_empty();
    let is_found = |piece: &&mut SentencePiece| {
        let can_be = keeps_blanks || !piece.text.contains("▁▁");
        piece.kind == PieceKind::UserDefined && piece.text.contains(BLANK) && can_be
    };
    for piece in model.pieces.iter_mut().filter(is_found) {
        if !keeps_texts {
            tracing::warn!(
                "the SentencePiece model has the user-defined piece {:?} with a blank, which is not found in texts, as with \
                 transformers; put a tokenizer.json beside it that finds it",
                piece.text
            );
            return;
        }
        piece.text = piece.text.replace(BLANK, " ");
    }
}

/// Returns control and user-defined pieces, and tokens that the folder adds: those of a row that the model has take its place.
fn with_added(pieces: &mut Vec<SentencePiece>, config: &Json, added: &Json) -> Result<Vec<Json>, String> {
    let token = |id: usize, content: &str, special: bool| {
        json!({
            "id": id, "content": content, "special": special,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let mut tokens: BTreeMap<usize, Json> = BTreeMap::new();
    let beside = added.as_object().into_iter().flatten();
    for (content, id) in beside.filter_map(|(content, id)| Some((content, usize::try_from(id.as_u64()?).ok()?))) {
        tokens.insert(id, token(id, content, true));
    }
    for (id, own) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let (Ok(id), Some(content)) = (id.parse::<usize>(), own["content"].as_str()) else { continue };
        let mut token = token(id, content, own["special"] != false);
        for key in ["single_word", "lstrip", "rstrip"] {
            token[key] = (own[key] == true).into();
        }
        tokens.insert(id, token);
    }
    let num_own = pieces.len();
    for (&id, token) in &tokens {
        if id > num_own + MAX_GAP {
            return Err(format!("has {num_own} pieces, but an added token has id {id}"));
        }
        while pieces.len() <= id {
            pieces.push(SentencePiece {
                text: format!("<unused row {}>", pieces.len()),
                score: 0.0,
                kind: PieceKind::Unused,
            });
        }
        pieces[id].text = token["content"].as_str().unwrap_or_default().to_owned();
    }
    for (id, piece) in pieces.iter().enumerate() {
        if matches!(piece.kind, PieceKind::Control | PieceKind::UserDefined | PieceKind::Unknown) {
            tokens.entry(id).or_insert_with(|| token(id, &piece.text, piece.kind != PieceKind::UserDefined));
        }
    }
    Ok(tokens.into_values().collect())
}

/// Returns the steps of SentencePiece's normalization, and the pre-tokenizer. `legacy`: as transformers long had it, what follows a
/// special token gets a blank, too.
fn normalizer(model: &Model, prefix: bool, legacy: bool) -> (Vec<Json>, Json) {
    let mut steps = Vec::new();
    if !model.charsmap.is_empty() {
        steps.push(json!({"type": "Precompiled", "precompiled_charsmap": base64(&model.charsmap)}));
    }
    if model.remove_extra_whitespaces {
        steps.push(json!({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""}));
        steps.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
    }
    if prefix && legacy {
        steps.push(json!({"type": "Prepend", "prepend": BLANK}));
    }
    steps.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": BLANK}));
    let scheme = json!({"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first", "split": false});
    (steps, if prefix && !legacy { scheme } else { Json::Null })
}

/// Puts the token that begins a document before it, where the model's class does so.
fn post_processor(model: &Model, config: &Json) -> Json {
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    let by_class = class.contains("Llama") || class.contains("InternLM2");
    let (bos, eos) = (config["add_bos_token"].as_bool().unwrap_or(by_class), config["add_eos_token"] == true);
    let piece = |key: &str, id: Option<u64>| {
        let named = token_text(&config[key]).and_then(|text| model.pieces.iter().position(|piece| piece.text == text));
        let id = named.or(id.and_then(|id| usize::try_from(id).ok()))?;
        Some((id, model.pieces.get(id)?.text.as_str()))
    };
    let bos = piece("bos_token", model.bos).filter(|_| bos);
    let eos = piece("eos_token", model.eos).filter(|_| eos);
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }
    let special = |(_, text): (usize, &str), side: u8| json!({"SpecialToken": {"id": text, "type_id": side}});
    let around = |name: &str, side: u8| {
        let text = json!({"Sequence": {"id": name, "type_id": side}});
        let parts = [bos.map(|bos| special(bos, side)), Some(text), eos.map(|eos| special(eos, side))];
        parts.into_iter().flatten().collect::<Vec<Json>>()
    };
    let tokens = bos.into_iter().chain(eos);
    let tokens: Map<String, Json> =
        tokens.map(|(id, text)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}))).collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    json!({
        "type": "TemplateProcessing", "special_tokens": tokens,
        "single": around("A", 0), "pair": pair,
    })
}

fn unigram(model: &Model) -> Json {
    let is_word = |piece: &&SentencePiece| matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined);
    let lowest = model.pieces.iter().filter(is_word).map(|piece| piece.score).fold(0.0, f32::min);
    // Others stand in no text; the lowest score does not change that of an unknown letter, which is measured by it.
    let score = |piece: &SentencePiece| if is_word(&piece) { piece.score } else { lowest };
    let vocab: Vec<Json> = model.pieces.iter().map(|piece| json!([piece.text, f64::from(score(piece))])).collect();
    json!({"type": "Unigram", "unk_id": model.unk, "byte_fallback": model.byte_fallback, "vocab": vocab})
}

/// Merges are not in the file: of two pieces that make a third, that with the highest score is made first.
fn bpe(model: &Model) -> Json {
    let ids: HashMap<&str, usize> =
        model.pieces.iter().enumerate().map(|(id, piece)| (piece.text.as_str(), id)).collect();
    let is_normal = |text: &str| ids.get(text).filter(|&&id| model.pieces[id].kind == PieceKind::Normal).copied();
    let mut merges = Vec::new();
    for piece in model.pieces.iter().filter(|piece| piece.kind == PieceKind::Normal) {
        for (at, _) in piece.text.char_indices().skip(1) {
            let (left, right) = piece.text.split_at(at);
            if let (Some(left_id), Some(right_id)) = (is_normal(left), is_normal(right)) {
                merges.push((piece.score, left_id, right_id));
            }
        }
    }
    merges.sort_by(|left, right| right.0.total_cmp(&left.0));
    let merges: Vec<Json> =
        merges.iter().map(|&(_, left, right)| json!([model.pieces[left].text, model.pieces[right].text])).collect();
    let vocab: Map<String, Json> =
        model.pieces.iter().enumerate().map(|(id, piece)| (piece.text.clone(), json!(id))).collect();
    json!({
        "type": "BPE", "dropout": null, "unk_token": model.pieces[model.unk as usize].text, "fuse_unk": true,
        "byte_fallback": model.byte_fallback, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "ignore_merges": false, "vocab": vocab, "merges": merges,
    })
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() { letter as char } else { '=' });
        }
    }
    text
}
