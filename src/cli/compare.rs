//! `loongforge compare`: compares runs side by side, from the files in their folders.

mod keys;

use self::keys::differing;
use super::UsageError;
use clap::Args;
use loongforge_core::observe::{Curve, Figures, HeldOut, MAX_CURVES, PastRun, bytes, clock, plot, safe, short};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge compare runs/a runs/b                 keys that differ, and results of the runs
  loongforge compare runs/lr-* -o losses.png       also plot their loss curves
  loongforge compare runs/a runs/b --json          for scripts

The final loss is the mean over the last 20 steps; tokens/s is over all steps. Runs may still be active.";

/// Characters of a value in the table; --json has all of it.
const MAX_CELL: usize = 32;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// Folders of runs
    #[arg(value_name = "RUN", required = true, num_args = 2..)]
    runs: Vec<PathBuf>,
    /// Plot the loss curves to this PNG
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `loongforge compare`: prints keys that differ and results of runs, and draws their loss curves with `-o`.
pub fn compare(args: CompareArgs) -> anyhow::Result<ExitCode> {
    let count = args.runs.len();
    if args.out.is_some() && count > MAX_CURVES {
        return Err(UsageError(format!("-o draws at most {MAX_CURVES} runs, not {count}")).into());
    }
    if let Some(out) =
        args.out.as_deref().filter(|out| out.extension().is_none_or(|end| !end.eq_ignore_ascii_case("png")))
    {
        return Err(UsageError(format!("-o {}: the plot is a PNG, so its name must end in .png", out.display())).into());
    }
    let runs = args.runs.iter().map(|dir| read(dir)).collect::<anyhow::Result<Vec<PastRun>>>()?;
    let names = names(&runs);
    let keys = differing(&runs);
    let figures: Vec<Figures> = runs.iter().map(PastRun::figures).collect();
    if args.json {
        let keys: serde_json::Map<String, Value> = keys.into_iter().map(|(key, values)| (key, json!(values))).collect();
        let all = runs.iter().zip(&names).zip(&figures);
        let all: Vec<Value> =
            all.map(|((run, name), figures)| json!({ "name": name, "dir": run.dir, "figures": figures })).collect();
        println!("{:#}", json!({ "runs": all, "config": keys }));
    } else {
        let cells = |values: &[Option<Value>]| values.iter().map(|value| cell(value.as_ref())).collect::<Vec<_>>();
        let mut rows = vec![("".to_owned(), names.clone())];
        rows.extend(keys.iter().map(|(key, values)| (key.clone(), cells(values))));
        if keys.is_empty() {
            rows.push(("(all keys are equal)".into(), vec![String::new(); count]));
        }
        rows.push((String::new(), vec![String::new(); count]));
        rows.extend(figure_rows(&figures));
        print!("{}", table(&rows));
    }
    if let Some(out) = &args.out {
        draw(out, &runs, &names)?;
        if !args.json {
            println!("\nloss curves: {}", out.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(dir: &Path) -> anyhow::Result<PastRun> {
    match dir.join("metrics.jsonl").is_file() {
        true => Ok(PastRun::read(dir)?),
        false => {
            let message = format!("{}: there are no metrics of a run (no metrics.jsonl)", dir.display());
            Err(UsageError(message).into())
        }
    }
}

/// Returns the names of the runs; these are their folders where two have one name.
fn names(runs: &[PastRun]) -> Vec<String> {
    let distinct: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let by_name = distinct.len() == runs.len();
    let name = |run: &PastRun| if by_name { run.name.clone() } else { run.dir.display().to_string() };
    runs.iter().map(name).collect()
}

fn cell(value: Option<&Value>) -> String {
    let text = match value {
        None => "-".to_owned(),
        Some(Value::String(text)) => safe(&text.replace('\n', " ")),
        Some(value) => value.to_string(),
    };
    match text.chars().count() > MAX_CELL {
        true => text.chars().take(MAX_CELL - 1).chain(['…']).collect(),
        false => text,
    }
}

/// Returns a row for each figure that some run has.
fn figure_rows(all: &[Figures]) -> Vec<(String, Vec<String>)> {
    type Told = fn(&Figures) -> Option<String>;
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut row = |name: String, values: Vec<Option<String>>| {
        if values.iter().any(Option::is_some) {
            rows.push((name, values.into_iter().map(|value| value.unwrap_or_else(|| "-".into())).collect()));
        }
    };
    let first: [(&str, Told); 2] =
        [("steps", |f| Some(f.steps.to_string())), ("final loss", |f| f.loss.map(|loss| format!("{loss:.4}")))];
    for (name, told) in first {
        row(name.into(), all.iter().map(told).collect());
    }
    let sets: BTreeSet<&String> = all.iter().flat_map(|figures| figures.held_out.keys()).collect();
    for set in sets {
        let of = |told: fn(&HeldOut) -> Option<String>| {
            all.iter().map(|figures| figures.held_out.get(set).and_then(told)).collect::<Vec<_>>()
        };
        row(format!("{set}: last loss"), of(|found| Some(format!("{:.4} (step {})", found.last, found.last_step))));
        row(format!("{set}: best loss"), of(|found| Some(format!("{:.4} (step {})", found.best, found.best_step))));
        row(format!("{set}: correct"), of(|found| found.exact.map(|exact| format!("{:.1} %", 100.0 * exact))));
    }
    let count = |count: u64| (count > 0).then(|| count.to_string());
    row("tokens".into(), all.iter().map(|f| Some(short(f.tokens as f64))).collect());
    row("tokens/s".into(), all.iter().map(|f| f.tokens_per_s.map(short)).collect());
    row("median step".into(), all.iter().map(|f| f.median_step_ms.map(|ms| format!("{ms:.0} ms"))).collect());
    row("MFU".into(), all.iter().map(|f| f.mfu.map(|mfu| format!("{:.1} %", 100.0 * mfu))).collect());
    row("wall time".into(), all.iter().map(|f| f.wall_s.map(clock)).collect());
    row("goodput".into(), all.iter().map(|f| f.goodput.map(|share| format!("{:.0} %", 100.0 * share))).collect());
    row("peak tensor memory".into(), all.iter().map(|f| f.memory_bytes.map(bytes)).collect());
    row("skipped steps".into(), all.iter().map(|f| count(f.skipped)).collect());
    row("bad samples".into(), all.iter().map(|f| count(f.bad_samples)).collect());
    row("too long".into(), all.iter().map(|f| count(f.too_long)).collect());
    rows
}

/// Returns the columns under each other.
fn table(rows: &[(String, Vec<String>)]) -> String {
    let len = |text: &String| text.chars().count();
    let columns = rows.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
    let head = rows.iter().map(|(name, _)| len(name)).max().unwrap_or(0);
    let widths: Vec<usize> =
        (0..columns).map(|at| rows.iter().filter_map(|(_, cells)| cells.get(at)).map(len).max().unwrap_or(0)).collect();
    let line = |(name, cells): &(String, Vec<String>)| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:<width$}"));
        let line = format!("{name:<head$}{}", cells.collect::<String>());
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// The training losses, and of a set that all have evaluated more than once the held-out ones, if there are colors for them.
fn draw(out: &Path, runs: &[PastRun], names: &[String]) -> anyhow::Result<()> {
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for (run, name) in runs.iter().zip(names) {
        curves.push((name.clone(), run.steps.iter().map(|step| (step.step as f64, step.loss)).collect()));
    }
    let of_set = |run: &PastRun, set: &str| -> Vec<(f64, f64)> {
        let records = run.evaluations.iter().filter(|record| record.set == set);
        records.filter_map(|record| Some((record.step as f64, record.loss?))).collect()
    };
    let sets: BTreeSet<&str> = runs[0].evaluations.iter().map(|record| record.set.as_str()).collect();
    for set in sets {
        let held_out: Vec<_> = runs.iter().map(|run| of_set(run, set)).collect();
        if held_out.iter().all(|points| points.len() > 1) && curves.len() + runs.len() <= MAX_CURVES {
            curves.extend(names.iter().zip(held_out).map(|(name, points)| (format!("{name}, {set}"), points)));
        }
    }
    let curves: Vec<Curve<'_>> = curves.iter().map(|(label, points)| Curve { label, points }).collect();
    Ok(plot(out, "loss", "step", &curves)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_no_run_has_are_no_rows() {
        let held_out = [("val".to_owned(), HeldOut { last: 0.5, last_step: 9, best: 0.25, best_step: 6, exact: None })];
        let figures = Figures {
            steps: 10,
            loss: Some(0.125),
            held_out: held_out.into(),
            wall_s: Some(61.0),
            ..Figures::default()
        };
        let rows = figure_rows(&[figures, Figures::default()]);
        let text = table(&rows);
        for line in [
            "steps           10               0",
            "final loss      0.1250           -",
            "val: best loss  0.2500 (step 6)  -",
            "wall time       1:01             -",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("MFU") && !text.contains("correct"), "{text}");
    }

    #[test]
    fn long_values_are_cut_in_the_table() {
        assert_eq!(cell(Some(&json!("a".repeat(50)))).chars().count(), MAX_CELL);
        assert_eq!([cell(None), cell(Some(&json!([1, 2]))), cell(Some(&json!("a\nb")))], ["-", "[1,2]", "a b"]);
    }
}
