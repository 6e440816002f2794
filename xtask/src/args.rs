//! The command line of xtask as data. It is parsed by hand, since a parser crate would double the time of a first build.

use crate::ci::STEPS;
use crate::gpu::Device;
use crate::soak::Part;

/// Says what was asked for; the remaining arguments are handed on untouched.
#[derive(Debug, PartialEq, Eq)]
pub enum Task {
    Help,
    Setup {
        force: bool,
    },
    Quickstart(Vec<String>),
    Test(Vec<String>),
    Parity(Vec<String>),
    Gpu {
        device: Option<Device>,
        quick: bool,
    },
    Soak {
        name: Option<String>,
        part: Part,
    },
    Wheel,
    Release,
    Book,
    /// `from`: the step to begin with.
    Ci {
        from: Option<String>,
    },
    CheckRules,
    Fixtures,
}

pub const HELP: &str = "\
Usage: cargo xtask <TASK>

  quickstart [KEY=VALUE…]  set up, make the data, train a small Qwen3-VL to read handwritten numbers
  test [ARGS…]             set up and run every test (ARGS go to cargo nextest, else to cargo test)
  setup [--force]          only set up: fetch libtorch into .libtorch/ (--force: fetch it again)
  parity DIR…              set up and compare this program's numbers with fixture folders
  gpu [--device cpu|cuda] [--quick]
                           make the kit that checks a machine with a GPU; with --device, run it here
  soak [NAME [--slice N [--seed HEX]]]
                           run a matrix that is too long for every test run, or N cells of it; without NAME, list them
  wheel                    build the program and pack it as a Python package into target/wheel; nothing is uploaded
  release                  build the program and pack it with configs, licenses and checksums; nothing is uploaded
  book                     make a site with a search of README and docs in target/book/site (mkdocs, from PyPI)
  ci [--from STEP]         check what must hold before a change lands: formatting, dependencies, tests, lints, soaks, fuzzing
  check-rules              check the architecture rules: imports only point down; actix and unsafe only where allowed
  fixtures                 explain how the parity fixtures are made

Examples:
  cargo xtask quickstart
  cargo xtask quickstart train.steps=100
  cargo xtask test -p loongforge-core pack
  LIBTORCH=/opt/libtorch cargo xtask test

Set-up honors LIBTORCH (an unpacked libtorch 2.11.0 used instead of the fetched one) and
PYTHON (the interpreter whose pip fetches it).
";

const TASKS: [&str; 13] = [
    "quickstart",
    "test",
    "setup",
    "parity",
    "gpu",
    "soak",
    "wheel",
    "release",
    "book",
    "ci",
    "check-rules",
    "fixtures",
    "help",
];

/// Reads the arguments after `cargo xtask`; an error is one line for the user.
pub fn parse(args: &[String]) -> Result<Task, String> {
    let Some((task, rest)) = args.split_first() else {
        return Ok(Task::Help);
    };
    let asks_help = rest.iter().take_while(|arg| *arg != "--").any(is_help);
    if is_help(task) || task == "help" || (asks_help && TASKS.contains(&task.as_str())) {
        return Ok(Task::Help);
    }
    match task.as_str() {
        "setup" => match rest {
            [] => Ok(Task::Setup { force: false }),
            [flag] if flag == "--force" => Ok(Task::Setup { force: true }),
            [other, ..] => Err(format!("`setup` takes only --force, not `{other}`")),
        },
        "quickstart" => Ok(Task::Quickstart(rest.to_vec())),
        "test" => Ok(Task::Test(rest.to_vec())),
        "parity" if rest.is_empty() => Err("`parity` needs at least one fixture folder".into()),
        "parity" => Ok(Task::Parity(rest.to_vec())),
        "gpu" => gpu(rest),
        "soak" => soak(rest),
        "wheel" => alone(task, rest, Task::Wheel),
        "release" => alone(task, rest, Task::Release),
        "book" => alone(task, rest, Task::Book),
        "ci" => match rest {
            [] => Ok(Task::Ci { from: None }),
            [flag, step] if flag == "--from" && STEPS.iter().any(|(name, _)| name == step) => {
                Ok(Task::Ci { from: Some(step.clone()) })
            }
            _ => Err(format!(
                "`ci` takes --from and one of {}, not `{}`",
                STEPS.map(|(name, _)| name).join(", "),
                rest.join(" ")
            )),
        },
        "check-rules" => alone(task, rest, Task::CheckRules),
        "fixtures" => alone(task, rest, Task::Fixtures),
        unknown => Err(match nearest(unknown) {
            Some(task) => format!("no task `{unknown}`: did you mean `{task}`?"),
            None => format!("no task `{unknown}`"),
        }),
    }
}

