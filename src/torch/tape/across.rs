//! The tape's operations between segments among the ranks that share a replica's layers, or the experts of several.
//!
//! A sharded region is entered and left. Within it every tensor-parallel rank has all of a packed row's tokens and its
//! own part of the layer, so that what a region gives is a sum over the ranks, and so is the gradient of what it reads.
//! Outside the tokens are the same on all ranks or, in sequence parallelism, split among them. A parameter that the
//! ranks have alike has a part of its gradient on each of them, in the regions and outside.

use tch::{Device, Tensor};

use super::exchange::{ExpertExchange, Moving};
use crate::comm::{Mesh, ProcessGroup};
use crate::native::NativeError;
use crate::params::share;

/// Rows are split as [`share`] says; `rows` are all ranks' together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Across {
    /// The value; the sum of the ranks' gradients.
    CopyTo,
    /// The sum of the ranks' values; the gradient.
    ReduceFrom,
    /// All ranks' rows; this rank's rows of the sum of the gradients.
    GatherTo { rows: i64 },
    /// This rank's rows of the sum of the values; all ranks' rows of the gradient.
    ReduceScatterFrom { rows: i64 },
    /// All ranks' rows; this rank's rows of the gradient, which all have alike.
    GatherRows { rows: i64 },
    /// This rank's rows of what all ranks have alike; all ranks' rows of the gradient.
    SplitRows { rows: i64 },
    /// The value; the gradient on the first rank and none on others: what all ranks compute alike counts once.
    CountOnce,
    /// The logarithm of the sum over ranks of exponentials; each rank's share of the gradient.
    LogSumExp,
    /// The counts of rows for each expert `[E]`, those of every expert-parallel rank: `[ranks, E]`, on the host.
    Counts,
    /// Rows sorted by expert, to the ranks that have the experts, where they are sorted so again; and how many rows each
    /// expert there got. Reads what `Counts` gave as well.
    ToExperts,
    /// The way back.
    FromExperts,
}

/// A tensor, or one on its way.
pub(super) enum Crossed {
    Here(Tensor),
    Moving(Moving),
}

/// Returns the first value, the others, and what the backward needs.
pub(super) fn forward(
    across: Across,
    mesh: &Mesh,
    reads: &[Tensor],
) -> Result<(Crossed, Vec<Tensor>, Vec<Tensor>), NativeError> {
    let (tp, x) = (&mesh.tp, &reads[0]);
    let value = match across {
        Across::CopyTo | Across::CountOnce => x.shallow_clone(),
        Across::ReduceFrom => sum(tp, x)?,
        Across::GatherTo { rows } | Across::GatherRows { rows } => gather_rows(tp, x, rows)?,
        Across::SplitRows { rows } => own_rows(tp, x, rows),
        Across::ReduceScatterFrom { rows } => scatter_rows(tp, x, rows)?,
        Across::LogSumExp => {
            let all = tp.all_gather_flat(x)?.logsumexp([0i64].as_slice(), false);
            let part = (x - &all).exp_();
            return Ok((Crossed::Here(all), Vec::new(), vec![part]));
        }
        // On the host, where every way to the experts and back reads them: the GPU is idle by now, and computes then.
        Across::Counts => mesh.ep.all_gather_flat(x)?.to_device(Device::Cpu),
        Across::ToExperts => {
            let exchange = ExpertExchange::new(&mesh.ep, &reads[1], x.device());
            let moving = exchange.to_experts(&mesh.ep, x)?;
            return Ok((Crossed::Moving(moving), vec![exchange.counts()], vec![reads[1].shallow_clone()]));
        }
        Across::FromExperts => {
            let moving = ExpertExchange::new(&mesh.ep, &reads[1], x.device()).back(&mesh.ep, x)?;
            return Ok((Crossed::Moving(moving), Vec::new(), vec![reads[1].shallow_clone()]));
        }
    };
    Ok((Crossed::Here(value), Vec::new(), Vec::new()))
}

