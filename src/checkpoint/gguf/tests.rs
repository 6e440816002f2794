//! Tests that files are those of llama.cpp's converter: `tests/oracle/gguf_roundtrip.py` wrote what is expected.

use super::*;
use crate::checkpoint::{Export, export};
use loongforge_core::checkpoint::MANIFEST;
use loongforge_torch::train::hf::write_tensor_file;
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tch::Device;

const NAMES: [&str; 4] = ["llama3", "mixtral", "qwen2", "qwen3_moe"];
/// Keys that the converter does not write, or guesses from a folder's name.
const OWN: [&str; 4] =
    ["general.name", "general.size_label", "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.unknown_token_id"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/checkpoint/gguf/goldens").join(name)
}

fn json_of(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns a copy of a golden's model, to be changed.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

fn edit(folder: &Path, file: &str, change: impl Fn(&mut Json)) {
    let mut json = json_of(&folder.join(file));
    change(&mut json);
    fs::write(folder.join(file), json.to_string()).unwrap();
}

/// A file's bytes, read from its front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk::<N>().unwrap();
        self.0 = rest;
        *taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> usize {
        u64::from_le_bytes(self.take()) as usize
    }

    fn text(&mut self) -> String {
        let len = self.u64();
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    fn value(&mut self, kind: u32) -> Json {
        match kind {
            4 => json!(self.u32()),
            5 => json!(self.u32() as i32),
            6 => json!(f64::from(f32::from_le_bytes(self.take()))),
            7 => json!(self.take::<1>()[0] != 0),
            8 => json!(self.text()),
            9 => {
                let (kind, len) = (self.u32(), self.u64());
                (0..len).map(|_| self.value(kind)).collect()
            }
            other => panic!("type {other}"),
        }
    }
}

/// Returns metadata, and of each tensor its type, shape and the beginning of its SHA-256, as in `expected.json`.
fn read(path: &Path) -> (Map<String, Json>, BTreeMap<String, Json>) {
    let bytes = fs::read(path).unwrap();
    let mut reader = Reader(&bytes);
    assert_eq!((reader.take(), reader.u32()), (*b"GGUF", 3));
    let (num_tensors, num_pairs) = (reader.u64(), reader.u64());
    let mut metadata = Map::new();
    for _ in 0..num_pairs {
        let (key, kind) = (reader.text(), reader.u32());
        let value = reader.value(kind);
        assert!(metadata.insert(key.clone(), value).is_none(), "{key} twice");
    }
    let mut described = Vec::new();
    for _ in 0..num_tensors {
        let name = reader.text();
        let axes = reader.u32();
        let mut shape: Vec<usize> = (0..axes).map(|_| reader.u64()).collect();
        shape.reverse();
        described.push((name, shape, reader.u32(), reader.u64()));
    }
    let begin = (bytes.len() - reader.0.len()).next_multiple_of(32);
    let mut end = begin;
    let mut tensors = BTreeMap::new();
    for (name, shape, kind, offset) in described {
        let values: usize = shape.iter().product();
        let (kind, len) = match kind {
            0 => ("F32", values * 4),
            1 => ("F16", values * 2),
            8 => ("Q8_0", values / 32 * 34),
            30 => ("BF16", values * 2),
            other => panic!("type {other}"),
        };
        assert_eq!(begin + offset, end, "{name} follows the one before");
        tensors.insert(name, json!([kind, shape, digest(&bytes[begin + offset..begin + offset + len])]));
        end = (begin + offset + len).next_multiple_of(32);
    }
    assert_eq!(bytes.len(), end);
    (metadata, tensors)
}

fn digest(bytes: &[u8]) -> String {
    loongforge_core::text::hex(Sha256::digest(bytes))[..16].to_owned()
}

/// Returns a long list as `expected.json` has it.
fn shortened(value: &Json) -> Json {
    let Some(list) = value.as_array().filter(|list| list.len() > 20) else { return value.clone() };
    let bytes = match &list[0] {
        Json::Number(number) if number.is_f64() => {
            list.iter().flat_map(|value| (value.as_f64().unwrap() as f32).to_le_bytes()).collect()
        }
        _ => {
            let text = |value: &Json| value.as_str().map_or(value.to_string(), str::to_owned);
            list.iter().map(text).collect::<Vec<_>>().join("\0").into_bytes()
        }
    };
    json!([list.len(), digest(&bytes)])
}

#[test]
fn files_are_those_of_llama_cpps_converter() {
    let out = tempfile::tempdir().unwrap();
    for name in NAMES {
        let expected = json_of(&golden(name).join("expected.json"));
        for (dtype, kind) in
            [("f32", TensorType::F32), ("f16", TensorType::F16), ("bf16", TensorType::Bf16), ("q8_0", TensorType::Q8_0)]
        {
            let path = out.path().join(format!("{name}-{dtype}.gguf"));
            let exported = export_gguf(&golden(name), &path, None, Some(kind), false).unwrap();
            assert!(exported.said.is_empty() && exported.bytes < fs::metadata(&path).unwrap().len());
            let (metadata, tensors) = read(&path);
            assert_eq!(json!(tensors), expected[dtype]["tensors"], "{name} {dtype}");
            assert_eq!(metadata["general.file_type"], expected[dtype]["file_type"]);
            let theirs = expected["metadata"].as_object().unwrap();
            for (key, value) in theirs.iter().filter(|(key, _)| *key != "tokenizer.ggml.add_sep_token") {
                assert_eq!(metadata.get(key).map(shortened).as_ref(), Some(value), "{name} {key}");
            }
            let known =
                |key: &String| theirs.contains_key(key) || OWN.contains(&key.as_str()) || key == "general.file_type";
            assert_eq!(metadata.keys().find(|key| !known(key)), None, "{name}");
        }
    }
}

#[test]
fn the_type_is_the_checkpoints_and_files_are_never_replaced() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("new/it.gguf");
    export_gguf(&golden("qwen2"), &path, None, None, false).unwrap();
    let (metadata, tensors) = read(&path);
    assert_eq!((&metadata["general.file_type"], &metadata["general.name"]), (&json!(32), &json!("qwen2")));
    // Tied: there is no head of its own.
    assert!(!tensors.contains_key("output.weight") && tensors["blk.0.attn_norm.weight"][0] == "F32");
    let error = export_gguf(&golden("qwen2"), &path, None, None, false).unwrap_err().to_string();
    assert!(error.contains("it.gguf: already exists"), "{error}");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    let link = out.path().join("link.gguf");
    std::os::unix::fs::symlink(out.path().join("nothing"), &link).unwrap();
    let error = export_gguf(&golden("qwen2"), &link, None, None, false).unwrap_err().to_string();
    assert!(error.contains("link.gguf: already exists"), "{error}");
    let usual = out.path().join("usual");
    fs::write(&usual, "").unwrap();
    let [written, usual] = [path, usual].map(|path| path.metadata().unwrap().permissions().mode());
    assert_eq!(written, usual);
}

