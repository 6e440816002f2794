//! Translates musubi-tuner's noise levels: how they are drawn and weighted.

use super::diffsynth_model::Named;
use super::sheet::Sheet;

const SAMPLING: &str = "timestep_sampling";
const BOUNDS: [&str; 2] = ["min_timestep", "max_timestep"];

/// Returns where the transformer of high noise takes over, of 1,000 levels.
pub(super) fn boundary(model: &Named) -> f64 {
    if model.sees_frames() { 900.0 } else { 875.0 }
}

/// Returns the lowest and the highest level, of 1,000.
pub(super) fn bounds(sheet: &Sheet) -> [f64; 2] {
    [(BOUNDS[0], 0.0), (BOUNDS[1], 1000.0)].map(|(key, default)| sheet.number(key).unwrap_or(default))
}

/// Translates the options of noise levels.
pub(super) fn read(sheet: &mut Sheet, model: Option<&Named>) {
    let sampling = sheet.text(SAMPLING).unwrap_or_else(|| "sigma".to_owned());
    limits(sheet, model, &sampling);
    density(sheet, model, &sampling);
    sheet.settled("train.sigma.stratify spreads the levels of a step evenly", &["num_timestep_buckets"]);
    sheet.settled("`loongforge check` prints the spread of noise levels", &["show_timesteps"]);
}

/// Translates the options that say how levels are drawn, and what the loss of each weighs.
fn density(sheet: &mut Sheet, model: Option<&Named>, sampling: &str) {
    let scheme = sheet.text("weighting_scheme").unwrap_or_default();
    let number = |key: &str, default: f64| sheet.number(key).unwrap_or(default);
    let (scale, shift) = (number("sigmoid_scale", 1.0), number("discrete_flow_shift", 1.0));
    let (mean, std) = (number("logit_mean", 0.0), number("logit_std", 1.0));
    let mode = number("mode_scale", 1.29);
    let is_picture = model.is_some_and(Named::is_image);
    let mut keys = vec![(SAMPLING, "train.sigma.density")];
    let mut set = |ours: &'static str, value: f64, theirs: &'static str| {
        sheet.set(ours, value);
        keys.push((theirs, ours));
    };
    // A grid of 1,000 from the highest level on; the shift of the scheduler does not apply to it.
    let density = match (sampling, scheme.as_str()) {
        ("sigma", "logit_normal") => {
            set("train.sigma.mean", 0.0 - mean, "logit_mean");
            set("train.sigma.std", std, "logit_std");
            "logit_normal"
        }
        ("sigma", "mode") => {
            set("train.sigma.scale", mode, "mode_scale");
            "mode"
        }
        ("sigma", _) => "discrete",
        ("uniform", _) => "uniform",
        ("logsnr", _) => {
            set("train.sigma.mean", mean, "logit_mean");
            set("train.sigma.std", std, "logit_std");
            "logsnr"
        }
        ("sigmoid", _) => {
            set("train.sigma.std", scale, "sigmoid_scale");
            "logit_normal"
        }
        ("shift", _) => {
            set("train.sigma.std", scale, "sigmoid_scale");
            set("train.sigma.shift", shift, "discrete_flow_shift");
            "logit_normal"
        }
        ("qwen_shift", _) if is_picture => {
            set("train.sigma.std", scale, "sigmoid_scale");
            "logit_normal"
        }
        _ => "",
    };
    if density.is_empty() {
        let why = "set train.sigma.density and train.sigma.shift: only sigma, uniform, sigmoid, shift and logsnr are \
                   translated, and qwen_shift of Qwen-Image";
        sheet.missing(why, &[SAMPLING, "discrete_flow_shift", "sigmoid_scale", "logit_mean", "logit_std"]);
    } else {
        sheet.set("train.sigma.density", density);
        keys.into_iter().for_each(|(theirs, ours)| sheet.arrived(theirs, ours));
    }
    if density == "logit_normal" && sampling == "qwen_shift" {
        sheet.set("train.sigma.shift", "auto");
    }
    let others = ["discrete_flow_shift", "sigmoid_scale", "logit_mean", "logit_std", "mode_scale"];
    sheet.settled("levels that are drawn in this way do not depend on it", &others);
    match scheme.as_str() {
        "sigma_sqrt" | "cosmap" => sheet.copy("weighting_scheme", "train.loss.weight"),
        "logit_normal" | "mode" if sampling == "sigma" => sheet.arrived("weighting_scheme", "train.sigma.density"),
        "logit_normal" | "mode" => {
            sheet.settled("levels that are drawn in this way do not depend on it", &["weighting_scheme"]);
        }
        _ => sheet.missing("train.loss.weight must be none, sigma_sqrt or cosmap", &["weighting_scheme"]),
    }
}

/// Translates the bounds of the levels.
fn limits(sheet: &mut Sheet, model: Option<&Named>, sampling: &str) {
    const KEEPS: &str = "preserve_distribution_shape";
    let is_kept = sheet.is_true(KEEPS) || sampling == "uniform";
    let is_bounded = BOUNDS.iter().any(|key| sheet.get(key).is_some());
    let own = model.map(boundary);
    let written = sheet.number("timestep_boundary").map(|level| if level <= 1.0 { level * 1000.0 } else { level });
    if written == own {
        sheet.settled("it is that of the model", &["timestep_boundary"]);
    }
    sheet.missing("boundary_ratio in model_index.json of model.load determines it", &["timestep_boundary"]);
    sheet.settled("a distribution that is truncated keeps its shape", &[KEEPS]);
    if let (Some(experts), Some(own)) = (model.and_then(|model| model.experts), own) {
        if !is_bounded {
            sheet.note(
                "musubi-tuner trains one of two transformers on all noise levels unless min_timestep and max_timestep \
                 say otherwise; with model.experts it is trained on its own ones",
            );
        }
        let range = if experts == "high" { [own, 1000.0] } else { [0.0, own] };
        if bounds(sheet) == range {
            BOUNDS.iter().for_each(|key| sheet.arrived(key, "model.experts"));
        }
        return sheet.missing("model.experts trains on the levels from or up to the model's boundary", &BOUNDS);
    }
    if sheet.number(BOUNDS[1]) == Some(1000.0) {
        sheet.settled("it is the highest level", &[BOUNDS[1]]);
    }
    if sampling == "sigma" {
        let why = "with timestep_sampling: sigma they count from the highest level: set train.sigma.min and max";
        return sheet.missing(why, &BOUNDS);
    }
    if bounds(sheet) != [0.0, 1000.0] && !is_kept {
        sheet.set("train.sigma.squeeze", true);
    }
    for (theirs, ours) in [(BOUNDS[0], "train.sigma.min"), (BOUNDS[1], "train.sigma.max")] {
        let level = sheet.number(theirs).filter(|level| (0.0..=1000.0).contains(level));
        sheet.with(theirs, ours, |_| {
            level.map(|level| (level / 1000.0).into()).ok_or("it must be a number from 0 to 1000")
        });
    }
}
