//! The ranks that a decoder's layers are split among while it decodes: sums of their parts, whole scores, and one choice for all.
//!
//! Shapes: T tokens, D hidden size, B sequences, V tokens of the vocabulary.

use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

use crate::comm::ProcessGroup;
use crate::native::NativeError;
use crate::params::share;

/// One rank's way to the others. The first error is kept, and nothing is sent behind it.
pub struct DecodingRanks {
    group: ProcessGroup,
    /// The number of tokens of the whole model's vocabulary.
    vocab_size: i64,
    failed: RefCell<Option<NativeError>>,
}

impl DecodingRanks {
    /// `group` are the tensor-parallel ranks of a model whose vocabulary has `vocab_size` tokens.
    pub fn new(group: ProcessGroup, vocab_size: i64) -> DecodingRanks {
        DecodingRanks { group, vocab_size, failed: RefCell::new(None) }
    }

    /// All of the model is here.
    pub(super) fn alone() -> DecodingRanks {
        DecodingRanks::new(ProcessGroup::single(), 0)
    }

    /// Returns whether this rank decides which sequences go on.
    pub(super) fn is_first(&self) -> bool {
        self.group.rank() == 0
    }

    /// Returns the sum of the ranks' parts `[T, D]`.
    pub(super) fn sum(&self, part_TD: Tensor) -> Tensor {
        if self.group.world() == 1 {
            return part_TD;
        }
        let sum_TD = part_TD.contiguous();
        self.attempt(|| self.group.all_reduce_sum(&sum_TD));
        sum_TD
    }

    /// Returns the scores `[B, V]` of all tokens, of which each rank has its own.
    pub(super) fn whole_scores(&self, own: Tensor) -> Tensor {
        let ranks = self.group.world();
        if ranks == 1 {
            return own;
        }
        let parts: Vec<i64> =
            (0..ranks).map(|rank| share(self.vocab_size, ranks, rank)).map(|it| it.end - it.start).collect();
        let widest = parts.iter().copied().max().unwrap_or(0);
        // Ranks may have one token more or less, and what is gathered has one shape.
        let padded = own.constant_pad_nd([0, widest - own.size()[1]]).contiguous();
        let mut gathered = Vec::new();
        self.attempt(|| self.group.all_gather(&padded).map(|all| gathered = all));
        match gathered.is_empty() {
            true => own,
            false => {
                let narrowed: Vec<Tensor> =
                    gathered.iter().zip(&parts).map(|(all, len)| all.narrow(1, 0, *len)).collect();
                Tensor::cat(&narrowed, -1)
            }
        }
    }

    /// The next tokens and which sequences go on, as the first rank has them.
    pub(super) fn agree(&self, next: &mut [i64], running: &mut [bool], device: Device) {
        if self.group.world() == 1 {
            return;
        }
        let flags = running.iter().map(|runs| i64::from(*runs));
        let both: Vec<i64> = next.iter().copied().chain(flags).collect();
        let both = Tensor::from_slice(&both).to_device(device);
        self.attempt(|| self.group.broadcast(&both, 0));
        let both = Vec::<i64>::try_from(both.to_kind(Kind::Int64)).expect("a row of integers");
        let (tokens, flags) = both.split_at(running.len());
        next.copy_from_slice(tokens);
        running.iter_mut().zip(flags).for_each(|(runs, flag)| *runs = *flag != 0);
    }

    /// # Errors
    /// A rank has ended, or did not answer in time.
    pub(super) fn check(&self) -> Result<(), NativeError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn attempt(&self, communicate: impl FnOnce() -> Result<(), NativeError>) {
        let mut failed = self.failed.borrow_mut();
        if failed.is_none() {
            *failed = communicate().err();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tch::{Device, Kind, Tensor};

    use super::DecodingRanks;
    use crate::comm::ProcessGroup;
    use crate::params::share;

    #[test]
    fn scores_of_an_uneven_vocabulary_are_put_together() {
        let place = tempfile::tempdir().unwrap();
        let store = place.path().join("store");
        let of_rank = |rank: usize| {
            let group = ProcessGroup::gloo(&store, "scores", rank, 2, Duration::from_secs(60)).unwrap();
            let (ranks, part) = (DecodingRanks::new(group, 7), share(7, 2, rank));
            let own = Tensor::arange_start(part.start, part.end, (Kind::Float, Device::Cpu)).repeat([2, 1]);
            let whole = ranks.whole_scores(own);
            let (mut next, mut running) = (vec![rank as i64; 2], [rank == 0, false]);
            ranks.agree(&mut next, &mut running, Device::Cpu);
            ranks.check().unwrap();
            assert_eq!((next, running), (vec![0, 0], [true, false]));
            Vec::<f32>::try_from(whole.get(1)).unwrap()
        };
        std::thread::scope(|scope| {
            let of_rank = &of_rank;
            let found = [0, 1].map(|rank| scope.spawn(move || of_rank(rank)));
            for rank in found {
                assert_eq!(rank.join().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            }
        });
    }
}
