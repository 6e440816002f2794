//! The command line of xtask as data. By hand: a parser crate would double the time of a first build.

/// What was asked for; the remaining arguments are handed on untouched.
#[derive(Debug, PartialEq, Eq)]
pub enum Task {
    Help,
    Setup { force: bool },
    Quickstart(Vec<String>),
    Test(Vec<String>),
    Parity(Vec<String>),
    Ci,
    CheckHouse,
    Fixtures,
}

pub const HELP: &str = "\
Usage: cargo xtask <TASK>

  quickstart [KEY=VALUE…]  set up, make the data, train a small Qwen3-VL to read handwritten numbers
  test [ARGS…]             set up and run every test (ARGS go to cargo nextest, else to cargo test)
  setup [--force]          only set up: fetch libtorch into .libtorch/ (--force: again)
  parity DIR…              set up and compare our numbers with fixture folders
  ci                       format check, clippy without warnings, then every test
  check-house              imports only point down; actix and unsafe only where they belong
  fixtures                 how the parity fixtures are made

Examples:
  cargo xtask quickstart
  cargo xtask quickstart train.steps=50
  cargo xtask test -p loongforge-core pack
  LIBTORCH=/opt/libtorch cargo xtask test

Set-up honours LIBTORCH (an unpacked libtorch 2.11.0 used instead of the fetched one) and
PYTHON (the interpreter whose pip fetches it).
";

const TASKS: [&str; 8] = ["quickstart", "test", "setup", "parity", "ci", "check-house", "fixtures", "help"];

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
        "ci" => alone(task, rest, Task::Ci),
        "check-house" => alone(task, rest, Task::CheckHouse),
        "fixtures" => alone(task, rest, Task::Fixtures),
        unknown => Err(match nearest(unknown) {
            Some(task) => format!("no task `{unknown}`: did you mean `{task}`?"),
            None => format!("no task `{unknown}`"),
        }),
    }
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

/// Levenshtein distance in characters.
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
        assert!(parse_line("check").unwrap_err().contains("did you mean `check-house`?"));
        assert_eq!(parse_line("frobnicate").unwrap_err(), "no task `frobnicate`");
        assert!(parse_line("setup --farce").unwrap_err().contains("--farce"));
        assert!(parse_line("parity").unwrap_err().contains("fixture folder"));
        assert!(parse_line("ci now").unwrap_err().contains("now"));
    }

    #[test]
    fn every_task_is_in_the_help() {
        for task in TASKS.iter().filter(|task| **task != "help") {
            assert!(HELP.contains(&format!("\n  {task} ")), "{task} is not in the help");
        }
    }
}
