//! A Gantt chart as a picture: SVG, or a page of HTML around it. Self-contained, without scripts.

use super::{Activity, Gantt, SimReport};
use crate::text::escape;
use std::fmt::Write;

const WIDTH: f64 = 1160.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const ROW: f64 = 20.0;
const GAP: f64 = 4.0;
const POOL_GAP: f64 = 12.0;
/// Spans narrower than this are not drawn, in pixels.
const THINNEST: f64 = 0.15;

/// Returns the chart as one SVG picture.
pub fn gantt_svg(gantt: &Gantt, title: &str) -> String {
    let seconds = (gantt.end - gantt.start).max(f64::MIN_POSITIVE);
    let x = |time: f64| LEFT + (time - gantt.start) / seconds * (WIDTH - LEFT - RIGHT);
    let tops = tops(gantt);
    let bottom = tops.last().map_or(TOP, |top| top + ROW) + 6.0;
    let legend: Vec<Activity> =
        Activity::ALL.into_iter().filter(|what| gantt.spans.iter().any(|span| span.activity == *what)).collect();
    let legend_lines = legend.len().div_ceil(5) as f64;
    let height = bottom + 40.0 + legend_lines * 20.0 + 10.0;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, Helvetica, Arial, sans-serif\" font-size=\"12\">\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\" font-weight=\"600\" fill=\"#1a1a1a\">{}</text>",
        escape(title)
    );
    axis(&mut svg, gantt, bottom, x);
    for (row, name) in gantt.rows.iter().enumerate() {
        let y = tops[row] + ROW * 0.7;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\" fill=\"#333333\">{}</text>",
            LEFT - 8.0,
            escape(name)
        );
    }
    spans(&mut svg, gantt, &tops, x);
    draw_legend(&mut svg, &legend, bottom);
    if gantt.num_left_out > 0 {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{TOP}\" dy=\"-26\" text-anchor=\"end\" fill=\"#666666\">{} more ranks are not drawn</text>",
            WIDTH - RIGHT,
            gantt.num_left_out
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns a page with the chart and the report's figures.
pub fn gantt_html(report: &SimReport, title: &str) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>\
         body{{font:14px/1.5 system-ui,Helvetica,Arial,sans-serif;margin:24px;color:#1a1a1a;background:#fff}}\
         h1{{font-size:20px;margin:0 0 12px}} table{{border-collapse:collapse;margin:0 0 20px}}\
         td,th{{padding:4px 16px 4px 0;text-align:left;border-bottom:1px solid #e4e4e4;font-variant-numeric:tabular-nums}}\
         svg{{max-width:100%;height:auto}}</style></head><body><h1>{0}</h1>\n",
        escape(title)
    );
    let _ = write!(
        page,
        "<table><tr><th>step</th><th>tokens/s</th><th>bound by</th><th>bound</th></tr>\
         <tr><td>{}</td><td>{:.0}</td><td>{}</td><td>{}</td></tr></table>\n\
         <table><tr><th>pool</th><th>ranks</th><th>busy</th><th>where its time goes</th></tr>",
        time(report.mean_step()),
        report.tokens_per_second(),
        report.bound().what,
        time(report.bound().seconds),
    );
    for pool in &report.pools {
        let shares: Vec<String> = pool.shares.iter().filter(|(_, share)| *share >= 0.005).map(share_text).collect();
        let busy = pool.busy * 100.0;
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{busy:.1} %</td><td>{}</td></tr>",
            pool.name,
            pool.ranks,
            shares.join(", ")
        );
    }
    let _ = write!(page, "</table>\n{}</body></html>\n", gantt_svg(&report.gantt, "Who does what when"));
    page
}

fn share_text((what, share): &(Activity, f64)) -> String {
    let wait = if what.is_busy() { "" } else { "waits for " };
    format!("{wait}{} {:.1} %", what.name(), share * 100.0)
}

/// Returns the upper edges of the rows; pools stand apart.
fn tops(gantt: &Gantt) -> Vec<f64> {
    let role = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
    let mut top = TOP;
    let mut before: Option<String> = None;
    let mut tops = Vec::new();
    for name in &gantt.rows {
        if before.as_ref().is_some_and(|before| *before != role(name)) {
            top += POOL_GAP;
        }
        tops.push(top);
        top += ROW + GAP;
        before = Some(role(name));
    }
    tops
}

/// Draws time marks below, and a dashed line where a step of the last row begins.
fn axis(svg: &mut String, gantt: &Gantt, bottom: f64, x: impl Fn(f64) -> f64) {
    let seconds = gantt.end - gantt.start;
    let tick = nice(seconds / 8.0);
    let mut at = 0.0;
    while tick > 0.0 && at <= seconds * (1.0 + 1e-9) {
        let x = x(gantt.start + at);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#eeeeee\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666666\">{}</text>",
            TOP - 8.0,
            bottom + 16.0,
            time(at)
        );
        at += tick;
    }
    let last = gantt.rows.len().saturating_sub(1) as u32;
    let mut steps: Vec<(u64, f64)> = Vec::new();
    for span in gantt.spans.iter().filter(|span| span.row == last) {
        if steps.last().is_none_or(|&(step, _)| step < span.step) {
            steps.push((span.step, span.start));
        }
    }
    for (step, start) in steps {
        let x = x(start);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#888888\" stroke-dasharray=\"3 3\"/>\
             <text x=\"{:.1}\" y=\"{}\" fill=\"#666666\">step {step}</text>",
            TOP - 18.0,
            x + 4.0,
            TOP - 10.0
        );
    }
}

