//! Rate, optimizer and schedule of a run of lerobot. Unless `use_policy_training_preset` is off they are those of the policy's config;
//! a `train_config.json` has what came of them.

use serde_json::{Value, json};

use super::lerobot_policy::Kind;
use super::sheet::{Sheet, schedule};

/// Keys of a policy's config that a schedule is made of.
const SCHEDULER: [&str; 5] = [
    "policy.scheduler_warmup_steps",
    "policy.scheduler_decay_steps",
    "policy.scheduler_decay_lr",
    "policy.warmup_ratio",
    "policy.max_steps",
];

/// The defaults of a policy's config.
struct Preset {
    lr: f64,
    betas: [f64; 2],
    weight_decay: f64,
    clip: f64,
    course: Course,
}

/// The course of a rate.
enum Course {
    /// One of ours, down to nothing unless it is constant.
    Named { schedule: Value, warmup: f64 },
    /// A cosine down to a rate, of which `peak` is the beginning. A run of fewer steps shortens its warm-up as well.
    Decay { warmup: f64, steps: f64, lr: f64, peak: f64 },
}

impl Preset {
    fn of(kind: Kind) -> Self {
        let decay = |peak: f64| Course::Decay { warmup: 1000.0, steps: 30_000.0, lr: 2.5e-6, peak };
        let named = |name: &str, warmup: f64| Course::Named { schedule: name.into(), warmup };
        let (lr, betas, weight_decay, clip, course) = match kind {
            Kind::Pi0 | Kind::Pi05 | Kind::Pi0Fast => (2.5e-5, [0.9, 0.95], 0.01, 1.0, decay(2.5e-5)),
            Kind::Smolvla => (1e-4, [0.9, 0.95], 1e-10, 10.0, decay(1e-4)),
            Kind::Xvla => (1e-4, [0.9, 0.99], 0.0, 10.0, decay(1e-4)),
            Kind::Groot => (1e-4, [0.9, 0.999], 1e-5, 1.0, named("cosine", 500.0)),
            Kind::Fastwam => (1e-4, [0.9, 0.999], 0.01, 10.0, named("constant", 0.0)),
        };
        Self { lr, betas, weight_decay, clip, course }
    }
}

/// Translates rate, optimizer and schedule.
pub(super) fn read(sheet: &mut Sheet, kind: Option<Kind>, is_file: bool) {
    let is_explicit = is_file || sheet.get("use_policy_training_preset") == Some(&Value::Bool(false));
    sheet.settled("learning rate, optimizer and schedule are keys of train", &["use_policy_training_preset"]);
    let preset = kind.map(Preset::of);
    let begin = if is_explicit { "optimizer." } else { "policy.optimizer_" };
    if let Some(Preset { lr, betas, weight_decay, clip, .. }) = preset.as_ref().filter(|_| !is_explicit) {
        sheet.set("train.lr", *lr);
        sheet.set("train.optimizer.betas", json!(betas));
        sheet.set("train.optimizer.weight_decay", *weight_decay);
        sheet.set("train.clip_grad", *clip);
    }
    optimizer(sheet, begin);
    match preset {
        _ if is_explicit => {
            let course = explicit_course(sheet);
            set_course(sheet, course);
        }
        Some(preset) => {
            let course = own_course(sheet, preset.course);
            set_course(sheet, course);
        }
        None => sheet.missing(
            "the kind of policy, and with it the schedule, cannot be determined: set train.schedule",
            &SCHEDULER,
        ),
    }
    if kind == Some(Kind::Xvla) {
        parts_of_xvla(sheet, begin);
    }
    let (why, others) = match is_explicit {
        true => ("optimizer and scheduler already contain its values", ["policy.optimizer_", "policy.scheduler_"]),
        false => ("lerobot uses the policy's preset instead", ["optimizer.", "scheduler."]),
    };
    let others: Vec<String> = others.iter().flat_map(|begin| sheet.begin_with(begin)).collect();
    sheet.settled(
        why,
        &others.iter().map(String::as_str).chain(["policy.max_steps", "policy.warmup_ratio"]).collect::<Vec<_>>(),
    );
    average(sheet);
}

/// The vision-language model of X-VLA learns at a tenth of the rate, its image tower with it.
fn parts_of_xvla(sheet: &mut Sheet, begin: &str) {
    let is_frozen = sheet.ours("model.overrides.freeze_vision_encoder") == Some(&Value::Bool(true));
    if let Some(lr) = sheet.set_number("train.lr").filter(|_| !is_frozen) {
        sheet.set("pools.encoder.lr", lr / 10.0);
    }
    let [scale, warmup] = ["soft_prompt_lr_scale", "soft_prompt_warmup_lr_scale"].map(|key| format!("{begin}{key}"));
    let mut ratios = json!({ "*vlm.*": 0.1 });
    if let Some(scale) = sheet.number(&scale).filter(|scale| *scale != 1.0) {
        ratios["*soft_prompt_hub*"] = scale.into();
    }
    sheet.set("model.foundation.lr_ratios", ratios);
    sheet.arrived(&scale, "model.foundation.lr_ratios");
    sheet.missing("learning rates of parts follow the run's schedule", &[&warmup]);
}

