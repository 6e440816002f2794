//! `cargo xtask soak`: matrices too long for every test run, and the slices of them that CI runs.
//!
//! A soak is an ignored test named `soak_NAME` (`tests/support/soak.rs`); this finds them in the sources, so that a new
//! one needs no entry here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::tasks::{cargo, quiet_openmp, run};
use crate::tools::commit_seed;
use crate::{house, setup, venv};

/// The part of a soak that is run.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// Every cell; the table goes to `docs/evidence/soak-NAME.md`.
    Whole,
    /// A slice of so many cells, chosen by a seed: the commit's id unless given.
    Slice { cells: usize, seed: Option<String> },
}

/// All slices together begin no new soak after this long; one that does not fit says so.
const SLICES_BUDGET: Duration = Duration::from_secs(150);

/// Lists the soaks.
pub fn list(root: &Path) -> Result<ExitCode> {
    names(root)?.keys().for_each(|name| println!("{name}"));
    Ok(ExitCode::SUCCESS)
}

/// Runs one soak.
pub fn soak(root: &Path, name: &str, part: &Part) -> Result<ExitCode> {
    setup::setup(root, false)?;
    let known = names(root)?;
    let Some(binary) = known.get(name) else {
        let known: Vec<&str> = known.keys().map(String::as_str).collect();
        bail!("no soak `{name}`: there are {}", known.join(", "));
    };
    let table = root.join(format!("target/soak-{name}.md"));
    let _ = fs::remove_file(&table);
    let mut command = test(root, name, binary);
    command.env("LOONGFORGE_SOAK_TABLE", &table);
    if name == PADS {
        venv::give_clients(root, &mut command)?;
    }
    if let Part::Slice { cells, seed } = part {
        let seed = seed.clone().map_or_else(|| commit_seed(root), Ok)?;
        println!(
            "soak {name}: {cells} cells chosen by {seed}; `cargo xtask soak {name} --slice {cells} --seed {seed}` repeats them"
        );
        command.env("LOONGFORGE_SOAK_SLICE", format!("{seed}:{cells}"));
    }
    // What is committed while it runs is not what was run.
    let heading = heading(root, name)?;
    let code = run(&mut command)?;
    let rows = fs::read_to_string(&table).unwrap_or_default();
    if code == 0 && rows.is_empty() {
        bail!("soak {name} ran no cell");
    }
    if *part == Part::Whole {
        let path = root.join(format!("docs/evidence/soak-{name}.md"));
        let is_partial = std::env::var_os("LOONGFORGE_SOAK_CELLS").is_some();
        let former = path.exists().then(|| fs::read_to_string(&path)).transpose();
        let former = former.with_context(|| path.display().to_string())?;
        if let Some(why) = former.and_then(|former| why_kept(&former, &rows, is_partial, code != 0)) {
            println!("{why}: {} is kept, the new table is in {}", path.display(), table.display());
        } else {
            fs::create_dir_all(path.parent().expect("a folder above"))?;
            fs::write(&path, format!("{heading}{rows}")).with_context(|| path.display().to_string())?;
            println!("the table is in {}", path.display());
        }
    }
    Ok(ExitCode::from(code))
}

/// Returns why a table is not replaced by the rows of a run of all cells; `None`: it is.
fn why_kept(former: &str, rows: &str, is_partial: bool, has_failed: bool) -> Option<&'static str> {
    match num_run(rows) {
        _ if is_partial => Some("only some cells were run"),
        0 => Some("no cell could run here"),
        // One that has died has no rows of the cells after.
        num if has_failed && num < num_run(former) => Some("the run failed before it came to all cells"),
        _ => None,
    }
}

/// Returns the number of rows of a table whose cells were run.
fn num_run(table: &str) -> usize {
    let is_run = |row: &&str| row.split('|').nth(3).is_some_and(|verdict| ["ok", "FAILED"].contains(&verdict.trim()));
    table.lines().filter(is_run).count()
}

/// Soaks of which CI runs a cell: those whose cells have all been run.
const IN_CI: [&str; 8] = [
    "bit_flips",
    "evaluations_in_more_layouts",
    "overwrite_kills",
    "preflight",
    "random_kills",
    "tower_layouts",
    "two_runs",
    BENCHES,
];
/// Its successes are counted by a client.
const PADS: &str = "pads";
/// It comes last, and is run whatever the others took.
const BENCHES: &str = "benches";

