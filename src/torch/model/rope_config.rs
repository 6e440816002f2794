//! Reading rotary embeddings from a `config.json`, as transformers 4 and 5 write them, for every family.

use serde_json::{Value, json};

use super::keys::{Keys, ModelConfigError};
use super::rope_scaling::read_scaling;
use crate::nn::{RopeAxes, RopeConfig, RopeLayout, RopeScaling};

/// transformers 5 writes `rope_parameters`; before it was `rope_theta` and `partial_rotary_factor` beside
/// `rope_scaling`. `default_theta` is that of the family's config class. Positions are of one axis, pairs half-split. All
/// channels of a head turn: as the classes of these families, it does not heed `partial_rotary_factor`, with which their
/// scaled laws cannot run.
pub(super) fn read_rope(keys: &Keys<'_>, head_dim: i64, default_theta: f64) -> Result<RopeConfig, ModelConfigError> {
    let section = section(keys)?;
    let rope = read(keys, section.as_ref(), head_dim, default_theta)?;
    let factor = number(keys, section.as_ref(), "partial_rotary_factor")?;
    match factor.filter(|factor| rope.scaling != RopeScaling::Default && part(head_dim, *factor) != head_dim) {
        Some(factor) => Err(keys.inconsistent(
            "partial_rotary_factor",
            factor,
            "rotary embeddings must cover all channels of a head",
        )),
        None => Ok(rope),
    }
}

/// Works like [`read_rope`] of a family in which a part of every head's channels turns: `partial_rotary_factor`, or
/// `rotary_dim`, as MiniMax-M2 is published, or `default_factor`.
pub(super) fn read_partial_rope(
    keys: &Keys<'_>,
    head_dim: i64,
    default_theta: f64,
    default_factor: f64,
) -> Result<RopeConfig, ModelConfigError> {
    let section = section(keys)?;
    let rotary_dim = match (number(keys, section.as_ref(), "partial_rotary_factor")?, keys.size_or("rotary_dim")?) {
        (Some(factor), _) => part(head_dim, factor),
        (None, Some(rotary_dim)) => rotary_dim,
        (None, None) => part(head_dim, default_factor),
    };
    // Of an odd number of channels the frequencies are made, and one more turns.
    let turning = rotary_dim + rotary_dim % 2;
    if turning < 2 || turning > head_dim {
        let must =
            format!("rotary embeddings must cover 1 to {} channels of a head, not {rotary_dim}", head_dim / 2 * 2);
        return Err(keys.inconsistent("partial_rotary_factor", rotary_dim as f64 / head_dim as f64, must));
    }
    read(keys, section.as_ref(), rotary_dim, default_theta)
}

/// Returns the number of channels that are `factor` of `head_dim`, rounded down.
fn part(head_dim: i64, factor: f64) -> i64 {
    (head_dim as f64 * factor) as i64
}

/// Reads a number of the section, or beside it.
fn number(keys: &Keys<'_>, section: Option<&Keys<'_>>, key: &str) -> Result<Option<f64>, ModelConfigError> {
    match section.map(|section| section.number_or(key)).transpose()?.flatten() {
        Some(found) => Ok(Some(found)),
        None => keys.number_or(key),
    }
}

fn read(
    keys: &Keys<'_>,
    section: Option<&Keys<'_>>,
    rotary_dim: i64,
    default_theta: f64,
) -> Result<RopeConfig, ModelConfigError> {
    if let Some((section, nested)) = section.and_then(|section| Some((section, section.first_object()?))) {
        let must = "rotary embeddings that differ between layers are not supported";
        return Err(section.inconsistent(&nested, "an object", must));
    }
    let theta = number(keys, section, "rope_theta")?.unwrap_or(default_theta);
    if theta <= 1.0 {
        return Err(keys.inconsistent("rope_theta", theta, "must be above 1"));
    }
    let scaling = section.map(|section| read_scaling(keys, section, rotary_dim)).transpose()?;
    Ok(RopeConfig { scaling: scaling.unwrap_or(RopeScaling::Default), ..RopeConfig::plain(rotary_dim, theta) })
}

