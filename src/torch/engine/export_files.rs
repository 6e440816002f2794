//! Numbers the files of weights that pools write into a checkpoint together.

use crate::train::Export;
use crate::train::hf::{CarriedTensors, FilesOf, MAX_SHARD_SIZE, Shards};
use std::sync::Arc;

/// The files that the pools write into a checkpoint, besides their state.
#[derive(Clone, Debug)]
pub struct Exports {
    /// The files that the encoder pool of this actor writes.
    pub encoder: Export,
    pub foundation: Export,
    /// The files of weights of all pools, by what they hold.
    totals: Vec<(FilesOf, usize)>,
    /// The tensors that belong to neither and are taken along, where this actor writes them.
    pub(super) carried: Vec<(Arc<CarriedTensors>, Shards)>,
}

impl Exports {
    /// Returns all weights, in Hugging Face's shards, first the encoder pools', for pools that need so many files: `own` is the number of
    /// the actor's encoder pool. The foundation needs so many for each of its stages, of which this is `part`.
    pub fn weights(encoders: (&[usize], usize), foundation: &[usize], part: usize) -> Self {
        let (of, max_size) = (FilesOf::Whole, MAX_SHARD_SIZE);
        let [encoder, foundation] =
            numbered(Shards { of, first: 1, count: 0, total: 0, max_size }, encoders, foundation, part);
        Self { totals: vec![(of, encoder.total)], ..Self::new(Export::Weights(encoder), Export::Weights(foundation)) }
    }

    /// Works like [`Exports::weights`] for a diffusion model: `counts` has what each of its networks needs.
    pub(super) fn networks(counts: Vec<(FilesOf, [Vec<usize>; 2])>, own: usize, part: usize) -> Self {
        let (mut encoders, mut foundations, mut totals) = (Vec::new(), Vec::new(), Vec::new());
        for (of, [encoder, foundation]) in counts {
            let empty = Shards { of, first: 1, count: 0, total: 0, max_size: MAX_SHARD_SIZE };
            let [encoder, foundation] = numbered(empty, (&encoder, own), &foundation, part);
            totals.push((of, encoder.total));
            encoders.extend((encoder.count > 0).then_some(encoder));
            foundations.extend((foundation.count > 0).then_some(foundation));
        }
        Self { totals, ..Self::new(Export::Networks(encoders), Export::Networks(foundations)) }
    }

    /// Exports both parts; files are numbered once it is known how many there are.
    pub(super) fn new(encoder: Export, foundation: Export) -> Self {
        Self { encoder, foundation, totals: Vec::new(), carried: Vec::new() }
    }

    /// Returns the same files of a pool of encoders that writes nothing.
    #[must_use]
    pub(super) fn without_encoder(self) -> Self {
        Self { encoder: Export::Adapter(None), ..self }
    }

    /// Returns the same files with files of these tensors behind those of the pools, which this actor writes where `writes` is true.
    #[must_use]
    pub(super) fn carrying(mut self, of: FilesOf, tensors: CarriedTensors, writes: bool) -> Self {
        let count = tensors.num_files();
        let Some((_, before)) = self.totals.iter_mut().find(|(other, _)| *other == of) else { return self };
        let (first, total) = (*before + 1, *before + count);
        *before = total;
        let shards = self.encoder.shards_mut().iter_mut().chain(self.foundation.shards_mut());
        shards.filter(|shards| shards.of == of).for_each(|shards| shards.total = total);
        if writes {
            let shards = Shards { of, first, count, total, max_size: MAX_SHARD_SIZE };
            self.carried.push((Arc::new(tensors), shards));
        }
        self
    }
}

/// Returns the shards of an encoder pool and of a stage of the foundation, where pools need so many files.
fn numbered(empty: Shards, (encoders, own): (&[usize], usize), foundation: &[usize], part: usize) -> [Shards; 2] {
    let all = encoders.iter().sum::<usize>();
    let total = all + foundation.iter().sum::<usize>();
    let (own_before, before) = (encoders[..own].iter().sum::<usize>(), foundation[..part].iter().sum::<usize>());
    let count = encoders.get(own).copied().unwrap_or(0);
    [(1 + own_before, count), (1 + all + before, foundation[part])].map(|(first, count)| Shards {
        first,
        count,
        total,
        ..empty
    })
}
