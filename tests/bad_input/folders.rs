//! Tests of where a run writes, what it finds there, and what it is to go on from.

use crate::fixture::{CHECKPOINT, Fixture};
use crate::must::skip;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_file_in_the_way_is_named() {
    let fixture = Fixture::new();
    fixture.write("file", "mine");
    fixture.fails(&["run", "run.yaml", "run.dir=file"], 2, &["`run.dir`: `file` is not a directory"]);
    for tracker in ["wandb", "mlflow"] {
        let key = format!("log.{tracker}.dir");
        fixture.fails(
            &["check", "run.yaml", &format!("{key}=file")],
            2,
            &[&format!("`{key}`: `file` is not a directory")],
        );
    }
    for command in ["run", "check"] {
        for key in ["run.dir", "checkpoint.dir", "pools.encoder.cache_dir", "log.wandb.dir"] {
            let said = format!("{key}: cannot write into file/below: file: ");
            fixture.fails(&[command, "run.yaml", &format!("{key}=file/below")], 2, &[&said]);
        }
    }
    assert_eq!(fixture.read("file"), "mine");
}

/// `data encode` fills it later.
#[test]
fn a_pool_that_reads_features_which_are_not_there_is_told() {
    let fixture = Fixture::new();
    let reads = [
        "model.image_encoder.freeze=true",
        "model.image_projector.freeze=true",
        "pools.encoder.cache_dir=features",
        "pools.encoder.replicas=0",
    ];
    let out = fixture.succeeds(&[&["check", "run.yaml"][..], &reads].concat()).out;
    let said = "pools.encoder.replicas is 0, and features has no features of the vision tower";
    assert!(out.contains(said) && out.contains("loongforge data encode"), "{out}");
}

#[test]
fn a_folder_that_may_not_be_written_is_named() {
    if rustix::process::geteuid().is_root() {
        return skip("unprivileged", "root may write everywhere; `a_file_in_the_way_is_named` shows the same error");
    }
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("locked")).unwrap();
    fs::set_permissions(fixture.path("locked"), fs::Permissions::from_mode(0o555)).unwrap();
    for dir in ["run.dir=locked", "run.dir=locked/below"] {
        fixture.fails(&["run", "run.yaml", dir], 2, &["run.dir: cannot write into locked", "Permission denied"]);
    }
}

#[test]
fn a_former_run_is_not_lost() {
    let fixture = Fixture::trained();
    let before = fixture.contents("run");
    let words = [CHECKPOINT, "--resume", "--overwrite", "run.name"];
    fixture.fails(&["run", "run.yaml"], 2, &words);
    assert!(fixture.contents("run") == before);
    // As a launcher does that starts again what has ended.
    let said = fixture.succeeds(&["run", "run.yaml", "--resume"]);
    assert!(said.err.contains("nothing to do") && said.err.contains(CHECKPOINT), "{}", said.err);
    assert!(fixture.contents("run") == before);
    fixture.succeeds(&["run", "run.yaml", "--resume", "train.steps=3"]);
    assert!(fixture.path(CHECKPOINT).exists() && fixture.path("run/checkpoints/step-00000003").exists());
    fixture.succeeds(&["run", "run.yaml", "--overwrite", "train.steps=1"]);
    assert!(!fixture.path(CHECKPOINT).exists() && fixture.path("run/checkpoints/step-00000001").exists());
}

#[test]
fn resume_goes_on_with_what_was_trained_last() {
    let fixture = Fixture::new();
    let run = |more: &[&str]| {
        let saving = ["run", "run.yaml", "checkpoint.every_steps=1", "checkpoint.keep_last=9"];
        fixture.succeeds(&[&saving[..], more].concat()).err
    };
    let said = run(&["train.steps=4", "--resume"]);
    assert!(said.contains("run/checkpoints has no checkpoint, so that the run starts from its first step"), "{said}");
    // It ends before the last step of the run that it was resumed from.
    let said = run(&["train.steps=3", "train.lr=1e-3", "--resume=run/checkpoints/step-00000002"]);
    assert!(said.contains("leaves step-00000004, step-00000003 in run/checkpoints aside"), "{said}");
    let inspected = fixture.succeeds(&["checkpoint", "inspect", "run"]).out;
    assert!(inspected.contains("after 3 steps"), "{inspected}");
    let said = run(&["train.steps=5", "train.lr=1e-3", "--resume"]);
    let goes_on = "continues from run/checkpoints/step-00000003 and leaves step-00000004 in";
    assert!(said.contains(goes_on), "{said}");
    assert_eq!(fixture.read("run/metrics.jsonl").lines().count(), 5);
    // All of what was left is passed.
    let said = run(&["train.steps=6", "train.lr=1e-3", "--resume"]);
    assert!(!said.contains("aside") && !fixture.path("run/checkpoints/.left-aside.json").exists(), "{said}");
}

