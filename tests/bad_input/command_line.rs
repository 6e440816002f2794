//! The command line and the config: usage errors, and what `check` prints.

use crate::fixture::Fixture;
use clap::Parser;
use loongforge::cli::{Cli, dotted};
use loongforge::core::data::digits::{Digits, compose};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

#[test]
fn every_mistake_of_a_config_is_reported_at_once() {
    let fixture = Fixture::new();
    fixture.edit("run.yaml", "shuffle: false", "shufle: false");
    fixture.edit("run.yaml", "steps: 2", "steps: two, min_lr: 1, warmup_steps: -1");
    let overrides = ["run.lanes=0", "train.precision=fp8", "model.image_encoder.freeze=maybe", "tran.lr=1"];
    let words = [
        "unknown key `data.shufle`",
        "did you mean `shuffle`?",
        "run.yaml:4:",
        "`train.steps`",
        "`train.min_lr` 1.0 is above `train.lr` 0.002",
        "`train.warmup_steps`",
        "`run.lanes`",
        "`train.precision`",
        "`model.image_encoder.freeze`",
        "unknown key `tran`",
        "command line, override #4",
        "8 errors in the config",
    ];
    for command in ["check", "run"] {
        fixture.fails(&[&[command, "run.yaml"], &overrides[..]].concat(), 2, &words);
    }
    assert!(!fixture.path("run").exists());
}

#[test]
fn combinations_that_cannot_be_are_reported() {
    let fixture = Fixture::new();
    let frozen =
        ["model.image_encoder.freeze=true", "model.image_projector.freeze=true", "model.foundation.freeze=true"];
    let overrides = [&frozen[..], &["pools.placement=colocated", "pools.encoder.replicas=3"]].concat();
    let words = ["all frozen", "colocated pools differ in size: 3 encoder and 1 foundation actors", "2 errors"];
    fixture.fails(&[&["check", "run.yaml"], &overrides[..]].concat(), 2, &words);
}

#[test]
fn what_is_not_there_is_named() {
    let fixture = Fixture::new();
    fixture.fails(&["run", "rnu.yaml"], 2, &["no such config file `rnu.yaml`", "did you mean `run.yaml`?"]);
    fixture.write("binary.yaml", [0xff, 0xfe, 0]);
    fixture.fails(&["check", "binary.yaml"], 2, &["binary.yaml", "not UTF-8"]);
    fixture.fails(&["run", "run.yaml", "--role", "cook", "--join", "s"], 2, &["unknown role `cook`", "foundation"]);
    fixture.fails(&["run", "run.yaml", "--role", "encoder"], 2, &["--join"]);
    fixture.fails(&["rnu", "run.yaml"], 2, &["unrecognized subcommand", "rnu"]);
    fixture.fails(&["check", "run.yaml", "--format", "xml"], 2, &["xml", "yaml, json"]);
    fixture.fails(&["run", "run.yaml", "--train.lrate", "1"], 2, &["unknown key `train.lrate`", "override #1"]);
    fixture.fails(&["data", "digits", "--out", "model"], 2, &["model", "holds other files"]);
    // No folder `s3:` is made.
    let url = "s3://bucket/out";
    for args in [
        &["data", "digits", "--out", url][..],
        &["checkpoint", "export-hf", "model", url],
        &["certs", "new", "--run", "a", "--out", url],
        &["completions", "--man", url],
    ] {
        fixture.fails(args, 2, &[url, "this is a URL"]);
    }
    fixture.fails(
        &["data", "inspect", "data/train.jsonl", "--from", "99"],
        2,
        &["--from 99: there are", "numbered from 0"],
    );
    let calibrated = ["plan", "run.yaml", "--simulate", "--calibrate", "gone"];
    fixture.fails(&calibrated, 2, &["gone: no run with a checkpoint; --calibrate takes a finished run's folder"]);
}

