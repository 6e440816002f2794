//! Keys and values of one sequence's chunks, to which later chunks attend, and their gradients, which those give.
//!
//! Chunks come in order and go in reverse: when a chunk is computed backward, all later ones are gone, and what they gave
//! is the whole gradient of its keys and values but for its own part. All rows of a layer lie together, so that what a
//! chunk attends to is a view.

use tch::Tensor;

use crate::tape::{Execution, KeyValues, Slot};

type Pair = [Tensor; 2];

/// The keys and values of one sequence on one stage.
#[derive(Default)]
pub(super) struct KeyValuePool {
    layers: Vec<Layer>,
    /// The place where each chunk begins, and the end of the last one.
    starts: Vec<i64>,
    end: i64,
}

struct Layer {
    /// `[rows, …]`
    values: Pair,
    /// The gradients, from the first backward on.
    grads: Option<Pair>,
}

impl KeyValuePool {
    /// Returns the earlier rows that the next chunk attends to. Keys are `[rows, K, C]`, values `[rows, K, V]`.
    pub fn past(&self, key_values: &[KeyValues]) -> Vec<(Slot, Tensor)> {
        let mut inputs = Vec::new();
        for (number, slots) in key_values.iter().enumerate() {
            for (index, slot) in slots.past.iter().flatten().enumerate() {
                let rows = self.layers[number].values[index].narrow(0, self.end - slots.num_past, slots.num_past);
                inputs.push((*slot, rows));
            }
        }
        inputs
    }

    /// Takes the next chunk's of a sequence of `num_tokens` in all.
    pub fn push(&mut self, run: &Execution, key_values: &[KeyValues], num_tokens: i64) {
        let _no_grad = tch::no_grad_guard();
        let own: Vec<Pair> = key_values.iter().map(|layer| layer.own.map(|slot| run.value(slot).detach())).collect();
        if self.layers.is_empty() {
            let rows = |x: &Tensor| {
                let shape = [&[num_tokens], &x.size()[1..]].concat();
                x.new_empty(shape.as_slice(), (x.kind(), x.device()))
            };
            let layer = |pair: &Pair| Layer { values: [rows(&pair[0]), rows(&pair[1])], grads: None };
            self.layers = own.iter().map(layer).collect();
        }
        self.starts.push(self.end);
        let len = own[0][0].size()[0];
        for (layer, pair) in self.layers.iter().zip(&own) {
            for (values, x) in layer.values.iter().zip(pair) {
                values.narrow(0, self.end, len).copy_(x);
            }
        }
        self.end += len;
    }

    /// Gives up the last chunk; what later ones gave it, layer by layer.
    pub fn pop(&mut self) -> Vec<Option<Pair>> {
        let start = self.starts.pop().expect("a chunk that was computed");
        let len = self.end - start;
        self.end = start;
        let of = |layer: &Layer| layer.grads.as_ref().map(|[k, v]| [k.narrow(0, start, len), v.narrow(0, start, len)]);
        self.layers.iter().map(of).collect()
    }

    /// Returns whether no chunk has its keys and values here.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Takes gradients of what [`KeyValuePool::past`] gave out of an execution, as far as they are there.
    pub fn take_grads(&mut self, run: &mut Execution, key_values: &[KeyValues]) {
        let _no_grad = tch::no_grad_guard();
        for (layer, slots) in self.layers.iter_mut().zip(key_values) {
            for (index, slot) in slots.past.iter().flatten().enumerate() {
                let Some(grad) = run.take_grad(*slot) else { continue };
                let zeros = || [0, 1].map(|index: usize| layer.values[index].zeros_like());
                let sums = layer.grads.get_or_insert_with(zeros);
                let mut sum = sums[index].narrow(0, self.end - slots.num_past, slots.num_past);
                let _ = sum.g_add_(&grad);
            }
        }
    }

    /// Returns the number of bytes of keys, values and their gradients.
    pub fn num_bytes(&self) -> usize {
        let bytes = |x: &Tensor| x.numel() * x.kind().elt_size_in_bytes();
        let pairs = self.layers.iter().flat_map(|layer| std::iter::once(&layer.values).chain(&layer.grads));
        pairs.flatten().map(bytes).sum()
    }
}
