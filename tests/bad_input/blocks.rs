//! Every fenced block of the README and of `docs` holds: commands are run, or say what they need; their options exist in any case;
//! configs are read; excerpts of code are in the file that they name.

use crate::fixture::Fixture;
use crate::readme::words;
use crate::soak::{self, Cell};
use clap::Parser;
use clap::error::ErrorKind;
use loongforge::cli::{Cli, dotted};
use loongforge::core::config::load_elsewhere;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The needs of a block that is not run: a device, machines, other people's servers and programs, time, or the reader's own files.
const NEEDS: [&str; 7] = ["gpu", "cluster", "network", "minutes", "yours", "prometheus", "python"];

/// Pages whose commands other scripts and soaks run.
const ELSEWHERE: [&str; 2] = ["docs/evidence/newcomer.md", "docs/benchmarks.md"];

/// A run that fragments of configs are laid over.
const BASE: &str = "run: { name: base }\nmodel: { load: org/model }\ndata: { train: [{ path: x.jsonl }] }\ntrain: { global_batch_size: 8, lr: 1e-4, steps: 10 }\n";

struct Block {
    file: PathBuf,
    line: usize,
    language: String,
    text: String,
    /// The comment before it: a word, and the text behind its colon.
    mark: Option<(String, String)>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the README and the pages of `docs`.
fn files() -> Vec<PathBuf> {
    let (mut files, mut folders) = (vec![root().join("README.md")], vec![root().join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn blocks() -> Vec<Block> {
    files().iter().flat_map(|file| of_file(file)).collect()
}

fn of_file(path: &Path) -> Vec<Block> {
    let text = fs::read_to_string(path).unwrap();
    let (mut blocks, mut open, mut before) = (Vec::new(), None::<Block>, String::new());
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                let comment = before.strip_prefix("<!-- ").and_then(|text| text.strip_suffix(" -->"));
                let mark = comment.and_then(|text| text.split_once(": "));
                let mark = mark.map(|(word, value)| (word.to_owned(), value.to_owned()));
                let file = path.strip_prefix(root()).unwrap().to_owned();
                open = Some(Block { file, line: number, language: language.to_owned(), text: String::new(), mark });
            }
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => block.text += &format!("{line}\n"),
            (None, None) if !line.trim().is_empty() => before = line.trim().to_owned(),
            (None, None) => {}
        }
        if open.is_none() && line.starts_with("```") {
            before.clear();
        }
    }
    assert!(open.is_none(), "{}: a block does not end", path.display());
    blocks
}

impl Block {
    fn place(&self) -> String {
        format!("{}:{}", self.file.display(), self.line)
    }

    /// Returns the lines that are commands, joined where they go on.
    fn commands(&self) -> Vec<String> {
        let joined = self.text.replace("\\\n", " ");
        let is_session = self.language == "console";
        let command = |line: &str| match line.split_once("$ ").filter(|(host, _)| !host.contains(' ')) {
            Some((_, command)) if is_session => Some(command.to_owned()),
            _ if is_session => None,
            _ => Some(line.to_owned()),
        };
        joined.lines().filter_map(command).filter(|line| !line.trim().is_empty()).collect()
    }

    /// Returns the arguments of each call of the program.
    fn calls(&self) -> Vec<Vec<String>> {
        let mut calls = Vec::new();
        for command in self.commands() {
            let all = words(&command.replace('\'', "\""));
            // Behind `-p` it is the package.
            let is_program = |at: &usize| all[*at] == "loongforge" && (*at == 0 || all[*at - 1] != "-p");
            if let Some(at) = (0..all.len()).find(is_program) {
                let ends = |word: &String| matches!(word.as_str(), "&&" | "|" | ">" | "&" | "||");
                calls.push(all[at + 1..].iter().take_while(|word| !ends(word)).cloned().collect());
            }
            // An example of a program of one's own has the same commands.
            if let Some((_, args)) =
                command.split_once("cargo run --example").and_then(|(_, rest)| rest.split_once(" -- "))
            {
                calls.push(words(args));
            }
        }
        calls
    }
}

/// Checks that the program has a command's options. `[--all]` may be left out, and of `a|b` one is chosen.
fn parses(block: &Block, call: &[String]) {
    let word = |word: &String| {
        let word = word.replace(['[', ']'], "");
        let is_choice = word.contains('|') && !word.contains(['{', ' ']);
        if is_choice { word.split('|').next().unwrap().to_owned() } else { word }
    };
    let is_list = |word: &&String| word.starts_with('[') && word.contains(',') || word.contains("=[");
    let plain: Vec<String> =
        call.iter().filter(|it| *it != "…").map(|it| if is_list(&it) { it.clone() } else { word(it) }).collect();
    let words = ["loongforge".to_owned()].into_iter().chain(plain).map(Into::into);
    if let Err(error) = Cli::try_parse_from(dotted::overrides(words)) {
        // `[--limit N]` stands for any number.
        let is_usage = call.iter().any(|word| word.starts_with("[-"));
        if is_usage && matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
            return;
        }
        panic!("{}: loongforge {}: {error}", block.place(), call.join(" "));
    }
}

