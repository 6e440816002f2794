//! The decoder of ERNIE-4.5-VL (`Ernie4_5_VLMoeTextModel`): every token of a picture or video, with those that mark its
//! begin and end, goes to experts of their own; the shared ones see all tokens.

use serde_json::{Value, json};

use super::common::NamePrefix;
use super::ernie4_5::{decoder, dense};
use super::ernie4_5_moe::{NUM_EXPERTS, experts};
use super::experts::{balance, num_experts, sparse_layers};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::section;
use crate::nn::RopeAxes;
use crate::nn::moe::{BiasName, ExpertNames, MediaExperts, MoeConfig, MoeNames};

pub(super) const FAMILY: TextFamily = TextFamily::new("ernie4_5_vl_moe_text", read).with_kv_heads(4);

/// Reads a config of `model_type` `ernie4_5_vl_moe_text`. The whole model's config says which tokens are of media: see
/// [`set_media_tokens`]; until then none is.
fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let num_layers = keys.size("num_hidden_layers")? as usize;
    let sparse = match sparse_layers(keys)? {
        Some(sparse) => sparse,
        None => all_but_the_first(keys, num_layers)?,
    };
    let [for_text, for_media] = widths(keys)?;
    let both = FeedForwardConfig::Moe(with_media(experts(keys, num_experts_of_both(keys)?, for_text, 2)?, for_media));
    let dense = dense(keys)?;
    let feed_forwards = sparse.into_iter().map(|sparse| if sparse { both.clone() } else { dense.clone() }).collect();
    let mut decoder = decoder(keys, place, None, feed_forwards)?;
    // Unlike in ERNIE's other classes, none where the config does not say.
    decoder.pad_token_id = decoder.pad_token_id.filter(|_| keys.has("pad_token_id"));
    for layer in &mut decoder.layers {
        layer.rope.axes = axes(keys, layer.rope.rotary_dim / 2)?;
    }
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}

/// Sends these tokens to the experts for media: placeholders, and what marks the begin and end of pictures and videos.
pub(in crate::model) fn set_media_tokens(decoder: &mut DecoderConfig, token_ids: &[i64]) {
    for layer in &mut decoder.layers {
        if let FeedForwardConfig::Moe(MoeConfig { media: Some(media), .. }) = &mut layer.feed_forward {
            media.token_ids = token_ids.to_vec();
        }
    }
}

/// Returns the tokens of media by the keys of the whole model, with transformers' defaults; `image` is the key of the one that stands for
/// pictures.
pub(in crate::model) fn media_tokens(keys: &Keys<'_>, image: &str) -> Result<Vec<i64>, ModelConfigError> {
    let defaults = [
        ("image_start_token_id", 101_304),
        ("image_end_token_id", 101_305),
        (image, 100_295),
        ("video_start_token_id", 101_306),
        ("video_end_token_id", 101_307),
        ("video_token_id", 103_367),
    ];
    defaults.into_iter().map(|(key, default)| Ok(keys.index_or(key)?.unwrap_or(default))).collect()
}

/// Experts for media tokens are numbered after the others, and their router stands beside the others' as `weight_1`.
fn with_media(text: MoeConfig, media_width: i64) -> MoeConfig {
    let names = |second: bool| MoeNames {
        router: if second { "gate.weight_1" } else { "gate.weight" },
        router_transposed: true,
        bias: BiasName { row: i64::from(second), ..text.names.bias.clone() },
        experts: ExpertNames::Each {
            gate_up_down: ["gate_proj", "up_proj", "down_proj"],
            first: if second { text.router.num_experts } else { 0 },
        },
        ..text.names.clone()
    };
    let media = MoeConfig { intermediate_size: media_width, shared: None, names: names(true), ..text.clone() };
    let media = Some(Box::new(MediaExperts { token_ids: Vec::new(), experts: media }));
    MoeConfig { names: names(false), media, ..text }
}

/// Checks the value that published configs have in other keys; others than theirs are refused.
fn all_but_the_first(keys: &Keys<'_>, num_layers: usize) -> Result<Vec<bool>, ModelConfigError> {
    keys.only("moe_layer_interval", &[json!(1)])?;
    keys.only("moe_layer_start_index", &[json!(1), json!([1, 1])])?;
    let last = |end: &Value| end.as_i64().is_some_and(|end| end == -1 || end + 1 >= num_layers as i64);
    if let Some(found) = keys.value("moe_layer_end_index")
        && !found.as_array().map_or_else(|| last(found), |both| both.iter().all(last))
    {
        let must = format!("must be the last of num_hidden_layers ({num_layers}), for text and for media");
        return Err(keys.inconsistent("moe_layer_end_index", found, must));
    }
    Ok((0..num_layers).map(|layer| layer > 0).collect())
}

/// Reads the number of each kind: published configs have a list of two.
fn num_experts_of_both(keys: &Keys<'_>) -> Result<i64, ModelConfigError> {
    match keys.value("moe_num_experts") {
        Some(Value::Array(_)) => match keys.indices("moe_num_experts")?[..] {
            [text, media] if text == media && text > 0 => Ok(text),
            _ => {
                let found = keys.value("moe_num_experts").expect("it was there");
                Err(keys.inconsistent("moe_num_experts", found, "must be two equal numbers, of text and media experts"))
            }
        },
        _ => num_experts(keys, &NUM_EXPERTS),
    }
}

/// Returns the widths of the experts for text and for media.
fn widths(text: &Keys<'_>) -> Result<[i64; 2], ModelConfigError> {
    let Some(found) = text.value("moe_intermediate_size") else { return Ok([1536, 512]) };
    let list = || -> Option<Vec<i64>> { found.as_array()?.iter().map(Value::as_i64).collect() };
    match list().map(<[i64; 2]>::try_from) {
        Some(Ok(widths)) if widths.iter().all(|width| *width > 0) => Ok(widths),
        _ => Err(text.inconsistent("moe_intermediate_size", found, "must be two widths, of text and of media experts")),
    }
}

/// Reads the axes: of neighboring frequencies the even ones turn with the row, the odd ones with the column, and the
/// last ones, as many as the third section has, with the frame.
fn axes(text: &Keys<'_>, half: i64) -> Result<RopeAxes, ModelConfigError> {
    let section = section(text)?.filter(|section| section.value("mrope_section").is_some());
    // What published configs call the share of the frames.
    let sections = match (section, text.index_or("freq_allocation")?) {
        (Some(section), _) => section.indices("mrope_section")?,
        (None, Some(frames)) => {
            let each = (half - frames).max(0) / 2;
            vec![each, each, frames]
        }
        (None, None) => vec![22, 22, 20],
    };
    match sections[..] {
        [rows, columns, frames] if rows == columns && rows + columns + frames == half => {
            Ok(RopeAxes::Three((0..half).map(|at| if at < rows + columns { 1 + at % 2 } else { 0 }).collect()))
        }
        _ => {
            let must = format!("must be three numbers with the sum {half}, the first two equal");
            Err(text.inconsistent("rope_parameters.mrope_section", format!("{sections:?}"), must))
        }
    }
}