/// Bars for what ranks do, and thin lines for what they wait for; rows begin at `tops`.
fn spans(svg: &mut String, gantt: &Gantt, tops: &[f64], x: impl Fn(f64) -> f64) {
    for span in &gantt.spans {
        let (left, right) = (x(span.start), x(span.end));
        if right - left < THINNEST {
            continue;
        }
        // Waiting is a thin line: what is full is at work.
        let (y, height) = match span.activity.is_busy() {
            true => (tops[span.row as usize], ROW),
            false => (tops[span.row as usize] + ROW / 2.0 - 2.0, 4.0),
        };
        let wait = if span.activity.is_busy() { "" } else { "waits for " };
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{height}\" fill=\"{}\"{}><title>{}: {wait}{}, {} \
             from {}, step {}</title></rect>",
            right - left,
            color(span.activity),
            // A hair of white keeps neighbors apart where there is room for it.
            if right - left > 2.0 && span.activity.is_busy() { " stroke=\"#ffffff\" stroke-width=\"0.6\"" } else { "" },
            escape(&gantt.rows[span.row as usize]),
            span.activity.name(),
            time(span.end - span.start),
            time(span.start - gantt.start),
            span.step,
        );
    }
}

/// Draws the names of activities below the chart, with their colors.
fn draw_legend(svg: &mut String, legend: &[Activity], bottom: f64) {
    for (at, what) in legend.iter().enumerate() {
        let (column, line) = ((at % 5) as f64, (at / 5) as f64);
        let (x, y) = (LEFT + column * 195.0, bottom + 40.0 + line * 20.0);
        let (box_y, box_height) = if what.is_busy() { (y, 12.0) } else { (y + 4.0, 4.0) };
        let name = if what.is_busy() { what.name().to_owned() } else { format!("waits for {}", what.name()) };
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{box_y}\" width=\"16\" height=\"{box_height}\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"#333333\">{name}</text>",
            color(*what),
            x + 22.0,
            y + 10.0
        );
    }
}

/// Returns 1, 2 or 5 times a power of ten, not below `value`.
fn nice(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 0.0;
    }
    let power = 10.0_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|&nice| nice >= value * 0.999).unwrap_or(power)
}

/// Formats a time as `12.3 ms`.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        0.0 => return "0".to_owned(),
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let decimals = if value >= 100.0 { 0 } else { 3 - (value.log10().floor().max(0.0) as usize + 1) };
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {unit}")
}

/// Blues compute forward, oranges backward, grays wait, but for what one should look at: reds.
fn color(activity: Activity) -> &'static str {
    match activity {
        Activity::Read => "#8d6cab",
        Activity::Send => "#b79fd0",
        Activity::Encode => "#2e86ab",
        Activity::EncoderBackward => "#e07a1f",
        Activity::Pack => "#3a9d5d",
        Activity::Forward => "#4c72c4",
        Activity::Backward => "#f0a030",
        Activity::Reduce => "#c2408a",
        Activity::Optimizer => "#4a4a4a",
        Activity::Save => "#7a6a3a",
        Activity::WaitSamples => "#b79fd0",
        Activity::WaitFeatures => "#7fc4dd",
        Activity::WaitGradients => "#f2b98a",
        Activity::WaitStage => "#d64545",
        Activity::WaitCredit => "#8b0000",
        Activity::WaitPeers => "#e3a6c9",
        Activity::WaitCommit | Activity::WaitMail => "#c4c4c4",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Role;
    use crate::simulate::{Bound, PoolReport, Span};

    #[test]
    fn pools_of_one_role_have_names_of_their_own() {
        let pool = |name: &str| {
            let name = name.parse().unwrap();
            PoolReport { role: Role::Encoder, name, ranks: 1, busy: 0.5, shares: Vec::new() }
        };
        let report = SimReport {
            steps: vec![1.0],
            tokens: 1,
            samples: 1,
            packs: 1,
            units: 1,
            patches: 1,
            pools: vec![pool("vision"), pool("audio")],
            bounds: vec![Bound { what: "encoders", seconds: 1.0 }],
            credit_waits: [0.0; 4],
            ideal_bubble: 0.0,
            gantt: Gantt::default(),
        };
        let page = gantt_html(&report, "a run");
        assert!(page.contains("<td>vision</td>") && page.contains("<td>audio</td>"), "{page}");
    }

    #[test]
    fn what_is_drawn_is_named_and_escaped() {
        let span = |row, start, end, activity| Span { row, start, end, activity, step: 3 };
        let gantt = Gantt {
            rows: vec!["encoder/0".into(), "foundation/0".into()],
            num_left_out: 2,
            spans: vec![
                span(0, 1.0, 1.5, Activity::Encode),
                span(1, 1.0, 1.5, Activity::WaitFeatures),
                span(1, 1.5, 2.0, Activity::Pack),
            ],
            start: 1.0,
            end: 2.0,
        };
        let svg = gantt_svg(&gantt, "a < b");
        for text in ["a &lt; b", "encoder/0: encode, 500 ms from 0, step 3", "waits for features", "2 more ranks"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        // Background, three spans, three entries of the legend.
        assert_eq!(svg.matches("<rect").count(), 7);
    }

    #[test]
    fn times_have_three_digits() {
        let shown = [0.0, 12.34e-6, 0.5, 1.0, 0.0999, 123.4].map(time);
        assert_eq!(shown, ["0", "12.3 µs", "500 ms", "1 s", "99.9 ms", "123 s"]);
        assert_eq!([0.013, 0.9, 7.0].map(nice), [0.02, 1.0, 10.0]);
    }
}
