//! Tests that what cannot run is refused by `check` and by `run`, with the same words, before there is a folder.

use crate::fixture::Fixture;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Both commands refuse the run, and nothing is written.
#[track_caller]
fn refused(fixture: &Fixture, overrides: &[&str], words: &[&str]) {
    for command in ["check", "run"] {
        fixture.fails(&[&[command, "run.yaml"], overrides].concat(), 2, words);
        assert!(!fixture.path("run").exists(), "{command} {overrides:?}");
    }
}

/// `check` refuses what is asked about at a place at which another case shows that `run` asks as well.
#[track_caller]
fn refused_too(fixture: &Fixture, overrides: &[&str], words: &[&str]) {
    fixture.fails(&[&["check", "run.yaml"], overrides].concat(), 2, words);
    assert!(!fixture.path("run").exists(), "{overrides:?}");
}

#[test]
fn layouts_devices_and_adapters_that_cannot_run_are_refused() {
    let fixture = Fixture::new();
    let pool = "pools.foundation";
    refused(
        &fixture,
        &["pools.foundation.tensor_parallel=3"],
        &[pool, "num_attention_heads is 2", "tensor_parallel=3"],
    );
    // Of a run with processes one of them says it, once.
    let said = fixture.start(&["run", "run.yaml", "--processes", "pools.foundation.tensor_parallel=3"]);
    assert_eq!((said.code, said.err.matches("num_attention_heads is 2").count()), (2, 1), "{}", said.err);
    refused_too(&fixture, &["pools.encoder.tensor_parallel=3"], &["pools.encoder", "tensor_parallel=3"]);
    refused_too(
        &fixture,
        &["pools.foundation.pipeline_parallel=3"],
        &["pipeline_parallel", "3 stages are too many for 2 layers"],
    );
    let ulysses = ["pools.foundation.context_parallel=3", "pools.foundation.context_attention=ulysses"];
    refused_too(&fixture, &ulysses, &["pools.foundation.context_parallel"]);
    let both = ["pools.foundation.context_parallel=2", "pools.foundation.chunk_tokens=16"];
    refused_too(&fixture, &both, &["context_parallel or by chunk_tokens"]);
    refused(&fixture, &["device=cuda"], &["cuda was asked for"]);
    fixture.succeeds(&["check", "run.yaml", "device=cuda", "--no-device"]);
    let changes = "pools.encoder.cache_dir: features change with every step, since model.image_";
    refused(
        &fixture,
        &["pools.encoder.cache_dir=features"],
        &[changes, "model.image_encoder and model.image_projector are trained", "model.image_encoder.freeze=true"],
    );
    // A frozen tower whose projector is trained, as in the first stage of a model of parts.
    let aligned = ["pools.encoder.cache_dir=features", "model.image_encoder.freeze=true"];
    refused_too(
        &fixture,
        &aligned,
        &[changes, "since model.image_projector is trained; leave it out, or set model.image_"],
    );
    let encode = ["data", "encode", "run.yaml", "pools.encoder.cache_dir=features"];
    fixture.fails(&encode, 2, &["pools.encoder.cache_dir: features change with every step"]);
    assert!(!fixture.path("features").exists());
    let credit = ["edges.pixels.credit is 1024 bytes", "data/train.jsonl", "could never be sent: raise it"];
    refused(&fixture, &["edges.pixels.credit=1KiB"], &credit);
    let credit = ["edges.features.credit is 100 bytes", "data/train.jsonl", "could never be sent: raise it"];
    refused_too(&fixture, &["edges.features.credit=100B"], &credit);
    // Several encoders may share a sample, whose pictures are not cut; colocated ones send nothing.
    refused_too(&fixture, &["edges.features.credit=100B", "pools.encoder.replicas=2"], &credit);
    fixture.succeeds(&["check", "run.yaml", "edges.features.credit=100B", "pools.placement=colocated"]);
    for pool in ["foundation", "encoder"] {
        let key = format!("memory.activation_budget.{pool}");
        refused(&fixture, &[&format!("{key}=1KiB")], &[&key, "raise it, or make micro-batches smaller"]);
        fixture.succeeds(&["check", "run.yaml", &format!("{key}=64MiB")]);
    }
    let reference = ["train.preference={loss: orpo}", "pools.reference={}"];
    refused(&fixture, &reference, &["`orpo` does not use a reference model; leave the pool out (`~pools.reference`)"]);
    let learn = ["train.preference={loss: orpo}", "train.learn=last"];
    refused_too(&fixture, &learn, &["`train.learn` is not supported with `train.preference`"]);
    let none = ["model.image_projector.freeze_patterns=['*.nothing.*']"];
    refused(&fixture, &none, &["model.image_projector.freeze_patterns: no parameter of this part matches"]);
    let adapters = ["model.foundation.lora.r=4", "model.foundation.lora.target_modules=[query]"];
    refused(&fixture, &adapters, &["target_modules", "no linear layer matches `query`"]);
}

