//! Rows on their way to experts that are spread over ranks, and back. Nothing is dropped and nothing padded: every rank knows how many
//! rows every other has for each expert, and sends as many. A rank may compute other work until its rows are there.

use std::ops::Range;

use tch::{Device, Tensor};

use crate::comm::{ProcessGroup, Started};
use crate::device::upload;
use crate::native::NativeError;
use crate::params::share;

/// The rows that go to each rank and come from it. Experts are dealt as [`share`] says.
pub(super) struct ExpertExchange {
    /// Rows that this rank sends to each rank, and takes of each.
    sent: Vec<i64>,
    taken: Vec<i64>,
    /// The place of each row here, sorted by expert and then by the rank that it came from, among those that were taken; and the inverse.
    order: Tensor,
    places: Tensor,
    counts: Tensor,
}

impl ExpertExchange {
    /// `counts` `[ranks, E]`, on the host: the rows that each rank has for each expert. Rows are on `device`.
    pub fn new(group: &ProcessGroup, counts: &Tensor, device: Device) -> ExpertExchange {
        let (ranks, rank) = (group.world(), group.rank());
        let num_experts = counts.size()[1] as usize;
        let all = Vec::<i64>::try_from(counts.flatten(0, -1)).expect("counts are integers");
        let experts = |rank: usize| -> Range<usize> {
            let held = share(num_experts as i64, ranks, rank);
            held.start as usize..held.end as usize
        };
        let of = |from: usize, experts: Range<usize>| &all[from * num_experts..][experts];
        let sent = (0..ranks).map(|to| of(rank, experts(to)).iter().sum()).collect();
        let taken: Vec<i64> = (0..ranks).map(|from| of(from, experts(rank)).iter().sum()).collect();
        let own = experts(rank);
        // Where the rows of each rank for each expert here begin.
        let mut at = 0;
        let starts: Vec<Vec<i64>> = (0..ranks)
            .map(|from| {
                let next = |count: &i64| {
                    at += count;
                    at - count
                };
                of(from, own.clone()).iter().map(next).collect()
            })
            .collect();
        let mut order = Vec::with_capacity(at as usize);
        let mut sums = Vec::with_capacity(own.len());
        for (index, expert) in own.enumerate() {
            let before = order.len();
            for (from, starts) in starts.iter().enumerate() {
                order.extend(starts[index]..starts[index] + all[from * num_experts + expert]);
            }
            sums.push((order.len() - before) as i64);
        }
        let mut places = vec![0i64; order.len()];
        (0..).zip(&order).for_each(|(row, place)| places[*place as usize] = row);
        let tensor = |values: &[i64]| upload(&Tensor::from_slice(values), device);
        ExpertExchange { sent, taken, order: tensor(&order), places: tensor(&places), counts: tensor(&sums) }
    }

    /// Returns the number of rows of each expert here, `[experts of this rank]`.
    pub fn counts(&self) -> Tensor {
        self.counts.shallow_clone()
    }

    /// Sends rows sorted by expert to where the experts are, sorted so again. `[N, D]` to `[rows taken, D]`.
    ///
    /// # Errors
    /// A rank is gone, or an operator failed.
    pub fn to_experts(&self, group: &ProcessGroup, rows: &Tensor) -> Result<Moving, NativeError> {
        let (rows, started) = group.start_all_to_all(rows, &self.sent, &self.taken)?;
        Ok(Moving { rows, started, order: Some(self.order.shallow_clone()) })
    }

    /// Sends rows back to where they came from, in their order there. `[rows taken, D]` to `[N, D]`.
    ///
    /// # Errors
    /// A rank is gone, or an operator failed.
    pub fn back(&self, group: &ProcessGroup, rows: &Tensor) -> Result<Moving, NativeError> {
        let rows = rows.index_select(0, &self.places);
        let (rows, started) = group.start_all_to_all(&rows, &self.taken, &self.sent)?;
        Ok(Moving { rows, started, order: None })
    }
}

/// Rows on their way.
#[must_use]
pub(super) struct Moving {
    rows: Tensor,
    started: Started,
    /// The order in which the rows are wanted.
    order: Option<Tensor>,
}

impl Moving {
    /// Returns the rows `[rows, D]`, in the order in which they are wanted.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn wait(self) -> Result<Tensor, NativeError> {
        self.started.wait()?;
        let _no_grad = tch::no_grad_guard();
        Ok(self.order.map_or(self.rows.shallow_clone(), |order| self.rows.index_select(0, &order)))
    }
}
