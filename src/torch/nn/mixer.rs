//! The interface of a decoder layer's mixer of tokens: attention of some kind, or a recurrence.
//!
//! Shapes: T tokens of a packed row, D hidden size, B sequences of a generation, S columns of its cache.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tch::{Device, Tensor};

use super::sparse_attention::ChosenKeys;
use super::{DeltaDocuments, PackedAttention, PieceAttention, Rope};

/// The tables of one packed row that layers with the same rotary embeddings share; made once a micro-batch.
pub struct Context {
    pub rope: Rope,
    /// The documents and their mask: causal within documents, except for decoders whose pictures or prompts see all of themselves.
    pub documents: Rc<PackedAttention>,
    /// The ends of documents: `[0, …, T]`.
    pub cu_seqlens: Vec<usize>,
    /// Keys that indexers chose, for layers that take another layer's choice.
    pub chosen: Rc<LayerCache<Vec<Vec<ChosenKeys>>>>,
    /// The documents of gated delta nets, where a decoder has some.
    pub gated_delta: Option<Rc<DeltaDocuments>>,
}

impl Context {
    /// Returns where the documents of the row end, as the delta rule needs it. Panics in a decoder that prepared none.
    pub(super) fn delta_documents(&self) -> &DeltaDocuments {
        self.gated_delta.as_ref().expect("a decoder with gated delta nets prepares their documents")
    }
}

/// The results that layers of one pass leave for later ones, by their number. A layer that is computed again leaves the same.
pub struct LayerCache<T>(RefCell<BTreeMap<usize, Rc<T>>>);

impl<T> Default for LayerCache<T> {
    fn default() -> Self {
        LayerCache(RefCell::default())
    }
}

impl<T> LayerCache<T> {
    /// Keeps what a layer computed, in place of what was kept of it before, and returns it.
    pub fn put(&self, layer: usize, value: T) -> Rc<T> {
        let value = Rc::new(value);
        self.0.borrow_mut().insert(layer, value.clone());
        value
    }

    /// Panics where layer `layer` has left nothing.
    pub fn take(&self, layer: usize) -> Rc<T> {
        self.0.borrow().get(&layer).unwrap_or_else(|| panic!("layer {layer} has not run")).clone()
    }
}

/// The token-mixing branch of a layer: its input is normed, the residual is the layer's.
pub trait Mixer {
    /// Maps `[T, D]` to `[T, D]`.
    fn forward(&self, x_TD: &Tensor, context: &Context) -> Tensor;

    /// Returns whether the mixer learns from a loss of its own as well.
    fn has_loss(&self) -> bool {
        false
    }

    /// Works like [`Mixer::forward`], `[T, D]` to `[T, D]`, and also returns the sum over tokens of the mixer's own loss, a float32
    /// scalar, where it has one.
    fn forward_with_loss(&self, x_TD: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        (self.forward(x_TD, context), None)
    }

    /// Returns the mixer cut at its attention, which is then an operation of its own: for rows that several ranks share. `None` where it
    /// has no such place.
    fn cut(&self) -> Option<&dyn QkvMixer> {
        None
    }

    /// Returns whether sequences may come in pieces.
    fn takes_pieces(&self) -> bool {
        false
    }

    /// Works like [`Mixer::forward`] on a piece, `[T, D]` to `[T, D]`, which also attends to the keys `[past, K, C]` and values
    /// `[past, K, V]` of its first document's earlier tokens; returns the piece's own keys and values as well. Panics where the mixer
    /// takes no pieces.
    fn forward_piece(
        &self,
        _x_TD: &Tensor,
        _context: &Context,
        _piece: &PieceAttention,
        _past: Option<[&Tensor; 2]>,
    ) -> [Tensor; 3] {
        panic!("a mixer that takes no pieces")
    }

    /// Works like [`Mixer::forward`] on the prompts of a generation, `[T, D]` to `[T, D]`, and fills `state` with what [`Mixer::step`]
    /// needs of them.
    fn prefill(&self, x_TD: &Tensor, context: &Context, columns: &CacheColumns, state: &mut State) -> Tensor;

