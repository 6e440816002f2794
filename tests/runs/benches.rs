//! Every benchmark that docs/benchmarks.md names runs at its smallest size; of its other commands it is known why they are not run.

use crate::soak::{self, Cell};
use How::{Bench, Not, Program, Python};
use loongforge::core::data::digits::{self, Digits};
use loongforge::core::data::heard_and_seen::{self, HeardAndSeen};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The way in which a command of the page is run at its smallest size.
#[derive(Clone, Copy)]
enum How {
    /// Arguments of `cargo bench --bench`.
    Bench(&'static str),
    /// Modules that the Python of `LOONGFORGE_PEERS_PYTHON` needs, and its words: `{program}` is the program, and another name
    /// between braces the benchmark of that name.
    Python(&'static str, &'static str),
    /// Commands of the program, one after another, in a folder with the data of the page's configs.
    Program(&'static [&'static [&'static str]]),
    /// Why it is not run here.
    Not(&'static str),
}

/// Enough steps to calibrate from, whose first five do not count.
const HEARD_AND_SEEN: &[&str] = &[
    "run",
    "configs/heard_and_seen.yaml",
    "train.steps=16",
    "train.warmup_steps=2",
    "train.global_batch_size=4",
    "eval=null",
];
const SIMULATED: &[&str] = &[
    "plan",
    "configs/heard_and_seen.yaml",
    "train.global_batch_size=4",
    "eval=null",
    "--simulate",
    "--calibrate",
    "runs/heard_and_seen",
    "--cores",
    "4",
    "--steps",
    "20",
];
const DRILL: &[&str] = &[
    "drill",
    "configs/quickstart.yaml",
    "pools.encoder.replicas=2",
    "eval=null",
    "train.steps=8",
    "train.warmup_steps=2",
    "--faults",
    "encoder/0: kill at step 3",
];

/// The first words of a command of the page, and what is run of it.
const COMMANDS: [(&str, How); 36] = [
    ("cargo bench -p loongforge-core --bench edge", Bench("edge")),
    ("cargo bench -p loongforge-core --bench samples", Bench("samples")),
    ("cargo bench -p loongforge-core --bench sound", Bench("sound")),
    ("cargo bench -p loongforge-core --bench schedule", Bench("schedule -- 70")),
    ("cargo bench -p loongforge-core --bench packing", Bench("packing -- --samples 1000 --laws sft")),
    ("cargo bench -p loongforge-core --bench balance", Bench("balance -- --ranks 8 --laws sft")),
    ("cargo bench -p loongforge-core --bench simulate", Bench("simulate -- 3")),
    ("cargo bench -p loongforge-torch --bench products", Bench("products -- 1")),
    ("cargo bench -p loongforge-torch --bench cct", Bench("cct -- 32 3")),
    ("cargo bench -p loongforge-torch --bench overlap", Bench("overlap -- 16 1")),
    ("cargo bench -p loongforge-torch --bench reshard", Bench("reshard")),
    ("cargo bench -p loongforge-torch --bench save", Bench("save")),
    ("cargo bench -p loongforge-torch --bench vae", Bench("vae -- 1")),
    ("cargo bench -p loongforge-torch --bench dit", Bench("dit -- 1")),
    ("cargo bench -p loongforge-actors --bench pool_scaling", Bench("pool_scaling -- 1")),
    ("cargo bench -p loongforge-actors --bench journal", Bench("journal")),
    ("cargo bench -p loongforge --bench sandbox", Bench("sandbox")),
    ("cargo bench --bench load", Bench("load")),
    ("cargo build --release", Not("no benchmark: it builds the program that scripts measure")),
    (
        "PYTHON benches/step_time.py",
        Python(
            "torch transformers PIL",
            "benches/step_time.py --binary {program} --steps 2 --skip 1 --rounds 1 --trial 1 --attention sdpa --micro",
        ),
    ),
    (
        "PYTHON benches/packing.py",
        Python("numpy pyarrow trl", "benches/packing.py --binary {packing} --samples 1000 --laws sft --tokens 8192"),
    ),
    ("PYTHON benches/balance.py", Python("numpy torch", "benches/balance.py --binary {balance} --ranks 8 --laws sft")),
    (
        "PYTHON benches/sft_packed.py",
        Python(
            "torch transformers",
            "benches/sft_packed.py --binary {program} --steps 2 --skip 1 --batch 2 --rounds 1 --micro 1 --peers p0",
        ),
    ),
    (
        "PYTHON benches/convert.py",
        Python(
            "numpy PIL webdataset megatron.energon",
            "benches/convert.py --program {program} --samples 16 --rounds 1 --jobs 1",
        ),
    ),
    (
        "PYTHON benches/preprocess.py",
        Python("numpy torch torchvision transformers", "benches/preprocess.py --binary {preprocess}"),
    ),
    ("PYTHON benches/sound.py", Python("torch transformers soundfile", "benches/sound.py --binary {sound}")),
    (
        "PYTHON benches/frames.py",
        Python(
            "torch lerobot torchcodec av",
            "benches/frames.py --binary {frames} --frames 16 --rounds 1 --episodes 2 --size 64 96",
        ),
    ),
    ("PYTHON benches/dit.py", Python("torch diffusers", "benches/dit.py 1")),
    ("PYTHON benches/vae.py", Python("torch diffusers", "benches/vae.py 1 32 32x5")),
    (
        "PYTHON benches/preference.py",
        Python(
            "torch transformers trl",
            "benches/preference.py --binary {program} --steps 2 --skip 1 --batch 2 --micro 1 --rounds 1",
        ),
    ),
    (
        "PYTHON benches/policies.py",
        Python(
            "torch lerobot websockets msgpack",
            "benches/policies.py --binary {program} --steps 2 --warmup 1 --rounds 1 --batch 2 --episodes 2 --chunks 1",
        ),
    ),
    (
        "python3 benches/simulate_agreement.py",
        Python("json", "benches/simulate_agreement.py --binary {program} --steps 16 --rounds 1"),
    ),
    ("loongforge run", Program(&[HEARD_AND_SEEN])),
    ("loongforge plan", Program(&[HEARD_AND_SEEN, SIMULATED])),
    ("loongforge drill", Program(&[DRILL])),
    ("cargo xtask", Not("the GPU kit and this soak, each of which is a step of CI")),
];

/// Returns the command `cargo bench` of the build of the tests: their profile, and the features of all packages.
fn cargo_bench(words: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo told this test about its package, and where libtorch is by `.cargo/config.toml`: build scripts that look at
    // these would run again, and all that depends on them be compiled again, twice.
    let of_test =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "OUT_DIR";
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| of_test(name)) {
        cargo.env_remove(name);
    }
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join(".libtorch/torch");
    if std::env::var_os("LIBTORCH").is_some_and(|libtorch| Path::new(&libtorch) == ours) {
        cargo.env_remove("LIBTORCH");
    }
    cargo.args(["bench", "--quiet", "--workspace", "--profile", "dev", "--bench"]).args(words.split(' '));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

/// Returns the program of a benchmark, which is built where it is not there.
fn built(bench: &str) -> PathBuf {
    let output = cargo_bench(bench).args(["--no-run", "--message-format=json"]).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let of_bench = |message: serde_json::Value| {
        (message["target"]["name"] == bench).then(|| message["executable"].as_str().map(PathBuf::from))?
    };
    messages.filter_map(of_bench).next_back().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// Returns the command of a script, or what the Python lacks.
fn python(modules: &str, words: &str) -> Result<Command, String> {
    let python = std::env::var_os("LOONGFORGE_PEERS_PYTHON").ok_or("LOONGFORGE_PEERS_PYTHON names no Python")?;
    let can_import = |module: &&str| {
        let found = Command::new(&python).args(["-c", &format!("import {module}")]).output();
        found.is_ok_and(|output| output.status.success())
    };
    let lacks: Vec<&str> = modules.split(' ').filter(|module| !can_import(module)).collect();
    if !lacks.is_empty() {
        return Err(format!("the Python of LOONGFORGE_PEERS_PYTHON lacks {}", lacks.join(", ")));
    }
    let mut command = Command::new(python);
    for word in words.split(' ') {
        match word.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some("program") => command.arg(Path::new(env!("CARGO_BIN_EXE_loongforge"))),
            Some(bench) => command.arg(built(bench)),
            None => command.arg(word),
        };
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("HF_HUB_OFFLINE", "1");
    Ok(command)
}

/// A folder in which the page's configs find their data, of which there is little.
fn folder_with_data() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = |run: &str| folder.path().join("runs").join(run).join("data");
    let sound = HeardAndSeen { seed: 1, num_train: 64, num_held_out: 6 };
    heard_and_seen::compose(&data("heard_and_seen"), &sound).unwrap();
    digits::compose(&data("quickstart"), &Digits { seed: 1, num_train: 64, num_held_out: 8 }).unwrap();
    digits::write_model(&data("quickstart").join("model"), &digits::MODEL).unwrap();
    symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("configs"), folder.path().join("configs")).unwrap();
    folder
}

/// Returns the last line that the last of these commands of the program prints.
fn said_by_program(commands: &[&[&str]]) -> Result<Cell, String> {
    let folder = folder_with_data();
    let mut said = String::new();
    for words in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        let output = command.args(*words).current_dir(folder.path()).stdin(Stdio::null()).output();
        let output = output.map_err(|error| error.to_string())?;
        // A run speaks on standard error; what was asked for is on standard output.
        let text = [output.stderr, output.stdout].concat();
        said = String::from_utf8_lossy(&text).lines().last().unwrap_or_default().to_owned();
        if !output.status.success() {
            return Err(format!("{}: {}: {said}", words[0], output.status));
        }
    }
    Ok(Cell::Passed(said))
}

/// The commands of the page: what is in a block or between backticks and begins as commands do.
fn commands(page: &str) -> Vec<&str> {
    let begins = |text: &&str| {
        let programs = ["cargo bench ", "cargo build ", "cargo xtask ", "PYTHON ", "python3 ", "loongforge "];
        programs.iter().any(|program| text.starts_with(program))
    };
    let mut is_in_block = false;
    let in_blocks = page.lines().filter(move |line| {
        is_in_block ^= line.starts_with("```");
        is_in_block
    });
    let in_blocks = in_blocks.filter(begins);
    let quoted = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(begins);
    in_blocks.chain(quoted).collect()
}

#[test]
fn every_command_of_the_page_is_known() {
    let page = include_str!("../../docs/benchmarks.md");
    let found = commands(page);
    assert!(found.len() > 20, "{found:?}");
    let unknown: Vec<_> =
        found.into_iter().filter(|command| !COMMANDS.iter().any(|(known, _)| command.starts_with(known))).collect();
    assert!(unknown.is_empty(), "not in this file's list: {unknown:#?}");
}

#[test]
#[ignore = "soak"]
fn soak_benches() {
    let cells: Vec<_> = COMMANDS.iter().map(|(command, how)| (command.to_string(), *how)).collect();
    soak::run("benches", &cells, |how| {
        let command = match *how {
            Bench(words) => Ok(cargo_bench(words)),
            Python(modules, words) => python(modules, words),
            Program(commands) => return said_by_program(commands),
            Not(why) => Err(why.to_owned()),
        };
        let mut command = match command {
            Ok(command) => command,
            Err(why) => return Ok(Cell::NotRun(why)),
        };
        let output = command.env("LOONGFORGE_QUICK", "1").output().map_err(|error| error.to_string())?;
        let told = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        match output.status.success() && !told.trim().is_empty() {
            true => Ok(Cell::Passed(told.lines().last().unwrap_or_default().to_owned())),
            false => Err(format!("{}: {}", output.status, complaint.lines().last().unwrap_or("it printed nothing"))),
        }
    });
}
