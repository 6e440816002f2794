//! LLaVA-OneVision-1.5's recipe, `configs/onevision.yaml`, on tiny data: three stages, of which two mix pictures with text and pack
//! their samples before the first step.

use loongforge::core::data::digits::{Digits, compose};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const STAGES: [&str; 3] = ["alignment", "knowledge", "instruction"];

/// A folder in which the recipe's paths are right.
struct Recipe(TempDir);

impl Recipe {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("configs"), dir.path().join("configs")).unwrap();
        let data = dir.path().join("runs/quickstart/data");
        compose(&data, &Digits { seed: 3, num_train: 96, num_held_out: 4 }).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("runs").join(name)
    }

    /// Runs all stages, each four steps of two packs.
    fn call(&self, words: &[&str], faults: &str) -> Output {
        let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        program.current_dir(self.0.path()).args(["run", "configs/onevision.yaml"]);
        program.args([
            "train.steps=4",
            "train.warmup_steps=1",
            "train.global_batch_size=2",
            "checkpoint.every_steps=2",
        ]);
        // A process that decodes takes longer to start than all that it would decode here.
        program.args(["pools.encoder.threads=1", "pools.foundation.threads=1", "security.sandbox=off"]).args(words);
        program.env("LOONGFORGE_FAULTS", faults).output().unwrap()
    }

    fn done(&self, words: &[&str]) -> String {
        let output = self.call(words, "");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {text}");
        text
    }

    /// Runs the command, which is to be killed.
    fn dies(&self, words: &[&str], faults: &str) -> String {
        let output = self.call(words, faults);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("injected at"), "{faults}: {text}");
        assert_eq!(output.status.code(), Some(4), "{text}");
        text
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.call(words, "");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?}: {text}");
        text
    }

    fn ledger(&self, stage: &str) -> Value {
        let text = fs::read_to_string(self.path(&format!("onevision-{stage}/packs.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Returns the steps and losses of each stage.
    fn losses(&self) -> Vec<Vec<(u64, f64)>> {
        let of_stage = |stage: &str| {
            let text = fs::read_to_string(self.path(&format!("onevision-{stage}/metrics.jsonl"))).unwrap();
            let step = |line: &str| {
                let json: Value = serde_json::from_str(line).unwrap();
                (json["step"].as_u64().unwrap(), json["loss"].as_f64().unwrap())
            };
            text.lines().map(step).collect()
        };
        STAGES.map(of_stage).to_vec()
    }

    fn shards(&self, stage: &str) -> Vec<Vec<u8>> {
        let entries = fs::read_dir(self.path(&format!("onevision-{stage}/packs"))).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "tar"));
        paths.sort();
        paths.iter().map(|path| fs::read(path).unwrap()).collect()
    }
}

#[test]
fn the_recipe_is_one_command_that_goes_on_wherever_it_was_killed() {
    let whole = Recipe::new();
    let text = whole.done(&[]);
    for number in 1..=3 {
        assert!(text.contains(&format!("{number} of 3")), "{text}");
    }
    assert_eq!(text.matches("padding compression: ").count(), 2, "{text}");
    assert!(!whole.path("onevision-alignment/packs.json").exists());
    for stage in &STAGES[1..] {
        let log = fs::read_to_string(whole.path(&format!("onevision-{stage}/log.txt"))).unwrap();
        assert!(log.contains("padding compression: "), "{log}");
        let packs = &whole.ledger(stage)["packs"];
        let stats = |key: &str| packs["stats"][key].as_f64().unwrap();
        // All 96 pictures and 24 chats, once each or by the mixture's weights.
        assert_eq!((stats("samples"), stats("bad")), (120.0, 0.0));
        assert!(stats("packs") < 60.0 && stats("longest") <= 384.0, "{packs}");
        let saved = [stats("samples") / stats("packs"), stats("samples") * stats("longest") / stats("tokens")];
        let told = &packs["padding_compression"];
        // Numbers that are read from JSON may differ in their last bit.
        let is_told = |(of, saved): (usize, f64)| (told[of].as_f64().unwrap() / saved - 1.0).abs() < 1e-12;
        assert!(saved.into_iter().enumerate().all(is_told), "{told}, {saved:?}");
        assert!(told[1].as_f64().unwrap() > 1.0 && told[2].as_f64().unwrap() >= 1.0, "{told}");
    }
    let losses = whole.losses();
    assert!(losses.iter().all(|stage| stage.len() == 4), "{losses:?}");

    let killed = Recipe::new();
    // Between two stages, as samples are measured; then as packs are written; then when only the ledger is missing.
    killed.dies(&[], "scheduler/0@pack_measured:50=kill");
    assert!(killed.path("onevision-alignment/checkpoints/step-00000004").exists());
    killed.dies(&["--resume"], "scheduler/0@pack_written:4=kill");
    assert!(killed.ledger("knowledge")["packs"].is_null());
    killed.dies(&["--resume"], "scheduler/0@packs_done=kill");
    // Within a stage, behind its first checkpoint.
    let text = killed.dies(&["--resume"], "foundation/0@after_commit:3=kill");
    assert!(text.contains("nothing to do"), "the first stage is done: {text}");
    // The rest in processes, which find the packs as well.
    killed.done(&["--resume", "--processes"]);
    assert_eq!(killed.losses(), losses);
    for stage in &STAGES[1..] {
        assert!(!whole.shards(stage).is_empty() && killed.shards(stage) == whole.shards(stage), "{stage}");
    }
}

#[test]
fn packs_are_used_again_only_where_they_fit() {
    let recipe = Recipe::new();
    recipe.done(&[]);
    let (packs, shards) = (recipe.path("onevision-instruction/packs"), recipe.shards("instruction"));
    let shard = packs.join("shard-000000.tar");
    let untouched = fs::metadata(&shard).unwrap().modified().unwrap();
    // Packs of other settings are not those whose samples the checkpoint has seen.
    let longer = ["stage=instruction", "--resume", "train.steps=6"];
    let text = recipe.refused(&[&longer[..], &["data.pack.max_tokens=256"]].concat());
    assert!(text.contains("the packs would differ") && text.contains("data.on_change=accept"), "{text}");
    assert_eq!(fs::metadata(&shard).unwrap().modified().unwrap(), untouched);
    // What packs do not depend on may change.
    recipe.done(&[&longer[..], &["data.on_bad_sample.max_fraction=0.5"]].concat());
    assert_eq!(fs::metadata(&shard).unwrap().modified().unwrap(), untouched);
    let mut damaged = shards[0].clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&shard, damaged).unwrap();
    let text = recipe.done(&["stage=instruction", "--resume", "train.steps=7"]);
    assert!(text.contains("has changed since it was written: the packs are made again"), "{text}");
    assert_eq!(recipe.shards("instruction"), shards);
    // A stage that is done needs none.
    fs::remove_dir_all(&packs).unwrap();
    let text = recipe.done(&["stage=instruction", "--resume"]);
    assert!(text.contains("nothing to do") && !packs.exists(), "{text}");
    // Beginning anew with other data removes the packs of the former run.
    let text = recipe.done(&["stage=instruction", "--overwrite", "data.train.0.weight=0.5"]);
    assert!(text.contains("making packs"), "{text}");
    let text = recipe.done(&["stage=instruction", "--overwrite", "data.train.0.weight=0.4"]);
    assert!(text.contains("the packs of other data, settings or another model are moved aside"), "{text}");
}