    /// Computes one more token of each sequence, `[B, D]` to `[B, D]`; it goes to column `columns.used - 1`.
    fn step(&self, x_BD: &Tensor, rope: &Rope, columns: &CacheColumns, state: &mut State) -> Tensor;
}

/// The parts of a mixer before and after an attention to all earlier tokens of the document.
pub trait QkvMixer {
    /// Returns the queries `[T, H, C]`, keys `[T, K, C]` and values `[T, K, V]`, and what else `after` reads.
    fn before(&self, x_TD: &Tensor, rope: &Rope) -> Vec<Tensor>;

    /// Returns how many `before` gives.
    fn num_cut(&self) -> usize;

    /// Returns the factor of scores.
    fn scale(&self) -> f64;

    /// Maps attended values `[T, H·V]`, and what followed the first three of `before`, to `[T, D]`.
    fn after(&self, y: &Tensor, others: &[Tensor]) -> Tensor;
}

/// The tensors that one layer remembers of a generation; only its mixer knows their meaning.
pub type State = Vec<Tensor>;

/// Describes where a generation keeps its tokens: the prompts end at the same column, and every step fills one more.
pub struct CacheColumns {
    pub num_sequences: i64,
    pub num_columns: i64,
    /// Columns in use, the present one included.
    pub used: i64,
    /// The row in `[B·S]` of each prompt token, `[T]`, int64.
    pub places_T: Tensor,
    /// The columns that hold something, `[B, 1, 1, S]`.
    pub filled_B11S: Tensor,
    /// True if prompts have several lengths: columns before a shorter one hold nothing of it.
    pub has_gaps: bool,
    /// The keys `[B, 1, 1, used]` that indexers chose for the present column, as [`Context::chosen`]; `None`: all.
    pub chosen: LayerCache<Option<Tensor>>,
}

impl CacheColumns {
    /// Returns the values `[T, …]` of the prompts' tokens in a cache `[B, S, …]`; zeros elsewhere.
    pub fn store(&self, values: &Tensor) -> Tensor {
        let mut shape = values.size();
        shape.splice(0..1, [self.num_sequences * self.num_columns]);
        let cache = Tensor::zeros(&shape, (values.kind(), values.device())).index_copy(0, &self.places_T, values);
        shape.splice(0..1, [self.num_sequences, self.num_columns]);
        cache.view(shape.as_slice())
    }

    /// Writes `[B, …]` of the present column into a cache `[B, S, …]`; returns the columns in use `[B, used, …]`.
    pub fn append(&self, cache: &Tensor, values: &Tensor) -> Tensor {
        cache.select(1, self.used - 1).copy_(values);
        cache.narrow(1, 0, self.used)
    }

    /// Returns which of the columns in use hold something, `[B, 1, 1, used]`.
    pub fn mask(&self) -> Tensor {
        self.filled_B11S.narrow(3, 0, self.used)
    }

    /// Works like [`CacheColumns::mask`], `[B, 1, 1, used]`, for an attention on `device`; `None`: all columns hold something. A GPU's
    /// flash attention, which divides the keys of a query among its processors, takes no mask. A CPU is given one in any case: a prompt
    /// has the same bits whatever is beside it.
    pub fn mask_on(&self, device: Device) -> Option<Tensor> {
        (self.has_gaps || device == Device::Cpu).then(|| self.mask())
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Tensor};

    use super::{CacheColumns, LayerCache};

    #[test]
    fn a_gpu_masks_the_columns_of_prompts_of_several_lengths_alone() {
        let columns = |has_gaps: bool| CacheColumns {
            num_sequences: 2,
            num_columns: 3,
            used: 2,
            places_T: Tensor::from_slice(&[0i64, 1, 3, 4]),
            filled_B11S: Tensor::from_slice(&[!has_gaps, true, true, true, true, true]).view([2, 1, 1, 3]),
            has_gaps,
            chosen: LayerCache::default(),
        };
        assert!(columns(false).mask_on(Device::Cuda(0)).is_none());
        for (has_gaps, device) in [(true, Device::Cuda(0)), (true, Device::Cpu), (false, Device::Cpu)] {
            let mask = columns(has_gaps).mask_on(device).unwrap();
            assert_eq!(mask.flatten(0, -1), Tensor::from_slice(&[!has_gaps, true, true, true]));
        }
    }
}
