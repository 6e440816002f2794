//! Policies, settings and data that do not fit together are refused by name.

use super::*;

#[test]
fn what_does_not_fit_is_named() {
    let bench = Bench::new();
    let with = |key: &str, value: Json| {
        let mut config = config();
        config[key] = value;
        config
    };
    let of_smolvla = |key: &str, value: Json| {
        let mut config = smolvla();
        config[key] = value;
        config
    };
    for (config, part) in [
        (with("type", "act".into()), "`type` is \"act\""),
        (with("n_obs_steps", 2.into()), "`n_obs_steps` is 2, which is not implemented"),
        (with("image_resolution", json!([28, 30])), "28×30 cannot be divided into blocks of 14×14 pixels"),
        (with("input_features", json!({})), "neither a camera"),
        (with("output_features", json!([])), "`output_features` is not a map"),
        (with("normalization_mapping", json!({ "STATE": "LOG" })), "\"LOG\""),
        (with("normalization_mapping", json!({ "VISUAL": "MEAN_STD" })), "VISUAL"),
        (with("max_action_dim", 2.into()), "`output_features.action.shape` is [5]"),
        (with("sizes", json!({ "vocab_size": 20 })), "its tokenizer has"),
        (of_smolvla("pad_language_to", "left".into()), "`pad_language_to` is \"left\""),
        (of_smolvla("resize_imgs_with_padding", json!([28])), "`resize_imgs_with_padding` is [28], not two sides"),
        (
            of_smolvla("sizes", json!({ "vocab_size": 400, "scale_factor": 0 })),
            "`sizes.scale_factor` must be 1 to 512, found 0",
        ),
    ] {
        let error = bench.error(&config, Policy::default());
        assert!(error.contains(part), "{error}");
    }
    let of = |settings: Policy| bench.error(&config(), settings);
    let gone = of(Policy { state: "gone".into(), ..Policy::default() });
    assert!(gone.contains("has no feature gone of numbers; its features are"), "{gone}");
    assert!(gone.ends_with(": name one in policy.state"), "{gone}");
    // The set of version 2.1 has no quantiles.
    let old = bench.open(&config(), &Bench::options(&[&goldens().join("v21")], Policy::default())).err().unwrap();
    assert!(old.contains("statistics of observation.state: has no q01") && old.contains("data stats --write"), "{old}");
    let none = bench.open(&config(), &ProcessorOptions::default()).err().unwrap();
    assert!(none.contains("policy_preprocessor.json"), "{none}");
    // The gripper of the fixture never moves.
    let notes = bench.maker(&config(), Policy::default()).notes();
    assert!(
        notes.iter().any(|note| note.contains("observation.state: \"gripper\" is constant in the data")),
        "{notes:?}"
    );
}

/// Lists what lerobot's processors can do and what is not done here.
#[test]
fn processor_files_that_do_something_else_are_named() {
    let bench = Bench::new();
    for (name, contents) in bench.maker(&config(), Policy::default()).files() {
        std::fs::write(bench.folder.path().join(name), contents).unwrap();
    }
    let with = |file: &str, pointer: &str, value: Json| {
        let path = bench.folder.path().join(file);
        let before = std::fs::read(&path).unwrap();
        let mut json: Json = serde_json::from_slice(&before).unwrap();
        *json.pointer_mut(pointer).unwrap() = value;
        std::fs::write(&path, json.to_string()).unwrap();
        let opened = bench.open(&config(), &ProcessorOptions::default());
        std::fs::write(&path, before).unwrap();
        opened
    };
    let gripper = json!({
        "registry_name": "groot_action_unpack_unnormalize_v2", "config": { "libero_gripper_action": true },
    });
    for (file, pointer, value, part) in [
        ("policy_preprocessor.json", "/steps/3/config/eps", json!(1e-6), "eps is 1e-6, but only 1e-8"),
        ("policy_preprocessor.json", "/steps/3/config/norm_map/VISUAL", json!("MEAN_STD"), "norm_map.VISUAL is"),
        ("policy_preprocessor.json", "/steps/3/config/norm_map/STATE", json!(3), "norm_map.STATE is 3, which"),
        (
            "policy_preprocessor.json",
            "/steps/3/config",
            json!({ "normalize_observation_keys": ["a"] }),
            "normalize_observation_keys is [\"a\"]",
        ),
        ("policy_postprocessor.json", "/steps/0/registry_name", json!("flip"), "the step \"flip\", which is not"),
        ("policy_postprocessor.json", "/steps/0", gripper, "libero_gripper_action is true, but only false"),
    ] {
        let error = with(file, pointer, value).err().unwrap_or_default();
        assert!(error.contains(file) && error.contains(part), "{pointer}: {error}");
    }
    // A kind that is not in the map stays as it is.
    let modes = json!({ "ACTION": "QUANTILES" });
    let maker = with("policy_preprocessor.json", "/steps/3/config/norm_map", modes).unwrap();
    let spec = &maker.spec;
    let expected = (Normalization::Identity, Normalization::Quantiles);
    assert_eq!((spec.state_normalization, spec.action_normalization), expected);
}
