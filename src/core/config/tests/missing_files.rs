//! Tests what a user reads when files and folders that a config names are missing or are others.

use super::*;

#[test]
fn files_that_cannot_be_read() {
    let bench = Bench::new(GOOD);
    let text = |name: &str| load(&bench.dir.path().join(name), &[], std::iter::empty()).unwrap_err().to_string();
    assert!(text("vml.yaml").contains("LF0101") && text("vml.yaml").contains("vlm.yaml`?"), "{}", text("vml.yaml"));
    assert!(text("no/x.yaml").contains("no such config file"));
    assert!(text("m").contains("cannot read"));
    bench.file("list.yaml", "- a\n").file("empty.yaml", "");
    assert!(text("list.yaml").contains("a config must be a map of keys, found a list"));
    assert!(text("empty.yaml").contains("missing required key `train.steps`"));
    fs::write(bench.dir.path().join("bytes.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    assert!(text("bytes.yaml").contains("not UTF-8"));
}

#[test]
fn a_config_for_other_machines_names_files_that_are_not_here() {
    let bench = Bench::new(&GOOD.replace("MODEL", "/scratch/model").replace("DATA", "/scratch/train.jsonl"));
    let elsewhere = |more: &[&str]| {
        let overrides: Vec<String> = more.iter().map(|text| (*text).to_owned()).collect();
        load_elsewhere(&bench.dir.path().join("vlm.yaml"), &overrides, std::iter::empty())
    };
    assert!(bench.errors(&[]).contains("no such file: `/scratch/train.jsonl`"));
    assert_eq!(elsewhere(&[]).unwrap().config.data.train[0].path, PathBuf::from("/scratch/train.jsonl").into());
    let report = elsewhere(&["train.lr=-1"]).unwrap_err();
    assert_eq!(report.errors.iter().map(|error| error.code).collect::<Vec<_>>(), [code::OUT_OF_RANGE], "{report}");
}

#[test]
fn folders_of_models_are_told_by_what_is_in_them() {
    let bench = Bench::new(GOOD);
    for name in ["lora/config.json", "lora/tokenizer.json", "lora/adapter_config.json", "qwen/config.json"] {
        bench.file(name, "{}");
    }
    let load = |name: &str| format!("model.load={}", bench.dir.path().join(name).display());
    let text = bench.errors(&["model.weights=load", &load("lora")]);
    assert!(text.contains("`lora` holds adapters, not a model") && text.contains("lora.adapter"), "{text}");
    // A checkpoint of a run with adapters.
    bench.file("lora/adapter_model.safetensors", "").file("lora/optimizer-foundation.safetensors", "");
    let text = bench.errors(&["model.weights=load", &load("lora")]);
    assert!(text.contains("`lora` holds adapters, not a model"), "{text}");
    // Merged, with the adapters beside it.
    bench.file("lora/model.safetensors", "").load(&["model.weights=load", &load("lora")]);
    // As `checkpoint export` writes adapters for ComfyUI.
    bench.file("comfy/lora.safetensors", "");
    let adapter = format!("model.foundation.lora={{adapter: {}}}", bench.dir.path().join("comfy").display());
    let text = bench.errors(&["model.weights=load", &load("lora"), &adapter]);
    assert!(text.contains("name a file of adapters: ") && text.contains("comfy/lora.safetensors"), "{text}");
    assert!(bench.errors(&[&load("qwen")]).contains("no `tokenizer.json`"));
    bench.file("qwen/qwen.tiktoken", "").load(&[&load("qwen")]);
    bench.file("run/checkpoints/step-00000002/config.json", "{}");
    let text = bench.errors(&[&load("run")]);
    assert!(
        text.contains("`run` is the folder of a run; its newest checkpoint is `run/checkpoints/step-00000002`"),
        "{text}"
    );
    assert_eq!(text.matches("error[").count(), 1, "{text}");
}

#[test]
fn folders_to_write_into_are_no_urls() {
    let bench = Bench::new(GOOD);
    let run = bench.errors(&["run.dir=s3://bucket/run"]);
    assert!(run.contains("`run.dir`: `s3://bucket/run` is a URL") && run.contains("`checkpoint.upload`"), "{run}");
    assert!(!run.contains("`checkpoint.dir`"), "{run}");
    for key in ["checkpoint.dir", "log.wandb.dir", "log.mlflow.dir", "data.index_dir"] {
        let text = bench.errors(&[&format!("{key}=file:///a")]);
        assert!(text.contains("LF0104") && text.contains(&format!("`{key}`: `file:///a` is a URL")), "{text}");
    }
}

#[test]
fn a_file_here_is_named_by_its_path_and_not_by_a_url() {
    let bench = Bench::new(GOOD);
    for key in ["data.train.0.path", "eval.path"] {
        let text = bench.errors(&[&format!("{key}=file:///a.jsonl")]);
        assert!(text.contains(&format!("`{key}`: `file:///a.jsonl` is the URL")), "{text}");
        assert!(text.contains("write its path, without `file://`"), "{text}");
    }
}