/// Returns the rotary embeddings of a model that has two kinds of them, for layers that attend to all tokens and for layers with a window
/// (Gemma 3, OLMo 3): `rope_parameters` with a section for each kind, as transformers 5 writes it, or `rope_theta` and `rope_scaling` for
/// the first and `rope_local_base_freq` for the second; the thetas of the class where neither is there.
pub(super) fn read_rope_by_kind(
    keys: &Keys<'_>,
    head_dim: i64,
    default_thetas: [f64; 2],
) -> Result<[RopeConfig; 2], ModelConfigError> {
    let parameters = keys.section_or("rope_parameters")?;
    if let Some(parameters) = &parameters {
        parameters.only_keys(&["full_attention", "sliding_attention"])?;
    }
    let of_kind = |kind: &str, theta_key: &str, default_theta: f64| {
        let theta = keys.number_or(theta_key)?.unwrap_or(default_theta);
        let own = parameters.as_ref().map(|parameters| parameters.section_or(kind)).transpose()?.flatten();
        let own = own.unwrap_or_else(|| keys.instead(&Value::Null));
        only_truncated(&own)?;
        Ok::<_, ModelConfigError>((own.filled(&json!({"rope_theta": theta})), own))
    };
    let (full, full_keys) = of_kind("full_attention", "rope_theta", default_thetas[0])?;
    let (local, local_keys) = of_kind("sliding_attention", "rope_local_base_freq", default_thetas[1])?;
    let scaling = keys.section_or("rope_scaling")?;
    scaling.as_ref().map_or(Ok(()), only_truncated)?;
    let full = scaling.as_ref().map_or(full.clone(), |scaling| scaling.filled(&full));
    let full = scaling.as_ref().unwrap_or(&full_keys).instead(&full);
    let ropes = [full, local_keys.instead(&local)].map(|section| read(keys, Some(&section), head_dim, 1e4));
    let [full, local] = ropes;
    Ok([full?, local?])
}

/// Refuses a YaRN whose range is not truncated: of a model with kinds of layers transformers 5.17 does not read that key.
fn only_truncated(section: &Keys<'_>) -> Result<(), ModelConfigError> {
    section.only("truncate", &[json!(true)])
}

/// Returns the rotary embeddings of DeepSeek-V4's layers without compressed entries, and of those with: `rope_parameters` with the
/// sections `main` and `compress`, as transformers 5 writes it, or `rope_theta`, and `compress_rope_theta` with the scaling; YaRN then
/// does not multiply the tables. `partial_rotary_factor` or `qk_rope_head_dim` says how many channels turn.
pub(super) fn read_rope_by_compression(
    keys: &Keys<'_>,
    head_dim: i64,
    default_thetas: [f64; 2],
    default_factor: f64,
) -> Result<[RopeConfig; 2], ModelConfigError> {
    let turning =
        |keys: &Keys<'_>, rotary_dim: i64| match rotary_dim >= 2 && rotary_dim <= head_dim && rotary_dim % 2 == 0 {
            true => Ok(rotary_dim),
            false => {
                let factor = rotary_dim as f64 / head_dim as f64;
                let must = format!(
                    "rotary embeddings must cover an even number of a head's {head_dim} channels, not {rotary_dim}"
                );
                Err(keys.inconsistent("partial_rotary_factor", factor, must))
            }
        };
    let interleaved = |rope: RopeConfig| RopeConfig { layout: RopeLayout::Interleaved, ..rope };
    let parameters = section(keys)?;
    let of_kind = |kind: &str| parameters.as_ref().map(|parameters| parameters.section_or(kind)).transpose();
    if let (Some(Some(main)), Some(Some(compress))) = (of_kind("main")?, of_kind("compress")?) {
        let [main, compress] = [(main, default_thetas[0]), (compress, default_thetas[1])].map(|(section, theta)| {
            only_truncated(&section)?;
            let factor = section.number_or("partial_rotary_factor")?.unwrap_or(1.0);
            let rotary_dim = turning(&section, part(head_dim, factor))?;
            Ok::<_, ModelConfigError>(interleaved(read(keys, Some(&section), rotary_dim, theta)?))
        });
        return Ok([main?, compress?]);
    }
    let rotary_dim = match (keys.number_or("partial_rotary_factor")?, keys.size_or("qk_rope_head_dim")?) {
        (Some(factor), _) => part(head_dim, factor),
        (None, Some(rotary_dim)) => rotary_dim,
        (None, None) => part(head_dim, default_factor),
    };
    let rotary_dim = turning(keys, rotary_dim)?;
    parameters.as_ref().map_or(Ok(()), only_truncated)?;
    let mut scaled = match &parameters {
        Some(parameters) => parameters.filled(&json!({"attention_factor": 1.0})),
        None => json!({}),
    };
    scaled["rope_theta"] = json!(keys.number_or("compress_rope_theta")?.unwrap_or(default_thetas[1]));
    let section = parameters.as_ref().unwrap_or(keys).instead(&scaled);
    let compress = read(keys, Some(&section), rotary_dim, default_thetas[1])?;
    let theta = keys.number_or("rope_theta")?.unwrap_or(default_thetas[0]);
    if theta <= 1.0 {
        return Err(keys.inconsistent("rope_theta", theta, "must be above 1"));
    }
    Ok([RopeConfig::plain(rotary_dim, theta), compress].map(interleaved))
}

