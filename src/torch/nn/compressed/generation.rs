//! The mixer one token at a time. Its state is, of each sequence, the vectors of all tokens; in layers that compress also
//! what tokens give to entries, the entries that are complete, the same of an indexer, and the tokens' rotations, since an
//! entry stands where its first token does.
//!
//! Shapes: B sequences, S columns, U columns in use, C width of a head, W entries.

use tch::{Kind, Tensor};

use super::attention::{Compressed, CompressedAttention, Entries, TokenRows};
use super::compressor::{Compressor, Gated};
use super::turn::turn_last;
use crate::nn::Rope;
use crate::nn::attend::attend_sinking;
use crate::nn::mixer::{CacheColumns, Context, State};

/// Places in the state: the tokens' vectors; what they give to entries; the entries; cosines and sines; and of an indexer
/// what tokens give and the entries.
const KV: usize = 0;
const GATED: usize = 1;
const ENTRIES: usize = 3;
const TABLES: usize = 4;
const INDEX_GATED: usize = 6;
const INDEX_ENTRIES: usize = 8;

impl CompressedAttention {
    /// Returns the state after prompts, whose `entries` come by batches of documents.
    pub(super) fn first_state(
        &self,
        rows: &TokenRows,
        x_TD: &Tensor,
        context: &Context,
        columns: &CacheColumns,
        entries: &[Entries],
    ) -> State {
        let mut state = vec![columns.store(&rows.kv.squeeze_dim(1))];
        let Some(compressed) = &self.compressed else { return state };
        let capacity = (columns.num_columns / compressed.rate).max(1);
        let stored = |of: &dyn Fn(&Entries) -> Tensor, width: i64| {
            let all = Tensor::zeros([columns.num_sequences, capacity, width], (rows.kv.kind(), rows.kv.device()));
            for (batch, entries) in context.documents.batches().iter().zip(entries) {
                let entries = of(entries);
                for (row, document) in (0..).zip(&batch.documents) {
                    all.get(*document as i64).narrow(0, 0, entries.size()[1]).copy_(&entries.get(row));
                }
            }
            all
        };
        let Gated { kv, gate } = compressed.compressor.gated(x_TD);
        state.extend([columns.store(&kv), columns.store(&gate)]);
        state.push(stored(&|entries| entries.kv.shallow_clone(), self.config.head_dim));
        state.extend(context.rope.tables().map(|table| columns.store(table)));
        if let Some(chooser) = &compressed.chooser {
            let Gated { kv, gate } = chooser.compressor.gated(x_TD);
            let width = chooser.head_dim();
            state.extend([columns.store(&kv), columns.store(&gate)]);
            let of_index = |entries: &Entries| entries.index.as_ref().expect("a layer with an indexer").shallow_clone();
            state.push(stored(&of_index, width));
        }
        state
    }

    /// Returns the attended values `[B, H·C]` of the present tokens.
    pub(super) fn next(
        &self,
        rows: &TokenRows,
        x_BD: &Tensor,
        rope: &Rope,
        columns: &CacheColumns,
        state: &[Tensor],
    ) -> Tensor {
        let seen = self.config.window.min(columns.used);
        let all = columns.append(&state[KV], &rows.kv.squeeze_dim(1));
        let mut keys = all.narrow(1, columns.used - seen, seen);
        let mut mask = columns.mask().narrow(3, columns.used - seen, seen);
        if let Some(compressed) = &self.compressed {
            let (entries, visible) = compressed.next(rows, x_BD, rope, columns, state);
            keys = Tensor::cat(&[keys, entries], 1);
            mask = Tensor::cat(&[mask, visible.unsqueeze(1)], 3);
        }
        let (q, keys) = (rows.q.unsqueeze(1), keys.unsqueeze(2));
        attend_sinking(&q, &keys, &keys, Some(&mask), false, self.scale().into(), Some(&self.sinks)).flatten(1, 2)
    }
}

impl Compressed {
    /// Returns the entries `[B, W, C]` and which of them the present tokens see, `[B, 1, W]`.
    fn next(
        &self,
        rows: &TokenRows,
        x_BD: &Tensor,
        rope: &Rope,
        columns: &CacheColumns,
        state: &[Tensor],
    ) -> (Tensor, Tensor) {
        let lens_B = columns.mask().flatten(1, 3).sum_dim_intlist([1i64].as_slice(), false, Kind::Int64);
        let tables = [0, 1].map(|index| columns.append(&state[TABLES + index], rope.tables()[index]));
        let gated = self.compressor.gated(x_BD);
        self.complete(&self.compressor, &gated, &state[GATED..=ENTRIES], &tables, (rope, columns, &lens_B));
        let count = (columns.used / self.rate).max(1);
        let ready = lens_B.divide_scalar_mode(self.rate, "floor").view([-1, 1, 1]);
        let numbers = Tensor::arange(count, (Kind::Int64, lens_B.device())).view([1, 1, -1]);
        let mut visible = numbers.lt_tensor(&ready);
        if let Some(chooser) = &self.chooser {
            let index = chooser.tokens(x_BD, &rows.latent, rope);
            let states = &state[INDEX_GATED..=INDEX_ENTRIES];
            self.complete(&chooser.compressor, &index.gated, states, &tables, (rope, columns, &lens_B));
            let (q, weights) = (index.q.unsqueeze(1), index.weights.unsqueeze(1));
            visible = chooser.choose(&q, &weights, &states[2].narrow(1, 0, count), &visible);
        }
        (state[ENTRIES].narrow(1, 0, count), visible)
    }

    /// Takes the present tokens, and puts the entries that they complete beside the others. `states`: vectors, gates and
    /// entries.
    fn complete(
        &self,
        compressor: &Compressor,
        gated: &Gated,
        states: &[Tensor],
        tables: &[Tensor; 2],
        (rope, columns, lens_B): (&Rope, &CacheColumns, &Tensor),
    ) {
        let (kv, gate) = (columns.append(&states[0], &gated.kv), columns.append(&states[1], &gated.gate));
        let (used, reach) = (columns.used, compressor.reach());
        if used < self.rate {
            return;
        }
        // Columns before the first are those of no sequence that completes more than its first entry.
        let last = |x: &Tensor| {
            let held = reach.min(used);
            x.narrow(1, used - held, held).constant_pad_nd([0, 0, reach - held, 0])
        };
        let slots = (lens_B.divide_scalar_mode(self.rate, "floor") - 1).clamp_min(0);
        let entry = compressor.last_entry(&Gated { kv: last(&kv), gate: last(&gate) }, &slots.eq(0));
        let of_first = rope.with_tables(tables.each_ref().map(|table| table.select(1, used - self.rate)));
        let entry = turn_last(&entry.unsqueeze(1), &of_first);
        let places = slots.view([-1, 1, 1]).expand_as(&entry);
        let is_due = lens_B.remainder(self.rate).eq(0).view([-1, 1, 1]);
        let old = states[2].gather(1, &places, false);
        let _ = states[2].shallow_clone().scatter_(1, &places, &entry.where_self(&is_due, &old));
    }
}
