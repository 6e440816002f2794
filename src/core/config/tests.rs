//! Whole loads: what is accepted, what it becomes, and what a user reads when it is not.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const GOOD: &str = "\
run: { name: t }
model: { load: MODEL, weights: random }
data:
  train: [{ path: DATA }]
train:
  steps: 10
  global_batch_size: 4
  lr: 1e-05
";

/// A directory with a model, a data file and a run's file.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new(yaml: &str) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["m/config.json", "m/tokenizer.json", "d.jsonl"] {
            bench.file(name, "{}");
        }
        bench.file("vlm.yaml", yaml);
        bench
    }

    fn file(&self, name: &str, text: &str) -> &Self {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let (model, data) = (self.dir.path().join("m"), self.dir.path().join("d.jsonl"));
        let text = text.replace("MODEL", model.to_str().unwrap()).replace("DATA", data.to_str().unwrap());
        fs::write(path, text).unwrap();
        self
    }

    fn load_with(&self, overrides: &[&str], env: &[(&str, &str)]) -> Result<Loaded, Report> {
        let overrides: Vec<String> = overrides.iter().map(|s| (*s).to_owned()).collect();
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        load(&self.dir.path().join("vlm.yaml"), &overrides, env)
    }

    fn load(&self, overrides: &[&str]) -> Loaded {
        self.load_with(overrides, &[]).unwrap_or_else(|report| panic!("{report}"))
    }

    /// What the user reads, without the directory's name.
    fn errors(&self, overrides: &[&str]) -> String {
        let report = self.load_with(overrides, &[]).map(|loaded| loaded.config).unwrap_err();
        report.to_string().replace(&format!("{}/", self.dir.path().display()), "")
    }
}

/// [`GOOD`] with one more section or key.
fn good_and(more: &str) -> String {
    format!("{GOOD}{more}")
}

#[test]
fn a_minimal_config_has_the_documented_defaults() {
    let loaded = Bench::new(GOOD).load(&[]);
    let config = &loaded.config;
    assert_eq!(config.run.dir, PathBuf::from("runs/t"));
    assert_eq!(config.checkpoint.dir, PathBuf::from("runs/t/checkpoints"));
    assert_eq!((config.run.seed, config.run.lanes, config.num_lanes()), (42, 4, 1));
    assert_eq!(config.device, Device::Cpu);
    assert_eq!(config.edges.tokens.credit.bytes(), 16 << 20);
    assert_eq!(config.scheduler.join_timeout.duration().as_secs(), 60);
    assert_eq!(config.data.train[0].format, Format::Auto);
    assert_eq!(config.train.optimizer.betas, [0.9, 0.95]);
    assert_eq!(config.train.precision, Precision::Float32);
    assert!(config.eval.is_none() && config.log.jsonl && config.data.shuffle);
}

#[test]
fn what_is_loaded_travels_as_json_and_yaml() {
    let bench = Bench::new(&good_and("eval: { path: DATA }\npools: { encoder: { threads: 2 } }\n"));
    let loaded = bench.load(&["model.overrides.vision_config.depth=2", "data.image.max_pixels=1e4"]);
    let json = serde_json::to_string(&loaded.config).unwrap();
    assert_eq!(serde_json::from_str::<RunConfig>(&json).unwrap(), loaded.config);
    bench.file("again.yaml", &loaded.to_yaml());
    let again = load(&bench.dir.path().join("again.yaml"), &[], std::iter::empty()).unwrap();
    assert_eq!(again.config, loaded.config);
    assert_eq!(loaded.config.model.overrides["vision_config"]["depth"], 2);
}

#[test]
fn a_model_may_be_given_inline_or_by_hub_id() {
    let bench = Bench::new(GOOD);
    let config =
        bench.load(&["model.load=null", "model.config={model_type: x, top-k: 2}", "model.tokenizer=a/b@v1"]).config;
    assert_eq!(config.model.config["top-k"], 2);
    assert_eq!(config.model.tokenizer_source().and_then(Source::hub_id).unwrap().to_string(), "a/b@v1");
    let config = bench.load(&["model.load=Qwen/Qwen3-0.6B", "model.weights=load"]).config;
    assert_eq!(config.model.tokenizer_source().unwrap().as_str(), "Qwen/Qwen3-0.6B");
    let text = bench.errors(&["model.load=null", "model.weights=load", "model.config={model_type: x}"]);
    assert!(text.contains("LF0105") && text.contains("no weights") && text.contains("model.weights: random"), "{text}");
}