#[test]
fn the_config_of_a_run_folder_that_was_moved_does_not_begin_anew() {
    let fixture = Fixture::trained();
    fs::rename(fixture.path("run"), fixture.path("moved")).unwrap();
    let resume = ["run", "moved/config.yaml", "--resume", "train.steps=3"];
    let here = ["run.dir=moved", "checkpoint.dir=moved/checkpoints"];
    let named = "run/checkpoints, checkpoint.dir of moved/config.yaml,";
    fixture.fails(&resume, 2, &[named, "moved/checkpoints/step-00000002", &here.join(" ")]);
    assert!(!fixture.path("run/checkpoints/step-00000003").exists());
    // The checkpoints beside this config are those of another one.
    let own = fixture.read("moved/config.yaml").replace("run/checkpoints", "own/checkpoints");
    fixture.write("moved/own.yaml", own);
    fixture.succeeds(&["run", "moved/own.yaml", "--resume", "run.dir=own"]);
    assert!(fixture.path("own/checkpoints/step-00000002").exists());
    fixture.succeeds(&[&resume[..], &here].concat());
    assert!(fixture.path("moved/checkpoints/step-00000003").exists());
    // Its own places in a command are those of another run.
    fixture.succeeds(&[&resume[..], &["run.dir=other", "checkpoint.dir=other/checkpoints"]].concat());
    assert!(fixture.path("other/checkpoints/step-00000003").exists());
}

#[test]
fn resume_refuses_what_is_no_whole_checkpoint() {
    let fixture = Fixture::trained();
    fixture.fails(&["run", "run.yaml", "--resume=gone"], 2, &["--resume=gone: there is no such folder"]);
    let muon = ["run", "run.yaml", "--resume", "train.steps=3", "train.optimizer.type=muon"];
    fixture.fails(
        &muon,
        2,
        &["train.optimizer.type adamw, but this run has muon", "model.load=run/checkpoints/step-00000002"],
    );
    fixture.fails(&["run", "run.yaml", "--resume=model"], 2, &["--resume=model: it is not a checkpoint of a run"]);
    fixture.fails(&["run", "run.yaml", "--resume", CHECKPOINT], 2, &[&format!("--resume={CHECKPOINT}")]);
    fixture.fails(&["run", "run.yaml", "--resume", "run"], 2, &["--resume=run"]);
    // Of a run's folder, and of that of its checkpoints, the newest one is meant.
    for folder in ["run", "run/checkpoints"] {
        let said = fixture.succeeds(&["run", "run.yaml", &format!("--resume={folder}")]);
        assert!(said.err.contains("nothing to do") && said.err.contains(CHECKPOINT), "{folder}: {}", said.err);
    }

    let more = ["run", "run.yaml", "--resume", "train.steps=4"];
    for file in ["optimizer-encoder.safetensors", "model-00001-of-00002.safetensors", "tokenizer.json"] {
        let path = format!("{CHECKPOINT}/{file}");
        let whole = fs::read(fixture.path(&path)).unwrap();
        fixture.cut(&path, 100);
        fixture.fails(&more, 1, &["is damaged", CHECKPOINT, file, "has 100 bytes"]);
        fs::remove_file(fixture.path(&path)).unwrap();
        fixture.fails(&more, 1, &["cannot resume: use another checkpoint", "is damaged", CHECKPOINT, file]);
        fixture.write(&path, whole);
    }
    let manifest = format!("{CHECKPOINT}/MANIFEST.json");
    let whole = fixture.read(&manifest);
    for torn in ["", "{", "{}", &whole.replace("\"format_version\": 2", "\"format_version\": 99")] {
        fixture.write(&manifest, torn);
        fixture.fails(&more, 1, &[CHECKPOINT]);
    }
    fixture.write(&manifest, whole);
    fixture.succeeds(&more);
}