/// Returns the gradient of what was read first; the others have none.
pub(super) fn backward(
    across: Across,
    mesh: &Mesh,
    saved: &[Tensor],
    received: &[Option<Tensor>],
) -> Result<Option<Crossed>, NativeError> {
    let gradient = received[0].as_ref().expect("a backward follows a gradient");
    let tp = &mesh.tp;
    let of_read = match across {
        Across::CopyTo => sum(tp, gradient)?,
        Across::ReduceFrom => gradient.shallow_clone(),
        Across::GatherTo { rows } => scatter_rows(tp, gradient, rows)?,
        Across::ReduceScatterFrom { rows } | Across::SplitRows { rows } => gather_rows(tp, gradient, rows)?,
        Across::GatherRows { rows } => own_rows(tp, gradient, rows),
        Across::CountOnce if tp.rank() == 0 => gradient.shallow_clone(),
        Across::CountOnce | Across::Counts => return Ok(None),
        Across::LogSumExp => &saved[0] * gradient,
        Across::ToExperts => {
            let moving = ExpertExchange::new(&mesh.ep, &saved[0], gradient.device()).back(&mesh.ep, gradient)?;
            return Ok(Some(Crossed::Moving(moving)));
        }
        Across::FromExperts => {
            let exchange = ExpertExchange::new(&mesh.ep, &saved[0], gradient.device());
            let moving = exchange.to_experts(&mesh.ep, gradient)?;
            return Ok(Some(Crossed::Moving(moving)));
        }
    };
    Ok(Some(Crossed::Here(of_read)))
}

fn sum(group: &ProcessGroup, x: &Tensor) -> Result<Tensor, NativeError> {
    if group.world() == 1 {
        return Ok(x.shallow_clone());
    }
    let sum = x.contiguous();
    let sum = if sum.data_ptr() == x.data_ptr() { sum.copy() } else { sum };
    group.all_reduce_sum(&sum)?;
    Ok(sum)
}

/// Returns the ranks' rows one after the other, for this rank's.
fn gather_rows(group: &ProcessGroup, x: &Tensor, rows: i64) -> Result<Tensor, NativeError> {
    let (world, most) = (group.world(), most_rows(group, rows));
    let gathered = group.all_gather_flat(&padded(x, most))?;
    if rows == most * world as i64 {
        return Ok(gathered.flatten(0, 1));
    }
    let len = |rank: usize| share(rows, world, rank).end - share(rows, world, rank).start;
    let parts: Vec<Tensor> = (0..world).map(|rank| gathered.get(rank as i64).narrow(0, 0, len(rank))).collect();
    Ok(Tensor::cat(&parts, 0))
}

/// This rank's rows of the sum.
fn scatter_rows(group: &ProcessGroup, x: &Tensor, rows: i64) -> Result<Tensor, NativeError> {
    let (world, most) = (group.world(), most_rows(group, rows));
    if rows == most * world as i64 {
        return group.reduce_scatter_sum(x);
    }
    let held = |rank: usize| share(rows, world, rank);
    let part = |rank: usize| padded(&x.narrow(0, held(rank).start, held(rank).end - held(rank).start), most);
    let parts = Tensor::cat(&(0..world).map(part).collect::<Vec<_>>(), 0);
    let own = held(group.rank());
    Ok(group.reduce_scatter_sum(&parts)?.narrow(0, 0, own.end - own.start))
}

fn own_rows(group: &ProcessGroup, x: &Tensor, rows: i64) -> Tensor {
    let own = share(rows, group.world(), group.rank());
    x.narrow(0, own.start, own.end - own.start)
}

fn most_rows(group: &ProcessGroup, rows: i64) -> i64 {
    (rows as u64).div_ceil(group.world() as u64) as i64
}

/// Adds rows of zeros behind those of `x`, up to `rows`.
fn padded(x: &Tensor, rows: i64) -> Tensor {
    let mut shape = x.size();
    if shape[0] == rows {
        return x.contiguous();
    }
    shape[0] = rows - shape[0];
    Tensor::cat(&[x, &Tensor::zeros(shape, (x.kind(), x.device()))], 0)
}