/// Returns the axes of a model whose tokens have three positions: `mrope_section`, by default `sections`; interleaved (Qwen3-VL) or one
/// section after the other (Qwen2.5-VL), as the family has it.
pub(super) fn read_mrope(
    keys: &Keys<'_>,
    rope: &RopeConfig,
    sections: [i64; 3],
    interleaved: bool,
) -> Result<RopeAxes, ModelConfigError> {
    let section = section(keys)?.unwrap_or_else(|| keys.clone());
    section.only("mrope_interleaved", &[json!(interleaved)])?;
    let given = section.value("mrope_section").map(|_| section.indices("mrope_section")).transpose()?;
    let found = given.unwrap_or(sections.to_vec());
    let half = (rope.rotary_dim + 1) / 2;
    let wrong = |must: String| Err(section.inconsistent("mrope_section", format!("{found:?}"), must));
    match <[i64; 3]>::try_from(found.as_slice()) {
        // What rows and columns leave is the frames', whatever the first number.
        Ok([_, rows, columns]) if interleaved => Ok(RopeAxes::interleaved(half, [rows, columns])),
        _ if interleaved => wrong("must be three numbers".to_owned()),
        _ if found.iter().sum::<i64>() == half => Ok(RopeAxes::contiguous(&found)),
        _ => wrong(format!("must have the sum {half}, half of the channels with rotary embeddings")),
    }
}

