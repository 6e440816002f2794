//! Tests of the texts that are accepted, and of the values that they become.

use super::*;
use crate::message::{PoolName, Tower, TowerSet};

#[test]
fn a_minimal_config_has_the_documented_defaults() {
    let loaded = Bench::new(GOOD).load(&[]);
    let config = &loaded.config;
    assert_eq!(config.run.dir, PathBuf::from("runs/t"));
    assert_eq!(config.checkpoint.dir, PathBuf::from("runs/t/checkpoints"));
    assert_eq!((config.run.seed, config.run.lanes, config.num_lanes(&config.pools.encoder)), (42, 4, 1));
    assert_eq!(config.device, Device::Auto);
    assert!(crate::config::docs::markdown().contains("or `cuda:N`. Default: `auto`."));
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
    assert_eq!((lora("model.foundation.lora={}").rank(), lora("model.foundation.lora={}").all_linear()), (16, true));
    assert_eq!(lora("model.foundation.lora.target_modules=q_proj").target_modules.unwrap(), ["q_proj"]);
    assert_eq!(lora("model.foundation.lora={target-modules: [a, b], alpha: 8}").target_modules.unwrap(), ["a", "b"]);
    let ranks = lora("model.foundation.lora={rank_pattern: {q-proj: 4, '*.v_proj': 2}, use_dora: true}");
    assert_eq!((ranks.rank_of("a.q-proj"), ranks.rank_of("b.v_proj"), ranks.use_dora), (4, 2, Some(true)));
    assert!(bench.load(&[]).config.model.foundation.lora.is_none());
}

#[test]
fn a_data_set_may_be_its_path_alone() {
    let bench = Bench::new(&GOOD.replace("[{ path: DATA }]", "DATA"));
    let other = bench.file("e.jsonl", "{}").dir.path().join("e.jsonl").display().to_string();
    let train = |overrides: &[&str]| bench.load(overrides).config.data.train;
    let one = train(&[]);
    assert_eq!((one.len(), one[0].weight), (1, 1.0));
    assert_eq!(train(&[&format!("data.train={other}")]), [TrainFile::new(other.as_str())]);
    assert_eq!(train(&[&format!("data.train={{path: {other}}}")]), [TrainFile::new(other.as_str())]);
    let two = train(&[&format!("data.train=[{other}, {{path: {other}, weight: 2}}]")]);
    assert_eq!(two, [TrainFile::new(other.as_str()), TrainFile { weight: 2.0, ..TrainFile::new(other.as_str()) }]);
    let of_env = bench.load_with(&["data.train=${oc.env:SET}"], &[("SET", &other)]).unwrap();
    assert_eq!(of_env.config.data.train, [TrainFile::new(other.as_str())]);
    assert!(bench.errors(&["data.train=gone.jsonl"]).contains("no such file: `gone.jsonl`"));
    assert!(bench.errors(&["data.train=3"]).contains("`data.train`: expected a list"));
}

#[test]
fn held_out_samples_are_named_as_those_for_training_are() {
    let bench = Bench::new(GOOD);
    let folder = bench.file("tokens.idx", "").dir.path().display().to_string();
    for path in [format!("{folder}/tokens"), format!("{folder}/*.jsonl"), "s3://bucket/a.jsonl".to_owned()] {
        let eval = bench.load(&[&format!("eval={{path: '{path}', sets: {{b: '{path}'}}}}")]).config.eval.unwrap();
        assert_eq!(eval.file("b"), Some(TrainFile::new(path.as_str())));
        let sample = bench.load(&[&format!("sample={{prompts: '{path}'}}")]).config.sample.unwrap();
        assert_eq!(sample.prompts.to_str(), Some(path.as_str()));
    }
    let sets = format!("path: '{folder}/tokens', sets: {{b: '{folder}/*.jsonl'}}");
    let own = format!("eval={{{sets}, columns: {{audio: path}}, media_dir: '{folder}'}}");
    let eval = bench.load(&[&own]).config.eval.unwrap();
    for set in ["held_out", "b"] {
        let TrainFile { columns, media_dir, .. } = eval.file(set).unwrap();
        assert_eq!((&columns["audio"], media_dir.as_ref()), (&"path".to_owned(), Some(&folder)));
    }
    let limited = format!("eval={{{sets}, every_steps: 2, max_samples: 9, limits: {{b: 3}}}}");
    let eval = bench.load(&[&limited]).config.eval.unwrap();
    assert_eq!(["held_out", "b"].map(|set| eval.most_of(set)), [9, 3]);
    let idle = bench.errors(&["data.val_size=0.1", "eval={every_steps: 1, columns: {text: t}}"]);
    assert!(idle.contains("`eval.columns` requires `eval.path` or `eval.sets`"), "{idle}");
    let gone = bench.errors(&["eval={path: gone/*.jsonl, sets: {b: gone}}"]);
    assert!(gone.contains("`eval.sets.b`: no such file: `gone`") && !gone.contains("`eval.path`"), "{gone}");
}

