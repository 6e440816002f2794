//! The step plan: one global batch as packs and units, with every placement decided.

use super::PoolName;
use super::ids::{ActorId, ItemId, Lane, PackId, Replica, Role, SampleId, StepId, UnitId};
use super::tower::Tower;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Size of a media item in patches: frames, rows, columns (`image_grid_thw` of Hugging Face's Qwen-VL processors).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Grid {
    pub t: u32,
    pub h: u32,
    pub w: u32,
}

impl Grid {
    /// Returns `t × h × w`: the number of patches of a picture or video, frames of a recording, or tokens of a text or latent. Each
    /// is a row of the item's values.
    pub fn num_cells(self) -> usize {
        self.t as usize * self.h as usize * self.w as usize
    }
}

/// The properties of a media item that the scheduler knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ItemMeta {
    /// The tower that encodes it.
    pub tower: Tower,
    /// Patches of a picture or video; for a recording, its frames by 1 by 1.
    pub grid: Grid,
    /// Number of feature rows that the tower makes from it, and of placeholder tokens that they replace.
    pub num_features: u32,
}

impl ItemMeta {
    /// Returns what there is of it of the rows of its tower ([`Tower::rows`]): of a text whose grid tells its tokens, these alone, not the
    /// values of the pictures within it.
    pub fn num_rows(&self) -> usize {
        let is_pictured = self.tower == Tower::Text && self.grid.h > 1;
        if is_pictured { self.grid.h as usize } else { self.grid.num_cells() }
    }
}

/// The latent that a diffusion model generates, and the noise that a step adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Frames, rows and columns in patches of the model; each patch is a token.
    pub grid: Grid,
    /// Planned each time the sample is used; 0 until then.
    pub sigma: Sigma,
}

/// A noise level in [0, 1]: a latent x with noise n becomes `(1 − σ)·x + σ·n`. Stored as the bits of a float32, which sort like the
/// levels, so that plans can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sigma(u32);

impl Sigma {
    /// Stores the bits of a level.
    pub fn new(sigma: f32) -> Self {
        Self(sigma.to_bits())
    }

    /// Returns the level, from 0 to 1.
    pub fn get(self) -> f64 {
        f64::from(f32::from_bits(self.0))
    }
}

/// The properties of a sample that the scheduler knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleMeta {
    pub id: SampleId,
    /// Index of the data actor that holds it.
    pub owner: u32,
    /// Length in tokens, including placeholders of media items; for a diffusion model, the number of latent tokens.
    pub num_tokens: u32,
    /// Weight of the sample in the loss: the number of tokens in the loss, or 1 if the loss is a mean over samples.
    pub num_targets: u32,
    /// Selects the foundation pool that computes it, if there are several; 0 if there is one.
    pub route: u32,
    /// Bytes of all its columns on an edge.
    pub column_bytes: u32,
    /// The latent that a diffusion model generates; `None` for a sample of tokens.
    pub target: Option<Target>,
    /// Media items, in the order of their placeholders.
    pub items: Vec<ItemMeta>,
    /// Lengths of its concatenated documents; empty: one document of `num_tokens`. Documents do not attend to each other.
    pub documents: Vec<u32>,
}

impl SampleMeta {
    /// Bytes of a token's columns on an edge: an id, three positions and a target.
    pub const BYTES_PER_TOKEN: u64 = (2 * size_of::<i64>() + 3 * size_of::<f32>()) as u64;

    /// Returns a sample of one document of tokens, without items, held by data actor 0.
    pub fn of_tokens(id: SampleId, num_tokens: u32, num_targets: u32) -> Self {
        Self {
            id,
            owner: 0,
            num_tokens,
            num_targets,
            route: 0,
            column_bytes: num_tokens.saturating_mul(Self::BYTES_PER_TOKEN as u32),
            target: None,
            items: Vec::new(),
            documents: Vec::new(),
        }
    }