/// Reads a config, or a part of one laid over a whole one.
fn reads(block: &Block) {
    let dir = tempfile::tempdir().unwrap();
    let is_by_epochs = block.text.contains("epochs: ");
    let base = if is_by_epochs { BASE.replace(", steps: 10", "") } else { BASE.to_owned() };
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("base.yaml", &base);
    // A list or a map that is a part of a section.
    let text = match block.text.starts_with("  ") {
        true => format!("model:\n{}", block.text),
        false => block.text.clone(),
    };
    write("block.yaml", &text);
    write("whole.yaml", "defaults: [base, block, _self_]\n");
    if let Err(report) = load_elsewhere(&dir.path().join("whole.yaml"), &[], std::iter::empty()) {
        panic!("{}:\n{report}", block.place());
    }
}

/// Checks that every line of an excerpt is in its file.
fn is_in(block: &Block, file: &str) {
    let source =
        fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{}: {file}: {error}", block.place()));
    let plain = |line: &str| line.split("  // ").next().unwrap().trim().to_owned();
    let source: Vec<String> = source.lines().map(plain).collect();
    for line in block.text.lines().map(plain).filter(|line| !line.is_empty() && line != "…") {
        assert!(source.contains(&line), "{}: {file} has no line {line:?}", block.place());
    }
}

/// Runs a block's commands in a folder like the repository's root; runs are short.
fn run(block: &Block, fixture: &Fixture) {
    let calls = block.calls();
    assert_eq!(calls.len(), block.commands().len(), "{}: only commands of the program are run", block.place());
    for mut call in calls {
        if call[0] == "run" {
            call.extend(["train.steps=2", "train.warmup_steps=1"].map(str::to_owned));
        }
        let args: Vec<&str> = call.iter().map(String::as_str).collect();
        let said = fixture.start(&args);
        assert_eq!(said.code, 0, "{}: loongforge {}\n{}\n{}", block.place(), call.join(" "), said.out, said.err);
    }
}

#[test]
fn every_block_of_the_documentation_holds() {
    let fixture = Fixture::empty();
    symlink(root().join("configs"), fixture.path("configs")).unwrap();
    let (mut counts, mut options, mut wrong) = (BTreeMap::new(), 0, Vec::new());
    for block in blocks() {
        match catch_unwind(AssertUnwindSafe(|| holds(&block, &fixture))) {
            Ok((what, calls)) => {
                *counts.entry(what).or_insert(0) += 1;
                options += calls;
            }
            Err(_) => wrong.push(block.place()),
        }
    }
    println!("{counts:?}; options of {options} commands exist");
    assert!(wrong.is_empty(), "blocks that do not hold (why is above): {wrong:#?}");
    assert!(counts["run"] >= 2 && counts["read as a config"] >= 10 && options >= 60, "{counts:?}, {options}");
}

/// A block that is only indented would be neither run nor marked.
#[test]
fn every_block_of_the_documentation_is_fenced() {
    let mut indented = Vec::new();
    for file in files() {
        let text = fs::read_to_string(&file).unwrap();
        let (mut is_fenced, mut is_after_blank) = (false, true);
        for (number, line) in (1..).zip(text.lines()) {
            is_fenced ^= line.trim_start().starts_with("```");
            if !is_fenced && is_after_blank && line.starts_with("    ") && !line.trim().is_empty() {
                indented.push(format!("{}:{number}", file.display()));
            }
            is_after_blank = line.trim().is_empty();
        }
    }
    assert!(indented.is_empty(), "put these blocks between ``` and say what they need: {indented:#?}");
}

