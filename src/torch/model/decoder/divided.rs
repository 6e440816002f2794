//! A decoder's sizes on one of the ranks that share its layers: heads, inner widths and tokens of the vocabulary are
//! split, and what is left is a smaller decoder.

use super::config::{DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig};
use super::transformer::Decoder;
use crate::model::parallel_errors::TensorParallelError;
use crate::nn::moe::{ExpertNames, MoeConfig};
use crate::nn::{AttentionConfig, GatedDeltaConfig, KeyChoice, MlaConfig, QkNorm, Qkv};
use crate::params::{ParallelRank, ParamSpec, divide};

type Result<T> = std::result::Result<T, TensorParallelError>;

impl DecoderConfig {
    /// Returns the decoder with the sizes that the rank at `place` computes with.
    ///
    /// # Errors
    /// Something cannot be split into as many parts.
    pub fn divided(&self, place: &ParallelRank) -> Result<DecoderConfig> {
        let ranks = place.tp;
        let too_few = |key, size, axis, ranks| TensorParallelError::TooFew { key, size, axis, ranks };
        if self.vocab_size < ranks as i64 {
            return Err(too_few("vocab_size", self.vocab_size, "tensor_parallel", ranks));
        }
        let vocab = place.part(self.vocab_size);
        let layers = self.layers.iter().map(|layer| of_layer(layer, place)).collect::<Result<Vec<_>>>()?;
        let mut mtp = self.mtp.clone();
        if let Some(mtp) = &mut mtp {
            mtp.layer = of_layer(&mtp.layer, place)?;
        }
        Ok(DecoderConfig {
            vocab_size: vocab.end - vocab.start,
            first_token: vocab.start,
            layers,
            mtp,
            parallel: *place,
            ..self.clone()
        })
    }

    /// Returns the parts of this decoder's parameters that the rank at `place` holds.
    ///
    /// # Errors
    /// Fails as [`DecoderConfig::divided`] does.
    pub fn divided_specs(&self, place: &ParallelRank) -> Result<Vec<ParamSpec>> {
        Ok(divide(Decoder::specs(self), Decoder::specs(&self.divided(place)?), place))
    }
}

fn of_layer(layer: &LayerConfig, place: &ParallelRank) -> Result<LayerConfig> {
    let mixer = match &layer.mixer {
        mixer if !mixer.splits() => mixer.clone(),
        MixerConfig::Attention(attention) => MixerConfig::Attention(of_attention(attention, place)?),
        MixerConfig::Mla(mla) => MixerConfig::Mla(of_mla(mla, place)?),
        MixerConfig::GatedDelta(delta) => MixerConfig::GatedDelta(of_delta(delta, place)?),
        MixerConfig::Compressed(_) => layer.mixer.clone(),
    };
    let feed_forward = match &layer.feed_forward {
        FeedForwardConfig::Dense { intermediate_size, bias } => FeedForwardConfig::Dense {
            intermediate_size: width("intermediate_size", *intermediate_size, place)?,
            bias: *bias,
        },
        FeedForwardConfig::Moe(moe) => FeedForwardConfig::Moe(of_moe(moe, place)?),
    };
    Ok(LayerConfig { mixer, feed_forward, ..layer.clone() })
}

impl MixerConfig {
    /// Returns whether tensor-parallel ranks can each have some of the heads. Norms over all heads together and choices
    /// of keys by indexers need all of them: all ranks compute such mixers alike.
    pub(super) fn splits(&self) -> bool {
        match self {
            MixerConfig::Attention(attention) => attention.qk_norm != QkNorm::Full,
            MixerConfig::Mla(mla) => mla.keys == KeyChoice::All,
            MixerConfig::GatedDelta(_) => true,
            // All heads have the same keys, and projections behind them span heads.
            MixerConfig::Compressed(_) => false,
        }
    }
}

fn of_attention(config: &AttentionConfig, place: &ParallelRank) -> Result<AttentionConfig> {
    let (ranks, keys) = (place.tp, config.num_kv_heads);
    let num_heads = heads("num_attention_heads", config.num_heads, place)?;
    // With fewer key heads than ranks each of them is held by several.
    let shared = keys < ranks as i64;
    if shared && ranks as i64 % keys != 0 {
        return Err(TensorParallelError::Tensor { key: "num_key_value_heads", size: keys, ranks });
    }
    if shared && matches!(config.qkv, Qkv::Grouped(_)) {
        return Err(TensorParallelError::Tensor { key: "num_key_value_heads", size: keys, ranks });
    }
    let num_kv_heads = if shared { 1 } else { heads("num_key_value_heads", keys, place)? };
    Ok(AttentionConfig { num_heads, num_kv_heads, ..config.clone() })
}

fn of_mla(config: &MlaConfig, place: &ParallelRank) -> Result<MlaConfig> {
    Ok(MlaConfig { num_heads: heads("num_attention_heads", config.num_heads, place)?, ..config.clone() })
}

fn of_delta(config: &GatedDeltaConfig, place: &ParallelRank) -> Result<GatedDeltaConfig> {
    Ok(GatedDeltaConfig {
        num_key_heads: heads("linear_num_key_heads", config.num_key_heads, place)?,
        num_value_heads: heads("linear_num_value_heads", config.num_value_heads, place)?,
        ..config.clone()
    })
}

/// The experts themselves are dealt when the parameters are cut.
fn of_moe(config: &MoeConfig, place: &ParallelRank) -> Result<MoeConfig> {
    let (experts, ranks) = (config.router.num_experts, place.ep);
    if experts < ranks as i64 {
        return Err(TensorParallelError::TooFew { key: "num_experts", size: experts, axis: "expert_parallel", ranks });
    }
    // Each gate lies before its up: ranks have as many of both.
    let (inner, tp) = (config.intermediate_size, place.tp);
    if config.names.experts == ExpertNames::Interleaved && inner % tp as i64 != 0 {
        return Err(TensorParallelError::Tensor { key: "intermediate_size", size: inner, ranks: tp });
    }
    let mut divided = config.clone();
    divided.intermediate_size = width("moe_intermediate_size", config.intermediate_size, place)?;
    if let Some(shared) = &mut divided.shared {
        shared.intermediate_size = width("shared_expert_intermediate_size", shared.intermediate_size, place)?;
    }
    if let Some(media) = &mut divided.media {
        media.experts = of_moe(&media.experts, place)?;
    }
    Ok(divided)
}

fn heads(key: &'static str, size: i64, place: &ParallelRank) -> Result<i64> {
    let ranks = place.tp;
    if size % ranks as i64 != 0 {
        return Err(TensorParallelError::Tensor { key, size, ranks });
    }
    Ok(size / ranks as i64)
}

/// Checks an inner width, which may be split unevenly.
fn width(key: &'static str, size: i64, place: &ParallelRank) -> Result<i64> {
    if size < place.tp as i64 {
        return Err(TensorParallelError::TooFew { key, size, axis: "tensor_parallel", ranks: place.tp });
    }
    let part = place.part(size);
    Ok(part.end - part.start)
}