    /// Returns the lengths of its documents, at least one; they add up to `num_tokens`.
    pub fn document_lens(&self) -> &[u32] {
        if self.documents.is_empty() { std::slice::from_ref(&self.num_tokens) } else { &self.documents }
    }
}

/// Samples concatenated in one row, without padding: one micro-batch of one foundation replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pack {
    pub id: PackId,
    /// The foundation replica that computes it.
    pub replica: Replica,
    pub samples: Vec<SampleMeta>,
}

impl Pack {
    /// Returns the total number of tokens of its samples.
    pub fn num_tokens(&self) -> usize {
        self.samples.iter().map(|sample| sample.num_tokens as usize).sum()
    }

    /// Returns the start of each document in the row, and the row's length (`cu_seqlens` of variable-length attention).
    pub fn cu_seqlens(&self) -> Vec<usize> {
        let lens = self.samples.iter().flat_map(SampleMeta::document_lens);
        let ends = lens.scan(0, |end, &len| {
            *end += len as usize;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// Returns media items in the order of their placeholders in the row.
    pub fn items(&self) -> impl Iterator<Item = UnitItem> + '_ {
        self.samples.iter().flat_map(|sample| {
            sample.items.iter().enumerate().map(|(index, &meta)| UnitItem {
                id: ItemId { sample: sample.id, index: index as u32 },
                owner: sample.owner,
                meta,
            })
        })
    }
}

/// A media item in a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitItem {
    pub id: ItemId,
    /// Index of the data actor that holds its pixels.
    pub owner: u32,
    pub meta: ItemMeta,
}

/// A fixed piece of encoder work: consecutive items of one tower in one pack, in the pack's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    pub id: UnitId,
    /// The lane that sums its parameter gradients, in the order of the lane's units.
    pub lane: Lane,
    /// The replica of its tower's pool that computes it; if [`SKIPPED`], its features are zeros and its samples are not in the
    /// loss.
    pub encoder: Replica,
    /// The pack that uses its features.
    pub pack: PackId,
    /// The foundation replica of that pack.
    pub replica: Replica,
    pub items: Vec<UnitItem>,
}

/// Encoder number of a unit that has crashed too many encoders.
pub const SKIPPED: u32 = u32::MAX;

impl Unit {
    /// Returns whether no encoder computes it.
    pub fn is_skipped(&self) -> bool {
        self.encoder.index == SKIPPED
    }

    /// Returns the number of feature rows that it makes.
    pub fn num_features(&self) -> usize {
        self.items.iter().map(|item| item.meta.num_features as usize).sum()
    }

    /// Returns the tower that encodes its items. Panics for a unit without items, which no plan contains.
    pub fn tower(&self) -> Tower {
        self.items[0].meta.tower
    }

    /// Returns the total number of rows of values of its items.
    pub fn num_cells(&self) -> usize {
        self.items.iter().map(|item| item.meta.grid.num_cells()).sum()
    }
}

/// The purpose that the packs of a plan are computed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Forward and backward; the step ends with a commit, or an abort.
    #[default]
    Train,
    /// Forward only: the sum of the targets' losses, and the number of correct predictions. The plan ends with an abort, which
    /// changes nothing. `draw` is the number of the noise for samples of a diffusion model.
    Score { draw: u32 },
    /// Forward only: every sample is a prompt to continue with greedy decoding. Ends as [`Purpose::Score`].
    Generate { max_new_tokens: u32 },
    /// Forward only: every sample is a prompt from which a picture or clip is generated, from noise number `draw`. Ends as
    /// [`Purpose::Score`].
    Sample { draw: u32 },
    /// Forward only: a robot policy predicts actions from the observations of every sample, from noise number `draw`. Ends as
    /// [`Purpose::Score`].
    Act { draw: u32 },
}

impl Purpose {
    /// Returns whether nothing is trained.
    pub fn is_evaluation(self) -> bool {
        self != Self::Train
    }

    /// Returns whether losses and correct predictions are counted, without training.
    pub fn is_score(self) -> bool {
        matches!(self, Self::Score { .. })
    }

