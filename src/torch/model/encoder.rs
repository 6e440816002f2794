//! The interface of an encoder to the engine: its parameters, and recording a tape for items. Implement these traits to train an encoder
//! of your own.

use std::any::Any;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::message::{Grid, NoPicturedText};
use tch::Tensor;

use super::parallel_errors::TensorParallelError;
use crate::params::{ParallelRank, ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// A kind of encoder.
pub trait EncoderFamily: Debug + Send + Sync {
    /// Returns the encoder's parameters, under their names in `model.safetensors`.
    fn specs(&self) -> Vec<ParamSpec>;

    /// Returns the model on parameters made from [`EncoderFamily::specs`].
    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel>;

    /// Returns the number of tensors of features for an item: one, and one for each DeepStack level or for the features' deviations.
    fn num_outputs(&self) -> usize {
        1
    }

    /// Returns the same encoder with the standard deviations of its features as a second tensor; `None`: they have none.
    fn with_deviations(&self) -> Option<Arc<dyn EncoderFamily>> {
        None
    }

    /// Returns whether this parameter, by its name in the checkpoint, is of what brings features to the width of the
    /// decoder (`model.image_projector` in a run's config) and not of the tower.
    fn is_projector(&self, _name: &str) -> bool {
        false
    }

    /// Returns the number of values of a patch: columns of the encoder's input.
    fn patch_dim(&self) -> i64;

    /// Returns whether the parameter of this name in the checkpoint is of this tower or its projector; false also where
    /// the family does not tell its names from others'.
    fn owns(&self, name: &str) -> bool {
        self.prefixes().iter().any(|prefix| !prefix.is_empty() && name.starts_with(prefix))
    }

    /// Returns the prefixes of the names of the tower's parameters, and of the projector's: the rest of a name is the same in every
    /// checkpoint that has this tower.
    fn prefixes(&self) -> [&str; 2] {
        ["", ""]
    }

    /// Returns the part of the encoder that the rank at `place` computes, as [`FoundationFamily::divided`].
    ///
    /// # Errors
    /// It cannot be split so.
    fn divided(&self, _place: &ParallelRank) -> Result<Arc<dyn EncoderFamily>, TensorParallelError> {
        Err(TensorParallelError::Unsupported { what: "this encoder" })
    }

    /// Returns the encoder as data, for who knows what it is: built-in towers of pictures have some.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Returns the number of features that an item of this size becomes, which is how many placeholders it has among the tokens.
    fn num_features(&self, grid: Grid) -> usize;
}

/// A model that turns media items into features.
pub trait EncoderModel {
    /// Returns whether the values of items are ids, which are kept as they come; others become of the parameters' kind.
    fn takes_ids(&self) -> bool {
        false
    }

    /// Records the encoding of items of these sizes, all in one batch.
    fn record(&self, grids: &[Grid]) -> EncoderTape;

    /// Works like [`EncoderModel::record`] of items whose values say how they are laid out; `values` is what the input of the tape
    /// will be given.
    ///
    /// # Errors
    /// The values are not those of such items.
    fn record_items(&self, grids: &[Grid], _values: &Tensor) -> Result<EncoderTape, NoPicturedText> {
        Ok(self.record(grids))
    }
}

/// A function that records is a model.
impl<F: Fn(&[Grid]) -> EncoderTape> EncoderModel for F {
    fn record(&self, grids: &[Grid]) -> EncoderTape {
        self(grids)
    }
}

/// A recorded encoder batch.
pub struct EncoderTape {
    pub tape: Rc<Tape>,
    /// Input `[patches, patch_dim]`, items end to end.
    pub pixels: Slot,
    /// `features [N, dim]`, then one such slot per DeepStack level, or that of the features' deviations. Kept slots.
    pub outputs: Vec<Slot>,
}
