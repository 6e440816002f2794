//! Reading rotary embeddings from a `config.json`, as transformers 4 and 5 write them, for every family.

use serde_json::json;

use super::keys::{Keys, ModelConfigError};
use crate::nn::{RopeAxes, RopeConfig, RopeLayout, RopeScaling, Yarn};

/// transformers 5 writes `rope_parameters`; before it was `rope_theta` and `partial_rotary_factor` beside
/// `rope_scaling`. `default_theta` is that of the family's config class. Positions are of one axis, pairs half-split.
pub(super) fn read_rope(keys: &Keys<'_>, head_dim: i64, default_theta: f64) -> Result<RopeConfig, ModelConfigError> {
    let section = section(keys)?;
    if let Some(nested) = section.as_ref().and_then(Keys::first_object) {
        let must = "rotary embeddings that differ between layers are not supported";
        return Err(section.expect("it has the key").inconsistent(&nested, "an object", must));
    }
    let number = |key: &str| match section.as_ref().map(|section| section.number_or(key)).transpose()?.flatten() {
        Some(found) => Ok(Some(found)),
        None => keys.number_or(key),
    };
    let theta = number("rope_theta")?.unwrap_or(default_theta);
    if theta <= 1.0 {
        return Err(keys.inconsistent("rope_theta", theta, "must be above 1"));
    }
    let rotary_dim = match (number("partial_rotary_factor")?, keys.size_or("rotary_dim")?) {
        (Some(factor), _) => (head_dim as f64 * factor) as i64,
        // As MiniMax-M2 is published.
        (None, Some(rotary_dim)) => rotary_dim,
        (None, None) => head_dim,
    };
    if rotary_dim % 2 != 0 || rotary_dim < 2 || rotary_dim > head_dim {
        let must = format!("of a head's {head_dim} channels an even number must turn, not {rotary_dim}");
        return Err(keys.inconsistent("partial_rotary_factor", rotary_dim as f64 / head_dim as f64, must));
    }
    let scaling = match &section {
        Some(section) => read_scaling(keys, section, rotary_dim)?,
        None => RopeScaling::Default,
    };
    Ok(RopeConfig { theta, rotary_dim, scaling, axes: RopeAxes::One, layout: RopeLayout::HalfSplit })
}

/// The axes of a model whose tokens have three positions: `mrope_section`, interleaved (Qwen3-VL) or one section after
/// the other (Qwen2.5-VL), as the family has it.
pub(super) fn read_mrope(keys: &Keys<'_>, rope: &RopeConfig, interleaved: bool) -> Result<RopeAxes, ModelConfigError> {
    let missing = || ModelConfigError::Missing { key: keys.path("rope_parameters.mrope_section") };
    let section = section(keys)?.ok_or_else(missing)?;
    section.only("mrope_interleaved", &[json!(interleaved)])?;
    let found = section.indices("mrope_section")?;
    let half = rope.rotary_dim / 2;
    match <[i64; 3]>::try_from(found.as_slice()) {
        Ok(sections) if sections.iter().sum::<i64>() == half => {
            Ok(if interleaved { RopeAxes::interleaved(sections) } else { RopeAxes::contiguous(sections) })
        }
        _ => {
            let must = format!("must be three numbers with the sum {half}, half of the channels that turn");
            Err(section.inconsistent("mrope_section", format!("{found:?}"), must))
        }
    }
}

fn section<'a>(keys: &Keys<'a>) -> Result<Option<Keys<'a>>, ModelConfigError> {
    match keys.section_or("rope_parameters")? {
        Some(section) => Ok(Some(section)),
        None => keys.section_or("rope_scaling"),
    }
}

