//! The examples run and do what they say. `cargo test` builds them; where it was told not to, build them first with
//! `cargo build --examples`.

use std::process::Command;

/// Returns what an example prints.
fn run(name: &str) -> String {
    let mut dir = std::env::current_exe().unwrap();
    while dir.file_name().is_some_and(|name| name != "deps") {
        dir.pop();
    }
    let example = dir.with_file_name("examples").join(name);
    let output = Command::new(&example).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}; cargo build --examples", example.display()));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(output.status.success(), "{name}: {}\n{}", output.status, text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{name}");
    text(&output.stdout)
}

/// The last number of every line.
fn numbers(printed: &str) -> Vec<f64> {
    let last = |line: &str| line.split_whitespace().last().unwrap().parse().unwrap();
    printed.lines().map(last).collect()
}

#[test]
fn a_composed_run_learns() {
    let losses = numbers(&run("compose_run"));
    assert_eq!(losses.len(), 20);
    assert!(losses[19] < 0.7 * losses[0], "{losses:?}");
}

#[test]
fn a_custom_encoder_learns() {
    let errors = numbers(&run("custom_encoder"));
    assert_eq!(errors.len(), 20);
    assert!(errors[19] < 0.1 * errors[0], "{errors:?}");
}