#[test]
fn episodes_are_numbers_and_ranges() {
    let bench = Bench::new(GOOD);
    let path = bench.dir.path().join("d.jsonl").display().to_string();
    let set = |episodes: &str| format!("data.train=[{{path: {path}, episodes: {episodes}}}]");
    let read = |episodes: &str| {
        let config = bench.load(&[&set(episodes)]).config;
        config.data.train[0].episodes.iter().flatten().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(read("[0-9, 12, 20-]"), ["0-9", "12", "20-"]);
    assert_eq!((read("7"), read("3-5")), (vec!["7".to_owned()], vec!["3-5".to_owned()]));
    assert!(read("null").is_empty() && bench.load(&[]).config.data.train[0].episodes.is_none());
    for (episodes, part) in [
        ("[0, 3-1]", "`data.train.0.episodes.1`: expected a range that begins with the smaller number, found `3-1`"),
        ("[first]", "`data.train.0.episodes.0`: expected the number of an episode, from 0, or a range such as `0-99`"),
        ("[1.5]", "`data.train.0.episodes.0`: expected the number of an episode"),
        ("[]", "`data.train.0.episodes`: expected at least 1 item"),
    ] {
        let text = bench.errors(&[&set(episodes)]);
        assert!(text.contains(part), "{text}");
    }
    let math = bench.dir.path().join("math.jsonl").display().to_string();
    std::fs::write(&math, "{}\n").unwrap();
    let link = bench.dir.path().join("link.jsonl").display().to_string();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for (overrides, key, episode) in [
        (vec![format!("eval={{path: {path}, episodes: [90-]}}")], "eval.episodes", 90),
        (vec![set("0-89"), format!("eval={{path: {path}, episodes: [80-]}}")], "eval.episodes", 80),
        (vec![set("5-89"), format!("eval={{path: {path}}}")], "eval.path", 5),
        (vec![set("5-89"), format!("eval={{sets: {{math: {path}}}}}")], "eval.sets.math", 5),
        (vec![format!("eval={{path: {link}, episodes: 7}}")], "eval.episodes", 7),
    ] {
        let trained = bench.errors(&overrides.iter().map(String::as_str).collect::<Vec<_>>());
        let reason = format!("`{key}`: episode {episode} is also trained on, by `data.train.0`");
        assert!(trained.contains("LF0111") && trained.contains(&reason), "{trained}");
    }
    let whole = format!("eval={{path: {path}, sets: {{math: {path}}}}}");
    assert!(bench.load(&[&whole]).config.eval.is_some(), "as other data that are trained on");
    let eval = format!("eval={{path: {path}, episodes: [90-], sets: {{math: {math}}}}}");
    let eval = bench.load(&[&set("0-89"), &eval]).config.eval.unwrap();
    let of = |name: &str| {
        let ranges = eval.file(name)?.episodes.unwrap_or_default();
        Some(ranges.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!((of("held_out"), of("math"), of("val")), (Some(vec!["90-".to_owned()]), Some(Vec::new()), None));
}

#[test]
fn pools_with_names_hold_their_towers() {
    let bench = Bench::new(GOOD);
    let all: TowerSet = [Tower::Vision, Tower::Audio].into_iter().collect();
    let held = |overrides: &[&str], towers: TowerSet| {
        let config = bench.load(overrides).config;
        let pools = config.pools.encoders(towers).into_iter();
        pools.map(|(name, pool, held)| (name.to_string(), pool.replicas, held.iter().count())).collect::<Vec<_>>()
    };
    let of = |name: &str, replicas, towers| (name.to_owned(), replicas, towers);
    assert_eq!(held(&[], all), [of("encoder", 1, 2)]);
    assert_eq!(held(&["pools.audio.replicas=3"], all), [of("audio", 3, 1), of("encoder", 1, 1)]);
    assert_eq!(held(&["pools.media={towers: [audio, vision], replicas: 2}"], all), [of("media", 2, 2)]);
    assert_eq!(held(&["pools.audio.replicas=3"], [Tower::Vision].into_iter().collect()), [of("encoder", 1, 1)]);
    assert_eq!(held(&[], TowerSet::default()), []);
    let loaded = bench.load(&["pools.audio.replicas=3"]);
    assert_eq!(load_text(&loaded.to_yaml()).unwrap().config, loaded.config, "as a checkpoint keeps it");
}

#[test]
fn threads_and_lanes() {
    let bench = Bench::new(GOOD);
    let cores = std::thread::available_parallelism().unwrap().get();
    let auto = bench.load(&["pools.encoder.replicas=3"]).config;
    assert_eq!(auto.threads_for(PoolName::ENCODER), (cores / 4).max(1));
    let fixed = bench.load(&["run.deterministic=true", "pools.foundation.threads=3"]).config;
    assert_eq!((fixed.threads_for(PoolName::ENCODER), fixed.threads_for(PoolName::FOUNDATION)), (1, 3));
    let lanes = |config: &RunConfig| config.num_lanes(&config.pools.encoder);
    assert_eq!((lanes(&auto), lanes(&fixed)), (3, 4));
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
        "train.lr = 2e-05 from command line (override #2); file set 1e-05 (vlm.yaml:9); file set 0.003 (base.yaml:1)";
    assert_eq!(line("train.lr"), wanted);
    let wanted = "run.seed = 9 from command line (override #1); environment set 7 (LOONGFORGE__RUN__SEED)";
    assert_eq!(line("run.seed"), wanted);
    let wanted = "train.clip_grad = 2.5 from environment (LOONGFORGE__TRAIN__CLIP_GRAD); file set 5.0 (base.yaml:1)";
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
  ╰─ help: the keys of `train` are phase, learn, preference, loss_weighting, label_smoothing, neftune_alpha, steps, epochs, global_batch_size, micro_batch_size, precision, lr, min_lr, \
schedule, warmup_steps, warmup_ratio, decay_steps, clip_grad, optimizer, sigma, loss, latents, ema, on_nonfinite

1 error in the config";
    assert_eq!(text, wanted);
}

/// Several parts have a key of this name.
#[test]
fn an_unknown_key_is_looked_for_near_its_section_first() {
    let text = Bench::new(GOOD).errors(&["+model.foundation.lora.frozen_precision=nf4"]);
    assert!(text.contains("did you mean `model.foundation.frozen_precision`?"), "{text}");
}

/// `ipo` is nearer, and another method.
#[test]
fn what_others_call_a_value_is_told_before_the_nearest_one() {
    let text = Bench::new(GOOD).errors(&["train.preference={loss: dpo}"]);
    assert!(text.contains("found `dpo`") && text.contains("did you mean `sigmoid`?"), "{text}");
    // Whether a reference model is needed is not known.
    assert_eq!(text.matches("error[").count(), 1, "{text}");
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

/// `docs/configuration.md` is made from the schema; `UPDATE_DOCS=1` writes it anew.
#[test]
fn the_documentation_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let wanted = crate::config::docs::markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/configuration.md is stale: run `UPDATE_DOCS=1 cargo test -p loongforge-core config`"
    );
}
