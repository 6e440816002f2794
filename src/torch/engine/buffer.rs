//! Tensors in parcels: a `Tensor` moves as it is inside a process, and is a view of its sender's memory when it comes from
//! outside.
//!
//! A view keeps its sender's credit as long as any tensor shares its memory. Whoever holds one must not wait, while it does,
//! for anything that could need the same edge's credit; else it takes the contents over with [`take_over`]:
//!
//! * `Features` are views until their pack is done: packs are done in the order in which an edge brings their features.
//!   They are taken over where that order does not hold: in a step that was shared out anew, where ranks gather all features
//!   of a step before they begin it, where several packs are between their forward and backward at once, and where they are
//!   sent on to other ranks of a replica, which holds them to the end of the step.
//! * `Columns` are views until their pack is done, in the same order, and are taken over where several packs are at once or
//!   they are sent on.
//! * `Items` are views until their unit is encoded: units of one reader are encoded in the order in which they come. A trained
//!   tower reads them in its backward as well, and keeps the views until then if the edge has credit for all items of the
//!   step; else, and in a step that was shared out anew, they are taken over.
//! * `Gradient`s are views until their unit's backward, which has the order of the packs too; they are taken over in a step
//!   that was shared out anew.
//!
//! Where encoders live in the foundation's actors, items and columns share an edge and one could wait behind the other:
//! both are taken over.

use crate::device::upload;
use crate::native::{borrow, own};
use loongforge_core::transport::{Buffer, Dtype, TensorMeta};
use std::any::Any;
use std::cell::Cell;
use tch::{Device, Kind, Tensor};

thread_local! {
    static COPIED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of bytes of received tensors that this thread has copied within host memory.
pub fn copied_bytes() -> u64 {
    COPIED.get()
}

/// Gives the credit of received tensors back: those that are views get memory of their own.
pub(super) fn take_over<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) {
    tensors.into_iter().for_each(|tensor| count(own(tensor)));
}

fn count(bytes: u64) {
    COPIED.set(COPIED.get() + bytes);
}

/// A received buffer that has bytes.
struct Lender(Box<dyn Buffer>);

impl AsRef<[u8]> for Lender {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().expect("looked at before it became a lender")
    }
}

/// A tensor on its way to another engine. Contiguous.
pub struct TorchBuffer(Tensor);

impl TorchBuffer {
    /// Makes a contiguous buffer of a tensor of any shape, outside of the graph.
    ///
    /// # Panics
    /// Panics where the kind has no place in a parcel.
    pub fn new(tensor: &Tensor) -> Self {
        dtype(tensor.kind());
        Self(tensor.detach().contiguous())
    }

    /// Returns the tensor of a received buffer on `device`, in the shape `[…]` and type that were sent. On the CPU it is a view of what
    /// was received, unless its bytes do not lie as libtorch needs them, in which case they are copied.
    pub fn into_tensor(buffer: Box<dyn Buffer>, device: Device) -> Tensor {
        if buffer.bytes().is_none() {
            let any = buffer.into_any().downcast::<TorchBuffer>();
            return upload(&any.expect("a buffer without host bytes is a tensor").0, device);
        }
        let meta = buffer.meta();
        let (shape, kind) = (meta.shape.iter().map(|&dim| dim as i64).collect::<Vec<_>>(), kind(meta.dtype));
        match borrow(Lender(buffer), &shape, kind) {
            Ok(view) => upload(&view, device),
            // Not as libtorch wants its tensors.
            Err(lender) => {
                count(lender.as_ref().len() as u64);
                upload(&Tensor::from_data_size(lender.as_ref(), &shape, kind), device)
            }
        }
    }
}

impl Buffer for TorchBuffer {
    fn meta(&self) -> TensorMeta {
        let shape = self.0.size().iter().map(|&dim| dim as usize).collect();
        TensorMeta { dtype: dtype(self.0.kind()), shape }
    }

    fn copy_to(&self, out: &mut [u8]) {
        self.0.to_device(Device::Cpu).copy_data_u8(out, self.0.numel());
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

fn dtype(kind: Kind) -> Dtype {
    match kind {
        Kind::Float => Dtype::F32,
        Kind::BFloat16 => Dtype::Bf16,
        Kind::Int64 => Dtype::I64,
        other => panic!("no parcel carries {other:?}"),
    }
}

fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
        Dtype::I64 => Kind::Int64,
    }
}