/// An option that the rest of the command line leaves without use is named: what was asked for would not be done.
#[test]
fn options_without_use_are_refused() {
    let fixture = Fixture::new();
    let job = ["launch", "run.yaml", "--insecure-allow-plaintext", "--on"];
    for (command, options) in [
        (
            &[&job[..], &["slurm"]].concat()[..],
            "--namespace n|--env A=B|--shm 1GiB|--image i|--node-selector a=b|--hosts a",
        ),
        (
            &[&job[..], &["k8s", "--image", "i", "--claim", "c"]].concat(),
            "--partition gpu|--time 1:00|--output a.log|--srun a=b|--hosts a",
        ),
        (&[&job[..], &["ssh", "--hosts", "a"]].concat(), "--cpus 4|--memory 1GiB|--account lab|--claim c"),
        (&["evaluate", "model", "data/held_out.jsonl"], "--max-new-tokens 4|--batch-size 2|--normalize none"),
        (&["data", "stats", "data/train.jsonl"], "--pack 512"),
        (&["data", "stats", "--write", "set"], "--jobs 2|--format lerobot|--columns a=b|--max-samples 2"),
        (&["data", "inspect", "set", "--sheet", "a.png"], "--samples 2|--from 3|--format lerobot|--system a"),
        (&["data", "inspect", "run.yaml"], "--format messages|--columns a=b|--media-dir data"),
        (&["data", "inspect", "run.yaml"], "--max-samples 2|--system a"),
        (&["data", "convert", "--to", "lerobot-images", "set", "--out", "new"], "--max-samples 2|--system a"),
        (
            &["data", "convert", "--to", "lerobot-images", "set", "--out", "new"],
            "--samples 3|--bytes 1MB|--decode|--sample-type a|--max-bad 0.5|--shard 0/2|--format lerobot|--jobs 2",
        ),
        (&["compare", "run", "other"], "-o a.jpg|-o a"),
        (&["check", "run.yaml", "--format", "yaml"], "--show-origin"),
        (&["sample", "model", "--prompt", "a", "--size", "8x8"], "--area 8x8|--fps 4"),
        (&["act", "model", "--prompt", "a"], "--episodes set|--episode 1|--execute 2"),
        (&["act", "--policy", "replay", "--episodes", "set", "--prompt", "a"], "--seed 2|--device cpu|--embodiment a"),
        (&["serve-policy", "model", "--protocol", "openpi"], "--episodes set|--episode 1"),
        (&["serve-policy", "--policy", "pads-expert", "--protocol", "openpi"], "--seed 2|--device cpu"),
        (
            &["judge-policy", "--policy", "replay", "--episodes", "set"],
            "--num-episodes 2|--every 3|--camera a=b|--state a|--plots a.png",
        ),
        (&["generate", "model", "--prompt", "a", "--batch", "2"], "--out b"),
    ] {
        for option in options.split('|') {
            let words: Vec<&str> = option.split(' ').collect();
            let call = [command, &words].concat();
            let all = std::iter::once(&"loongforge").chain(&call).map(OsString::from);
            match Cli::try_parse_from(dotted::overrides(all)) {
                // The program says the same and ends, but has to start first.
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with("error: ") && text.contains(words[0]), "{call:?}: {text}");
                    assert_eq!(error.exit_code(), 2, "{call:?}");
                }
                Ok(_) => fixture.fails(&call, 2, &[words[0]]),
            }
        }
    }
    assert!(!fixture.path("new").exists() && !fixture.path("a.png").exists());
}