    /// Returns whether pictures or clips are generated.
    pub fn is_sample(self) -> bool {
        matches!(self, Self::Sample { .. })
    }

    /// Returns whether actions are predicted.
    pub fn is_act(self) -> bool {
        matches!(self, Self::Act { .. })
    }
}

/// One global batch with everything decided. A pure function of the configuration, the step and the samples: it does not depend on
/// timing, nor (except for `Unit::encoder`) on the number of encoders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepPlan {
    /// The step; for an evaluation the next step, whose initial parameters are evaluated.
    pub step: StepId,
    pub purpose: Purpose,
    /// First position of the data stream that this step has not read.
    pub cursor: SampleId,
    pub learning_rate: f64,
    /// Number of tokens in the loss, over all packs: the denominator of the mean.
    pub num_targets: u64,
    /// Number of actors per replica of each foundation pool. The first one leads: it receives tokens and features.
    pub replica_ranks: BTreeMap<PoolName, u32>,
    /// The packs in the order in which replicas compute them.
    pub packs: Vec<Pack>,
    /// The units in deadline order: units used by earlier micro-batches come first.
    pub units: Vec<Unit>,
}

impl StepPlan {
    /// Returns the total number of tokens of all packs.
    pub fn num_tokens(&self) -> usize {
        self.packs.iter().map(Pack::num_tokens).sum()
    }

    /// Returns the number of media items of all units, without samples of a reference model.
    pub fn num_items(&self) -> usize {
        let of_reference = |unit: &&Unit| unit.tower() == Tower::Reference;
        self.units.iter().filter(|unit| !of_reference(unit)).map(|unit| unit.items.len()).sum()
    }

    /// Returns the id that distinguishes it from other plans: an evaluation has the number of the step that follows it.
    pub fn first_pack(&self) -> Option<PackId> {
        self.packs.first().map(|pack| pack.id)
    }

    /// Returns the unit with this id. Ids of an evaluation's units do not begin at 0.
    pub fn unit(&self, id: UnitId) -> Option<&Unit> {
        let index = id.index.checked_sub(self.units.first()?.id.index)?;
        self.units.get(index as usize).filter(|unit| unit.id == id)
    }

    /// Returns the actor that receives the tokens and features of a foundation replica.
    pub fn leader(&self, replica: Replica) -> ActorId {
        replica.leader(Role::Foundation, self.replica_ranks.get(&replica.pool).copied().unwrap_or(1))
    }

    /// Returns the packs of one foundation replica, in order.
    pub fn packs_of(&self, replica: Replica) -> impl Iterator<Item = &Pack> {
        self.packs.iter().filter(move |pack| pack.replica == replica)
    }

    /// Returns the units whose features one pack uses, in the order of placeholders.
    pub fn units_of(&self, pack: PackId) -> impl Iterator<Item = &Unit> {
        self.units.iter().filter(move |unit| unit.pack == pack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{decode, encode};

    #[test]
    fn documents_are_where_a_row_is_cut() {
        let sample = |id, num_tokens, documents: &[u32]| SampleMeta {
            documents: documents.to_vec(),
            ..SampleMeta::of_tokens(SampleId(id), num_tokens, 1)
        };
        let samples = vec![sample(0, 4, &[]), sample(1, 6, &[1, 2, 3])];
        let pack = Pack { id: PackId { step: StepId(0), index: 0 }, replica: Replica::foundation(0), samples };
        assert_eq!(pack.cu_seqlens(), [0, 4, 5, 7, 10]);
        assert_eq!(decode::<Pack>(&encode(&pack).unwrap()).unwrap(), pack);
    }

    #[test]
    fn values_of_pictures_within_a_text_are_no_tokens() {
        let rows = |tower, t, h| ItemMeta { tower, grid: Grid { t, h, w: 1 }, num_features: 1 }.num_rows();
        assert_eq!([rows(Tower::Text, 7, 1), rows(Tower::Text, 30, 50), rows(Tower::Reference, 30, 50)], [7, 50, 1500]);
    }
}