fn gpu(mut rest: &[String]) -> Result<Task, String> {
    let (mut device, mut quick) = (None, false);
    loop {
        rest = match rest {
            [] => break,
            [flag, rest @ ..] if flag == "--quick" => {
                quick = true;
                rest
            }
            [flag, name, rest @ ..] if flag == "--device" => {
                device = Some(match name.as_str() {
                    "cpu" => Device::Cpu,
                    "cuda" => Device::Cuda,
                    other => return Err(format!("--device is cpu or cuda, not `{other}`")),
                });
                rest
            }
            [other, ..] => return Err(format!("`gpu` takes --device cpu|cuda and --quick, not `{other}`")),
        };
    }
    if quick && device.is_none() {
        return Err("--quick is of a run here: add --device cpu or --device cuda".into());
    }
    Ok(Task::Gpu { device, quick })
}

fn soak(rest: &[String]) -> Result<Task, String> {
    let Some((name, rest)) = rest.split_first() else { return Ok(Task::Soak { name: None, part: Part::Whole }) };
    let number = |text: &String| text.parse().map_err(|_| format!("--slice takes a number of cells, not `{text}`"));
    let part = match rest {
        [] => Part::Whole,
        [flag, cells] if flag == "--slice" => Part::Slice { cells: number(cells)?, seed: None },
        [slice, cells, flag, seed] if slice == "--slice" && flag == "--seed" => {
            u64::from_str_radix(seed, 16)
                .map_err(|_| format!("--seed takes at most 16 hexadecimal digits, not `{seed}`"))?;
            Part::Slice { cells: number(cells)?, seed: Some(seed.clone()) }
        }
        [other, ..] => return Err(format!("`soak NAME` takes --slice N [--seed HEX], not `{other}`")),
    };
    Ok(Task::Soak { name: Some(name.clone()), part })
}

fn is_help(arg: &String) -> bool {
    arg == "--help" || arg == "-h"
}

fn alone(name: &str, rest: &[String], task: Task) -> Result<Task, String> {
    match rest.first() {
        None => Ok(task),
        Some(extra) => Err(format!("`{name}` takes no arguments, not `{extra}`")),
    }
}

fn nearest(word: &str) -> Option<&'static str> {
    let near = |task: &&&str| task.starts_with(word) || distance(task, word) <= 2;
    TASKS.iter().filter(near).min_by_key(|task| distance(task, word)).copied()
}

/// Returns the Levenshtein distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Task, String> {
        parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn tasks_and_their_arguments() {
        assert_eq!(parse_line(""), Ok(Task::Help));
        assert_eq!(parse_line("test --help"), Ok(Task::Help));
        assert_eq!(parse_line("setup"), Ok(Task::Setup { force: false }));
        assert_eq!(parse_line("setup --force"), Ok(Task::Setup { force: true }));
        let expected = Task::Quickstart(vec!["train.steps=5".into(), "seed=1".into()]);
        assert_eq!(parse_line("quickstart train.steps=5 seed=1"), Ok(expected));
        assert_eq!(parse_line("gpu"), Ok(Task::Gpu { device: None, quick: false }));
        let quick = Task::Gpu { device: Some(Device::Cpu), quick: true };
        assert_eq!(parse_line("gpu --device cpu --quick"), Ok(quick));
        let part = Part::Slice { cells: 3, seed: Some("a1".into()) };
        assert_eq!(parse_line("soak kills --slice 3 --seed a1"), Ok(Task::Soak { name: Some("kills".into()), part }));
        assert_eq!(parse_line("soak"), Ok(Task::Soak { name: None, part: Part::Whole }));
        assert_eq!(parse_line("parity a b"), Ok(Task::Parity(vec!["a".into(), "b".into()])));
    }

    #[test]
    fn help_after_a_double_dash_belongs_to_the_test_runner() {
        let expected = Task::Test(vec!["--".into(), "--help".into()]);
        assert_eq!(parse_line("test -- --help"), Ok(expected));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse_line("quikstart").unwrap_err().contains("did you mean `quickstart`?"));
        assert!(parse_line("check").unwrap_err().contains("did you mean `check-rules`?"));
        assert_eq!(parse_line("frobnicate").unwrap_err(), "no task `frobnicate`");
        assert!(parse_line("setup --farce").unwrap_err().contains("--farce"));
        assert!(parse_line("parity").unwrap_err().contains("fixture folder"));
        assert!(parse_line("ci now").unwrap_err().contains("now"));
        assert_eq!(parse_line("ci --from lints"), Ok(Task::Ci { from: Some("lints".into()) }));
        assert!(parse_line("gpu --device tpu").unwrap_err().contains("tpu"));
        assert!(parse_line("gpu --quick").unwrap_err().contains("--device"));
        assert!(parse_line("soak kills --slice many").unwrap_err().contains("many"));
        assert!(parse_line("soak kills --slice 3 --seed x").unwrap_err().contains("`x`"));
    }

    #[test]
    fn every_task_is_in_the_help() {
        for task in TASKS.iter().filter(|task| **task != "help") {
            assert!(HELP.contains(&format!("\n  {task} ")), "{task} is not in the help");
        }
    }
}
