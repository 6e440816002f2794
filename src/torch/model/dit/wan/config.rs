//! Wan's transformer as data: what `transformer/config.json` says (`WanTransformer3DModel`).

use serde_json::json;

use crate::model::keys::{Keys, ModelConfigError};
use crate::model::original_names::Naming;
use crate::params::ParallelRank;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// The beginning of a block's names, by which tables of names know one.
const BLOCK: &str = "blocks.0.";

/// The most rows or columns of a latent that are one token.
const MOST_PATCH: i64 = 1 << 16;

/// A transformer of Wan 2.1 or 2.2.
#[derive(Clone, Debug, PartialEq)]
pub struct WanConfig {
    /// The prefix of all names.
    pub prefix: String,
    /// The names of the parameters in files.
    pub names: Naming,
    /// Width of a hidden state; all heads together may have another.
    pub hidden: i64,
    pub num_heads: i64,
    pub head_dim: i64,
    pub num_layers: usize,
    /// Width inside of the feed-forward.
    pub inner: i64,
    /// Channels of the input: those of a latent, of a mask and of a condition where there is one.
    pub in_channels: i64,
    pub out_channels: i64,
    /// Rows and columns of a patch.
    pub patch: [i64; 2],
    /// Width of a row of text.
    pub text_dim: i64,
    /// Rows of text that attention sees: rows behind the prompt are zeros, which are not masked. 0: the prompt's alone.
    pub text_rows: i64,
    /// Width of the sinusoids of a noise level.
    pub freq_dim: i64,
    /// True if cross-attention has a norm before it.
    pub cross_norm: bool,
    pub eps: f64,
    /// Tokens of pictures that cross-attention sees as well.
    pub image: Option<ImageTokens>,
    /// The rank whose part of the blocks this is.
    pub parallel: ParallelRank,
}

/// Tokens of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageTokens {
    /// Width of a token.
    pub width: i64,
    /// Rows of the table of positions (first and last frame); `None`: there is none.
    pub positions: Option<i64>,
}

impl WanConfig {
    /// Reads the keys of a transformer's config; names are under `prefix`.
    ///
    /// # Errors
    /// A key is missing, of another type, or says what is not supported.
    pub(in crate::model) fn read(keys: &Keys<'_>, prefix: &str, text_rows: i64) -> Result<WanConfig> {
        keys.only("qk_norm", &[json!("rms_norm_across_heads")])?;
        let patch = WanConfig::read_patch(keys)?;
        let size = |key: &str, default: i64| Ok(keys.size_or(key)?.unwrap_or(default));
        let num_heads = size("num_attention_heads", 40)?;
        let head_dim = size("attention_head_dim", 128)?;
        if head_dim % 2 != 0 || head_dim < 6 {
            return Err(keys.inconsistent("attention_head_dim", head_dim, "must be even and at least 6"));
        }
        let in_channels = size("in_channels", 16)?;
        // Null are as many as there are of the input.
        let out_channels = keys.size_or_null("out_channels", 16)?.unwrap_or(in_channels);
        if in_channels != out_channels && in_channels <= 2 * out_channels {
            let must = format!("must be out_channels ({out_channels}), or that twice and the channels of a mask");
            return Err(keys.inconsistent("in_channels", in_channels, must));
        }
        let image = match keys.size_or("image_dim")? {
            Some(width) => Some(ImageTokens { width, positions: keys.size_or("pos_embed_seq_len")? }),
            None => match keys.size_or("pos_embed_seq_len")? {
                // It tells that a last frame is given, which the tokens of two pictures go with.
                Some(positions) => {
                    return Err(keys.inconsistent("pos_embed_seq_len", positions, "must be null without image_dim"));
                }
                None => None,
            },
        };
        let added = keys.size_or("added_kv_proj_dim")?;
        if let Some(added) = added.filter(|added| image.is_none() || *added != num_heads * head_dim) {
            let must =
                format!("must be num_attention_heads * attention_head_dim ({}), with image_dim", num_heads * head_dim);
            return Err(keys.inconsistent("added_kv_proj_dim", added, must));
        }
        if image.is_some() && added.is_none() {
            return Err(keys.missing("added_kv_proj_dim"));
        }
        let freq_dim = size("freq_dim", 256)?;
        if freq_dim % 2 != 0 {
            return Err(keys.inconsistent("freq_dim", freq_dim, "must be even"));
        }
        Ok(WanConfig {
            prefix: prefix.to_owned(),
            names: Naming::Diffusers,
            hidden: num_heads * head_dim,
            num_heads,
            head_dim,
            num_layers: size("num_layers", 40)? as usize,
            inner: size("ffn_dim", 13_824)?,
            in_channels,
            out_channels,
            patch,
            text_dim: size("text_dim", 4096)?,
            text_rows,
            freq_dim,
            cross_norm: keys.flag_or("cross_attn_norm")?.unwrap_or(true),
            eps: keys.number_or("eps")?.unwrap_or(1e-6),
            image,
            parallel: ParallelRank::default(),
        })
    }

