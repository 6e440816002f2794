//! Output of `loongforge plan`'s simulations: as text, as a table of layouts, as JSON.

use loongforge_core::message::Role;
use loongforge_core::simulate::{Activity, Alternative, SimReport, SimSpec};
use loongforge_core::text::{counted, grouped};

pub(super) fn text(report: &SimReport, spec: &SimSpec) -> String {
    let mut text = format!(
        "simulated {} (after {} warm-up steps)\n  step    {}, median {}, p95 {}; {} tokens/s\n",
        count(report.steps.len(), "step"),
        spec.warm_up,
        seconds(report.mean_step()),
        seconds(report.quantile(0.5)),
        seconds(report.quantile(0.95)),
        grouped(report.tokens_per_second().round() as u64),
    );
    // What takes no time by these costs bounds nothing.
    let bounds = report.bounds.iter().filter(|bound| bound.seconds > 0.0);
    let bounds: Vec<String> = bounds.map(|bound| format!("{} {}", bound.what, seconds(bound.seconds))).collect();
    text += &format!(
        "  bound   {}; step time is {:.2} × the first bound\n",
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
        text += &format!("  {:<11} x {:<4} {:5.1} % busy", pool.name, pool.ranks, pool.busy * 100.0);
        if !busy.is_empty() {
            text += &format!(": {}", list(busy));
        }
        if !waits.is_empty() {
            text += &format!("; waits for {}", list(waits));
        }
        text.push('\n');
    }
    if spec.cluster.stages > 1 {
        let foundations = report.pools.iter().filter(|pool| pool.role == Role::Foundation);
        let busy = foundations.map(|pool| pool.busy).fold(0.0, f64::max);
        text += &format!(
            "  bubble  the foundation idles {:.1} % of the time; 1F1B would idle {:.1} % with {} stages\n",
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
        true => text += "  credit  no back-pressure\n",
        false => text += &format!("  credit  parcels of a step that wait for it: {}\n", waits.join(", ")),
    }
    text
}

fn name_share(what: Activity, share: f64) -> String {
    format!("{} {:.1} %", what.name(), share * 100.0)
}

/// Returns a table of alternatives, the best first.
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
                let busy = |role| {
                    let pools = report.pools.iter().filter(|pool| pool.role == role);
                    let shares: Vec<String> = pools.map(|pool| format!("{:.1} %", pool.busy * 100.0)).collect();
                    if shares.is_empty() { "-".to_owned() } else { shares.join(", ") }
                };
                text += &format!(
                    "{:>12}{:>12}{:>14}{:>17}  {}\n",
                    grouped(report.tokens_per_second().round() as u64),
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

/// Returns a count with its noun, such as `1 pack` or `2 packs`.
pub(super) fn count(count: usize, what: &str) -> String {
    counted(count as u64, what)
}

/// Returns a time with its unit, such as `12.3 ms`.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([count(1, "pack"), count(0, "pack"), count(2, "pack")], ["1 pack", "0 packs", "2 packs"]);
        assert_eq!([9.96e-4, 0.5, 1.5].map(seconds), ["996.0 µs", "500.0 ms", "1.50 s"]);
    }
}
