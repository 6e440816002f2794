//! Tests of the files that a run leaves for other programs and for its log: W&B, MLflow, log files, `compare` and `report`.

use crate::fixture::{Fixture, Pictures};
use crate::must::skip;
use loongforge::core::observe::{EvalRecord, StepMetrics, read_evaluations, read_metrics};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs of six steps and, resumed, of nine, with answers of held-out questions every three.
const RUN: [&str; 12] = [
    "train.warmup_steps=1",
    "checkpoint.every_steps=3",
    "eval.every_steps=3",
    "eval.generate=2",
    "eval.max_new_tokens=4",
    "eval.max_samples=4",
    "eval.save_best=false",
    "log.every_steps=1",
    "log.wandb.project=digits",
    "log.wandb.tags=[a, b]",
    "log.mlflow.experiment=digits",
    "log.mlflow.tags.team=vision",
];

fn program(fixture: &Fixture, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    command.current_dir(fixture.path()).env("OMP_NUM_THREADS", "1").env("CUDA_VISIBLE_DEVICES", "").args(args);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes a run that was resumed, and what it printed the first time and the second.
fn resumed() -> (Fixture, [String; 2]) {
    let fixture = Fixture::new(Pictures::None);
    let held_out = format!("+eval.path={}", fixture.path().join("data/held_out.jsonl").display());
    let start = |more: &[&str]| {
        let output = program(&fixture, &[&["run", "run.yaml", &held_out][..], &RUN, more].concat());
        text(&output.stderr)
    };
    let printed = [start(&["train.steps=6"]), start(&["train.steps=9", "--resume", "log.format=json"])];
    (fixture, printed)
}

fn left(run: &Path) -> (Vec<StepMetrics>, Vec<EvalRecord>) {
    (read_metrics(&run.join("metrics.jsonl")).unwrap(), read_evaluations(&run.join("eval.jsonl")).unwrap())
}

#[test]
fn logs_are_kept_and_runs_are_compared() {
    let (fixture, [first, second]) = resumed();
    let run = fixture.path().join("run");
    let token = serde_json::from_str::<Value>(&fs::read_to_string(run.join("watch.json")).unwrap()).unwrap();
    let token = token["token"].as_str().unwrap().to_owned();

    // The terminal's lines are the file's, with a time and a level.
    let log = fs::read_to_string(run.join("log.txt")).unwrap();
    for line in first.lines().filter(|line| !line.trim().is_empty()) {
        assert!(log.lines().any(|kept| kept.ends_with(line)), "{line}\n{log}");
    }
    assert!(log.contains(" INFO  checkpoint ") && log.contains("goodput"), "{log}");
    let json: Vec<Value> =
        second.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    assert!(json.iter().all(|line| line["level"].is_string() && line["time"].is_string()), "{second}");
    let kept = fs::read_to_string(run.join("log.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), json.iter().filter(|line| line["message"] != "").count());
    for text in [&first, &second, &log, &kept] {
        assert!(!text.contains(&token) && text.contains("watch: http://127.0.0.1:"), "{text}");
    }

    // Another run of the same folder's data.
    let other = [
        "run",
        "run.yaml",
        "run.dir=other",
        "run.name=other",
        "train.steps=4",
        "train.lr=1e-3",
        "watch.show_token=true",
    ];
    let printed = text(&program(&fixture, &other).stderr);
    assert!(printed.contains("/?token="), "{printed}");
    assert!(!fs::read_to_string(fixture.path().join("other/log.txt")).unwrap().contains("token="));
    let table = text(&program(&fixture, &["compare", "run", "other", "-o", "losses.png"]).stdout);
    assert!(table.contains("train.lr") && table.contains("held_out: best loss"), "{table}");
    assert!(fixture.path().join("losses.png").is_file());
    let found: Value =
        serde_json::from_slice(&program(&fixture, &["compare", "run", "other", "--json"]).stdout).unwrap();
    let (steps, records) = left(&run);
    assert_eq!(found["config"]["train.lr"], json!([0.002, 0.001]));
    assert!(found["config"].get("checkpoint.dir").is_none(), "{found}");
    assert_eq!((&found["runs"][0]["figures"]["steps"], steps.len()), (&json!(9), 9));
    let best = records.iter().filter_map(|record| record.loss).fold(f64::INFINITY, f64::min);
    assert_eq!(found["runs"][0]["figures"]["held_out"]["held_out"]["best"], json!(best));
    // The time of both starts counts, and steps are no more of it than all.
    assert!(steps.windows(2).all(|pair| pair[0].active_s < pair[1].active_s));
    let goodput = found["runs"][0]["figures"]["goodput"].as_f64().unwrap();
    let useful: f64 = steps.iter().map(|step| step.step_ms / 1e3).sum();
    assert!((goodput - useful / steps[8].active_s).abs() < 1e-9 && goodput < 1.0, "{goodput}");

    program(&fixture, &["report", "run", "-o", "page.html"]);
    let page = fs::read_to_string(fixture.path().join("page.html")).unwrap();
    assert!(page.contains("\"/history.json\":{\"step\":[0,1,2,3,4,5,6,7,8]") && !page.contains("src=\"http"));
    let top = text(&program(&fixture, &["top", "run", "--once"]).stdout);
    assert!(top.contains(&format!("goodput {:.0}%", 100.0 * goodput)), "{top}");
}

#[test]
fn unmodified_clients_of_wandb_and_mlflow_read_a_run() {
    let Some(python) = std::env::var_os("LOONGFORGE_CLIENT_PYTHON").map(PathBuf::from) else {
        let why =
            "LOONGFORGE_CLIENT_PYTHON names no Python with wandb 0.31.0 and mlflow-skinny 3.17.2 (docs/watching.md)";
        return skip("clients", why);
    };
    let (fixture, _) = resumed();
    let run = fixture.path().join("run");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/trackers.py");
    let output = Command::new(python).arg(script).arg(&run).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (steps, records) = left(&run);
    assert_eq!((steps.len(), records.len()), (9, 3));

    let wandb = &found["wandb"];
    assert_eq!((&wandb["folders"], &wandb["project"], &wandb["exit_code"]), (&json!(1), &json!("digits"), &json!(0)));
    assert_eq!((&wandb["name"], &wandb["tags"]), (&json!("test"), &json!(["a", "b"])));
    assert_eq!(wandb["config"]["train"]["value"]["lr"], json!(0.002));
    let history = wandb["history"].as_array().unwrap();
    let of = |step: u64, key: &str| history.iter().find(|row| row["_step"] == step).map(|row| row[key].clone());
    for step in &steps {
        for (name, value) in step.scalars() {
            let found = of(step.step, &name).and_then(|found| found.as_f64());
            assert_eq!(found, Some(value), "step {}: {name}", step.step);
        }
    }
    for record in &records {
        let found = of(record.step, "eval/held_out/loss").and_then(|found| found.as_f64());
        assert_eq!(found, record.loss, "{record:?}");
        let table = of(record.step, "eval/held_out/answers").unwrap();
        let uploaded = wandb["uploads"][table["path"].as_str().unwrap()].as_str().unwrap();
        let rows = serde_json::from_str::<Value>(uploaded).unwrap()["data"].clone();
        assert_eq!(rows.as_array().unwrap().len(), record.answers.len());
        assert_eq!(rows[0][1], record.answers[0].answer);
    }
    assert_eq!(wandb["summary"]["train/loss"].as_f64(), Some(steps[8].loss));
    assert!(
        wandb["system"].as_u64() > Some(0) && wandb["uploads"]["output.log"].as_str().unwrap().contains("checkpoint")
    );

    let mlflow = &found["mlflow"];
    let facts = ["experiment", "name", "status", "ended"].map(|key| mlflow[key].clone());
    assert_eq!(facts, [json!("digits"), json!("test"), json!("FINISHED"), json!(true)]);
    assert_eq!((&mlflow["params"]["train.lr"], &mlflow["tags"]["team"]), (&json!("0.002"), &json!("vision")));
    let curve = |name: &str| mlflow["metrics"][name].clone();
    for (name, _) in steps[0].scalars() {
        let points: Vec<Value> = steps
            .iter()
            .map(|step| json!([step.step, step.scalars().into_iter().find(|(other, _)| *other == name).unwrap().1]))
            .collect();
        assert_eq!(curve(&name), json!(points), "{name}");
    }
    let losses: Vec<Value> = records.iter().map(|record| json!([record.step, record.loss])).collect();
    assert_eq!(curve("eval/held_out/loss"), json!(losses));
    for record in &records {
        let table = &mlflow["tables"][format!("eval/held_out/answers-step-{}.json", record.step)];
        assert_eq!(table["data"][0][1], record.answers[0].answer, "{mlflow}");
    }
    assert_eq!(mlflow["artifacts"], json!(["config.yaml", "eval", "log.jsonl", "log.txt"]));
}

/// A process records once, for all its actors; processes record for themselves; and no bit of the run changes.
#[test]
fn steps_are_profiled_and_change_nothing() {
    let fixture = Fixture::new(Pictures::All);
    let common = ["run", "run.yaml", "train.steps=4", "run.deterministic=true"];
    let profiled = "+watch.profile={first: 2, steps: 2}";
    for (name, own, files) in
        [("none", &[][..], 0), ("threads", &[profiled][..], 1), ("processes", &[profiled, "--processes"], 2)]
    {
        let run = format!("run.dir={name}");
        program(&fixture, &[&common[..], &[run.as_str()], own].concat());
        let run = fixture.path().join(name);
        let found = fs::read_dir(run.join("profile")).map_or(vec![], |files| {
            files.map(|file| file.unwrap().path()).filter(|path| path.extension().unwrap() == "json").collect()
        });
        assert_eq!(found.len(), files, "{name}: {found:?}");
        for trace in found {
            let parsed: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
            assert!(parsed["traceEvents"].as_array().unwrap().len() > 100, "{}", trace.display());
            let table = fs::read_to_string(trace.with_extension("txt")).unwrap();
            assert!(table.starts_with("Steps 2 to 3 of ") && table.contains("loongforge::linear"), "{table}");
        }
        let losses = |run: &Path| -> Vec<f64> {
            read_metrics(&run.join("metrics.jsonl")).unwrap().iter().map(|step| step.loss).collect()
        };
        assert_eq!(losses(&run), losses(&fixture.path().join("none")), "{name}");
    }
}