fn read_scaling(keys: &Keys<'_>, section: &Keys<'_>, rotary_dim: i64) -> Result<RopeScaling, ModelConfigError> {
    let (name, kind) = match section.text_or("rope_type")? {
        Some(kind) => ("rope_type", kind),
        None => ("type", section.text_or("type")?.unwrap_or("default")),
    };
    let required = |key: &str| section.number_or(key)?.ok_or_else(|| section.missing(key));
    let factor = || match required("factor")? {
        factor if factor >= 1.0 => Ok(factor),
        factor => Err(section.inconsistent("factor", factor, "must be at least 1")),
    };
    let original = || {
        let key = "original_max_position_embeddings";
        match keys.size_or(key)?.or(section.size_or(key)?) {
            Some(original) => Ok(original),
            None => keys.size("max_position_embeddings"),
        }
    };
    match kind {
        "default" | "mrope" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "dynamic" if rotary_dim > 2 => {
            let max_position_embeddings = keys.size("max_position_embeddings")?;
            Ok(RopeScaling::Dynamic { factor: factor()?, max_position_embeddings })
        }
        "llama3" => {
            let (low, high) = (required("low_freq_factor")?, required("high_freq_factor")?);
            if high <= low {
                return Err(section.inconsistent("high_freq_factor", high, "must be above low_freq_factor"));
            }
            let original_max_position_embeddings = original()?;
            Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings,
            })
        }
        "yarn" => {
            let original = original()?;
            let factor = match section.value("factor") {
                Some(_) => factor()?,
                None => keys.size("max_position_embeddings")? as f64 / original as f64,
            };
            // As in the reference, 0 and null take the default.
            let given = |key: &str| section.number_or(key).map(|beta| beta.filter(|beta| *beta != 0.0));
            Ok(RopeScaling::Yarn(Yarn {
                factor,
                original_max_position_embeddings: original,
                attention_factor: section.number_or("attention_factor")?,
                beta_fast: given("beta_fast")?.unwrap_or(32.0),
                beta_slow: given("beta_slow")?.unwrap_or(1.0),
                mscale: section.number_or("mscale")?.unwrap_or(0.0),
                mscale_all_dim: section.number_or("mscale_all_dim")?.unwrap_or(0.0),
                truncate: section.flag_or("truncate")?.unwrap_or(true),
            }))
        }
        _ => {
            let found = section.value(name).expect("it was read");
            let supported = ["default", "mrope", "linear", "dynamic", "yarn", "llama3"].map(|kind| json!(kind));
            Err(section.unsupported(name, found, &supported))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{read_mrope, read_rope};
    use crate::model::keys::Keys;
    use crate::nn::{RopeAxes, RopeConfig, RopeScaling};

    fn read(config: Value) -> Result<RopeConfig, String> {
        read_rope(&Keys::new(&config), 24, 1e4).map_err(|error| error.to_string())
    }

    #[test]
    fn configs_of_transformers_4_and_5_say_the_same() {
        let new = json!({"max_position_embeddings": 512, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5,
            "partial_rotary_factor": 0.5, "factor": 4, "original_max_position_embeddings": 128, "mscale": 1.0}});
        let old = json!({"max_position_embeddings": 512, "rope_theta": 5e5, "partial_rotary_factor": 0.5,
            "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 128, "mscale": 1}});
        let config = read(new).unwrap();
        assert_eq!((config.theta, config.rotary_dim), (5e5, 12));
        assert!(matches!(&config.scaling, RopeScaling::Yarn(yarn) if yarn.factor == 4.0 && yarn.truncate));
        assert_eq!(Ok(config), read(old));
        assert_eq!(read(json!({})), Ok(RopeConfig::plain(24, 1e4)));
        assert_eq!(read(json!({"rope_scaling": null, "rope_theta": 500})), Ok(RopeConfig::plain(24, 500.0)));
    }

    #[test]
    fn every_law_is_read() {
        let scaling =
            |section: Value| read(json!({"max_position_embeddings": 64, "rope_parameters": section})).unwrap().scaling;
        assert_eq!(scaling(json!({"rope_type": "linear", "factor": 2})), RopeScaling::Linear { factor: 2.0 });
        let dynamic = RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 64 };
        assert_eq!(scaling(json!({"type": "dynamic", "factor": 2})), dynamic);
        let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
        let expected = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64,
        };
        assert_eq!(scaling(llama3), expected);
    }

    #[test]
    fn sections_become_axes() {
        let config = json!({"rope_parameters": {"rope_type": "default", "mrope_section": [4, 4, 4]}});
        let rope = read(config.clone()).unwrap();
        let axes = |interleaved| read_mrope(&Keys::new(&config), &rope, interleaved).unwrap();
        assert_eq!(axes(false), RopeAxes::contiguous([4, 4, 4]));
        assert_eq!(axes(true), RopeAxes::interleaved([4, 4, 4]));
    }

    #[test]
    fn errors_name_the_key() {
        let cases = [
            (
                json!({"rope_scaling": {"type": "longrope"}}),
                "rope_scaling.type is \"longrope\"; supported: \"default\"",
            ),
            (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor is missing"),
            (json!({"rope_scaling": {"type": "linear", "factor": 0.5}}), "factor is 0.5, but must be at least 1"),
            (json!({"rope_scaling": {"type": "dynamic", "factor": 2}}), "max_position_embeddings is missing"),
            (json!({"partial_rotary_factor": 0.3}), "even number must turn, not 7"),
            (json!({"partial_rotary_factor": 1.5}), "even number must turn, not 36"),
            (json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}), "rope_parameters.full_attention is"),
        ];
        for (config, expected) in cases {
            let message = read(config).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
