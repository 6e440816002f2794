//! Every command that docs/benchmarks.md names runs at its smallest size.

use crate::soak::{self, Cell};
use std::process::Command;

/// The first words of a command of the page; and the arguments of cargo for its smallest size, or why it is not run
/// here.
const COMMANDS: [(&str, Result<&str, &str>); 32] = [
    ("cargo bench -p loongforge-core --bench edge", Ok("edge")),
    ("cargo bench -p loongforge-core --bench samples", Ok("samples")),
    ("cargo bench -p loongforge-core --bench sound", Ok("sound")),
    ("cargo bench -p loongforge-core --bench schedule", Ok("schedule -- 70")),
    ("cargo bench -p loongforge-core --bench packing", Ok("packing -- --samples 1000 --laws sft")),
    ("cargo bench -p loongforge-core --bench balance", Ok("balance -- --ranks 8 --laws sft")),
    ("cargo bench -p loongforge-core --bench simulate", Ok("simulate -- 3")),
    ("cargo bench -p loongforge-torch --bench products", Ok("products -- 1")),
    ("cargo bench -p loongforge-torch --bench cct", Ok("cct -- 32 3")),
    ("cargo bench -p loongforge-torch --bench overlap", Ok("overlap -- 16 1")),
    ("cargo bench -p loongforge-torch --bench reshard", Ok("reshard")),
    ("cargo bench -p loongforge-torch --bench save", Ok("save")),
    ("cargo bench -p loongforge-torch --bench vae", Ok("vae -- 1")),
    ("cargo bench -p loongforge-torch --bench dit", Ok("dit -- 1")),
    ("cargo bench -p loongforge-actors --bench pool_scaling", Ok("pool_scaling -- 1")),
    ("cargo bench -p loongforge-actors --bench journal", Ok("journal")),
    ("cargo bench -p loongforge --bench sandbox", Ok("sandbox")),
    ("cargo bench --bench load", Ok("load")),
    ("cargo build --release", Err("no benchmark: it builds the program that scripts measure")),
    ("PYTHON benches/step_time.py", Err("needs Python with torch and transformers")),
    ("PYTHON benches/packing.py", Err("needs Python and checkouts of its peers")),
    ("PYTHON benches/balance.py", Err("needs Python and checkouts of its peers")),
    ("PYTHON benches/sft_packed.py", Err("needs Python with torch, transformers and trl")),
    ("PYTHON benches/convert.py", Err("needs Python with webdataset and megatron-energon")),
    ("PYTHON benches/preprocess.py", Err("needs Python with transformers and torchvision")),
    ("PYTHON benches/sound.py", Err("needs Python with transformers and soundfile")),
    ("PYTHON benches/dit.py", Err("needs Python with torch and diffusers")),
    ("PYTHON benches/vae.py", Err("needs Python with torch and diffusers")),
    ("PYTHON benches/policies.py", Err("needs Python with lerobot")),
    ("python3 benches/simulate_agreement.py", Err("needs minutes of an idle machine and a release build")),
    ("loongforge drill", Err("needs a release build and some minutes; `tests/runs/drill.rs` drills")),
    ("cargo xtask", Err("the quick start, which has tests of its own")),
];

/// The commands of the page: what is indented or between backticks and begins as commands do.
fn commands(page: &str) -> Vec<&str> {
    let begins = |text: &&str| {
        let programs = ["cargo bench ", "cargo build ", "cargo xtask ", "PYTHON ", "python3 ", "loongforge drill "];
        programs.iter().any(|program| text.starts_with(program))
    };
    let indented = page.lines().filter_map(|line| line.strip_prefix("    ")).filter(begins);
    let quoted = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(begins);
    indented.chain(quoted).collect()
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
        let arguments = match how {
            Ok(arguments) => arguments,
            Err(why) => return Ok(Cell::NotRun(why.to_string())),
        };
        let mut cargo = Command::new(env!("CARGO"));
        // The build of the tests: their profile, and the features of all packages.
        cargo.args(["bench", "--quiet", "--workspace", "--profile", "dev", "--bench"]).args(arguments.split(' '));
        cargo.env("LOONGFORGE_QUICK", "1");
        let output = cargo.output().map_err(|error| error.to_string())?;
        let told = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        match output.status.success() && !told.trim().is_empty() {
            true => Ok(Cell::Passed(told.lines().last().unwrap_or_default().to_owned())),
            false => Err(format!("{}: {}", output.status, complaint.lines().last().unwrap_or("it printed nothing"))),
        }
    });
}
