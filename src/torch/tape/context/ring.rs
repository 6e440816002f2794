//! Ring attention (Liu et al. 2023): every rank keeps its queries, and keys and values pass from rank to rank. While the queries attend
//! to one rank's keys, the next rank's are on their way. The backward sends them through all ranks once more, with their gradients a step
//! behind.
//!
//! Shapes: T tokens of this rank, H heads of queries, K of keys, C width of queries and keys, V of values.

use std::rc::Rc;

use tch::Tensor;

use super::blocks::{Sums, add_gradients, sum_kind};
use super::row::ContextShard;
use crate::comm::{Mesh, ProcessGroup, Started};
use crate::native::NativeError;
use crate::tape::record::{Exchange, Needs};

pub(super) struct Ring {
    pub row: Rc<ContextShard>,
    pub scale: f64,
}

/// Something that goes to the next rank while its like comes from the one before.
struct Pass {
    sent: Started,
    received: Started,
    /// The tensor that is sent, which is held until then.
    _mine: Tensor,
    theirs: Tensor,
}

impl Pass {
    /// Begins to send `mine` to the next rank, and to receive something as wide, of `rows` rows, from the one before.
    fn start(group: &ProcessGroup, mine: Tensor, rows: i64, tag: i32) -> Result<Pass, NativeError> {
        let (rank, world) = (group.rank(), group.world());
        let mine = mine.contiguous();
        let mut shape = mine.size();
        shape[0] = rows;
        let theirs = Tensor::empty(shape, (mine.kind(), mine.device()));
        let received = group.start_recv(&theirs, (rank + world - 1) % world, tag)?;
        let sent = group.start_send(&mine, (rank + 1) % world, tag)?;
        Ok(Pass { sent, received, _mine: mine, theirs })
    }

    fn wait(self) -> Result<Tensor, NativeError> {
        self.received.wait()?;
        self.sent.wait()?;
        Ok(self.theirs)
    }
}

impl Ring {
    /// Keys with values `[T, K, C + V]` of one rank after the other, this one's first, with what `visit` does meanwhile.
    fn round(
        &self,
        group: &ProcessGroup,
        keys_values: Tensor,
        mut visit: impl FnMut(usize, usize, &Tensor) -> Result<(), NativeError>,
    ) -> Result<(), NativeError> {
        let (rank, world) = (group.rank(), group.world());
        let mut held = keys_values;
        for step in 0..world {
            let from = |step: usize| (rank + world - step) % world;
            let next = match step + 1 < world {
                true => {
                    let rows = self.row.num_rows(from(step + 1));
                    Some(Pass::start(group, held.shallow_clone(), rows, 2 * step as i32)?)
                }
                false => None,
            };
            visit(step, from(step), &held)?;
            if let Some(next) = next {
                held = next.wait()?;
            }
        }
        Ok(())
    }
}

impl Exchange for Ring {
    /// Maps `q_THC`, `k_TKC`, `v_TKV` to `[T, H·V]`.
    fn forward(
        &self,
        mesh: &Mesh,
        reads: &[Tensor],
        needs: Option<&Needs>,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>), NativeError> {
        let [q, k, v] = reads else { unreachable!("queries, keys and values") };
        let (width, values) = (k.size()[2], v.size()[2]);
        let sums = Sums::new(q, values);
        self.round(&mesh.cp, Tensor::cat(&[k, v], 2), |_, from, held| {
            let (k, v) = (held.narrow(2, 0, width), held.narrow(2, width, values));
            self.row.batches(from).iter().for_each(|batch| sums.see(batch, [q, &k, &v], self.scale));
            Ok(())
        })?;
        let y = sums.y_THV.to_kind(q.kind());
        let saved = match needs {
            Some(_) => vec![q.shallow_clone(), k.shallow_clone(), v.shallow_clone(), y.shallow_clone(), sums.lse_TH],
            None => Vec::new(),
        };
        Ok((vec![y.flatten(1, 2)], saved))
    }

    fn backward(
        &self,
        mesh: &Mesh,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        _: &Needs,
    ) -> Result<Vec<Option<Tensor>>, NativeError> {
        let [q, k, v, y, lse] = &saved[..] else { unreachable!("five were saved") };
        let Some(dy) = &grads[0] else { return Ok(vec![None, None, None]) };
        let (group, kind) = (&mesh.cp, q.kind());
        let (width, values) = (k.size()[2], v.size()[2]);
        let dy = dy.reshape(y.size());
        let dq = Tensor::zeros(q.size(), (sum_kind(q), q.device()));
        let mut behind: Option<Pass> = None;
        let mut own = None;
        self.round(group, Tensor::cat(&[k, v], 2), |step, from, held| {
            let of_held = Tensor::zeros(held.size(), (sum_kind(q), q.device()));
            let (dk, dv) = (of_held.narrow(2, 0, width), of_held.narrow(2, width, values));
            let (k, v) = (held.narrow(2, 0, width), held.narrow(2, width, values));
            for batch in self.row.batches(from) {
                add_gradients(batch, [&dq, &dk, &dv], [q, &k, &v], [&dy, y, lse], self.scale);
            }
            // What the ranks before have found of the same keys.
            let of_held = match behind.take() {
                Some(pass) => pass.wait()? + of_held,
                None => of_held,
            };
            if group.world() == 1 {
                own = Some(of_held);
                return Ok(());
            }
            // The next keys here; after the last step, this rank's own.
            let next = (from + group.world() - 1) % group.world();
            behind = Some(Pass::start(group, of_held, self.row.num_rows(next), 2 * step as i32 + 1)?);
            Ok(())
        })?;
        let of_own = match behind {
            Some(pass) => pass.wait()?,
            None => own.expect("a ring of one has its own"),
        };
        let of_own = if kind == of_own.kind() { of_own } else { of_own.to_kind(kind) };
        let parts = [dq.to_kind(kind), of_own.narrow(2, 0, width), of_own.narrow(2, width, values)];
        Ok(parts.into_iter().map(Some).collect())
    }
}