#[test]
fn data_of_which_nothing_can_be_used_are_refused() {
    let fixture = Fixture::new();
    let long = ["all 40 samples of data/train.jsonl", "longer than data.pack.max_tokens = 4", "data/train.jsonl:1"];
    refused(&fixture, &["data.pack.max_tokens=4"], &long);
    let unknown = r#"{"better": "a", "worse": "b"}"#;
    fixture.write("data/odd.jsonl", format!("{unknown}\n").repeat(9));
    let odd = ["data/odd.jsonl", "its first sample has the fields"];
    refused_too(&fixture, &["data.train.0.path=data/odd.jsonl"], &odd);
    let pair = r#"{"prompt": "?", "chosen": "a", "rejected": "b"}"#;
    fixture.write("data/dpo.jsonl", format!("{pair}\n").repeat(9));
    refused(&fixture, &["data.train.0.path=data/dpo.jsonl"], &["data/dpo.jsonl", "set `train.preference`"]);
    refused_too(&fixture, &["train.preference={loss: orpo}"], &["data/train.jsonl", "has no pairs of answers"]);
    let answer = r#"{"prompt": "?", "completion": "a", "label": true}"#;
    fixture.write("data/kto.jsonl", format!("{answer}\n").repeat(9));
    let words = ["data/kto.jsonl", "set `train.preference.loss` to kto"];
    refused_too(&fixture, &["data.train.0.path=data/kto.jsonl"], &words);
    let user = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
    fixture.write("data/user.jsonl", format!("{user}\n").repeat(9));
    let words = ["none of the 9 samples of data/user.jsonl", "no assistant message to learn from"];
    refused(&fixture, &["data.train.0.path=data/user.jsonl"], &words);
    let gone = r#"{"messages": [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "a"}], "images": ["gone.png"]}"#;
    fixture.write("data/gone.jsonl", format!("{gone}\n").repeat(9));
    let words = ["gone.png: No such file or directory", "in the folder of their list, or in media_dir of the data set"];
    refused_too(&fixture, &["data.train.0.path=data/gone.jsonl"], &words);
    let pack = ["data", "pack", "run.yaml", "--out", "packs", "data.train.0.path=data/user.jsonl"];
    fixture.fails(&pack, 2, &["9 are bad", "data/user.jsonl:1", "no assistant message to learn from"]);
}

#[test]
fn packs_are_not_kept_for_data_that_changed() {
    let fixture = Fixture::new();
    let pack = ["data", "pack", "run.yaml", "--out", "packs"];
    (0..2).for_each(|_| drop(fixture.succeeds(&pack)));
    // As many bytes and samples as before.
    let lines = fixture.read("data/train.jsonl");
    fixture.write("data/train.jsonl", lines.lines().rev().map(|line| format!("{line}\n")).collect::<String>());
    fixture.fails(&pack, 2, &["packs", "holds packs of other data"]);
}

