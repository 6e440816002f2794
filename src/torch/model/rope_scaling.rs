//! Reading how rotary embeddings are scaled for longer documents, for every family.

use serde_json::json;

use super::keys::{Keys, ModelConfigError};
use crate::nn::{RopeScaling, Yarn};

/// Returns the scaling in `section` of the config `keys`, for rotary embeddings on `rotary_dim` channels of a head.
pub(super) fn read_scaling(
    keys: &Keys<'_>,
    section: &Keys<'_>,
    rotary_dim: i64,
) -> Result<RopeScaling, ModelConfigError> {
    let (name, kind) = match section.text_or("rope_type")? {
        Some(kind) => ("rope_type", kind),
        None => ("type", section.text_or("type")?.unwrap_or("default")),
    };
    match kind {
        "default" | "mrope" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: factor(section)? }),
        "dynamic" if rotary_dim <= 2 => Err(section.inconsistent(
            name,
            kind,
            format!("it needs rotary embeddings on more than 2 channels of a head, not {rotary_dim}"),
        )),
        "dynamic" => {
            let max_position_embeddings = keys.size("max_position_embeddings")?;
            Ok(RopeScaling::Dynamic { factor: factor(section)?, max_position_embeddings, alpha: None })
        }
        "llama3" => llama3(keys, section),
        "longrope" => longrope(keys, section, rotary_dim),
        "yarn" if rotary_dim % 2 != 0 => Err(section.inconsistent(
            name,
            kind,
            format!("it needs rotary embeddings on an even number of channels, not {rotary_dim}"),
        )),
        "yarn" => yarn(keys, section),
        _ => {
            let found = section.value(name).expect("it was read");
            let supported =
                ["default", "mrope", "linear", "dynamic", "yarn", "longrope", "llama3"].map(|kind| json!(kind));
            Err(section.unsupported(name, found, &supported))
        }
    }
}

fn required(section: &Keys<'_>, key: &str) -> Result<f64, ModelConfigError> {
    section.number_or(key)?.ok_or_else(|| section.missing(key))
}

fn factor(section: &Keys<'_>) -> Result<f64, ModelConfigError> {
    match required(section, "factor")? {
        factor if factor >= 1.0 => Ok(factor),
        factor => Err(section.inconsistent("factor", factor, "must be at least 1")),
    }
}

/// Returns the number of positions that a model had before it was stretched.
fn original(keys: &Keys<'_>, section: &Keys<'_>) -> Result<i64, ModelConfigError> {
    let key = "original_max_position_embeddings";
    match keys.size_or(key)?.or(section.size_or(key)?) {
        Some(original) => Ok(original),
        None => keys.size("max_position_embeddings"),
    }
}

fn llama3(keys: &Keys<'_>, section: &Keys<'_>) -> Result<RopeScaling, ModelConfigError> {
    let (low, high) = (required(section, "low_freq_factor")?, required(section, "high_freq_factor")?);
    if high <= low {
        return Err(section.inconsistent("high_freq_factor", high, "must be above low_freq_factor"));
    }
    let original_max_position_embeddings = original(keys, section)?;
    Ok(RopeScaling::Llama3 {
        factor: factor(section)?,
        low_freq_factor: low,
        high_freq_factor: high,
        original_max_position_embeddings,
    })
}

fn longrope(keys: &Keys<'_>, section: &Keys<'_>, rotary_dim: i64) -> Result<RopeScaling, ModelConfigError> {
    let original_max_position_embeddings = original(keys, section)?;
    let factor = match section.number_or("factor")? {
        Some(factor) => factor,
        None => keys.size("max_position_embeddings")? as f64 / original_max_position_embeddings as f64,
    };
    let grown = || (1.0 + factor.ln() / (original_max_position_embeddings as f64).ln()).sqrt();
    let factors = |key: &str| match section.numbers(key)? {
        found if found.len() as i64 == (rotary_dim + 1) / 2 => Ok(found),
        found => {
            let must = format!("must have one number for each of {} frequencies", (rotary_dim + 1) / 2);
            Err(section.inconsistent(key, format!("a list of {}", found.len()), must))
        }
    };
    Ok(RopeScaling::LongRope {
        short_factor: factors("short_factor")?,
        long_factor: factors("long_factor")?,
        attention_factor: match section.number_or("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None => grown(),
        },
        original_max_position_embeddings,
    })
}

fn yarn(keys: &Keys<'_>, section: &Keys<'_>) -> Result<RopeScaling, ModelConfigError> {
    let original = original(keys, section)?;
    let factor = match section.value("factor") {
        Some(_) => factor(section)?,
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