#[test]
fn resume_refuses_data_that_changed() {
    let fixture = Fixture::trained();
    let lines = fixture.read("data/train.jsonl");
    fixture.write("data/train.jsonl", format!("{lines}\n{}", lines.lines().next().unwrap()));
    let more = ["run", "run.yaml", "--resume", "train.steps=3"];
    fixture.fails(&more, 2, &["the data changed since", CHECKPOINT, "data/train.jsonl has", "data.on_change=accept"]);
    let said = fixture.succeeds(&[&more[..], &["data.on_change=accept"]].concat());
    assert!(said.err.contains("warning: the data changed since"), "{}", said.err);
}

#[test]
fn resume_tells_which_settings_differ_and_each_attempts_are_kept() {
    let fixture = Fixture::trained();
    let before = fixture.contents("run");
    let more = ["run", "run.yaml", "--resume", "train.lr=1e-4", "train.steps=3"];
    let differences = ["train.lr 0.002 → 0.0001", "train.steps 2 → 3"];
    fixture.fails(
        &[&more[..], &["--strict"]].concat(),
        2,
        &["--strict: settings differ", differences[0], differences[1]],
    );
    assert!(fixture.contents("run") == before);
    let said = fixture.succeeds(&more);
    assert!(differences.iter().all(|line| said.err.contains(line)), "{}", said.err);
    assert!(said.err.matches(" → ").count() == 2, "{}", said.err);
    let (now, then) = (fixture.read("run/config.yaml"), fixture.read("run/config-1.yaml"));
    assert!(now.contains("lr: 0.0001") && then.contains("lr: 0.002"), "{now}{then}");
    fixture.succeeds(&[&more[..], &["--strict"]].concat());
    assert!(!fixture.path("run/config-2.yaml").exists());
}

#[test]
fn resume_refuses_another_model() {
    let fixture = Fixture::trained();
    let before = fixture.contents("run");
    let resume = |change| ["run", "run.yaml", "--resume", "train.steps=4", change];
    let layers = "text_config.num_hidden_layers: checkpoint 2, this run 1";
    fixture.fails(
        &resume("model.overrides.text_config.num_hidden_layers=1"),
        2,
        &[CHECKPOINT, "does not match this run's model", layers],
    );
    let adapters = "has no optimizer state for";
    fixture.fails(&resume("model.foundation.lora.r=4"), 2, &[CHECKPOINT, adapters, "lora_A", "model.load="]);
    fixture.fails(&resume("train.ema=0.9"), 2, &[CHECKPOINT, "has no averages of the weights", "train.ema=null"]);
    fixture.fails(
        &resume("train.precision=bf16"),
        2,
        &[CHECKPOINT, "train.precision float32", "but this run has bf16"],
    );
    assert!(fixture.contents("run") == before);
}

/// Adapters that a run trained would be lost if the run after it does not have them.
#[test]
fn resume_refuses_other_adapters_and_tells_what_is_frozen_now() {
    let fixture = Fixture::new();
    let run = |more: &[&'static str]| [&["run", "run.yaml", "model.foundation.lora.r=4"], more].concat();
    fixture.succeeds(&run(&[]));
    let before = fixture.contents("run");
    let resume = ["--resume", "train.steps=3"];
    let narrower = "model.foundation.lora.target_modules=[q_proj]";
    fixture.fails(&run(&[&resume[..], &[narrower]].concat()), 2, &[CHECKPOINT, "lora_A", "its training would be lost"]);
    let wider = ["run", "run.yaml", "model.foundation.lora.r=8", "--resume", "train.steps=3"];
    fixture.fails(&wider, 2, &[CHECKPOINT, "with shape [4, ", "trains it with shape [8, "]);
    fixture.fails(&["run", "run.yaml", "--resume", "train.steps=3"], 2, &[CHECKPOINT]);
    assert!(fixture.contents("run") == before);
    fixture.succeeds(&run(&resume));
    let fixture = Fixture::trained();
    let frozen = ["model.image_encoder.freeze=true", "model.image_projector.freeze=true"];
    let said = fixture.succeeds(&[&["run", "run.yaml", "--resume", "train.steps=3"], &frozen[..]].concat());
    assert!(said.err.contains("parameters that it trained are frozen from now on"), "{}", said.err);
    let thawed = ["run", "run.yaml", "--resume", "train.steps=4"];
    fixture.fails(&thawed, 2, &["has no optimizer state for", "visual"]);
}
