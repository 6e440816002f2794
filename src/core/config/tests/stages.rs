//! Files with stages: what a stage is laid over, what it is called and what it starts from.

use super::*;

const RECIPE: &str = "\
run: { name: t }
model: { load: MODEL, weights: random, foundation: { freeze: true } }
data:
  train: [{ path: DATA }]
train:
  steps: 10
  global_batch_size: 4
  lr: 1e-05
stages:
  - name: align
    model: { overrides: { some-key: 1 } }
  - name: tune
    train: { lr: 2e-05 }
    model: { foundation: { freeze: false } }
  - name: own
    model: { load: MODEL, weights: random }
";

impl Bench {
    fn stage(&self, words: &[&str], start: StageStart) -> Result<Loaded, Report> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        load_stage(&self.dir.path().join("vlm.yaml"), &words, std::iter::empty(), start)
    }

    fn stages(&self, words: &[&str]) -> Result<Vec<String>, Report> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let listed = stages(&self.dir.path().join("vlm.yaml"), &words)?;
        Ok(listed.into_iter().map(|stage| stage.name).collect())
    }
}

#[test]
fn a_stage_lays_its_keys_over_the_files_and_starts_from_the_one_before() {
    let bench = Bench::new(RECIPE);
    assert_eq!(bench.stages(&["train.steps=3"]).unwrap(), ["align", "tune", "own"]);
    assert!(bench.stages(&["stage=tune"]).unwrap().is_empty());
    let folder = |words: &[&str]| bench.stage(words, StageStart::FirstModel).unwrap().config;
    let align = folder(&["stage=align", "train.steps=3"]);
    assert_eq!((align.run.name.as_str(), align.train.steps), ("t-align", Some(3)));
    assert_eq!(align.run.dir, Path::new("runs/t-align"));
    assert_eq!(align.checkpoint.dir, Path::new("runs/t-align/checkpoints"));
    // Keys of a `config.json` are as they were written.
    assert!(align.model.overrides.contains_key("some-key"), "{:?}", align.model.overrides);
    assert_eq!((align.train.lr, align.model.foundation.freeze), (1e-5, Some(true)));
    let tune = folder(&["stage=tune"]);
    assert_eq!((tune.train.lr, tune.model.foundation.freeze), (2e-5, Some(false)));
    assert!(tune.model.load == align.model.load && tune.model.overrides.is_empty());
    // With `run.dir` set at the top, a stage's folder is in it.
    let elsewhere = folder(&["stage=tune", "run.dir=/x", "checkpoint.dir=c"]);
    assert_eq!(elsewhere.run.dir, Path::new("/x/tune"));
    assert_eq!(elsewhere.checkpoint.dir, Path::new("c/tune"));
}

#[test]
fn the_checkpoint_of_the_stage_before_takes_the_place_of_the_first_model() {
    let bench = Bench::new(&RECIPE.replace("freeze: true", "freeze: true, load: MODEL, config: { a: 1 }"));
    let dir = bench.dir.path().join("out");
    let dir = dir.to_str().unwrap();
    let words = ["stage=tune", &format!("run.dir={dir}")];
    // There is none yet.
    let report = bench.stage(&words, StageStart::Checkpoint).unwrap_err();
    assert!(report.to_string().contains("the last checkpoint of the previous stage, but"), "{report}");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        bench.file(&format!("out/align/checkpoints/step-00000010/{name}"), "{}");
    }
    bench.file("out/align/checkpoints/step-00000009/config.json", "{}");
    let model = bench.stage(&words, StageStart::Checkpoint).unwrap().config.model;
    assert_eq!(model.load.unwrap().as_str(), format!("{dir}/align/checkpoints/step-00000010"));
    assert_eq!(model.weights, Weights::Load);
    let stored = bench.stage(&[words[0], words[1], "checkpoint.upload=s3://b/runs/"], StageStart::Checkpoint).unwrap();
    assert_eq!(stored.config.checkpoint.upload.as_deref(), Some("s3://b/runs/tune"));
    assert!(model.foundation.load.is_none() && model.foundation.config.is_empty());
    // One of a diffusion model has no config.json at its top.
    for name in ["model_index.json", "tokenizer/tokenizer.json", "transformer/diffusion_pytorch_model.safetensors"] {
        bench.file(&format!("out/align/checkpoints/step-00000011/{name}"), "{}");
    }
    let model = bench.stage(&words, StageStart::Checkpoint).unwrap().config.model;
    assert!(model.load.unwrap().as_str().ends_with("step-00000011"));
    // A stage that names its model keeps it.
    bench.file("m/model.safetensors", "");
    let own = ["stage=own", words[1]];
    let model = bench.stage(&own, StageStart::Checkpoint).unwrap().config.model;
    assert!(model.load.unwrap().as_str().ends_with("/m") && model.weights == Weights::Random);
    assert!(model.foundation.load.is_some());
}