    /// Reads the rows and columns of a latent that are one token.
    ///
    /// # Errors
    /// The key is a list of something else.
    pub(in crate::model) fn read_patch(keys: &Keys<'_>) -> Result<[i64; 2]> {
        let patch = if keys.has("patch_size") { keys.indices("patch_size")? } else { vec![1, 2, 2] };
        match *patch.as_slice() {
            [1, rows, columns] if [rows, columns].iter().all(|size| (1..=MOST_PATCH).contains(size)) => {
                Ok([rows, columns])
            }
            _ => {
                let must = format!("must be [1, rows, columns] of 1 to {MOST_PATCH}");
                Err(keys.inconsistent("patch_size", json!(patch), must))
            }
        }
    }

    /// Returns the width of a hidden state.
    pub fn width(&self) -> i64 {
        self.hidden
    }

    /// Returns the width of the heads of all ranks together.
    pub(super) fn heads_width(&self) -> i64 {
        self.num_heads * self.head_dim
    }

    /// Returns the width of the heads of this rank.
    pub(super) fn local_width(&self) -> i64 {
        self.heads_width() / self.parallel.tp as i64
    }

    /// Returns the name under the prefix of what Diffusers calls `name`, outside of blocks.
    pub(super) fn outside(&self, name: &str) -> String {
        self.names.from_diffusers(name).unwrap_or_else(|| name.to_owned())
    }

    /// Returns the name within its block of what Diffusers calls `name` there.
    pub(super) fn in_block(&self, name: &str) -> String {
        let found = self.names.from_diffusers(&format!("{BLOCK}{name}"));
        found.as_deref().and_then(|found| found.strip_prefix(BLOCK)).unwrap_or(name).to_owned()
    }

    /// Returns the width inside of this rank's part of the feed-forward.
    pub(super) fn local_inner(&self) -> i64 {
        let part = self.parallel.part(self.inner);
        part.end - part.start
    }

    /// Returns the number of values of a latent's patch.
    pub fn patch_dim(&self) -> i64 {
        self.out_channels * self.patch[0] * self.patch[1]
    }

    /// Returns the number of channels of the mask of given frames, which are the frames of pixels in one of the latent; 0: there is no
    /// condition.
    pub fn mask_channels(&self) -> i64 {
        if self.in_channels == self.out_channels { 0 } else { self.in_channels - 2 * self.out_channels }
    }

    /// Returns the channels of a head that turn by frame, row and column.
    pub fn axes(&self) -> [i64; 3] {
        let side = 2 * (self.head_dim / 6);
        [self.head_dim - 2 * side, side, side]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::WanConfig;
    use crate::model::keys::Keys;

    fn read(config: &Value) -> Result<WanConfig, String> {
        WanConfig::read(&Keys::new(config), "", 512).map_err(|error| error.to_string())
    }

    #[test]
    fn absent_keys_have_the_values_of_the_class() {
        let config = read(&json!({})).unwrap();
        assert_eq!((config.num_heads, config.head_dim, config.num_layers, config.inner), (40, 128, 40, 13_824));
        assert_eq!((config.in_channels, config.out_channels, config.patch), (16, 16, [2, 2]));
        assert_eq!((config.text_dim, config.freq_dim, config.cross_norm, config.eps), (4096, 256, true, 1e-6));
        assert_eq!(config.image, None);
        let config = read(&json!({ "in_channels": 48, "out_channels": null })).unwrap();
        assert_eq!((config.out_channels, config.mask_channels()), (48, 0));
    }

    #[test]
    fn patches_have_bounds() {
        for patch in [json!([2, 2, 2]), json!([1, 0, 2]), json!([1, 2]), json!([1, 1, 1i64 << 60])] {
            let message = read(&json!({ "patch_size": patch })).unwrap_err();
            let expected = format!("patch_size is {patch}, but must be [1, rows, columns] of 1 to 65536");
            assert!(message.contains(&expected), "{message}");
        }
    }

    #[test]
    fn positions_of_pictures_need_pictures() {
        let message = read(&json!({"in_channels": 36, "pos_embed_seq_len": 514})).unwrap_err();
        assert!(message.contains("pos_embed_seq_len is 514, but must be null without image_dim"), "{message}");
    }
}