#[test]
fn adapters_take_one_target_or_more() {
    let bench = Bench::new(GOOD);
    let lora = |text: &str| bench.load(&[text]).config.model.foundation.lora.unwrap();
    assert_eq!((lora("model.foundation.lora={}").r, lora("model.foundation.lora={}").all_linear()), (16, true));
    assert_eq!(lora("model.foundation.lora.target_modules=q_proj").target_modules, ["q_proj"]);
    assert_eq!(lora("model.foundation.lora={target-modules: [a, b], alpha: 8}").target_modules, ["a", "b"]);
    assert!(bench.load(&[]).config.model.foundation.lora.is_none());
}

#[test]
fn threads_and_lanes() {
    let bench = Bench::new(GOOD);
    let cores = std::thread::available_parallelism().unwrap().get();
    let auto = bench.load(&["pools.encoder.replicas=3"]).config;
    assert_eq!(auto.threads_for(PoolName::Encoder), (cores / 4).max(1));
    let fixed = bench.load(&["run.deterministic=true", "pools.foundation.threads=3"]).config;
    assert_eq!((fixed.threads_for(PoolName::Encoder), fixed.threads_for(PoolName::Foundation)), (1, 3));
    assert_eq!((auto.num_lanes(), fixed.num_lanes()), (3, 4));
}

