//! Files with stages: each stage is a run that starts from the last checkpoint of the one before it.

use crate::fixture::{Fixture, Pictures};
use crate::processes::losses;
use std::fs;
use std::process::{Command, Output};

const STAGES: &str = "
stages:
  - name: align
    model: { image_encoder: { freeze: true }, foundation: { freeze: true } }
    train: { steps: 3 }
  - name: tune
    train: { steps: 4, lr: 1e-3 }
";

struct Recipe(Fixture);

impl Recipe {
    fn new(stages: &str) -> Self {
        let fixture = Fixture::new(Pictures::Some);
        let path = fixture.config_file();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("warmup_steps: 3", "warmup_steps: 1") + stages).unwrap();
        Self(fixture)
    }

    fn call(&self, command: &str, words: &[&str]) -> Output {
        let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        program.arg(command).arg(self.0.config_file()).args(words).output().unwrap()
    }

    fn done(&self, command: &str, words: &[&str]) -> String {
        let output = self.call(command, words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command} {words:?}: {text}");
        String::from_utf8(output.stdout).unwrap() + &text
    }

    /// Returns the text of a command that refuses to begin.
    fn refused(&self, command: &str, words: &[&str]) -> String {
        let output = self.call(command, words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command} {words:?}: {text}");
        text
    }

    fn exists(&self, name: &str) -> bool {
        self.0.path().join(name).exists()
    }
}

#[test]
fn stages_follow_one_another() {
    let recipe = Recipe::new(STAGES);
    let ahead = recipe.done("check", &[]);
    assert!(ahead.contains("stage `tune`") && ahead.contains("with the model of the first stage"), "{ahead}");
    assert!(recipe.refused("plan", &[]).contains("this config has stages: align, tune"));
    // What is wrong with the last stage is said before the first begins.
    assert!(recipe.refused("run", &["pools.foundation.tensor_parallel=5"]).contains("stage `align`"));
    assert!(recipe.refused("run", &["stage=tune"]).contains("has none"));
    assert!(!recipe.exists("run"));
    let text = recipe.done("run", &[]);
    assert!(text.contains("stage `align`, 1 of 2") && text.contains("stage `tune`, 2 of 2"), "{text}");
    let (align, tune) = (losses(&recipe.0, "run/align"), losses(&recipe.0, "run/tune"));
    assert_eq!((align.len(), tune.len()), (3, 4));
    // The second one is the run that one would write by hand.
    let root = recipe.0.path().display();
    let by_hand = Recipe::new("");
    let from = [
        format!("model.load={root}/run/align/checkpoints/step-00000003"),
        format!("data.train.0.path={root}/data/train.jsonl"),
    ];
    let words = [&from[0], &from[1], "model.weights=load", "train.steps=4", "train.lr=1e-3"];
    by_hand.done("run", &words);
    assert_eq!(losses(&by_hand.0, "run"), tune);
    // What is there is not trained again, and is not lost.
    assert!(recipe.refused("run", &[]).contains("already holds a run"));
    recipe.done("run", &["--resume"]);
    fs::remove_dir_all(recipe.0.path().join("run/tune")).unwrap();
    recipe.done("run", &["--resume", "--processes"]);
    assert_eq!((losses(&recipe.0, "run/align"), losses(&recipe.0, "run/tune")), (align, tune));
}

#[test]
fn adapters_are_no_model_to_start_from() {
    let recipe =
        Recipe::new(&STAGES.replace("foundation: { freeze: true }", "foundation: { lora: { r: 2, alpha: 4 } }"));
    // That is known before the first stage trains.
    for command in ["check", "run"] {
        let text = recipe.refused(command, &[]);
        assert!(text.contains("stage `tune`") && text.contains("checkpoint.merge_lora: true"), "{text}");
        assert!(!recipe.exists("run"));
    }
    let path = recipe.0.config_file();
    let merged = fs::read_to_string(&path)
        .unwrap()
        .replace("train: { steps: 3 }", "train: { steps: 3 }\n    checkpoint: { merge_lora: true }");
    fs::write(&path, merged).unwrap();
    let text = recipe.refused("check", &["checkpoint.at_end=false", "checkpoint.every_steps=2"]);
    assert!(text.contains("stage `tune`") && text.contains("`checkpoint.at_end: false`"), "{text}");
    recipe.done("run", &[]);
    assert_eq!(losses(&recipe.0, "run/tune").len(), 4);
}