#[test]
fn a_variable_that_another_stage_reads_is_known() {
    // In parts: these are no variables of the program.
    let [read, other] = ["_OWN_RATE", "_OTHER"].map(|end| format!("LOONGFORGE{end}"));
    let bench = Bench::new(&RECIPE.replace("lr: 2e-05", &format!("lr: '${{oc.env:{read}}}'")));
    let env = [&read, &other].map(|name| (name.clone(), "1e-4".to_owned()));
    let words = ["stage=align".to_owned()];
    let loaded = load_stage(&bench.dir.path().join("vlm.yaml"), &words, env.into_iter(), StageStart::FirstModel);
    let ignored = loaded.unwrap().ignored;
    assert!(ignored.len() == 1 && ignored[0].contains(&other), "{ignored:?}");
}

/// The checkpoint of the stage before has them: they would be added twice.
#[test]
fn adapters_of_the_first_model_are_not_those_of_a_later_stage() {
    let adapted = RECIPE.replace("freeze: true", "freeze: true, lora: { r: 4, adapter: org/adapters }");
    let error = |yaml: &str, words: &[&str]| {
        let report = Bench::new(yaml).stage(words, StageStart::FirstModel).err();
        report.map(|report| report.to_string()).filter(|report| report.contains("would be added again"))
    };
    let found = error(&adapted, &["stage=tune"]).unwrap();
    assert!(found.contains("`model.foundation.lora.adapter`") && found.contains("of the stage `align`"), "{found}");
    assert!(error(RECIPE, &["stage=tune", "model.foundation.lora.adapter=org/adapters"]).is_some());
    // The first stage, one with a model of its own, and one that names them or has none itself.
    assert_eq!(error(&adapted, &["stage=align"]), None);
    assert_eq!(error(&adapted, &["stage=own"]), None);
    let own = |lora: &str| adapted.replace("freeze: false", &format!("freeze: false, lora: {lora}"));
    assert_eq!(error(&own("{ adapter: org/others }"), &["stage=tune"]), None);
    assert_eq!(error(&own("null"), &["stage=tune"]), None);
    assert!(error(&own("{ r: 8 }"), &["stage=tune"]).is_some());
}

#[test]
fn keys_of_a_part_are_as_they_were_written() {
    let parts = Model::default().parts().map(|(key, _)| key.to_owned());
    assert_eq!(super::node::PARTS.map(|part| format!("model.{part}")), parts);
    for part in parts {
        assert!(super::node::is_free_form(&format!("{part}.overrides.a-key")), "{part}");
    }
}

#[test]
fn wrong_stages_are_named() {
    let error = |yaml: &str, words: &[&str]| {
        let report = Bench::new(yaml).stage(words, StageStart::FirstModel).unwrap_err();
        assert!(report.errors.iter().any(|error| error.code == code::STAGES), "{report}");
        report.to_string()
    };
    assert!(error(RECIPE, &[]).contains("this config has stages: align, tune, own"));
    assert!(error(RECIPE, &["stage=x"]).contains("no stage `x`; the stages are align, tune, own"));
    assert!(error(GOOD, &["stage=x"]).contains("this config has no `stages`"));
    let with = |stages: &str| error(&format!("{GOOD}stages: {stages}\n"), &["stage=a"]);
    assert!(with("3").contains("must be a list of maps"));
    assert!(with("[]").contains("1 to 64 entries"));
    assert!(with("[{ name: a }, { name: a }]").contains("two stages are called `a`"));
    assert!(with("[{ train: { lr: 1 } }, { name: a }]").contains("with a `name`"));
    assert!(with("[{ name: ../a }]").contains("the stage name `../a` must have 1 to 64 characters"));
    assert!(with("[{ name: a, run: { name: b } }]").contains("cannot set `run.name`"));
    assert!(with("[{ name: a, defaults: [b] }]").contains("cannot set `defaults`"));
    // Keys of stages are checked like any others.
    let report = Bench::new(&RECIPE.replace("lr: 2e-05", "lrr: 2e-05")).stage(&["stage=tune"], StageStart::FirstModel);
    assert!(report.unwrap_err().to_string().contains("did you mean"), "an unknown key");
}
