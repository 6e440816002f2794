//! Noise levels, trajectories and guidance against diffusers (`tests/oracle/make_samplers.py`).

use super::{Guidance, Sampler, Schedule, ScheduleError};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

fn goldens() -> Value {
    serde_json::from_str(include_str!("goldens.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        other => vec![other.as_f64().unwrap()],
    }
}

fn tensor(value: &Value) -> Tensor {
    let columns = value[0].as_array().unwrap().len() as i64;
    Tensor::from_slice(&numbers(value)).to_kind(Kind::Float).view([-1, columns])
}

/// Returns the largest difference.
fn error(found: &[f64], want: &[f64]) -> f64 {
    assert_eq!(found.len(), want.len());
    found.iter().zip(want).map(|(found, want)| (found - want).abs()).max_by(f64::total_cmp).unwrap_or_default()
}

#[test]
fn noise_levels_and_trajectories_are_those_of_diffusers() {
    let goldens = goldens();
    let cases = goldens["cases"].as_array().unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let mut schedule = Schedule::from_hf(&case["scheduler"], case["steps"].as_u64().unwrap() as usize).unwrap();
        schedule.to_least = name.starts_with("wan");
        let mut sampler = Sampler::new(&schedule, case["tokens"].as_u64().unwrap() as usize);
        let sigmas: Vec<f64> = sampler.levels().sigmas.iter().map(|sigma| f64::from(*sigma)).collect();
        let off = error(&sigmas, &numbers(&case["sigmas"]));
        assert!(off < 2e-7, "{name}: noise levels differ by {off:e}");
        let (mut x, weight, bias) = (tensor(&goldens["noise"]), tensor(&goldens["weight"]), tensor(&goldens["bias"]));
        let mut states = case["states"].as_array().unwrap().iter();
        for (at, want) in numbers(&case["times"]).into_iter().enumerate() {
            let time = sampler.time().unwrap();
            assert!(
                (1000.0 * time - want).abs() < 2e-4,
                "{name}, step {at}: the model is told {time}, not {want}/1000"
            );
            let velocity = &x * &weight + &bias * time;
            x = sampler.step(&x, &velocity);
            let found = Vec::<f64>::try_from(x.to_kind(Kind::Double).view([-1])).unwrap();
            let off = error(&found, &numbers(states.next().unwrap()));
            assert!(off < 3e-6, "{name}: the state after step {at} differs by {off:e}");
        }
        assert!(sampler.time().is_none() && states.next().is_none(), "{name}");
    }
}

#[test]
fn guidance_is_that_of_the_pipelines() {
    let goldens = goldens();
    let [velocity, negative] = ["velocity", "negative"].map(|name| tensor(&goldens["guidance"][name]));
    for (name, keeps_length) in [("wan", false), ("qwen", true)] {
        let guidance = Guidance { scale: 4.0, keeps_length };
        let found = guidance.combine(&velocity, &negative).to_kind(Kind::Double).view([-1]);
        let off = error(&Vec::<f64>::try_from(found).unwrap(), &numbers(&goldens["guidance"][name]));
        assert!(off < 2e-6, "{name}: {off:e}");
    }
    let nothing = Tensor::zeros([2, 3], (Kind::Float, tch::Device::Cpu));
    let found = Guidance { scale: 4.0, keeps_length: true }.combine(&nothing, &nothing);
    assert_eq!(found, nothing, "of nothing comes nothing, and no division by it");
}

#[test]
fn schedulers_that_are_others_are_refused_by_name() {
    let error = |config: Value| Schedule::from_hf(&config, 4).unwrap_err();
    let unknown = error(json!({ "_class_name": "DDIMScheduler" }));
    assert_eq!(unknown, ScheduleError::Unknown("DDIMScheduler".into()));
    let text = error(json!({ "_class_name": "UniPCMultistepScheduler", "use_flow_sigmas": true })).to_string();
    assert!(text.contains("prediction_type") && text.contains("flow_prediction"), "{text}");
    let text =
        error(json!({ "_class_name": "FlowMatchEulerDiscreteScheduler", "use_karras_sigmas": true })).to_string();
    assert!(text.contains("use_karras_sigmas"), "{text}");
    let wan = json!({ "_class_name": "UniPCMultistepScheduler", "use_flow_sigmas": true,
        "prediction_type": "flow_prediction", "disable_corrector": [], "solver_p": null, "num_train_timesteps": 1000 });
    assert!(Schedule::from_hf(&wan, 4).is_ok());
    for (key, value) in [
        ("disable_corrector", json!([0, 1])),
        ("solver_p", json!(["diffusers", "DDIMScheduler"])),
        ("num_train_timesteps", json!(500)),
    ] {
        let mut config = wan.clone();
        config[key] = value;
        let text = error(config).to_string();
        assert!(text.contains(key), "{text}");
    }
}
