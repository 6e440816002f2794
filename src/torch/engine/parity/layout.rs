//! Describes how the two pools of a fixture's run are laid out.

use super::super::share::Splits;
use loongforge_core::config::Layout;

/// Layouts of both pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLayouts {
    pub foundation: Layout,
    pub splits: Splits,
    pub encoder: Layout,
    /// Holds what encoders share out.
    pub encoder_zero: usize,
}

impl PoolLayouts {
    /// Processes of a model with or without an encoder.
    pub fn ranks(&self, has_encoder: bool) -> usize {
        self.foundation.ranks() + if has_encoder { self.encoder.ranks() } else { 0 }
    }

    /// # Errors
    /// An axis without a rank, or a combination that there is not.
    pub fn check(&self) -> Result<(), String> {
        let PoolLayouts { foundation: Layout { dp, pp, cp, tp, ep }, splits, encoder, encoder_zero } = self;
        let broken = |is: bool, what: &str| if is { Err(what.to_owned()) } else { Ok(()) };
        broken(dp * pp * cp * tp * ep * encoder.dp * encoder.tp * splits.virtual_stages == 0, "every axis has a rank")?;
        broken(dp * cp % ep.max(&1) != 0, "foundation.ep divides foundation.dp x foundation.cp")?;
        broken(splits.virtual_stages > 1 && *pp == 1, "foundation.vp needs foundation.pp")?;
        broken(splits.zero > 3, "foundation.zero is 3 at most")?;
        broken(*encoder_zero > 1, "encoder.zero is 1 at most")?;
        let meets = splits.zero > 1 && dp * cp > 1 || *ep > 1;
        let chunks = "foundation.chunk goes with one virtual stage, foundation.zero up to 1, and no .ep";
        broken(splits.chunk_tokens > 0 && (meets || splits.virtual_stages > 1), chunks)
    }

    /// Packs that a step's documents are dealt to: two for each replica of a pipeline, so that it has something to do, or
    /// of spread experts, so that they go in turns.
    pub(super) fn num_packs(&self) -> usize {
        self.foundation.dp * if self.foundation.pp > 1 || self.foundation.ep > 1 { 2 } else { 1 }
    }
}
