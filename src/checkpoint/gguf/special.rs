//! Tokens that begin and end a text, and whether they are put around one.

use super::container::{Metadata, Value};
use super::tokens::Files;
use serde_json::Value as Json;

/// Names of special tokens in `tokenizer_config.json` and `config.json`, and in llama.cpp's keys (its spelling).
const NAMES: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];

/// Returns the ids of special tokens, `add_bos_token` and `add_eos_token`.
pub fn special_tokens(files: &Files, config: &Json, rows: usize) -> Metadata {
    let added = files.json["added_tokens"].as_array();
    let text_of = |name: &str| {
        let token = &files.settings[format!("{name}_token")];
        token.as_str().or_else(|| token["content"].as_str())
    };
    let id_of = |text: &str| added?.iter().find(|token| token["content"] == text)?["id"].as_u64();
    let mut metadata = Metadata::new();
    for (name, theirs) in NAMES {
        let named = text_of(name).and_then(id_of);
        // `eos_token_id` may be a list, which says nothing of the one that ends a text.
        let id = named.or_else(|| config[format!("{name}_token_id")].as_u64()).filter(|&id| id < rows as u64);
        metadata.extend(id.map(|id| (format!("tokenizer.ggml.{theirs}_token_id"), Value::U32(id as u32))));
    }
    let [begins, ends] = around(&files.json["post_processor"], text_of("bos"), text_of("eos"));
    for (name, around) in [("bos", begins), ("eos", ends)] {
        let flag = around.or(files.settings[format!("add_{name}_token")].as_bool());
        metadata.extend(flag.map(|flag| (format!("tokenizer.ggml.add_{name}_token"), Value::Bool(flag))));
    }
    metadata
}

/// Returns whether the post-processor puts these tokens before and behind a text; `None`: it does not say.
fn around(post_processor: &Json, bos: Option<&str>, eos: Option<&str>) -> [Option<bool>; 2] {
    let steps: Vec<&Json> = match post_processor["processors"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![post_processor],
    };
    let mut found = [None; 2];
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") => found.iter_mut().for_each(|flag| *flag = flag.or(Some(false))),
            Some("TemplateProcessing") => {
                let single = step["single"].as_array().map_or(&[][..], Vec::as_slice);
                if let [first, .., last] = single {
                    let token = |part: &'_ Json| part["SpecialToken"]["id"].as_str().map(str::to_owned);
                    let is =
                        |part: &Json, token_of: Option<&str>| token(part).map(|text| Some(text.as_str()) == token_of);
                    found[0] = is(first, bos).or(found[0]);
                    found[1] = is(last, eos).or(found[1]);
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_stands_around_a_text_is_said() {
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let template = |single: Vec<Json>| json!({"type": "TemplateProcessing", "single": single});
        let both = template(vec![special("<s>"), text.clone(), special("</s>")]);
        assert_eq!(around(&both, Some("<s>"), Some("</s>")), [Some(true), Some(true)]);
        let first = template(vec![special("<s>"), text.clone()]);
        assert_eq!(around(&first, Some("<s>"), Some("</s>")), [Some(true), None]);
        assert_eq!(around(&first, Some("<bos>"), None), [Some(false), None]);
        let bytes = json!({"type": "ByteLevel"});
        assert_eq!(around(&bytes, None, None), [Some(false), Some(false)]);
        let sequence = json!({"type": "Sequence", "processors": [bytes, first]});
        assert_eq!(around(&sequence, Some("<s>"), None), [Some(true), Some(false)]);
        assert_eq!(around(&Json::Null, None, None), [None, None]);
    }
}