#[test]
fn the_model_of_a_run_is_called_as_the_run() {
    let (folder, out) = (copy("qwen2"), tempfile::tempdir().unwrap());
    let manifest = Manifest { config: json!({"run": {"name": "tuned"}}), ..Manifest::of_files(1, BTreeMap::new()) };
    fs::write(folder.path().join(MANIFEST), manifest.to_text()).unwrap();
    let path = out.path().join("it.gguf");
    export_gguf(folder.path(), &path, None, None, false).unwrap();
    let (metadata, _) = read(&path);
    assert_eq!(metadata["general.name"], json!("tuned"));
}

#[test]
fn what_llama_cpp_has_no_place_for_is_refused_by_name() {
    let refused = |name: &str, file: &str, change: &dyn Fn(&mut Json), part: &str| {
        let folder = copy(name);
        edit(folder.path(), file, change);
        let path = folder.path().join("it.gguf");
        let error = export_gguf(folder.path(), &path, None, None, false).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(file), "{error:?} lacks {part:?} or {file:?}");
        assert!(!path.exists());
    };
    let set = |key: &'static str, value: Json| move |json: &mut Json| json[key] = value.clone();
    let model = |key: &'static str, value: Json| move |json: &mut Json| json["model"][key] = value.clone();
    refused(
        "llama3",
        "config.json",
        &set("model_type", json!("olmo2")),
        "\"olmo2\"; GGUF files can be written for llama, mistral",
    );
    refused("llama3", "config.json", &set("hidden_act", json!("gelu")), "hidden_act");
    let dynamic = json!({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0});
    refused(
        "llama3",
        "config.json",
        &set("rope_parameters", dynamic),
        "rope_scaling: llama.cpp does not support rope_type: dynamic",
    );
    refused("qwen3_moe", "config.json", &set("norm_topk_prob", json!(false)), "norm_topk_prob");
    refused("llama3", "tokenizer.json", &model("type", json!("WordPiece")), "model.type is WordPiece");
    refused("llama3", "tokenizer.json", &model("merges", json!([])), "model.merges is empty");
    refused("qwen2", "tokenizer.json", &model("ignore_merges", json!(true)), "ignore_merges: true");
    let other = |json: &mut Json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("a+");
    refused("qwen2", "tokenizer.json", &other, "splits by \"a+\"");
    refused(
        "qwen2",
        "tokenizer.json",
        &set("normalizer", json!({"type": "Lowercase"})),
        "normalizer is {\"type\":\"Lowercase\"}",
    );
    let id = |json: &mut Json| json["added_tokens"][0]["id"] = json!(352);
    refused("qwen2", "tokenizer.json", &id, "has the id 352, but the model has only 352 rows");
}

