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
    assert!(
        of(Policy { state: "gone".into(), ..Policy::default() })
            .contains("has no feature gone of numbers; its features are")
    );
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