/// Returns the section; as in transformers, an older key goes before the newer one.
pub(super) fn section<'a>(keys: &Keys<'a>) -> Result<Option<Keys<'a>>, ModelConfigError> {
    match keys.section_or("rope_scaling")?.filter(|section| !section.is_empty()) {
        Some(section) => Ok(Some(section)),
        None => keys.section_or("rope_parameters"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{read_mrope, read_partial_rope, read_rope, read_rope_by_compression, read_rope_by_kind};
    use crate::model::keys::Keys;
    use crate::nn::{RopeAxes, RopeConfig, RopeScaling};

    fn read(config: Value) -> Result<RopeConfig, String> {
        read_rope(&Keys::new(&config), 24, 1e4).map_err(|error| error.to_string())
    }

    fn read_partial(config: Value) -> Result<RopeConfig, String> {
        read_partial_rope(&Keys::new(&config), 24, 1e4, 0.25).map_err(|error| error.to_string())
    }

    #[test]
    fn configs_of_transformers_4_and_5_say_the_same() {
        let new = json!({"max_position_embeddings": 512, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5,
            "partial_rotary_factor": 0.5, "factor": 4, "original_max_position_embeddings": 128, "mscale": 1.0}});
        let old = json!({"max_position_embeddings": 512, "rope_theta": 5e5, "partial_rotary_factor": 0.5,
            "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 128, "mscale": 1}});
        let config = read_partial(new).unwrap();
        assert_eq!((config.theta, config.rotary_dim), (5e5, 12));
        assert!(matches!(&config.scaling, RopeScaling::Yarn(yarn) if yarn.factor == 4.0 && yarn.truncate));
        assert_eq!(Ok(config), read_partial(old));
        assert_eq!(read(json!({})), Ok(RopeConfig::plain(24, 1e4)));
        assert_eq!(read(json!({"rope_scaling": null, "rope_theta": 500})), Ok(RopeConfig::plain(24, 500.0)));
        let both = json!({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 500}});
        assert_eq!(read(both).unwrap().scaling, RopeScaling::Linear { factor: 2.0 });
    }

    #[test]
    fn a_part_of_a_head_turns_only_where_the_family_has_it() {
        let half = json!({"partial_rotary_factor": 0.5});
        assert_eq!(read(half.clone()), Ok(RopeConfig::plain(24, 1e4)));
        assert_eq!(read_partial(half), Ok(RopeConfig::plain(12, 1e4)));
        assert_eq!(read_partial(json!({"rotary_dim": 8})), Ok(RopeConfig::plain(8, 1e4)));
        assert_eq!(read_partial(json!({})), Ok(RopeConfig::plain(6, 1e4)));
        assert_eq!(read_partial(json!({"partial_rotary_factor": 0.3})), Ok(RopeConfig::plain(7, 1e4)));
        let message = read_partial(json!({"partial_rotary_factor": 1.5})).unwrap_err();
        assert!(message.contains("rotary embeddings must cover 1 to 24 channels of a head, not 36"), "{message}");
        let odd =
            json!({"partial_rotary_factor": 0.3, "max_position_embeddings": 64, "rope_scaling": {"type": "yarn"}});
        let message = read_partial(odd).unwrap_err();
        assert!(
            message.contains(
                "rope_scaling.type is yarn, but it needs rotary embeddings on an even number of channels, not 7"
            ),
            "{message}"
        );
    }

    #[test]
    fn every_law_is_read() {
        let scaling =
            |section: Value| read(json!({"max_position_embeddings": 64, "rope_parameters": section})).unwrap().scaling;
        assert_eq!(scaling(json!({"rope_type": "linear", "factor": 2})), RopeScaling::Linear { factor: 2.0 });
        let dynamic = RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 64, alpha: None };
        assert_eq!(scaling(json!({"type": "dynamic", "factor": 2})), dynamic);
        let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
        let expected = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64,
        };
        assert_eq!(scaling(llama3), expected);
        let factors = vec![1.5; 12];
        let section = json!({"rope_type": "longrope", "short_factor": factors, "long_factor": factors,
            "original_max_position_embeddings": 16});
        let expected = RopeScaling::LongRope {
            short_factor: factors.clone(),
            long_factor: factors.clone(),
            attention_factor: 1.5f64.sqrt(),
            original_max_position_embeddings: 16,
        };
        assert_eq!(scaling(section), expected);
    }

    #[test]
    fn sections_become_axes() {
        let config = json!({"rope_parameters": {"rope_type": "default", "mrope_section": [4, 4, 4]}});
        let rope = read(config.clone()).unwrap();
        let axes = |interleaved| read_mrope(&Keys::new(&config), &rope, [6, 3, 3], interleaved).unwrap();
        assert_eq!(axes(false), RopeAxes::contiguous(&[4, 4, 4]));
        assert_eq!(axes(true), RopeAxes::interleaved(12, [4, 4]));
        let without = json!({"rope_theta": 1e4});
        let axes = read_mrope(&Keys::new(&without), &rope, [6, 3, 3], false).unwrap();
        assert_eq!(axes, RopeAxes::contiguous(&[6, 3, 3]));
    }

    #[test]
    fn ranges_of_a_kind_of_layers_are_truncated() {
        let of = |truncate| {
            let yarn =
                json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "truncate": truncate});
            let config = json!({"rope_parameters": {"sliding_attention": yarn}});
            read_rope_by_kind(&Keys::new(&config), 24, [1e4, 1e4]).map_err(|error| error.to_string())
        };
        assert!(of(true).is_ok());
        assert!(
            of(false).unwrap_err().contains("rope_parameters.sliding_attention.truncate is false; supported: true")
        );
        let of = |key: &str, truncate: bool| {
            let yarn =
                json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "truncate": truncate});
            let config = json!({key: yarn});
            let ropes = read_rope_by_compression(&Keys::new(&config), 24, [1e4, 1.6e5], 0.5);
            ropes.map_err(|error| error.to_string())
        };
        for key in ["rope_scaling", "rope_parameters"] {
            assert!(of(key, true).is_ok());
            let message = of(key, false).unwrap_err();
            assert!(message.contains(&format!("{key}.truncate is false; supported: true")), "{message}");
        }
    }

    #[test]
    fn errors_name_the_key() {
        let cases = [
            (json!({"rope_scaling": {"type": "su"}}), "rope_scaling.type is \"su\"; supported: \"default\""),
            (
                json!({"max_position_embeddings": 64, "rope_scaling": {"type": "longrope", "short_factor": [1]}}),
                "rope_scaling.short_factor is a list of 1, but must have one number for each of 12 frequencies",
            ),
            (
                json!({"partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2}}),
                "partial_rotary_factor is 0.5, but rotary embeddings must cover all channels of a head",
            ),
            (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor is missing"),
            (json!({"rope_scaling": {"type": "linear", "factor": 0.5}}), "factor is 0.5, but must be at least 1"),
            (json!({"rope_scaling": {"type": "dynamic", "factor": 2}}), "max_position_embeddings is missing"),
            (json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}), "rope_parameters.full_attention is"),
        ];
        for (config, expected) in cases {
            let message = read(config).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