/// Makes a set of which 2 of 40 samples are longer than 128 tokens.
fn with_long_samples() -> Fixture {
    let fixture = Fixture::new();
    let lines = fixture.read("data/train.jsonl");
    let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines[1]["messages"][1]["content"] = "7".repeat(500).into();
    lines[2]["messages"][1]["content"] = "8".repeat(500).into();
    fixture.write("data/train.jsonl", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    fixture
}

#[test]
fn the_share_of_samples_that_are_too_long_is_said_and_is_no_error() {
    let fixture = with_long_samples();
    let share = "2 of 40 samples (5.0 %) are longer than 128 tokens";
    for command in ["check", "plan"] {
        let said = fixture.succeeds(&[command, "run.yaml"]);
        assert!(said.out.contains(&format!("{share} and are skipped")), "{}", said.out);
    }
    let stats = ["data", "stats", "data/train.jsonl", "--model", "model", "--max-tokens", "128"];
    let said = fixture.succeeds(&stats);
    assert!(said.out.contains(share) && said.out.contains("40 samples, 0 of them bad"), "{}", said.out);
    // More than `max_fraction`, over several epochs.
    let said = fixture.succeeds(&["run", "run.yaml", "train.steps=20", "train.lr=1e-5"]);
    assert!(said.err.contains(share), "{}", said.err);
    let last = fixture.read("run/metrics.jsonl");
    let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    assert!(last["too_long"].as_u64().unwrap() >= 6 && last["bad_samples"] == 0, "{last}");
    let error = ["run.dir=other", "data.pack.too_long=error"];
    fixture.fails(&[&["run", "run.yaml"], &error[..]].concat(), 2, &["data/train.jsonl:2", "data.pack.too_long"]);
    assert!(!fixture.path("other").exists());
}

#[test]
fn sizes_and_names_are_bounded_before_anything_is_made_of_them() {
    let fixture = Fixture::new();
    let huge = "1000000000";
    let layers = format!("model.overrides.text_config.num_hidden_layers={huge}");
    refused(&fixture, &[&layers], &["num_hidden_layers is 1000000000", "must be at most 4096"]);
    let width = format!("model.overrides.text_config.hidden_size={huge}");
    refused(&fixture, &[&width], &["hidden_size is 1000000000", "must be at most"]);
    refused(&fixture, &["train.global_batch_size=18446744073709551615"], &["train.global_batch_size", "at most"]);
    refused(&fixture, &["data.pack.max_tokens=18446744073709551615"], &["data.pack.max_tokens", "at most"]);
    refused(&fixture, &["run.name=../../evil"], &["run.name", "would lead out of the runs folder"]);
    let many = [
        "model.overrides.text_config.vocab_size=16000000",
        "pools.foundation.replicas=1024",
        "train.global_batch_size=1024",
    ];
    let words = ["of memory: use a smaller model, fewer replicas, or more machines"];
    fixture.fails(&[&["run", "run.yaml", "--processes"], &many[..]].concat(), 2, &words);
    fixture.fails(&[&["check", "run.yaml"], &many[..]].concat(), 2, &words);
    // Of machines that are not here nothing is known, of CPUs that are named so much that they may be few.
    let elsewhere = [&["check", "run.yaml", "--no-device"], &many[..]].concat();
    assert!(!fixture.succeeds(&elsewhere).out.contains("of memory"));
    let said = fixture.succeeds(&[&elsewhere[..], &["device=cpu"]].concat()).out;
    assert!(said.contains("warning: the weights of all actors take"), "{said}");
    fixture.fails(&[&["run", "run.yaml"], &many[..]].concat(), 2, &["files open", "--processes"]);
    for file in ["/dev/zero", "/dev/null", "data"] {
        fixture.fails(&["check", file], 2, &["not a regular file"]);
    }
}

#[test]
fn what_has_no_effect_is_said() {
    let fixture = Fixture::new();
    let experts = ["pools.foundation.replicas=2", "pools.foundation.expert_parallel=2"];
    let said = fixture.succeeds(&[&["check", "run.yaml"], &experts[..]].concat());
    assert!(said.out.contains("expert_parallel is 2 and has no effect"), "{}", said.out);
    let said = |words: &[&str]| fixture.succeeds(&[&["check", "run.yaml"], words].concat()).out;
    let frozen = ["model.image_encoder.freeze=true", "model.image_projector.freeze=true"];
    let cached = said(&["pools.encoder.cache=1MiB"]);
    assert!(cached.contains("pools.encoder.cache has no effect: its towers or projectors are trained"), "{cached}");
    assert!(!said(&[&frozen[..], &["pools.encoder.cache=1MiB"]].concat()).contains("no effect"));
    let spilt = said(&[&frozen[..], &["pools.encoder.spill=1MiB"]].concat());
    assert!(spilt.contains("pools.encoder.spill has no effect") && spilt.contains("`cache`, which is 0"), "{spilt}");
    let products = said(&["--no-device", "device=cuda", "run.products=libtorch"]);
    assert!(products.contains("run.products is libtorch and has no effect with device: cuda"), "{products}");
    let idle = said(&["memory.throttle=1GiB", "pools.foundation.context_attention=ulysses", "run.lanes=2"]);
    for key in ["memory.throttle", "pools.foundation.context_attention", "run.lanes"] {
        assert!(idle.contains(&format!("{key} has no effect: ")), "{idle}");
    }
    assert!(!said(&["run.lanes=2", "run.deterministic=true"]).contains("run.lanes has no effect"));
    let colocated = said(&["pools.placement=colocated", "pools.encoder.grace=9s"]);
    for key in ["threads", "grace"] {
        assert!(
            colocated.contains(&format!("pools.encoder.{key} has no effect: encoders are colocated")),
            "{colocated}"
        );
    }
    let lora = "model.foundation.lora.r=2";
    let whole = said(&[lora]);
    for part in ["image_encoder", "image_projector"] {
        assert!(whole.contains(&format!("model.{part} is trained as a whole beside the adapters")), "{whole}");
    }
    let settled = [lora, "model.image_encoder.freeze=true", "model.image_projector.freeze=false"];
    assert!(!said(&settled).contains("is trained as a whole"));
    let line = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    fixture.write("mixed/a.jsonl", format!("{line}\n"));
    fixture.write("mixed/b.txt", "a text\n");
    let said = fixture.succeeds(&["check", "run.yaml", "data.train.0.path=mixed"]);
    assert!(said.out.contains("those like a.jsonl are read, b.txt left out"), "{}", said.out);
    assert!(!said.out.contains("positions of the model"), "{}", said.out);
    let few = "model.overrides.text_config.max_position_embeddings=3";
    let said = fixture.succeeds(&["check", "run.yaml", "data.train.0.path=mixed", few]);
    assert!(said.out.contains("more than the 3 positions of the model"), "{}", said.out);
    let said = fixture.succeeds(&["data", "stats", "mixed"]);
    assert!(said.err.contains("b.txt left out"), "{}", said.err);
}

#[test]
fn a_model_of_parts_starts_with_a_random_projector() {
    let fixture = Fixture::trained();
    std::fs::rename(fixture.path("run"), fixture.path("first")).unwrap();
    fixture.copy("model", "words");
    std::fs::remove_file(fixture.path("words/preprocessor_config.json")).unwrap();
    fixture.edit("run.yaml", "model: { load: model, weights: random }", "model: { tokenizer: words }");
    let folder = "first/checkpoints/step-00000002";
    let parts = [format!("model.image_encoder.load={folder}"), format!("model.foundation.load={folder}")];
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let said = fixture.succeeds(&[&["check", "run.yaml"], &parts[..]].concat());
    assert!(said.out.contains("model.image_projector starts with random weights"), "{}", said.out);
    let none = ["model.image_encoder.overrides.deepstack_visual_indexes=[]"];
    fixture.succeeds(&[&["run", "run.yaml"], &parts[..], &none].concat());
    assert!(fixture.path("run/checkpoints/step-00000002/preprocessor_config.json").is_file());
    let unknown = ["run.dir=other", "model.image_encoder.overrides.dept=3"];
    let words = ["model.image_encoder.overrides.dept", "no such key"];
    fixture.fails(&[&["run", "run.yaml"], &parts[..], &unknown].concat(), 2, &words);
    let deeper = ["run.dir=other", "model.image_encoder.overrides.depth=3"];
    fixture.fails(&[&["check", "run.yaml"], &parts[..], &deeper].concat(), 2, &["missing", "image_encoder"]);
    // A whole model has the weights of its tower.
    let whole = format!("model.load={folder}");
    let unused = ["check", "run.yaml", parts[0], whole.as_str(), "run.dir=other"];
    fixture.fails(&unused, 2, &["model.image_encoder.load is set, but nothing of a "]);
}

#[test]
fn an_address_without_a_login_is_wrong_usage() {
    let fixture = Fixture::new();
    for role in ["encoder", "scheduler"] {
        fixture.fails(&["run", "run.yaml", "--role", role, "--join", "192.0.2.1:6001"], 2, &["error[LF0501]"]);
    }
    assert!(!fixture.path("run").exists());
}

#[test]
fn fewer_open_files_than_a_run_takes_are_refused() {
    let fixture = Fixture::new();
    let few = |limit: u32, layout: &str| {
        let script = format!("ulimit -n {limit}; exec {} run run.yaml {layout}", env!("CARGO_BIN_EXE_loongforge"));
        Command::new("sh").args(["-c", &script]).current_dir(fixture.path("")).output().unwrap()
    };
    for limit in [24, 127] {
        let output = few(limit, "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(&format!("may have {limit} files open")) && text.contains("ulimit -n"), "{text}");
        assert_eq!(output.status.code(), Some(2));
    }
    // Actors that compute together are all connected with each other.
    let output = few(200, "pools.foundation.replicas=4");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("a run of so many actors in one process takes about 204") && text.contains("--processes"));
    assert_eq!(output.status.code(), Some(2));
    // `check` says so: with a process for each actor the run can go.
    let script =
        format!("ulimit -n 200; exec {} check run.yaml pools.foundation.replicas=4", env!("CARGO_BIN_EXE_loongforge"));
    let output = Command::new("sh").args(["-c", &script]).current_dir(fixture.path("")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("warning: this process may have 200 files open"), "{text}");
    assert!(!fixture.path("run").exists());
    // Enough for that.
    let output = few(128, "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What the process may raise by itself, it does.
    let script = format!("ulimit -S -n 32; exec {} run run.yaml --overwrite", env!("CARGO_BIN_EXE_loongforge"));
    let output = Command::new("sh").args(["-c", &script]).current_dir(fixture.path("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_system_message_that_no_sample_would_get_is_refused() {
    let fixture = Fixture::new();
    fixture.write("text.jsonl", "{\"text\": \"hello\"}\n".repeat(20));
    let system = "data.system=Be brief.";
    let words = ["data.system: no set of data.train has conversations"];
    refused(&fixture, &["data.train=text.jsonl", "train.phase=pretrain", system], &words);
    let set = "data.train=[{path: text.jsonl, system: Be brief.}]";
    let words = ["text.jsonl: has no conversations, to which alone `system` applies"];
    refused_too(&fixture, &[set, "train.phase=pretrain"], &words);
    fixture.succeeds(&["check", "run.yaml", "data.template=chatml", "data.pack.max_tokens=512", system]);
}

#[test]
fn a_scheduler_that_waits_for_its_actors_can_be_stopped() {
    let fixture = Fixture::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_loongforge"))
        .args(["run", "run.yaml", "--role", "scheduler", "--join", "run.sock"])
        .current_dir(fixture.path(""))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !fixture.path("run.sock").exists() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}