/// Checks that a block holds; returns how that was seen, and the number of its calls.
fn holds(block: &Block, fixture: &Fixture) -> (String, usize) {
    let mut options = 0;
    let is_shell = matches!(block.language.as_str(), "console" | "sh");
    for call in if is_shell { block.calls() } else { Vec::new() } {
        parses(block, &call);
        options += 1;
    }
    let mark = block.mark.as_ref().map(|(word, value)| (word.as_str(), value.as_str()));
    // Run by the test of the README.
    let of_readme = block.file == Path::new("README.md") && block.text.contains("my.yaml");
    let what = match (block.language.as_str(), mark) {
        (_, Some(("needs", reasons))) => {
            for reason in reasons.split(", ") {
                assert!(NEEDS.contains(&reason), "{}: `{reason}` is none of {NEEDS:?}", block.place());
            }
            format!("needs {reasons}")
        }
        (_, Some(("excerpt", file))) => {
            is_in(block, file);
            "compared with a file".to_owned()
        }
        ("yaml", _) => {
            reads(block);
            "read as a config".to_owned()
        }
        ("console" | "sh", _) if of_readme => "run by the README's test".to_owned(),
        ("console" | "sh", _) => {
            run(block, fixture);
            "run".to_owned()
        }
        ("json", _) => {
            block.text.lines().for_each(|line| drop(serde_json::from_str::<serde_json::Value>(line).unwrap()));
            "read as JSON".to_owned()
        }
        ("text", _) => "shows what is printed".to_owned(),
        (other, _) => {
            panic!("{}: a block of {other:?} says neither what it needs nor whose excerpt it is", block.place())
        }
    };
    (what, options)
}

/// Returns the commands of blocks, as one script without those that build or never end.
fn script(blocks: &[Block]) -> String {
    let builds = |line: &str| line.contains("cargo ") && !line.starts_with("cargo run --example three_pools");
    let is_run = |line: &String| !builds(line) && !line.starts_with("loongforge serve");
    let plain = |line: String| line.replace('…', "").replace("cargo run --example three_pools --", "three_pools");
    blocks.iter().flat_map(Block::commands).filter(is_run).map(plain).collect::<Vec<_>>().join("\n")
}

/// Runs a script in a folder like the repository's root, where the data of the quick start are there.
fn runs(script: &str) -> Result<Cell, String> {
    let dir = tempfile::tempdir().unwrap();
    for name in ["configs", "examples", "src"] {
        symlink(root().join(name), dir.path().join(name)).unwrap();
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_loongforge")).parent().unwrap();
    if script.contains("three_pools ") && !programs.join("examples/three_pools").is_file() {
        return Ok(Cell::NotRun("`cargo build --example three_pools` comes first".into()));
    }
    let others = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{others}", programs.display(), programs.join("examples").display());
    let whole = format!("set -euo pipefail\nloongforge data digits --out runs/quickstart/data\n{script}\n");
    let mut bash = Command::new("bash");
    bash.args(["-c", &whole]).current_dir(dir.path()).env("PATH", path).stdin(Stdio::null());
    let output = bash.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    match output.status.success() {
        true => Ok(Cell::Passed(format!("{} commands", script.lines().count()))),
        false => Err(lines[lines.len().saturating_sub(5)..].join(" ")),
    }
}

/// The blocks that need nothing but minutes, a page after the other. Those of what a newcomer types are scripts of `tests/newcomer`,
/// those of benchmarks the soak `benches`.
#[test]
#[ignore = "soak"]
fn soak_blocks() {
    let mut pages = BTreeMap::<PathBuf, Vec<Block>>::new();
    for block in blocks() {
        let is_long = block.mark.as_ref().is_some_and(|(word, value)| word == "needs" && value == "minutes");
        if is_long && !ELSEWHERE.contains(&block.file.to_str().unwrap()) {
            pages.entry(block.file.clone()).or_default().push(block);
        }
    }
    let cells = pages.into_iter().map(|(page, blocks)| (page.display().to_string(), script(&blocks)));
    let cells: Vec<(String, String)> = cells.filter(|(_, script)| !script.is_empty()).collect();
    soak::run("blocks", &cells, |script| runs(script));
}
