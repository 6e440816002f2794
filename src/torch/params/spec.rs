//! A parameter as its model declares it.

use tch::Tensor;

use super::init::Init;
use super::rounding::Rounding;
use super::shard::Shard;
use super::stored_tensor::StoredTensor;
use crate::native::NF4_BLOCK;

/// Says what becomes of a parameter in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Trained,
    /// Kept as it is.
    Frozen,
    /// Changed by other rules than gradients; always float32.
    Buffer,
}

/// Says how a frozen parameter is held while no tape reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    /// The type that its values are rounded to.
    pub rounding: Rounding,
    /// True if the parameter lies in the host's memory.
    pub on_host: bool,
}

/// A parameter as its model declares it. Weight decay is for those of two or more dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// The name in Hugging Face's `model.safetensors`, or of our own where the checkpoint has it in several pieces.
    pub name: String,
    /// The shape of the part that this rank holds.
    pub shape: Vec<i64>,
    pub init: Init,
    pub role: Role,
    /// The checkpoint's tensors that it is made of; none for what is stored apart.
    pub pieces: Vec<StoredTensor>,
    /// True if it is the weight of a linear map, which may have an adapter.
    pub is_linear: bool,
    /// True if it is the weight of a block's modulation: a linear map that has no adapter.
    pub is_modulation: bool,
    /// True if it is the weight of a router, which has an adapter only where its name says so.
    pub is_router: bool,
    /// True if it is a bias of each of a stack of maps, `[count, outputs]`.
    pub is_stacked_bias: bool,
    /// The settings of an adapter, at its first parameter.
    pub adapter: Option<AdapterSpec>,
    /// A dimension along which several things lie one after the other, and their sizes.
    pub sections: Option<(usize, Vec<i64>)>,
    /// The part that this rank holds; `None` where it holds all and is alone.
    pub shard: Option<Shard>,
    /// True if another stage of a pipeline has it as well, and is the one that saves it.
    pub is_copy: bool,
    pub held: Held,
    /// Multiplies the run's learning rate.
    pub rate: f64,
}

impl ParamSpec {
    /// Declares a trained parameter that a checkpoint stores under its own name.
    pub fn new(name: impl Into<String>, shape: &[i64], init: Init) -> ParamSpec {
        let name = name.into();
        let pieces = vec![StoredTensor::whole(&name, shape)];
        ParamSpec {
            name,
            shape: shape.to_vec(),
            init,
            role: Role::Trained,
            pieces,
            is_linear: false,
            is_modulation: false,
            is_router: false,
            is_stacked_bias: false,
            adapter: None,
            sections: None,
            shard: None,
            is_copy: false,
            held: Held::default(),
            rate: 1.0,
        }
    }

    /// Says that the parameter is several things of these sizes along dimension `dim`: each is cut for itself where layers are split.
    pub fn in_sections(self, dim: usize, sizes: &[i64]) -> ParamSpec {
        ParamSpec { sections: Some((dim, sizes.to_vec())), ..self }
    }

    /// Returns the same parameter, stored as `pieces`.
    pub fn stored_as(self, pieces: Vec<StoredTensor>) -> ParamSpec {
        ParamSpec { pieces, ..self }
    }

    /// Returns the same parameter with this role.
    pub fn with_role(self, role: Role) -> ParamSpec {
        ParamSpec { role, ..self }
    }

    /// Makes a trained parameter frozen; a buffer stays one.
    pub fn frozen(self) -> ParamSpec {
        if self.role == Role::Trained { self.with_role(Role::Frozen) } else { self }
    }

    /// Returns whether it is the frozen weight of a block's linear map, or of a stack of them: what may be held in another way.
    pub fn is_frozen_map(&self) -> bool {
        self.role == Role::Frozen && (self.is_linear || self.is_modulation) && self.shape.len() >= 2
    }

    /// Returns whether its values are apart from the others, and whole only while a tape reads it.
    pub(super) fn is_apart(&self) -> bool {
        self.role == Role::Frozen && self.held != Held::default()
    }

    /// Returns whether weight decay is for it.
    pub fn decays(&self) -> bool {
        self.shape.len() >= 2
    }

    /// Returns these parameters in the order of a store: those that decay, then the others, each in the order of their learning rates.
    pub(super) fn in_order(specs: Vec<ParamSpec>) -> [Vec<ParamSpec>; 2] {
        let (decayed, undecayed): (Vec<_>, Vec<_>) = specs.into_iter().partition(ParamSpec::decays);
        [decayed, undecayed].map(|mut specs| {
            specs.sort_by(|one, other| one.rate.total_cmp(&other.rate));
            specs
        })
    }

    /// Returns whether ranks have parts of its matrices, and not only some of them.
    pub fn is_cut_within_matrices(&self) -> bool {
        let cuts = self.shard.as_ref().map_or(&[][..], |shard| &shard.cuts);
        cuts.iter().any(|cut| cut.dim + 2 >= self.shape.len())
    }

    /// Returns the same parameter on a rank that has all of it.
    pub fn whole(&self) -> ParamSpec {
        ParamSpec { shape: self.whole_shape().to_vec(), shard: None, ..self.clone() }
    }

    /// Returns why this rank's part of it would not be rounded as the whole is; `None` where it is.
    pub fn cannot_be_rounded(&self) -> Option<&'static str> {
        let cuts = self.shard.as_ref().map_or(&[][..], |shard| &shard.cuts);
        let last = self.shape.len().saturating_sub(1);
        let mut ends = cuts.iter().filter(|cut| cut.dim == last).flat_map(|cut| &cut.ranges);
        let width = self.whole_shape().last().copied().unwrap_or(0);
        let cuts_block =
            |&(start, len): &(i64, i64)| start % NF4_BLOCK != 0 || (len % NF4_BLOCK != 0 && start + len != width);
        match self.held.rounding {
            Rounding::Nf4 if ends.any(cuts_block) => Some(
                "tensor_parallel would split its rows within blocks of 64 numbers, which nf4 rounds together: use fewer ranks, or \
                 another frozen_precision",
            ),
            Rounding::Nf4Double if self.is_cut_within_matrices() => Some(
                "tensor_parallel would split it, but nf4_double rounds the largest magnitudes of a whole matrix together: use nf4",
            ),
            _ => None,
        }
    }

    /// Returns whether the largest magnitudes of its rows are those of rows of which this rank has a part.
    pub fn is_rounded_by_whole_rows(&self) -> bool {
        let last = self.shape.len().saturating_sub(1);
        let is_cut = self.shard.as_ref().is_some_and(|shard| shard.cuts.iter().any(|cut| cut.dim == last));
        self.held.rounding == Rounding::Int8 && is_cut
    }

    /// Returns the number of elements of this rank's part.
    pub fn num_elements(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Returns `tensor`, of the whole parameter's shape, as the checkpoint's tensors with their names, each in its shape there `[…]`,
    /// without those that repeat others; a parameter that the checkpoint's files do not hold is returned whole, under its own name.
    pub fn parts<'a>(&'a self, tensor: &Tensor) -> Vec<(&'a str, Tensor)> {
        if self.pieces.is_empty() {
            return vec![(&self.name, tensor.shallow_clone())];
        }
        let read = self.pieces.iter().filter(|piece| !piece.repeats);
        read.map(|piece| (piece.name.as_str(), piece.view(tensor))).collect()
    }
}

/// The settings of an adapter beside its parameters; they are part of its first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterSpec {
    pub scale: f64,
    pub dropout: f64,
}
