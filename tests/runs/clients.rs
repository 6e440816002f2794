//! Clients of policy servers from the package registry, which are not changed: they play whole episodes against the program.

use crate::must::skip;
use crate::processes::Killed;
use loongforge::core::robot::pads::{PadsSet, compose_pads};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A server that ends with the test.
struct Serving {
    _child: Killed,
    port: String,
}

impl Serving {
    fn begin(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        command.arg("serve-policy").args(args).args(["--port", "0"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().unwrap().to_owned();
        assert!(port.parse::<u16>().is_ok(), "{line}");
        Self { _child: Killed(child), port }
    }

    /// Returns the output of a client's script.
    fn played(&self, python: &Path, script: &str, args: &[&str]) -> serde_json::Value {
        let mut command = Command::new(python);
        command.arg(script).args(["--port", &self.port]).args(args);
        let output = command.current_dir(scripts()).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{script}: {}", output.status);
        // vla-eval prints tables before it.
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(text.trim().lines().last().unwrap()).unwrap()
    }
}

fn scripts() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// Returns a Python that has the clients: `LOONGFORGE_CLIENT_PYTHON`. It runs in the folder of the scripts, so it must be absolute.
fn python() -> Option<std::path::PathBuf> {
    let python = std::env::var_os("LOONGFORGE_CLIENT_PYTHON").map(std::path::PathBuf::from);
    if python.is_none() {
        let why =
            "LOONGFORGE_CLIENT_PYTHON names no Python with openpi-client 0.1.2 and vla-eval 0.8.0 (docs/policies.md)";
        skip("clients", why);
    }
    python
}

/// Successes in Pads as shares of layouts: of a policy, and of what it stands beside.
pub struct PadsRates {
    pub plain: f64,
    /// Told another color: the pad that it was told, and the layout's own.
    pub told: f64,
    pub own: f64,
    pub blanked: f64,
    pub random: f64,
    pub expert: f64,
}

/// Counts successes of the policy of the run in `run` on the first held-out layouts, by a process that has `openpi-client` alone; `None`:
/// there is no such client here.
pub fn count_pads(run: &Path, num_layouts: usize) -> Option<PadsRates> {
    let python = python()?;
    let (run, layouts) = (run.display().to_string(), num_layouts.to_string());
    let count = |policy: &[&str], told: &str| {
        let serving = Serving::begin(&[policy, &["--protocol", "openpi"]].concat());
        let played = serving.played(&python, "openpi_pads.py", &["--layouts", &layouts, "--told", told]);
        ["told", "own"].map(|pad| played[pad].as_u64().unwrap() as f64 / num_layouts as f64)
    };
    let [plain, _] = count(&[&run], "own");
    let [told, own] = count(&[&run], "other");
    let [blanked, _] = count(&[&run], "blanked");
    let [random, _] = count(&["--policy", "pads-random"], "own");
    let [expert, _] = count(&["--policy", "pads-expert"], "own");
    Some(PadsRates { plain, told, own, blanked, random, expert })
}

#[test]
fn unmodified_clients_of_openpi_count_what_the_judge_counts() {
    let Some(python) = python() else { return };
    let serving = Serving::begin(&["--policy", "pads-expert", "--protocol", "openpi"]);
    let own = serving.played(&python, "openpi_pads.py", &["--layouts", "30"]);
    assert_eq!((own["told"].as_u64(), own["own"].as_u64()), (Some(30), Some(30)), "{own}");
    let other = serving.played(&python, "openpi_pads.py", &["--layouts", "30", "--told", "other"]);
    assert_eq!((other["told"].as_u64(), other["own"].as_u64()), (Some(30), Some(0)), "{other}");
    let blanked = serving.played(&python, "openpi_pads.py", &["--layouts", "10", "--told", "blanked"]);
    assert_eq!(blanked["told"], 0, "{blanked}");
}

/// The scripts of Meta-World with their stand-in: demonstrations are recorded, a policy without cameras is trained and asked.
#[test]
fn unmodified_clients_play_what_a_script_recorded() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display().to_string();
    let script = |script: &str, args: &[&str]| {
        let output = Command::new(&python).arg(script).args(args).current_dir(scripts()).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let task = ["--task", "stand-in"];
    let recorded = script("metaworld_record.py", &[&task[..], &["--episodes", "40", "--out", &root]].concat());
    assert_eq!(recorded["episodes"], 40, "{recorded}");
    let config = std::fs::read_to_string(scripts().join("metaworld.yaml")).unwrap();
    let path = dir.path().join("metaworld.yaml");
    std::fs::write(&path, config.replace("runs/metaworld/reach", &root)).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    program.arg("run").arg(&path).args(["train.steps=250", "train.warmup_steps=20"]).arg(format!("run.dir={root}/run"));
    let output = program.args(["run.name=stand-in", "log.tensorboard=false"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let serving = Serving::begin(&[&format!("{root}/run"), "--protocol", "openpi"]);
    let play = |policy: &str| {
        let args = [&task[..], &["--policy", policy, "--episodes", "20"]].concat();
        let played = serving.played(&python, "metaworld_play.py", &args);
        played["successes"].as_u64().unwrap()
    };
    let [served, blanked, expert, random] = ["served", "blanked", "expert", "random"].map(play);
    println!("of 20: served {served}, blanked {blanked}, expert {expert}, random {random}");
    assert!(served >= 10 && expert == 20 && random <= 2 && blanked < served, "{served} {blanked} {expert} {random}");
}

/// Returns an X-VLA of Pads: the fixture's, with the task's tokens and camera.
fn made_xvla() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    compose_pads(&dir.path().join("data"), &PadsSet { seed: 1, num_episodes: 6 }).unwrap();
    let path = dir.path().join("data/model/config.json");
    let json = |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/policies/xvla-auto-seed1/config.json");
    let (pads, mut config) = (json(&path), json(&fixture));
    for key in ["input_features", "output_features"] {
        config[key] = pads[key].clone();
    }
    config["florence_config"]["text_config"]["vocab_size"] = pads["sizes"]["vocab_size"].clone();
    for (key, size) in [("max_state_dim", 2), ("max_action_dim", 2), ("num_image_views", 1), ("chunk_size", 8)] {
        config[key] = size.into();
    }
    (config["n_action_steps"], config["resize_imgs_with_padding"]) = (8.into(), json!([32, 32]));
    (config["tokenizer_max_length"], config["florence_config"]["text_config"]["max_position_embeddings"]) =
        (24.into(), 64.into());
    config["max_len_seq"] = 64.into();
    std::fs::write(&path, config.to_string()).unwrap();
    dir
}

/// FastWAM and X-VLA are trained for two steps: their actions are of no use, and they are asked through whole episodes.
#[test]
fn unmodified_clients_of_openpi_are_answered_by_other_policies() {
    let Some(python) = python() else { return };
    for dir in [crate::fastwam::made(), made_xvla()] {
        let path = dir.path().join("run.yaml");
        std::fs::write(&path, crate::fastwam::text(dir.path())).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        program.arg("run").arg(&path).args(["train.steps=2", "train.warmup_steps=1", "train.global_batch_size=4"]);
        let output = program.args(["policy.noise_draws=1", "log.tensorboard=false"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let run = dir.path().join("run").display().to_string();
        let played =
            Serving::begin(&[&run, "--protocol", "openpi"]).played(&python, "openpi_pads.py", &["--layouts", "2"]);
        assert!(played["layouts"] == 2 && played["steps"].as_u64() > Some(2), "{played}");
    }
}

#[test]
fn unmodified_clients_of_vla_eval_play_whole_episodes() {
    let Some(python) = python() else { return };
    let serving = Serving::begin(&["--policy", "pads-expert", "--protocol", "vla-eval"]);
    let played = serving.played(&python, "vla_eval_pads.py", &["--layouts", "15"]);
    assert_eq!((played["layouts"].as_u64(), played["told"].as_u64()), (Some(15), Some(15)), "{played}");
    assert_eq!(played["failed"], serde_json::json!([]), "{played}");
}
