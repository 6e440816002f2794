//! Models that `tests/oracle/sentencepiece_models.py` trains, and what the Python packages make of texts.

use std::io::Read;

use serde_json::json;

use super::*;

fn goldens() -> Json {
    serde_json::from_str(include_str!("../goldens/sentencepiece/cases.json")).unwrap()
}

fn model(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/goldens/sentencepiece/{name}.model.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

fn tokenizer(bytes: &[u8], config: &Json) -> tokenizers::Tokenizer {
    let json = of_bytes(bytes, config, &Json::Null).unwrap();
    parse(json.to_string().into_bytes()).unwrap()
}

#[test]
fn texts_have_the_ids_of_the_python_package() {
    let goldens = goldens();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for name in ["unigram", "unigram_bytes", "bpe_bytes", "bpe_identity"] {
        let tokenizer = tokenizer(&model(name), &Json::Null);
        for case in goldens[name].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let encoding = tokenizer.encode(text, false).unwrap();
            let ids: Vec<u64> = encoding.get_ids().iter().map(|&id| u64::from(id)).collect();
            count += 1;
            if json!(ids) != case["ids"] {
                wrong.push(format!("{name} {text:?}: {:?} {ids:?}, not {}", encoding.get_tokens(), case["ids"]));
            }
        }
    }
    assert!(wrong.is_empty() && count > 100, "{count} texts: {}", wrong.join("\n"));
}

/// Tests a folder of LLaMA-2's kind as transformers reads it: special tokens, and the token that begins a document.
#[test]
fn special_tokens_are_those_of_transformers() {
    let goldens = goldens();
    let tokenizer = tokenizer(&model("bpe_bytes"), &goldens["llama_config"]);
    for case in goldens["llama"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = tokenizer.encode(text, true).unwrap().get_ids().to_vec();
        assert_eq!(json!(ids), case["ids"], "{text:?}");
    }
}

#[test]
fn added_tokens_take_the_rows_that_they_name() {
    let bytes = model("bpe_bytes");
    let rows = proto::Model::parse(&bytes).unwrap().pieces.len();
    let config = json!({"added_tokens_decoder": {(rows + 3).to_string(): {"content": "<|mine|>", "special": true},
        (rows - 1).to_string(): {"content": "<|taken|>", "special": true}}, "add_bos_token": true, "bos_token": "<s>"});
    let tokenizer = tokenizer(&bytes, &config);
    assert_eq!(tokenizer.token_to_id("<|mine|>"), Some(rows as u32 + 3));
    assert_eq!(tokenizer.token_to_id("<|taken|>"), Some(rows as u32 - 1));
    let ids = tokenizer.encode("<|mine|><|taken|>", true).unwrap().get_ids().to_vec();
    assert_eq!(ids, [1, rows as u32 + 3, rows as u32 - 1]);
    let far = json!({"<far>": 1u64 << 40});
    assert!(of_bytes(&bytes, &Json::Null, &far).unwrap_err().contains("an added token has id"));
    // Each is near the one before it, but the last is far from the model's.
    let rising = json!({"<a>": rows + 60_000, "<b>": rows + 120_000});
    assert!(of_bytes(&bytes, &Json::Null, &rising).unwrap_err().contains(&format!("has {rows} pieces")));
}

/// Tests a file such as that of Gemma's models: blanks are kept, none is put before a text, and runs of them are pieces that the user
/// defined.
#[test]
fn user_defined_pieces_of_blanks_are_found() {
    // An unknown piece (2), a letter, a blank, and two blanks that the user defined (4).
    let pieces = b"\x0a\x09\x0a\x05<unk>\x18\x02\x0a\x03\x0a\x01a\x0a\x05\x0a\x03\xe2\x96\x81\
        \x0a\x0a\x0a\x06\xe2\x96\x81\xe2\x96\x81\x18\x04";
    // Neither a blank before texts (3) nor fewer blanks (4).
    let bytes = [&pieces[..], b"\x1a\x04\x18\x00\x20\x00"].concat();
    let encoding = tokenizer(&bytes, &Json::Null).encode("a  a a", false).unwrap();
    assert_eq!(encoding.get_ids(), [1, 3, 1, 2, 1]);
    assert_eq!(tokenizer(&bytes, &Json::Null).decode(&[1, 3, 1], false).unwrap(), "a  a");
}

#[test]
fn damaged_files_are_errors() {
    let bytes = model("unigram_bytes");
    for len in (0..bytes.len()).step_by(bytes.len() / 97) {
        let _ = of_bytes(&bytes[..len], &Json::Null, &Json::Null);
    }
    for bytes in [&b""[..], b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0a\x02\x0a\x05", b"{\"a\": 1}"] {
        assert!(of_bytes(bytes, &Json::Null, &Json::Null).is_err());
    }
    let raw = b"\x0a\x03\x0a\x01a\x1a\x02\x28\x00";
    assert!(of_bytes(raw, &Json::Null, &Json::Null).unwrap_err().contains("escape_whitespaces is false"));
    // Words (3) are of another kind.
    assert!(of_bytes(b"\x0a\x03\x0a\x01a\x12\x02\x18\x03", &Json::Null, &Json::Null).unwrap_err().contains("kind 3"));
}
