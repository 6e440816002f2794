//! How `loongforge plan` tells what was simulated: as text, as a table of layouts, as JSON.

use loongforge_core::message::Role;
use loongforge_core::schedule::simulate::{Activity, Alternative, SimReport, SimSpec};

pub(super) fn text(report: &SimReport, spec: &SimSpec) -> String {
    let mut text = format!(
        "simulated {} steps ({} before them left out)\n  step    {}, median {}, 95 % within {}; {:.0} tokens/s\n",
        report.steps.len(),
        spec.warm_up,
        seconds(report.mean_step()),
        seconds(report.quantile(0.5)),
        seconds(report.quantile(0.95)),
        report.tokens_per_second(),
    );
    let bounds: Vec<String> =
        report.bounds.iter().map(|bound| format!("{} {}", bound.what, seconds(bound.seconds))).collect();
    text += &format!(
        "  bound   {}; the step takes {:.2} times the first\n",
        bounds.join(", "),
        report.mean_step() / report.bound().seconds
    );
    for pool in &report.pools {
        let shares = pool.shares.iter().filter(|(_, share)| *share >= 0.005);
        let (busy, waits): (Vec<_>, Vec<_>) = shares.partition(|(what, _)| what.is_busy());
        let list = |shares: Vec<&(_, f64)>| {
            let list = shares.iter().map(|(what, share)| name_share(*what, *share));
            list.collect::<Vec<_>>().join(", ")
        };
        text += &format!(
            "  {:<11} x {:<4} {:5.1} % busy: {}; waits for {}\n",
            pool.role,
            pool.ranks,
            pool.busy * 100.0,
            list(busy),
            list(waits)
        );
    }
    if spec.cluster.stages > 1 {
        let busy = report.pool(Role::Foundation).map_or(0.0, |pool| pool.busy);
        text += &format!(
            "  bubble  {:.1} % of the foundation idles; {:.1} % is what 1F1B has with {} stages\n",
            (1.0 - busy) * 100.0,
            report.ideal_bubble * 100.0,
            spec.cluster.stages
        );
    }
    let waits: Vec<String> = ["pixels", "tokens", "features", "gradients"]
        .iter()
        .zip(report.credit_waits)
        .filter(|(_, wait)| *wait > 0.0)
        .map(|(what, wait)| format!("{what} {}", seconds(wait)))
        .collect();
    match waits.is_empty() {
        true => text += "  credit  nothing waits for it\n",
        false => text += &format!("  credit  parcels of a step wait for it: {}\n", waits.join(", ")),
    }
    text
}

fn name_share(what: Activity, share: f64) -> String {
    format!("{} {:.1} %", what.name(), share * 100.0)
}

/// Alternatives, the best first.
pub(super) fn table(devices: u32, found: &[Alternative]) -> String {
    let mut text = format!(
        "layouts of {devices} devices, best first\n  {:<11}{:>9}{:>12}{:>12}{:>12}{:>14}{:>17}  bound\n",
        "placement", "encoders", "foundation", "tokens/s", "step", "encoder busy", "foundation busy"
    );
    for Alternative { layout, result } in found {
        let placement = format!("{:?}", layout.placement).to_lowercase();
        text += &format!("  {placement:<11}{:>9}{:>12}", layout.encoders, layout.foundations);
        match result {
            Ok(report) => {
                let busy = |role| match report.pool(role) {
                    Some(pool) => format!("{:.1} %", pool.busy * 100.0),
                    None => "-".to_owned(),
                };
                text += &format!(
                    "{:>12.0}{:>12}{:>14}{:>17}  {}\n",
                    report.tokens_per_second(),
                    seconds(report.mean_step()),
                    busy(Role::Encoder),
                    busy(Role::Foundation),
                    report.bound().what
                );
            }
            Err(error) => text += &format!("  {error}\n"),
        }
    }
    text
}

pub(super) fn as_json(report: &SimReport) -> serde_json::Value {
    let mut json = serde_json::to_value(report).expect("numbers");
    json["mean_step"] = report.mean_step().into();
    json["tokens_per_second"] = report.tokens_per_second().into();
    json
}

/// `12.3 ms`.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