#[test]
fn pieces_without_their_file_have_scores_in_the_order_of_merges() {
    let folder = tempfile::tempdir().unwrap();
    let (json, _) = loongforge_core::data::tokenizer_json(&golden("mixtral"), &Json::Null).unwrap();
    let with_file = Files::read(&golden("mixtral")).unwrap();
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let without = Files::read(folder.path()).unwrap();
    let order = |files: &Files| {
        let mut tokens = word_pieces::tokens(files, 352).unwrap();
        tokens.retain(|token| token.kind == tokens::NORMAL && token.text.chars().count() > 1);
        tokens.sort_by(|a, b| b.score.total_cmp(&a.score));
        tokens.into_iter().map(|token| token.text).collect::<Vec<_>>()
    };
    assert!(order(&with_file).len() > 30);
    assert_eq!(order(&with_file), order(&without));
    let apart = |json: &mut Json| {
        let merges = json["model"]["merges"].as_array_mut().unwrap();
        let first = merges[0].clone();
        merges.push(first);
    };
    edit(folder.path(), "tokenizer.json", apart);
    let error = word_pieces::tokens(&Files::read(folder.path()).unwrap(), 352).unwrap_err();
    assert!(error.contains("are not next to each other"), "{error}");
}

#[test]
fn a_sliding_window_is_told() {
    let folder = copy("mixtral");
    edit(folder.path(), "config.json", |json| json["sliding_window"] = json!(64));
    let exported = export_gguf(folder.path(), &folder.path().join("it.gguf"), None, None, false).unwrap();
    assert!(exported.said.concat().contains("up to 64 tokens both compute the same"), "{:?}", exported.said);
}

