//! The board's JSON as lines for a terminal.

use super::super::progress;
use serde_json::Value;

/// Widest curve, in characters.
const CURVE: usize = 60;
/// Most actors that are listed one by one.
const MAX_ACTORS: usize = 40;

/// What `loongforge top` shows: `status` and `history` are a page's `/status.json` and `/history.json`. Without colours
/// and cursor movement.
pub fn describe_run(status: &Value, history: &Value) -> String {
    let mut lines = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    lines.push(format!(
        "{}  {}  {}",
        text(&status["run"]["name"]),
        text(&status["state"]),
        text(&status["run"]["dir"])
    ));
    let goodput = share(&status["goodput"]);
    let rate = |key: &str| status[key].as_f64().map_or("-".into(), progress::short);
    // A language model has none.
    let has_images = status["images_per_s"].as_f64().is_some_and(|images| images > 0.0);
    let images = if has_images { format!("  {} images/s", rate("images_per_s")) } else { String::new() };
    lines.push(format!(
        "step {}/{}  loss {}  {} tokens/s{images}  {} ms a step  goodput {goodput}  ETA {}",
        status["done"],
        status["steps"],
        number(&status["loss"]),
        rate("tokens_per_s"),
        status["step_s"].as_f64().map_or("-".into(), |step| format!("{:.0}", step * 1e3)),
        status["eta_s"].as_f64().map_or("-".into(), progress::clock),
    ));
    lines.push(format!(
        "skipped {}  bad samples {}  too long {}  last checkpoint {}",
        status["skipped"],
        status["bad_samples"],
        status["too_long"],
        status["last_checkpoint"].as_u64().map_or("-".into(), |step| format!("step {step}")),
    ));
    for (name, key) in [("loss", "loss"), ("tokens/s", "tokens_per_s")] {
        let values: Vec<f64> = history[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        if values.len() > 1 {
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), &v| (a.min(v), b.max(v)));
            lines.push(format!("{name:8} {}  {} to {}", curve(&values), short(least), short(most)));
        }
    }
    lines.push(String::new());
    lines.push(format!(
        "{:16} {:>9} {:>9} {:>9}  {}",
        "actor", "computes", "units", "packs", "edges: in flight, waiting"
    ));
    let actors = status["actors"].as_array().map_or(&[][..], Vec::as_slice);
    for actor in actors.iter().take(MAX_ACTORS) {
        let ms = |key: &str| match actor["timings"][key].as_f64() {
            Some(seconds) if seconds > 0.0 => format!("{:.0} ms", seconds * 1e3),
            _ => String::new(),
        };
        let edges = actor["edges"].as_array().into_iter().flatten().map(|edge| {
            let (in_flight, credit) =
                (edge["in_flight"].as_f64().unwrap_or(0.0), edge["credit"].as_f64().unwrap_or(0.0));
            let full = if credit > 0.0 { in_flight / credit * 100.0 } else { 0.0 };
            let waiting = edge["unsent"].as_u64().filter(|&count| count > 0).map(|count| format!(" +{count}"));
            format!("{} {full:.0}%{}", text(&edge["to"]), waiting.unwrap_or_default())
        });
        let state = text(&actor["state"]);
        let state = if state.is_empty() { state } else { format!("  {state}") };
        let edges = edges.collect::<Vec<_>>().join("  ");
        let (busy, units, packs) = (share(&actor["busy"]), ms("units"), ms("packs"));
        lines.push(format!("{:16} {busy:>9} {units:>9} {packs:>9}  {edges}{state}", text(&actor["actor"])));
    }
    if actors.len() > MAX_ACTORS {
        lines.push(format!("and {} more", actors.len() - MAX_ACTORS));
    }
    lines.join("\n") + "\n"
}

fn share(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |share| format!("{:.0}%", share * 100.0))
}

fn number(value: &Value) -> String {
    value.as_f64().map_or("-".into(), short)
}

/// 0.1234, 950, 12.3k, 4.56M.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 1e4 => format!("{:.1}k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.4}"),
    }
}

/// Eight heights of a character.
fn curve(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let every = values.len().div_ceil(CURVE);
    let points: Vec<f64> = values.chunks(every).map(|some| some.iter().sum::<f64>() / some.len() as f64).collect();
    let (least, most) = points.iter().fold((f64::MAX, f64::MIN), |(a, b), &v| (a.min(v), b.max(v)));
    let height = |value: f64| if most > least { ((value - least) / (most - least) * 7.0).round() as usize } else { 0 };
    points.into_iter().map(|value| BARS[height(value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::board;
    use super::*;
    use crate::observe::watch::{Board, RunInfo};

    #[test]
    fn a_board_is_described() {
        let mut board = board();
        board.actors.get_mut(&crate::message::ActorId::encoder(0)).unwrap().state = "left".into();
        let text = describe_run(&board.status(), &board.history());
        for part in [
            "a \"b\"  running",
            "step 3/10  loss 4.0000  100 tokens/s  1000 ms a step  goodput 67%  ETA 0:07",
            "skipped 1  bad samples 0  too long 0  last checkpoint -",
            "encoder/0                -                      foundation/0 10% +1  left",
            "foundation/0           75%                      foundation/0 10% +1",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn nothing_is_described_as_nothing() {
        let board = Board::new(RunInfo::default(), 1, 1);
        assert!(describe_run(&board.status(), &board.history()).contains("loss -"));
        assert!(describe_run(&Value::Null, &Value::Null).contains("actor"));
    }

    #[test]
    fn a_curve_has_eight_heights_and_a_width() {
        assert_eq!(curve(&[0.0, 1.0, 2.0, 3.5, 7.0]), "▁▂▃▅█");
        assert_eq!(curve(&[2.0, 2.0]), "▁▁");
        assert_eq!(curve(&(0..1000).map(f64::from).collect::<Vec<_>>()).chars().count(), 59);
    }
}