/// The constructors of libtorch take longer than all else of a short command.
#[test]
fn libtorch_is_loaded_once_though_the_environment_lacks_what_it_reads() {
    let fixture = Fixture::new();
    let constructors = |missing: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_loongforge"));
        for name in missing {
            command.env_remove(name);
        }
        let said = command.args(["check", "run.yaml"]).current_dir(fixture.path("")).env("LD_DEBUG", "files").output();
        let text = String::from_utf8_lossy(&said.unwrap().stderr).into_owned();
        text.lines().filter(|line| line.contains("calling init: ") && line.contains("libtorch_cpu.so")).count()
    };
    assert_eq!([constructors(&[]), constructors(&["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])], [1, 1]);
}

#[test]
fn errors_that_nobody_reads_are_no_panic() {
    let fixture = Fixture::new();
    let code = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_loongforge"));
        command.args(args).current_dir(fixture.path("")).stderr(writer).status().unwrap().code()
    };
    // A report that is not read ends as output that is not read does; an error has its exit code all the same.
    assert_eq!(code(&["check", "run.yaml", "train.lr=-1"]), Some(141));
    assert_eq!(code(&["checkpoint", "inspect", "nowhere"]), Some(2));
}

#[test]
fn what_nobody_reads_ends_a_command_without_a_word() {
    let fixture = Fixture::trained();
    for args in [&["top", "run"][..], &["models"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_loongforge"));
        let said = command.args(args).current_dir(fixture.path("")).stdout(writer).output().unwrap();
        assert_eq!((said.status.code(), String::from_utf8_lossy(&said.stderr).as_ref()), (Some(141), ""), "{args:?}");
    }
}

#[test]
fn variables_that_may_have_been_meant_for_a_key_are_said() {
    let fixture = Fixture::new();
    // In parts: these are no variables of the program.
    let own = |name: &str| format!("LOONGFORGE{name}");
    let set = [(own("_TRAIN_LR"), "1"), (own("_OWN_STEPS"), "1"), (own("__TRAIN__SEED_X"), "1")];
    let set: Vec<(&str, &str)> = set.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let steps = format!("train.steps=${{oc.env:{}}}", set[1].0);
    for command in ["check", "run"] {
        let said = fixture.start_in(&[command, "run.yaml", &steps], &set[..2]);
        let meant = format!("{} is not known and has no effect: did you mean `LOONGFORGE__TRAIN__LR`?", set[0].0);
        assert!(said.code == 0 && said.err.matches(&meant).count() == 1, "{command}: {}", said.err);
        assert!(!said.err.contains(set[1].0), "{command}: {}", said.err);
    }
    // Beside mistakes as well.
    let said = fixture.start_in(&["run", "run.yaml"], &set);
    assert!(said.code == 2 && said.err.contains("did you mean `LOONGFORGE__TRAIN__LR`?"), "{}", said.err);
}

#[test]
fn top_of_a_run_that_has_ended_says_what_it_did_last() {
    let fixture = Fixture::trained();
    let said = fixture.succeeds(&["top", "run"]);
    for part in ["run  ended", "step 2/2", "last checkpoint step 2", "bad samples 0"] {
        assert!(said.out.contains(part), "{part} is not in {}", said.out);
    }
    // One that was killed could not say that it ended.
    fixture.edit("run/watch.json", "\"ended\":true", "\"ended\":false");
    let said = fixture.succeeds(&["top", "run", "--once"]);
    assert!(said.out.contains("not running: no answer") && said.out.contains("step 2/2"), "{}", said.out);
    fixture.fails(&["top", "model"], 2, &["model: no run is active there, and there are no metrics of one"]);
}

#[test]
fn cuda_without_a_gpu_is_one_clear_line() {
    let fixture = Fixture::trained();
    let said = fixture.start(&["run", "run.yaml", "device=cuda", "run.dir=other"]);
    // Nothing was made before it was found.
    assert!(said.code == 2 && !fixture.path("other").exists(), "{}", said.err);
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(lines.len(), 1, "{}", said.err);
    assert!(lines[0].starts_with("error: ") && lines[0].contains("device cuda was asked for"), "{}", said.err);
    fixture.fails(&["generate", super::fixture::CHECKPOINT, "--prompt", "hi", "--device", "cuda"], 1, &["device cuda"]);
}

#[test]
fn check_shows_where_values_come_from() {
    let fixture = Fixture::new();
    let said = fixture.succeeds(&["check", "run.yaml", "train.lr=1e-4", "--show-origin"]);
    let line = |key: &str| said.out.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
    assert!(line("train.lr").contains("override #1") && line("train.lr").contains("run.yaml:5"), "{}", said.out);
    assert!(line("run.seed").contains("run.yaml:1"), "{}", said.out);
    assert!(line("train.clip_grad").contains("schema default"), "{}", said.out);
}

#[test]
fn shells_man_pages_and_editors_know_every_command_and_key() {
    let fixture = Fixture::empty();
    for shell in ["bash", "zsh", "fish"] {
        let said = fixture.succeeds(&["completions", shell]);
        assert!(["serve-policy", "export-gguf"].iter().all(|command| said.out.contains(command)), "{shell}");
    }
    fixture.succeeds(&["completions", "--man", "man"]);
    for page in ["loongforge.1", "loongforge-run.1", "loongforge-data-pack.1"] {
        assert!(fixture.read(&format!("man/{page}")).contains("Examples:"), "{page}");
    }
    fixture.fails(&["completions"], 2, &["name a shell", "--man"]);
    let schema: serde_json::Value = serde_json::from_str(&fixture.succeeds(&["schema"]).out).unwrap();
    assert!(schema["properties"]["train"].is_object() && schema["$defs"]["Lora"].is_object(), "{schema}");
    // What other trainers call it.
    assert_eq!(fixture.succeeds(&["train", "--help"]).out, fixture.succeeds(&["run", "--help"]).out);
}

#[test]
fn what_check_prints_is_a_config() {
    let fixture = Fixture::new();
    let yaml = fixture.succeeds(&["check", "run.yaml", "train.lr=1e-4", "--format", "yaml"]).out;
    let json = fixture.succeeds(&["check", "run.yaml", "train.lr=1e-4", "--format", "json"]).out;
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["train"]["lr"], 1e-4);
    assert_eq!(value["checkpoint"]["dir"], "run/checkpoints");
    for (name, text) in [("whole.yaml", yaml), ("whole.json", json.clone())] {
        fixture.write(name, text);
        assert_eq!(fixture.succeeds(&["check", name, "--format", "json"]).out, json, "{name}");
    }
}

#[test]
fn the_configs_of_this_repository_are_valid() {
    let fixture = Fixture::new();
    // Their paths are relative to the root of the repository.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["configs", "README.md"] {
        symlink(root.join(name), fixture.path(name)).unwrap();
    }
    // Some pictures that are said to be all: the command draws no others, and writes the model's folder.
    let data = "runs/quickstart/data";
    compose(&fixture.path(data), &Digits { num_train: 512, num_held_out: 64, ..Digits::default() }).unwrap();
    let stamp = |train: usize, held_out: usize| format!(r#""num_train":{train},"num_held_out":{held_out}"#);
    fixture.edit(&format!("{data}/digits.json"), &stamp(512, 64), &stamp(16_000, 512));
    let found = fixture.succeeds(&["data", "digits", "--out", data]).out;
    assert!(found.starts_with("found 16000 training and 512 held-out pictures"), "{found}");
    fixture.succeeds(&["data", "spoken-digits", "--out", "runs/spoken_digits/data"]);
    for (command, name) in [("diffusion-digits", "diffusion_digits"), ("diffusion-motion", "diffusion_motion")] {
        fixture.succeeds(&["data", command, "--out", &format!("runs/{name}/data")]);
    }
    fixture.succeeds(&["data", "pads", "--out", "runs/pads_policy/data", "--episodes", "4"]);
    // The two other examples of sound have data of the same kinds, from packages that are not here or made in the same way.
    let spoken = fixture.path("runs/spoken_digits/data");
    for name in ["old_answer.jsonl", "shuffled_picture.jsonl"] {
        fs::copy(spoken.join("held_out.jsonl"), spoken.join(name)).unwrap();
    }
    for name in ["roll_call", "heard_and_seen"] {
        fs::create_dir_all(fixture.path(format!("runs/{name}"))).unwrap();
        symlink(&spoken, fixture.path(format!("runs/{name}/data"))).unwrap();
    }
    // The emoji come from packages that are not here: a config is checked against any model and samples of its kind.
    let emoji = fixture.path("runs/emoji/data");
    fs::create_dir_all(&emoji).unwrap();
    symlink(fixture.path("runs/quickstart/data/model"), emoji.join("model")).unwrap();
    fs::write(
        emoji.join("train.json"),
        r#"[{"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!"}]}]"#,
    )
    .unwrap();
    for name in ["held_out.jsonl", "images"] {
        symlink(fixture.path("runs/quickstart/data").join(name), emoji.join(name)).unwrap();
    }
    // Preferences begin with what the fine-tuning before them has made.
    fixture.succeeds(&["run", "configs/sft_text.yaml", "train.steps=1", "train.warmup_steps=0"]);
    let trained = fixture.path("runs/sft_text/checkpoints");
    symlink(trained.join("step-00000001"), trained.join("step-00000040")).unwrap();
    fixture.succeeds(&["run", "configs/preference_text.yaml", "train.steps=2", "train.warmup_steps=1"]);
    // A process that decodes takes longer to start than a config is checked.
    let here = "security.sandbox=off";
    let steps = ["train.steps=1", "train.warmup_steps=0", "train.global_batch_size=2", "~eval", here];
    fixture.succeeds(&[&["run", "configs/quickstart.yaml"], &steps[..]].concat());
    let trained = fixture.path("runs/quickstart/checkpoints");
    symlink(trained.join("step-00000001"), trained.join("step-00000750")).unwrap();
    fixture.succeeds(&["run", "configs/preference_pictures.yaml", "train.steps=2", "train.warmup_steps=1", here]);
    let mut num_checked = 0;
    for entry in fs::read_dir(root.join("configs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.strip_prefix(root).unwrap();
            fixture.succeeds(&["check", name.to_str().unwrap(), here]);
            num_checked += 1;
        }
    }
    assert!(num_checked > 0);
}

#[test]
fn a_foundation_alone_is_a_plain_language_model() {
    let fixture = Fixture::new();
    let alone = "defaults: [models/qwen3@model.foundation: qwen3_0_6b, base, _self_]\n";
    let base = fixture.read("run.yaml").replace("load: model", "tokenizer: model");
    fixture.write("base.yaml", base.replace("data/train.jsonl", "text.jsonl"));
    fixture.write(
        "text.jsonl",
        r#"{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}"#,
    );
    fixture.write("alone.yaml", alone);
    let said = fixture.succeeds(&["check", "alone.yaml"]).out;
    let lines = ["model: qwen3\n", "foundation: 596,049,920 parameters trained"];
    assert!(lines.iter().all(|line| said.contains(line)) && !said.contains("image"), "{said}");
}
