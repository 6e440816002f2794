//! The board's JSON as lines for a terminal.

use super::super::{figures, progress};
use serde_json::Value;

/// Widest curve, in characters.
const CURVE: usize = 60;
/// Most actors that are listed one by one.
const MAX_ACTORS: usize = 40;
/// Width of the columns before the edges: name, busy, units, packs.
const COLUMNS: [usize; 4] = [14, 8, 8, 8];
/// The column at which the edges begin.
const INDENT: usize = 14 + 3 * 9 + 2;
/// Narrowest lines.
const MIN_WIDTH: usize = 60;

/// The terminal that lines are made for.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Characters of a line at most; 0: any number.
    pub width: usize,
    pub color: bool,
}

impl View {
    /// Lines as long as they are, without color.
    pub const PLAIN: Self = Self { width: 0, color: false };

    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }
}

/// Returns the text of `loongforge top`: `status` and `history` are a page's `/status.json` and `/history.json`. No line moves the
/// cursor, and no word is broken over two lines.
pub fn describe_run(status: &Value, history: &Value, view: View) -> String {
    let width = if view.width == 0 { usize::MAX } else { view.width.max(MIN_WIDTH) };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let state = text(&status["state"]);
    let shown = match state.as_str() {
        "running" | "done" => view.paint("32", &state),
        "starting" => view.paint("33", &state),
        _ => view.paint("31", &state),
    };
    let mut lines =
        vec![format!("{}  {shown}  {}", view.bold(&text(&status["run"]["name"])), text(&status["run"]["dir"]))];
    lines.extend(wrap(&[speed(status), counts(status, view)].concat(), "  ", width, 0));
    for (name, key, color) in [("loss", "loss", "34"), ("tokens/s", "tokens_per_s", "36")] {
        let values: Vec<f64> = history[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        if values.len() > 1 {
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), &v| (a.min(v), b.max(v)));
            let range = format!("{} to {}", precise(least), precise(most));
            let points = CURVE.min(width.saturating_sub(11 + range.len()));
            lines.push(format!("{name:8} {}  {range}", view.paint(color, &curve(&values, points))));
        }
    }
    let actors = status["actors"].as_array().map_or(&[][..], Vec::as_slice);
    if !actors.is_empty() {
        let [name, busy, units, packs] = COLUMNS;
        let head = format!("{:name$} {:>busy$} {:>units$} {:>packs$}", "actor", "busy", "units", "packs");
        lines.extend([String::new(), view.bold(&format!("{head}  edges: in flight, waiting"))]);
    }
    actors.iter().take(MAX_ACTORS).for_each(|actor| lines.extend(actor_lines(actor, width, view)));
    if actors.len() > MAX_ACTORS {
        lines.push(format!("and {} more", actors.len() - MAX_ACTORS));
    }
    lines.join("\n") + "\n"
}

/// Returns how far the run is and how fast.
fn speed(status: &Value) -> Vec<String> {
    let rate = |key: &str| status[key].as_f64().map_or("-".into(), figures::compact);
    let time = |key: &str| status[key].as_f64().map_or("-".into(), progress::clock);
    let mut parts = vec![
        format!("step {}/{}", status["done"], status["steps"]),
        format!("loss {}", number(&status["loss"])),
        format!("{} tokens/s", rate("tokens_per_s")),
    ];
    // A language model has none.
    if status["images_per_s"].as_f64().is_some_and(|images| images > 0.0) {
        parts.push(format!("{} items/s", rate("images_per_s")));
    }
    let step = status["step_s"].as_f64().map_or("-".into(), |step| format!("{:.0}", step * 1e3));
    parts.push(format!("{step} ms a step"));
    parts.push(format!("goodput {}", share(&status["goodput"])));
    parts.push(format!("elapsed {}", time("elapsed_s")));
    parts.push(format!("ETA {}", time("eta_s")));
    parts.extend(status["memory_bytes"].as_u64().map(|bytes| format!("memory {}", figures::bytes(bytes))));
    parts
}

/// Returns lines about what went wrong and what was saved.
fn counts(status: &Value, view: View) -> Vec<String> {
    let alarming = |what: &str, value: &Value| {
        let text = format!("{what} {value}");
        if value.as_u64().unwrap_or(0) > 0 { view.paint("33", &text) } else { text }
    };
    vec![
        alarming("skipped", &status["skipped"]),
        alarming("bad samples", &status["bad_samples"]),
        alarming("too long", &status["too_long"]),
        format!(
            "last checkpoint {}",
            status["last_checkpoint"].as_u64().map_or("-".into(), |step| format!("step {step}"))
        ),
    ]
}