/// Translates the optimizer's keys, which begin so.
fn optimizer(sheet: &mut Sheet, begin: &str) {
    let key = |name: &str| format!("{begin}{name}");
    for (theirs, ours) in [
        ("lr", "train.lr"),
        ("eps", "train.optimizer.eps"),
        ("weight_decay", "train.optimizer.weight_decay"),
        ("grad_clip_norm", "train.clip_grad"),
    ] {
        sheet.copy_number(&key(theirs), ours);
    }
    sheet.copy(&key("betas"), "train.optimizer.betas");
    match sheet.text(&key("type")).as_deref() {
        Some("adamw" | "xvla-adamw") => sheet.settled("AdamW is the optimizer", &[&key("type")]),
        Some("adam") if sheet.set_number("train.optimizer.weight_decay") == Some(0.0) => {
            sheet.settled("it is AdamW without decay", &[&key("type")]);
        }
        _ => sheet.missing("train.optimizer.type must be adamw, adamw_8bit or muon", &[&key("type")]),
    }
}

/// Returns the schedule of the policy's config.
fn own_course(sheet: &mut Sheet, default: Course) -> Course {
    let number = |key: &str, default: f64| sheet.number(key).unwrap_or(default);
    let [warmup_key, decay_key, lr_key, ratio_key, steps_key] = SCHEDULER;
    let found = match default {
        Course::Decay { warmup, steps, lr, peak } => Course::Decay {
            warmup: number(warmup_key, warmup),
            steps: number(decay_key, steps),
            lr: number(lr_key, lr),
            peak: sheet.set_number("train.lr").unwrap_or(peak),
        },
        // GR00T's, the only one with a warm-up; its steps are not those of the run.
        Course::Named { schedule, warmup } if warmup > 0.0 => {
            Course::Named { schedule, warmup: (number(steps_key, 10_000.0) * number(ratio_key, 0.05)).ceil() }
        }
        constant => constant,
    };
    if matches!(found, Course::Decay { .. }) {
        for (key, ours) in [(warmup_key, "train.warmup_steps"), (decay_key, "train.schedule"), (lr_key, "train.min_lr")]
        {
            sheet.arrived(key, ours);
        }
    } else {
        [ratio_key, steps_key].iter().for_each(|key| sheet.arrived(key, "train.warmup_steps"));
    }
    found
}

/// Returns the schedule of `scheduler`; none is a constant rate.
fn explicit_course(sheet: &mut Sheet) -> Course {
    let keys = ["scheduler.type", "scheduler.name", "scheduler.num_warmup_steps"];
    let warmup = sheet.number(keys[2]).unwrap_or(0.0);
    let found = match sheet.text(keys[0]).as_deref() {
        Some("cosine_decay_with_warmup") => {
            let number = |key: &str| sheet.number(key).unwrap_or(0.0);
            let [steps, lr, peak] = ["scheduler.num_decay_steps", "scheduler.decay_lr", "scheduler.peak_lr"];
            let course = Course::Decay { warmup, steps: number(steps), lr: number(lr), peak: number(peak) };
            [lr, peak].iter().for_each(|key| sheet.arrived(key, "train.min_lr"));
            sheet.arrived(steps, "train.schedule");
            Ok(course)
        }
        Some("cosine_annealing_with_warmup") => Ok(Course::Named { schedule: "cosine".into(), warmup }),
        Some("constant_with_warmup") | None => Ok(Course::Named { schedule: "constant".into(), warmup }),
        Some("diffuser") => {
            let name = sheet.get(keys[1]).cloned().unwrap_or("cosine".into());
            schedule(&name).map(|schedule| Course::Named { schedule, warmup })
        }
        Some(_) => Err("train.schedule must be cosine, linear, constant, inverse_sqrt or wsd"),
    };
    match found {
        Ok(course) => {
            keys.iter().for_each(|key| sheet.arrived(key, "train.schedule, train.warmup_steps"));
            course
        }
        Err(why) => {
            sheet.missing(why, &keys);
            Course::Named { schedule: "constant".into(), warmup: 0.0 }
        }
    }
}

fn set_course(sheet: &mut Sheet, course: Course) {
    let all = sheet.steps().unwrap_or(100_000) as f64;
    let (name, warmup, min_lr) = match course {
        Course::Named { schedule, warmup } => (schedule, warmup, 0.0),
        Course::Decay { warmup, steps, lr, peak } => {
            if all > steps {
                sheet.note(
                    "lerobot keeps the learning rate constant after its decay; here it decays until the last step of the run",
                );
            }
            let share = (all / steps.max(1.0)).min(1.0);
            let begin = sheet.set_number("train.lr").unwrap_or(peak);
            ("cosine".into(), (warmup * share).floor(), if peak > 0.0 { begin * lr / peak } else { lr })
        }
    };
    sheet.set("train.schedule", name);
    sheet.set("train.warmup_steps", warmup as u64);
    sheet.set("train.min_lr", min_lr);
}

/// Translates the average of weights, which lerobot lets begin as a copy.
fn average(sheet: &mut Sheet) {
    let keys = sheet.begin_with("ema.");
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    if !sheet.is_true("ema.enable") {
        return sheet.settled("weights are not averaged", &keys);
    }
    let decay = sheet.number("ema.decay").or(sheet.number("ema.max_decay")).unwrap_or(0.9999);
    sheet.set("train.ema", decay);
    ["ema.enable", "ema.decay", "ema.max_decay"].iter().for_each(|key| sheet.arrived(key, "train.ema"));
    sheet.settled(
        "in the first steps the average decays faster, by a built-in rule",
        &["ema.inv_gamma", "ema.power", "ema.min_decay"],
    );
    sheet.settled("evaluations use the averaged weights", &["ema.use_for_eval"]);
    sheet.missing("averaging starts with the first step", &["ema.update_after_step"]);
}