#[test]
fn later_sources_win_and_all_are_told() {
    let bench = Bench::new(&format!("defaults: [base]\n{GOOD}"));
    bench.file("base.yaml", "train: { lr: 3e-3, clip_grad: 5.0, warmup-steps: 1, min_lr: 0 }\n");
    let env = [("LOONGFORGE__TRAIN__CLIP_GRAD", "2.5"), ("LOONGFORGE__RUN__SEED", "7"), ("OTHER", "x")];
    let loaded = bench.load_with(&["run.seed=9", "train.lr=2e-5"], &env).unwrap();
    let train = &loaded.config.train;
    assert_eq!((train.lr, train.clip_grad, train.warmup_steps, loaded.config.run.seed), (2e-5, 2.5, 1, 9));
    let told = loaded.show_origin().replace(&format!("{}/", bench.dir.path().display()), "");
    let line = |key: &str| {
        let line = told.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let wanted =
        "train.lr = 2e-05 from command line (override #2); file said 1e-05 (vlm.yaml:9); file said 0.003 (base.yaml:1)";
    assert_eq!(line("train.lr"), wanted);
    let wanted = "run.seed = 9 from command line (override #1); environment said 7 (LOONGFORGE__RUN__SEED)";
    assert_eq!(line("run.seed"), wanted);
    let wanted = "train.clip_grad = 2.5 from environment (LOONGFORGE__TRAIN__CLIP_GRAD); file said 5.0 (base.yaml:1)";
    assert_eq!(line("train.clip_grad"), wanted);
    assert_eq!(line("run.lanes"), "run.lanes = 4 from schema default");
    assert_eq!(line("train.warmup_steps"), "train.warmup_steps = 1 from base.yaml:1");
}

#[test]
fn an_unknown_key_on_the_command_line_reads_as_documented() {
    let text = Bench::new(GOOD).errors(&["train.micro_batchsize=1"]);
    let wanted = "\
error[LF0102]: unknown key `train.micro_batchsize`
  ╭─ command line, override #1
  │  train.micro_batchsize=1
  │        ───────┬───────  did you mean `micro_batch_size`?
  ╰─ help: the keys of `train` are phase, steps, global_batch_size, micro_batch_size, precision, lr, min_lr, \
schedule, warmup_steps, clip_grad, optimizer, on_nonfinite

1 error in the config";
    assert_eq!(text, wanted);
}

#[test]
fn a_wrong_value_in_the_file_reads_as_documented() {
    let text = Bench::new(&GOOD.replace("lr: 1e-05", "lr: fast  # really")).errors(&[]);
    let wanted = "\
error[LF0103]: `train.lr`: expected a number, found `fast`
  ╭─ vlm.yaml:8:7
  │    lr: fast  # really
  │        ────
  ╰─ help: Peak learning rate.

1 error in the config";
    assert_eq!(text, wanted);
}

/// Extra text, or overrides after `$ `; and what the error must say.
#[test]
fn one_mistake_at_a_time() {
    let cases: &[(&str, &[&str])] = &[
        // unknown keys
        (
            "trian: {}\n",
            &["LF0102", "`trian`", "vlm.yaml:9:1", "did you mean `train`?", "the keys of the top level are run"],
        ),
        ("lr: 1\n", &["LF0102", "`lr`", "vlm.yaml:9:1", "did you mean `train.lr`?"]),
        ("pools: { encoder: { replica: 2 } }\n", &["LF0102", "`pools.encoder.replica`", ":9:21", "`replicas`"]),
        ("$ data.train.0.file=x", &["LF0102", "`data.train.0.file`", "override #1"]),
        ("$ +train.zzz=1", &["LF0102", "unknown key `train.zzz`"]),
        // wrong types
        ("device: gpu\n", &["LF0103", ":9:9", "`cpu`, `cuda` or `cuda:N`, found `gpu`"]),
        ("edges: { pixels: { credit: 64 } }\n", &["LF0103", ":9:28", "a bare number needs a unit", "such as `64MiB`"]),
        ("scheduler: { join_timeout: 60 }\n", &["LF0103", ":9:28", "a bare number needs a unit", "such as `60s`"]),
        ("scheduler: { join_timeout: 60 secs }\n", &["LF0103", "unknown unit `secs`"]),
        (
            "log: { jsonl: yes }\n",
            &["LF0103", ":9:15", "expected `true` or `false`, found `yes`", "did you mean `true`?"],
        ),
        (
            "log: { level: wran }\n",
            &["LF0103", "expected `error`, `warn`, `info`, `debug` or `trace`", "did you mean `warn`?"],
        ),
        ("log: 3\n", &["LF0103", "`log`: expected a map of keys, found `3`"]),
        ("$ train.steps=1.5", &["LF0103", "expected an integer, found `1.5`", "override #1"]),
        ("$ train.lr='1e-5'", &["LF0103", "a number without quotes"]),
        ("$ train.lr=null", &["LF0103", "`train.lr`: expected a number, found null"]),
        ("$ data.train={}", &["LF0103", "`data.train`: expected a list"]),
        ("$ pools.encoder.threads=many", &["LF0103", "`auto` or a number"]),
        ("$ train.optimizer.betas=[0.9]", &["LF0104", "expected 2 items, found 1"]),
        // ranges
        ("$ train.steps=0", &["LF0104", "`train.steps`: must be at least 1, found `0`"]),
        ("$ train.lr=-1", &["LF0104", "must be above 0, found `-1`"]),
        ("$ train.global_batch_size=0", &["LF0104", "at least 1"]),
        ("$ data.pack.max_tokens=0", &["LF0104", "`data.pack.max_tokens`"]),
        ("$ data.train=[]", &["LF0104", "`data.train`: expected at least 1 item"]),
        ("$ run.name=", &["LF0104", "`run.name`: must not be empty"]),
        ("$ run.seed=-1", &["LF0104", "`run.seed`"]),
        ("$ train.optimizer.betas=[0.9, 1.0]", &["LF0104", "`train.optimizer.betas.1`", "below 1, found `1`"]),
        ("$ edges.tokens.credit=0B", &["LF0104", "`edges.tokens.credit`"]),
        // combinations
        ("$ train.min_lr=1", &["LF0111", "`train.min_lr` 1.0 is above `train.lr` 1e-05", "override #1"]),
        ("$ train.warmup_steps=11", &["LF0111", "`train.warmup_steps` 11 is more than `train.steps` 10"]),
        ("pools: { placement: colocated, encoder: { replicas: 2 } }\n", &["LF0111", ":9:53", "colocated pools with 2"]),
        ("run2: 1\n", &["LF0102", "did you mean `run`?"]),
        ("model.x: 1\n", &["LF0102", "`model.x`"]),
        ("$ pools.foundation.replicas=5", &["LF0111", "`train.global_batch_size` 4 is less"]),
        ("data2: 1\n", &["LF0102"]),
        // missing
        ("$ ~train.lr", &["LF0105", "missing required key `train.lr`", "vlm.yaml:6:3", "Peak learning rate"]),
        ("eval: {}\n", &["LF0105", "missing required key `eval.path`", "vlm.yaml:9:7"]),
        // files
        ("$ data.train.0.path=nowhere/x.json", &["LF0112", "no such file: `nowhere/x.json`", "no directory `nowhere`"]),
        ("$ model.load=nowhere", &["LF0112", "`model.load`: no such directory"]),
        ("$ model.weights=load", &["LF0112", "`model.load`: no `.safetensors` weights", "model.weights: random"]),
        ("$ ~model.load", &["LF0105", "no model: `model.load` is missing", "vlm.yaml:2", "`loongforge models`"]),
        ("$ model={load: null, config: {model_type: x}}", &["LF0105", "no tokenizer", "`model.tokenizer` is missing"]),
        ("$ +model.path=x", &["LF0102", "`model.path` is now `model.load`", "write `load`"]),
        ("$ model.foundation.load=./m/weights", &["LF0112", "`model.foundation.load`: no such directory"]),
        ("$ model.foundation.lora={adapter: gone}", &["LF0112", "`model.foundation.lora.adapter`: no such directory"]),
        ("$ model.foundation.lora={r: 0}", &["LF0104", "`model.foundation.lora.r`: must be at least 1"]),
        ("$ model.foundation.lora={target_module: x}", &["LF0102", "did you mean `target_modules`?"]),
        ("$ checkpoint.merge_lora=true", &["LF0111", "`checkpoint.merge_lora` without adapters"]),
        ("$ model.mtp.loss_weight=-1", &["LF0104", "`model.mtp.loss_weight`"]),
        // the command line itself
        ("$ train.lr", &["LF0107", "has no `=`", "write `key=value`"]),
        ("$ train.lr.x=1", &["LF0107", "`train.lr` is a single value"]),
        ("$ ~train.min_lr", &["LF0107", "nothing to drop"]),
        // refusals
        ("log: { _target_: os.system }\n", &["LF0109", "`log._target_` is refused", ":9:8"]),
        ("$ run.name=${eval:1+1}", &["LF0109", "a config runs no code"]),
        ("$ +model.overrides._target_=x", &["LF0109", "`model.overrides._target_`"]),
        // interpolation
        ("$ run.dir=${run.nmae}", &["LF0108", "no key `run.nmae`", "did you mean `${run.name}`?"]),
        ("$ run.name=${run.dir}", &["LF0108", "in a circle"]),
        ("$ run.name=${oc.env:LOONGFORGE_TEST_UNSET}", &["LF0108", "is not set", "default"]),
        // YAML
        ("train: { lr: 1 }\n", &["LF0101", "duplicate key", "vlm.yaml:9:1"]),
        ("checkpoint: { keep-last: 1, keep_last: 2 }\n", &["LF0101", "duplicate key `checkpoint.keep_last`"]),
        ("log: [\n", &["LF0101", "not valid YAML: unclosed bracket", "vlm.yaml:9:6"]),
        ("log: { level: ${x.y} }\n", &["LF0101", "must be quoted"]),
    ];
    for (input, wanted) in cases {
        let text = match input.strip_prefix("$ ") {
            Some(text) => Bench::new(GOOD).errors(&[text]),
            None => Bench::new(&good_and(input)).errors(&[]),
        };
        for part in *wanted {
            assert!(text.contains(part), "{input}: no `{part}` in\n{text}");
        }
        assert!(text.ends_with("\n1 error in the config"), "{input}: more than one error\n{text}");
    }
}

#[test]
fn all_mistakes_at_once_in_the_order_of_the_file() {
    let yaml = "\
run: { nmae: t, lanes: 1, deterministic: true }
pools: { encoder: { replicas: 2 } }
model: { load: nowhere, image_encoder: { freeze: true }, image_projector: { freeze: true }, foundation: { freeze: true } }
data: { train: [{ path: gone.json, weight: -1 }] }
train: { steps: 0, lr: 1e-5, min_lr: 1, precision: bf-16 }
";
    let report =
        Bench::new(yaml).load_with(&["train.warmup_steps=-1"], &[("LOONGFORGE__LOG__LEVL", "info")]).unwrap_err();
    let found: Vec<(&str, usize)> =
        report.errors.iter().map(|e| (e.code, e.snippet.as_ref().map_or(0, |s| s.line))).collect();
    let wanted = [
        (code::UNKNOWN_KEY, 1),  // run.nmae
        (code::COMBINATION, 1),  // lanes < encoder replicas
        (code::NO_SUCH_FILE, 3), // model.load
        (code::COMBINATION, 3),  // both frozen
        (code::NO_SUCH_FILE, 4), // data file
        (code::OUT_OF_RANGE, 4), // weight
        (code::MISSING_KEY, 5),  // global_batch_size
        (code::OUT_OF_RANGE, 5), // steps
        (code::COMBINATION, 5),  // min_lr
        (code::WRONG_TYPE, 5),   // precision
        (code::OUT_OF_RANGE, 1), // override
        (code::UNKNOWN_KEY, 1),  // environment
    ];
    assert_eq!(found, wanted, "{report}");
}

#[test]
fn files_that_cannot_be_read() {
    let bench = Bench::new(GOOD);
    let text = |name: &str| load(&bench.dir.path().join(name), &[], std::iter::empty()).unwrap_err().to_string();
    assert!(text("vml.yaml").contains("LF0101") && text("vml.yaml").contains("vlm.yaml`?"), "{}", text("vml.yaml"));
    assert!(text("no/x.yaml").contains("no such config file"));
    assert!(text("m").contains("cannot read"));
    bench.file("list.yaml", "- a\n").file("empty.yaml", "");
    assert!(text("list.yaml").contains("a config is a map of keys, this is a list"));
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

/// A run of four files: a foundation and an optimizer from groups, a base, and the run's own.
fn composed() -> Bench {
    let defaults = "\
defaults:
  - base
  - models/qwen3@model.foundation: small
  - optim: adam
  - _self_
";
    let bench = Bench::new(&format!("{defaults}{GOOD}"));
    bench.file("base.yaml", "log: { level: debug }\ntrain: { lr: 1.0 }\n");
    bench.file("models/qwen3/small.yaml", "freeze: true\n");
    bench.file("models/qwen3/large.yaml", "defaults: [small]\nrecompute: all\n");
    bench.file("optim/adam.yaml", "# @package train.optimizer\nweight_decay: 0.0\n");
    bench.file("optim/sharp.yaml", "# @package _global_\ntrain: { optimizer: { eps: 1e-6 }, lr: 9.0 }\n");
    bench
}

#[test]
fn defaults_are_composed_and_chosen_from_the_command_line() {
    let bench = composed();
    let config = bench.load(&[]).config;
    assert!(config.model.foundation.freeze);
    assert_eq!(config.log.level, Level::Debug);
    assert_eq!((config.train.optimizer.weight_decay, config.train.lr), (0.0, 1e-5));
    let config = bench.load(&["models/qwen3@model.foundation=large", "optim=sharp"]).config;
    assert_eq!((config.model.foundation.freeze, config.model.foundation.recompute), (true, Recompute::All));
    assert_eq!((config.train.optimizer.eps, config.train.optimizer.weight_decay, config.train.lr), (1e-6, 0.1, 1e-5));
    let config =
        bench.load(&["~optim", "+models/qwen3@model.image_encoder=large", "~models/qwen3@model.foundation"]).config;
    assert_eq!(config.train.optimizer.weight_decay, 0.1);
    assert_eq!((config.model.image_encoder.recompute, config.model.foundation.freeze), (Recompute::All, false));
}

/// [`GOOD`] without a model of its own, under a `defaults` list.
fn built_in(defaults: &str) -> Bench {
    let text = GOOD.replace("{ load: MODEL, weights: random }", "{ tokenizer: MODEL, weights: random }");
    Bench::new(&format!("defaults: [{defaults}, _self_]\n{text}"))
}

#[test]
fn built_in_models_need_no_files() {
    let config = built_in("models/qwen3: qwen3_0_6b").load(&["model.config.num_hidden_layers=2"]).config;
    assert_eq!(
        (&config.model.config["model_type"], &config.model.config["num_hidden_layers"]),
        (&"qwen3".into(), &2.into())
    );
    let bench = built_in(
        "models/image_encoder: qwen2_5_vit, models/image_projector@model.image_projector: mlp, models/llama3@model.foundation: llama3_8b",
    );
    let model = bench.load(&[]).config.model;
    let types = model.parts().map(|(_, part)| part.config["model_type"].as_str().unwrap_or_default().to_owned());
    assert_eq!(types, ["qwen2_5_vl", "mlp", "llama"]);
    let model = bench.load(&["models/image_encoder=qwen3_vit"]).config.model;
    assert_eq!(model.image_encoder.config["model_type"], "qwen3_vl");
    assert!(!model.image_encoder.config.contains_key("window_size"));
}

#[test]
fn a_file_of_the_users_goes_before_a_built_in_one() {
    let bench = built_in("models/llama3@model.foundation: llama3_8b");
    bench.file("models/llama3/llama3_8b.yaml", "config: { model_type: mine }\n");
    assert_eq!(bench.load(&[]).config.model.foundation.config["model_type"], "mine");
    bench.file("models/llama3/tiny.yaml", "defaults: [llama3_70b]\nconfig: { num_hidden_layers: 1 }\n");
    let config = bench.load(&["models/llama3@model.foundation=tiny"]).config.model.foundation.config;
    assert_eq!((&config["num_hidden_layers"], &config["hidden_size"]), (&1.into(), &8192.into()));
}

#[test]
fn what_is_not_built_in_says_what_is() {
    let text = built_in("models/llama3@model.foundation: llama3_9b").errors(&[]);
    for part in
        ["no option `llama3_9b` in the group `models/llama3`", "did you mean `llama3_8b`?", "has llama3_70b, llama3_8b"]
    {
        assert!(text.contains(part), "{text}");
    }
    let text = built_in("models/lama3@model.foundation: llama3_8b").errors(&[]);
    assert!(text.contains("no group `models/lama3`") && text.contains("did you mean `models/llama3`?"), "{text}");
}

#[test]
fn self_says_where_the_file_itself_comes() {
    let bench = Bench::new(&format!("defaults: [_self_, base, {{optional gone: x}}]\n{GOOD}"));
    bench.file("base.yaml", "train: { lr: 1.0 }\n");
    assert_eq!(bench.load(&[]).config.train.lr, 1.0);
    bench.file("vlm.yaml", &format!("defaults: [base]\n{GOOD}"));
    assert_eq!(bench.load(&[]).config.train.lr, 1e-5);
}

#[test]
fn an_inner_list_can_be_overridden_from_outside() {
    let bench = Bench::new(&format!("defaults: [stack, {{override inner@model.image_encoder: b}}]\n{GOOD}"));
    bench.file("stack.yaml", "defaults: [{inner@model.image_encoder: a}]\n");
    bench.file("inner/a.yaml", "recompute: none\n").file("inner/b.yaml", "recompute: all\n");
    assert_eq!(bench.load(&[]).config.model.image_encoder.recompute, Recompute::All);
}

#[test]
fn what_cannot_be_composed_says_what_there_is() {
    let bench = composed();
    let text = bench.errors(&["models/qwen3@model.foundation=smal"]);
    for part in
        ["LF0106", "no option `smal` in the group `models/qwen3`", "did you mean `small`?", "has large, qwen3_0_6b"]
    {
        assert!(text.contains(part), "{text}");
    }
    let text = bench.errors(&["models/qwen@model.foundation=small"]);
    for part in ["no group `models/qwen@model.foundation`", "did you mean `models/qwen3@model.foundation`?", "`+models"]
    {
        assert!(text.contains(part), "{text}");
    }
    bench.file("base.yaml", "defaults: [other]\n").file("other.yaml", "defaults: [base]\n");
    let text = bench.errors(&[]);
    assert!(text.contains("goes in a circle: vlm.yaml -> base.yaml -> other.yaml -> base.yaml"), "{text}");
    assert!(text.contains("other.yaml:1:12"), "{text}");
    bench.file("base.yaml", "defaults: {a: b}\n");
    assert!(bench.errors(&[]).contains("`defaults` is a list"));
    bench.file("vlm.yaml", &format!("defaults: [nogroup: x, [], {{a: 1, b: 2}}]\n{GOOD}"));
    let text = bench.errors(&[]);
    assert!(
        text.contains("no group `nogroup`") && text.contains("not an entry") && text.contains("3 errors"),
        "{text}"
    );
}

#[test]
fn a_mistake_in_an_included_file_names_that_file() {
    let bench = composed();
    bench.file("models/qwen3/small.yaml", "# comment\nfreze: true\n");
    let text = bench.errors(&[]);
    for part in ["unknown key `model.foundation.freze`", "models/qwen3/small.yaml:2:1", "did you mean `freeze`?"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn names_that_look_like_numbers_stay_as_written() {
    assert_eq!(Bench::new(&GOOD.replace("name: t", "name: 007")).load(&[]).config.run.name, "007");
    assert_eq!(Bench::new(GOOD).load(&["run.name=1e5"]).config.run.name, "1e5");
}

#[test]
fn a_text_is_a_config_too() {
    let bench = Bench::new(GOOD);
    let text = fs::read_to_string(bench.dir.path().join("vlm.yaml")).unwrap();
    let loaded = load_text(&text).unwrap();
    assert_eq!(loaded.config, bench.load(&[]).config);
    let report = load_text(&text.replace("steps", "stepz")).unwrap_err().to_string();
    assert!(report.contains("unknown key `train.stepz`") && report.contains("did you mean `steps`?"), "{report}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_file_is_a_config_or_an_error(text in "([a-z_]{1,5}|[-:{}\\[\\]&*!|>'\"%@`?,#. \n\t$~=<]|train|run|defaults|_self_|\\PC){0,60}") {
        let bench = Bench::new("");
        fs::write(bench.dir.path().join("vlm.yaml"), &text).unwrap();
        let report = bench.load_with(&[], &[]).unwrap_err();
        prop_assert!(!report.errors.is_empty() && !report.to_string().is_empty());
    }

    #[test]
    fn any_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bench = Bench::new("");
        fs::write(bench.dir.path().join("vlm.yaml"), &bytes).unwrap();
        prop_assert!(bench.load_with(&[], &[]).is_err());
    }

    #[test]
    fn any_override_is_applied_or_an_error(
        text in "(\\+|\\+\\+|~)?(train|run|data|model|[a-z]{1,3}|[0-9])?([.@/\\[\\]-]?(lr|name|train|overrides|0|[a-z]{1,3})){0,4}=?(\\PC|[\\[\\]{}'\":,$.0-9e-]){0,20}",
        name in "LOONGFORGE__[A-Z_]{0,12}",
    ) {
        let bench = Bench::new(GOOD);
        match bench.load_with(&[&text], &[(&name, &text)]) {
            Ok(loaded) => prop_assert!(!loaded.show_origin().is_empty()),
            Err(report) => prop_assert!(!report.to_string().is_empty()),
        }
    }
}

/// `docs/configuration.md` is made from the schema; `UPDATE_DOCS=1` writes it anew.
#[test]
fn the_documentation_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let wanted = super::docs::markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/configuration.md is stale: run `UPDATE_DOCS=1 cargo test -p loongforge-core config`"
    );
}