/// Returns an actor's line, and more where its edges need them.
fn actor_lines(actor: &Value, width: usize, view: View) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ms = |key: &str| match actor["timings"][key].as_f64() {
        Some(seconds) if seconds > 0.0 => format!("{:.0} ms", seconds * 1e3),
        _ => String::new(),
    };
    let edge = |edge: &Value| {
        let (in_flight, credit) = (edge["in_flight"].as_f64().unwrap_or(0.0), edge["credit"].as_f64().unwrap_or(0.0));
        let full = if credit > 0.0 { in_flight / credit * 100.0 } else { 0.0 };
        let waiting = edge["unsent"].as_u64().filter(|&count| count > 0).map(|count| format!(" +{count}"));
        format!("{} {full:.0}%{}", text(&edge["to"]), waiting.unwrap_or_default())
    };
    let mut parts: Vec<String> = actor["edges"].as_array().into_iter().flatten().map(edge).collect();
    let state = text(&actor["state"]);
    if !state.is_empty() {
        parts.push(view.paint("33", &state));
    }
    let [name, busy, units, packs] = COLUMNS;
    let begin = format!(
        "{:name$} {:>busy$} {:>units$} {:>packs$}",
        text(&actor["actor"]),
        share(&actor["busy"]),
        ms("units"),
        ms("packs")
    );
    let mut rest = wrap(&parts, "  ", width.saturating_sub(INDENT), INDENT);
    match rest.first_mut() {
        Some(first) => *first = format!("{begin}  {}", first.trim_start()),
        None => rest.push(begin.trim_end().to_owned()),
    }
    rest
}

/// Parts one after another, in as many lines of `width` as they take, each behind `indent` spaces. No part is broken.
fn wrap(parts: &[String], between: &str, width: usize, indent: usize) -> Vec<String> {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for part in parts {
        let len = visible(part);
        match lines.last_mut() {
            Some((line, used)) if *used + between.len() + len <= width => {
                *line += between;
                *line += part;
                *used += between.len() + len;
            }
            _ => lines.push((part.clone(), len)),
        }
    }
    lines.into_iter().map(|(line, _)| " ".repeat(indent) + &line).collect()
}

/// Characters that are seen: a color is none.
fn visible(text: &str) -> usize {
    let mut is_seen = true;
    let seen = |&letter: &char| {
        let was_seen = is_seen && letter != '\x1b';
        is_seen = if is_seen { letter != '\x1b' } else { letter == 'm' };
        was_seen
    };
    text.chars().filter(seen).count()
}

fn share(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |share| format!("{:.0}%", share * 100.0))
}

fn number(value: &Value) -> String {
    value.as_f64().map_or("-".into(), precise)
}

/// Formats a number: 0.1234, 950, 12.3k, 4.56M.
fn precise(value: f64) -> String {
    if value.abs() >= 100.0 { figures::compact(value) } else { format!("{value:.4}") }
}

/// Draws a curve in eight heights of a character, of `width` characters at most.
fn curve(values: &[f64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let every = values.len().div_ceil(width.max(1));
    let points: Vec<f64> = values.chunks(every).map(|some| some.iter().sum::<f64>() / some.len() as f64).collect();
    let (least, most) = points.iter().fold((f64::MAX, f64::MIN), |(a, b), &v| (a.min(v), b.max(v)));
    let height = |value: f64| if most > least { ((value - least) / (most - least) * 7.0).round() as usize } else { 0 };
    points.into_iter().map(|value| BARS[height(value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::board;
    use super::*;
    use crate::message::{ActorId, EdgeLoad};
    use crate::observe::watch::{Board, RunInfo};

    #[test]
    fn a_board_is_described() {
        let mut board = board();
        board.actors.seen.get_mut(&ActorId::encoder(0)).unwrap().state = "left".into();
        let text = describe_run(&board.status(), &board.history(), View::PLAIN);
        for part in [
            "a \"b\"  running",
            "step 3/10  loss 4.0000  100 tokens/s  1000 ms a step  goodput 67%  elapsed 0:03  ETA 0:07",
            "skipped 1  bad samples 0  too long 0  last checkpoint -",
            "encoder/0             -                    foundation/0 10% +1  left",
            "foundation/0        75%                    foundation/0 10% +1",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn an_actor_has_the_name_of_its_own_pool() {
        let mut board = board();
        board.actors.get(ActorId::encoder_of("audio".parse().unwrap(), 1)).state = "waits".into();
        let text = describe_run(&board.status(), &board.history(), View::PLAIN);
        assert!(text.lines().any(|line| line.starts_with("audio/1 ") && line.ends_with("  waits")), "{text}");
    }

    #[test]
    fn lines_fit_and_no_word_is_broken() {
        let mut board = board();
        let edges =
            (0..9).map(|index| EdgeLoad { to: ActorId::foundation(index), in_flight: 1, credit: 2, num_unsent: 7 });
        board.actors.seen.get_mut(&ActorId::encoder(0)).unwrap().edges = edges.collect();
        for color in [false, true] {
            let text = describe_run(&board.status(), &board.history(), View { width: 80, color });
            assert!(text.lines().all(|line| visible(line) <= 80), "{text}");
            assert!((0..9).all(|index| text.contains(&format!("foundation/{index} 50% +7"))), "{text}");
            assert_eq!(text.contains("\x1b["), color);
        }
    }

    #[test]
    fn nothing_is_described_as_nothing() {
        let board = Board::new(RunInfo::default(), 1, 1);
        assert!(describe_run(&board.status(), &board.history(), View::PLAIN).contains("loss -"));
        assert!(describe_run(&Value::Null, &Value::Null, View::PLAIN).contains("step null/null"));
    }

    #[test]
    fn a_curve_has_eight_heights_and_a_width() {
        assert_eq!(curve(&[0.0, 1.0, 2.0, 3.5, 7.0], 60), "▁▂▃▅█");
        assert_eq!(curve(&[2.0, 2.0], 60), "▁▁");
        assert_eq!(curve(&(0..1000).map(f64::from).collect::<Vec<_>>(), 60).chars().count(), 59);
    }
}