#[test]
fn adapters_are_added_as_for_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("adapter")).unwrap();
    let base = golden("llama3").display().to_string();
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
        "base_model_name_or_path": base, "bias": "none"});
    fs::write(at("adapter/adapter_config.json"), config.to_string()).unwrap();
    let tensors: Vec<(String, Tensor)> = (0..2)
        .flat_map(|layer| {
            let name = format!("base_model.model.model.layers.{layer}.self_attn.q_proj");
            let values = |rows: i64, columns: i64| {
                Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)).sin().view([rows, columns])
            };
            [(format!("{name}.lora_A.weight"), values(2, 32)), (format!("{name}.lora_B.weight"), values(32, 2))]
        })
        .collect();
    write_tensor_file(&tensors, &[("format", "pt")], at("adapter").as_path(), "adapter_model.safetensors").unwrap();
    let how = Export { base: None, dtype: None, max_shard_size: u64::MAX, dequantize: false, for_transformers: true };
    export(&at("adapter"), &at("merged"), &how).unwrap();
    let kind = Some(TensorType::Bf16);
    export_gguf(&at("adapter"), &at("a.gguf"), None, kind, false).unwrap();
    export_gguf(&at("merged"), &at("b.gguf"), None, kind, false).unwrap();
    export_gguf(&golden("llama3"), &at("c.gguf"), None, kind, false).unwrap();
    let [ours, merged, plain] = ["a.gguf", "b.gguf", "c.gguf"].map(|name| read(&at(name)).1);
    assert_eq!(ours, merged);
    let changed: Vec<&String> = ours.keys().filter(|name| ours[*name] != plain[*name]).collect();
    assert_eq!(changed, ["blk.0.attn_q.weight", "blk.1.attn_q.weight"]);
}

/// The run has trained adapters and the head, and not the embedding.
#[test]
fn tokens_that_a_run_has_added_are_in_both_exports_of_its_adapters() {
    let folder = copy("llama3");
    let at = |name: &str| folder.path().join(name);
    let base = golden("llama3").display().to_string();
    let config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"],
        "modules_to_save": ["lm_head"], "base_model_name_or_path": base, "bias": "none"});
    fs::write(at("adapter_config.json"), config.to_string()).unwrap();
    fs::remove_file(at("model.safetensors")).unwrap();
    let of_base = Checkpoint::open(&golden("llama3")).unwrap();
    let values =
        |checkpoint: &Checkpoint, name: &str| checkpoint.read(checkpoint.get(name).unwrap(), Kind::Float).unwrap();
    let table = values(&of_base, "model.embed_tokens.weight");
    let (rows, width) = table.size2().unwrap();
    edit(folder.path(), "config.json", |json| json["vocab_size"] = json!(rows + 3));
    let ones = |shape: [i64; 2]| Tensor::ones(shape, (Kind::Float, Device::Cpu));
    let head = [("lm_head.weight".to_owned(), ones([rows + 3, width]))];
    let q_proj = [("lora_A", [1, width]), ("lora_B", [width, 1])]
        .map(|(part, shape)| (format!("model.layers.0.self_attn.q_proj.{part}.weight"), ones(shape)));
    let named = |(name, tensor): (String, Tensor)| (format!("base_model.model.{name}"), tensor);
    let tensors: Vec<_> = head.into_iter().chain(q_proj).map(named).collect();
    write_tensor_file(&tensors, &[("format", "pt")], folder.path(), "adapter_model.safetensors").unwrap();
    let dtype = Some(Dtype::F32);
    let how = Export { base: None, dtype, max_shard_size: u64::MAX, dequantize: false, for_transformers: true };
    let said = export(folder.path(), &at("merged"), &how).unwrap().said.join("\n");
    assert!(said.contains(&format!("embed_tokens.weight has {} rows, more than in the base", rows + 3)), "{said}");
    let merged = Checkpoint::open(&at("merged")).unwrap();
    assert_eq!(values(&merged, "lm_head.weight"), ones([rows + 3, width]));
    let grown = values(&merged, "model.embed_tokens.weight");
    assert_eq!(grown.narrow(0, 0, rows), table);
    let mean = table.mean_dim([0i64].as_slice(), true, Kind::Float).expand([3, width], false);
    assert!((grown.narrow(0, rows, 3) - mean).abs().max().double_value(&[]) < 1e-5);
    let kind = Some(TensorType::F32);
    export_gguf(folder.path(), &at("a.gguf"), None, kind, false).unwrap();
    export_gguf(&at("merged"), &at("b.gguf"), None, kind, false).unwrap();
    assert_eq!(read(&at("a.gguf")).1, read(&at("b.gguf")).1);
}
