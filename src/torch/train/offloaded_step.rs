//! AdamW's step for state that is on the host while gradients and weights are on a device: gradients come over in chunks, one on its
//! way while another is computed with, and new weights go back.
//!
//! The copies are on a thread and a stream of their own, from and to pinned buffers ([`Transfers`]); the state itself never
//! crosses the bus, and is not pinned. Nothing is taken of the device's memory.

use super::adamw8bit::part_of;
use crate::native::{AdamWStep, NativeError, QuantizedMoment, adamw, adamw_8bit};
use crate::tape::{Transfer, Transfers};
use std::collections::VecDeque;
use tch::{Kind, Tensor};

/// Elements of a chunk: 64 MB of gradients.
const CHUNK: i64 = 16 << 20;

/// Chunks whose new weights are on their way at once.
const LEAVING: usize = 2;

/// The elements that AdamW changes in one pass, which lie one after the other, flat.
pub(super) struct Change {
    /// The place of the first element in the state.
    pub at: i64,
    /// The weights, of the model's kind.
    pub values: Tensor,
    /// The gradient of the weights, float32.
    pub grad: Tensor,
    pub moments: MomentsOf,
    pub step: AdamWStep,
}

/// The moments of the elements of a change.
pub(super) enum MomentsOf {
    Float([Tensor; 2]),
    Bytes([QuantizedMoment; 2]),
}

impl MomentsOf {
    /// Takes a step of `params`, flat `[len]`, float32, on the CPU, with `grad` `[len]`, float32; `rounded`, where it is given, gets the
    /// result `[len]` in bfloat16.
    pub fn step_on_cpu(&self, params: &Tensor, rounded: Option<&Tensor>, grad: &Tensor, step: &AdamWStep) {
        match self {
            Self::Float([mean, square]) => adamw(params, rounded, grad, [mean, square], step),
            Self::Bytes(moments) => adamw_8bit(params, rounded, grad, moments, step),
        }
    }

    /// Returns the moments of the `len` elements from `start` on, which is at the start of a block.
    fn narrow(&self, start: i64, len: i64) -> Self {
        match self {
            Self::Float(moments) => Self::Float(moments.each_ref().map(|moment| moment.narrow(0, start, len))),
            Self::Bytes(moments) => Self::Bytes(moments.each_ref().map(|moment| part_of(moment, start, len))),
        }
    }
}

impl Change {
    /// Divides the change into chunks of `elements` elements, the last of which may have fewer.
    fn chunks(&self, elements: i64) -> impl Iterator<Item = Change> + '_ {
        let all = self.values.numel() as i64;
        let starts = (0..all).step_by(elements as usize);
        starts.map(move |start| {
            let len = elements.min(all - start);
            Change {
                at: self.at + start,
                values: self.values.narrow(0, start, len),
                grad: self.grad.narrow(0, start, len),
                moments: self.moments.narrow(start, len),
                step: AdamWStep { zero_grad: false, ..self.step },
            }
        })
    }
}

/// A chunk whose gradient is on its way to the host, and its weights where they are their own master.
struct Coming {
    change: Change,
    grad: Transfer,
    values: Option<Transfer>,
}

/// Takes the steps of `changes`. `master`: the float32 weights on the host of the elements from one on, so many; `None` where the
/// weights are float32 themselves. `done` is told of the new ones.
///
/// # Errors
/// The device failed.
pub(super) fn step_on_host(
    transfers: &Transfers,
    changes: &[Change],
    master: Option<&dyn Fn(i64, i64) -> Tensor>,
    done: &dyn Fn(i64, &Tensor),
) -> Result<(), NativeError> {
    step_in_chunks(CHUNK, transfers, changes, master, done)
}

/// Works like [`step_on_host`] with chunks of so many elements, a multiple of a block.
pub(super) fn step_in_chunks(
    elements: i64,
    transfers: &Transfers,
    changes: &[Change],
    master: Option<&dyn Fn(i64, i64) -> Tensor>,
    done: &dyn Fn(i64, &Tensor),
) -> Result<(), NativeError> {
    let ask = |change: Change| -> Result<Coming, NativeError> {
        let grad = transfers.to_host(bytes_of(&change.grad), false)?;
        let values = master.is_none().then(|| transfers.to_host(bytes_of(&change.values), false)).transpose()?;
        Ok(Coming { change, grad, values })
    };
    let mut chunks = changes.iter().flat_map(|change| change.chunks(elements));
    let mut next = chunks.next().map(ask).transpose()?;
    let mut leaving: VecDeque<Transfer> = VecDeque::new();
    while let Some(Coming { change, grad, values }) = next {
        let Change { at, values: to, moments, step, .. } = &change;
        let len = to.numel() as i64;
        let (_, grad) = grad.wait()?;
        let values = values.map(Transfer::wait).transpose()?.map(|(_, values)| values);
        next = chunks.next().map(ask).transpose()?;
        let low = match &values {
            Some(_) => None,
            None => Some(transfers.host_buffer(len * to.kind().elt_size_in_bytes() as i64)),
        };
        let low_values = low.as_ref().map(|low| low.view_dtype(to.kind()));
        let target = match (master, &values) {
            (Some(master), _) => master(*at, len),
            (None, Some(values)) => values.view_dtype(Kind::Float),
            (None, None) => unreachable!("weights that are their own master were asked for"),
        };
        moments.step_on_cpu(&target, low_values.as_ref(), &grad.view_dtype(Kind::Float), step);
        done(*at, &target);
        transfers.give_back(grad);
        let made = low.or(values).expect("the one or the other");
        leaving.push_back(transfers.copy(made, bytes_of(to))?);
        if leaving.len() > LEAVING {
            finish(transfers, leaving.pop_front())?;
        }
    }
    leaving.into_iter().try_for_each(|transfer| finish(transfers, Some(transfer)))
}

fn finish(transfers: &Transfers, leaving: Option<Transfer>) -> Result<(), NativeError> {
    let Some(leaving) = leaving else { return Ok(()) };
    let (buffer, _) = leaving.wait()?;
    transfers.give_back(buffer);
    Ok(())
}

/// Returns a view of flat numbers as bytes.
fn bytes_of(tensor: &Tensor) -> Tensor {
    tensor.view_dtype(Kind::Uint8)
}
