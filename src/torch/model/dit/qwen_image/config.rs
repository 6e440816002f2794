//! Qwen-Image's transformer as data: what `transformer/config.json` says (`QwenImageTransformer2DModel`).

use serde_json::json;

use crate::model::keys::{Keys, ModelConfigError};
use crate::params::ParallelRank;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// A transformer of Qwen-Image or one of its models that edit.
#[derive(Clone, Debug, PartialEq)]
pub struct QwenImageConfig {
    /// The prefix of all names.
    pub prefix: String,
    pub num_heads: i64,
    pub head_dim: i64,
    pub num_layers: usize,
    /// Channels of a latent.
    pub channels: i64,
    /// Rows, and as many columns, of a patch.
    pub patch: i64,
    /// Width of a row of text.
    pub text_dim: i64,
    /// The channels of a head that turn by picture, row and column.
    pub axes: [i64; 3],
    /// True if references are modulated as clean (2511).
    pub clean_references: bool,
    /// The rank whose part of the blocks this is.
    pub parallel: ParallelRank,
}

impl QwenImageConfig {
    /// Reads the keys of a transformer's config; names are under `prefix`.
    ///
    /// # Errors
    /// A key is missing, of another type, or says what is not supported.
    pub(in crate::model) fn read(keys: &Keys<'_>, prefix: &str) -> Result<QwenImageConfig> {
        for key in ["guidance_embeds", "use_additional_t_cond", "use_layer3d_rope"] {
            keys.only(key, &[json!(false)])?;
        }
        let size = |key: &str, default: i64| Ok(keys.size_or(key)?.unwrap_or(default));
        let head_dim = size("attention_head_dim", 128)?;
        let found = if keys.has("axes_dims_rope") { keys.indices("axes_dims_rope")? } else { vec![16, 56, 56] };
        let fits = |axes: &[i64; 3]| axes.iter().sum::<i64>() == head_dim && axes.iter().all(|width| width % 2 == 0);
        let Some(axes) = <[i64; 3]>::try_from(found.as_slice()).ok().filter(fits) else {
            let must = format!("must be three even numbers whose sum is attention_head_dim ({head_dim})");
            return Err(keys.inconsistent("axes_dims_rope", json!(found), must));
        };
        let in_channels = size("in_channels", 64)?;
        let (patch, out_channels) = (size("patch_size", 2)?, size("out_channels", 16)?);
        if patch.saturating_mul(patch).saturating_mul(out_channels) != in_channels {
            let must = format!("must be patch_size² · out_channels ({patch}² · {out_channels})");
            return Err(keys.inconsistent("in_channels", in_channels, must));
        }
        Ok(QwenImageConfig {
            prefix: prefix.to_owned(),
            num_heads: size("num_attention_heads", 24)?,
            head_dim,
            num_layers: size("num_layers", 60)? as usize,
            channels: out_channels,
            patch,
            text_dim: size("joint_attention_dim", 3584)?,
            axes,
            clean_references: keys.flag_or("zero_cond_t")?.unwrap_or(false),
            parallel: ParallelRank::default(),
        })
    }

    /// Returns the number of values of a patch: of each channel rows and columns.
    pub fn patch_dim(&self) -> i64 {
        self.channels * self.patch * self.patch
    }

    /// Returns the width inside of a feed-forward.
    pub fn inner(&self) -> i64 {
        4 * self.width()
    }

    /// Returns the width of the heads of this rank, and inside of its part of a feed-forward.
    pub(super) fn local_widths(&self) -> [i64; 2] {
        let inner = self.parallel.part(self.inner());
        [self.width() / self.parallel.tp as i64, inner.end - inner.start]
    }

    /// Returns the width of a hidden state.
    pub fn width(&self) -> i64 {
        self.num_heads * self.head_dim
    }
}