/// Runs one cell of each soak of [`IN_CI`], chosen by the commit's id, within [`SLICES_BUDGET`].
pub fn slices(root: &Path) -> Result<ExitCode> {
    let begun = Instant::now();
    let (last, first): (Vec<String>, Vec<String>) = names(root)?.into_keys().partition(|name| name == BENCHES);
    for name in first.into_iter().chain(last) {
        if !IN_CI.contains(&name.as_str()) {
            println!("soak {name}: not run in CI");
            continue;
        }
        if begun.elapsed() > SLICES_BUDGET && name != BENCHES {
            println!("soak {name}: not run, the slices' {} seconds are used up", SLICES_BUDGET.as_secs());
            continue;
        }
        let code = soak(root, &name, &Part::Slice { cells: 1, seed: None })?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the soak's test in the binary that has it: each that is started loads libtorch.
fn test(root: &Path, name: &str, binary: &Binary) -> Command {
    let mut command = cargo(root);
    // All packages, so that features and with them every build are those of `cargo xtask test`.
    command.args(["test", "--quiet", "--workspace"]);
    match binary {
        Binary::Libraries => command.arg("--lib"),
        Binary::Test(of) => command.args(["--test", of]),
    };
    command.args([&format!("soak_{name}"), "--", "--ignored", "--nocapture", "--test-threads", "1"]);
    quiet_openmp(&mut command);
    command
}

fn heading(root: &Path, name: &str) -> Result<String> {
    let output = |program: &str, args: &[&str]| -> Result<String> {
        let output = Command::new(program).args(args).current_dir(root).output().with_context(|| program.to_owned())?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (date, commit) = (output("date", &["-u", "+%F"])?, output("git", &["rev-parse", "--short", "HEAD"])?);
    let changed = !output("git", &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    let changed = if changed { " with uncommitted changes" } else { "" };
    Ok(format!(
        "# Soak {name}\n\n{date}, commit {commit}{changed}, `cargo xtask soak {name}`.\n\n\
         | soak | cell | verdict | detail | time |\n| --- | --- | --- | --- | --- |\n"
    ))
}

/// Says which test binary has a soak.
#[derive(Debug, PartialEq, Eq)]
enum Binary {
    Libraries,
    /// The test binary of a folder of `tests`.
    Test(String),
}

/// Returns the `NAME`s of all functions `soak_NAME` in tests, and where each is.
fn names(root: &Path) -> Result<BTreeMap<String, Binary>> {
    let mut names = BTreeMap::new();
    for folder in ["src", "actors", "tests"] {
        let mut files = Vec::new();
        house::collect(&root.join(folder), &mut files)?;
        for file in files.iter().filter(|file| house::is_rust(file)) {
            let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let functions = text.lines().filter_map(|line| line.trim_start().strip_prefix("fn soak_"));
            for (name, _) in functions.filter_map(|rest| rest.split_once("()")) {
                let below = file.strip_prefix(root.join("tests")).ok().and_then(|path| path.iter().next());
                let of = below.map(|folder| Binary::Test(folder.to_string_lossy().into_owned()));
                names.insert(name.to_owned(), of.unwrap_or(Binary::Libraries));
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{IN_CI, names, num_run, why_kept};

    #[test]
    fn soaks_of_ci_are_there() {
        let found = names(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
        for name in IN_CI {
            assert!(found.contains_key(name), "there is no soak {name}");
        }
    }

    #[test]
    fn a_table_is_not_replaced_by_one_that_says_less() {
        let unable = "| pads | all | not run | no reader | 0.0 s |\n";
        let (ok, failed) = ("| pads | one | ok | not run before | 3.0 s |\n", "| pads | two | FAILED | | 3.0 s |\n");
        let former = format!("| soak | cell | verdict | detail | time |\n| --- | --- | --- | --- | --- |\n{ok}{ok}");
        assert_eq!([num_run(""), num_run(unable), num_run(&former)], [0, 0, 2]);
        for rows in ["", unable] {
            assert_eq!(why_kept(&former, rows, false, true), Some("no cell could run here"));
        }
        assert_eq!(why_kept(&former, &former, true, false), Some("only some cells were run"));
        assert!(why_kept(&former, failed, false, true).is_some_and(|why| why.contains("failed before")));
        // Cells that fail are what a table is for, and a matrix may become smaller.
        assert_eq!(why_kept(&former, &format!("{ok}{unable}{failed}"), false, true), None);
        assert_eq!(why_kept(&former, ok, false, false), None);
    }
}
