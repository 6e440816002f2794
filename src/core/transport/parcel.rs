//! The content of an edge: a header and tensors that belong together (features and their DeepStack levels).

use super::credit_guard::CreditGuard;
use crate::message::{PackId, StepId, UnitId, Version};
use rkyv::util::AlignedVec;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;

/// Element type of a tensor in a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Dtype {
    F32 = 0,
    Bf16 = 1,
    I64 = 2,
}

impl Dtype {
    /// Returns the bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
            Dtype::I64 => 8,
        }
    }
}

/// Element type and shape. Tensors in parcels are contiguous, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMeta {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl TensorMeta {
    /// Returns the number of bytes of its elements.
    pub fn num_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// Tensor memory that an edge can carry without knowing its type.
///
/// Inside a process the box itself moves, and the receiver gets its own type back through [`Buffer::into_any`]; across processes
/// the edge copies the bytes once, into shared memory.
pub trait Buffer: Send {
    fn meta(&self) -> TensorMeta;
    /// Copies the contents to `out`, which has exactly `meta().num_bytes()` bytes.
    fn copy_to(&self, out: &mut [u8]);
    /// Returns the contents in host memory; `None` if they are on a device.
    fn bytes(&self) -> Option<&[u8]>;
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// Alignment of a [`HostTensor`]'s bytes, so that receivers can compute with them in place.
const ALIGN: usize = 64;

/// A tensor in ordinary memory, as sent by data engines.
#[derive(Clone, Debug)]
pub struct HostTensor {
    meta: TensorMeta,
    bytes: AlignedVec<ALIGN>,
}

impl HostTensor {
    /// # Panics
    /// The number of bytes does not fit the shape.
    pub fn new(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Self {
        let meta = TensorMeta { dtype, shape: shape.to_vec() };
        assert_eq!(meta.num_bytes(), bytes.len(), "bytes of a tensor of shape {shape:?}");
        let mut own = AlignedVec::with_capacity(bytes.len());
        own.extend_from_slice(bytes);
        Self { meta, bytes: own }
    }

    /// # Panics
    /// The number of values does not fit the shape.
    pub fn from_f32(values: &[f32], shape: &[usize]) -> Self {
        Self::new(Dtype::F32, shape, bytemuck::cast_slice(values))
    }

    /// # Panics
    /// The number of values does not fit the shape.
    pub fn from_i64(values: &[i64], shape: &[usize]) -> Self {
        Self::new(Dtype::I64, shape, bytemuck::cast_slice(values))
    }
}

impl Buffer for HostTensor {
    fn meta(&self) -> TensorMeta {
        self.meta.clone()
    }

    fn copy_to(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes);
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(&self.bytes)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// The content of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ParcelKind {
    /// `input_ids [T]` (i64), `position_ids [3, T]` (f32), `targets [T]` (i64) of the sender's samples of a pack, concatenated.
    Columns(PackId),
    /// The sender's items of a unit, concatenated: `[patches, patch_dim]` or `[frames, mel bins]`, f32.
    Items(UnitId),
    /// The tower's outputs for a unit: `features [N, dim]`, then one such tensor per DeepStack level.
    Features(UnitId),
    /// Gradients of features, tensor by tensor. They are not sent to frozen encoders.
    Gradient(UnitId),
}

impl ParcelKind {
    /// Returns the step that the parcel belongs to.
    pub fn step(self) -> StepId {
        match self {
            ParcelKind::Columns(pack) => pack.step,
            ParcelKind::Items(unit) | ParcelKind::Features(unit) | ParcelKind::Gradient(unit) => unit.step,
        }
    }
}

impl fmt::Display for ParcelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParcelKind::Columns(pack) => write!(f, "tokens of {pack}"),
            ParcelKind::Items(unit) => write!(f, "media items of {unit}"),
            ParcelKind::Features(unit) => write!(f, "features of {unit}"),
            ParcelKind::Gradient(unit) => write!(f, "gradients of {unit}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub kind: ParcelKind,
    /// Version of the parameters that produced the tensors; meaningless for tokens and pixels.
    pub version: Version,
}

/// Tensors on an edge. Dropping the credit of a received parcel returns it: hold it while the memory is in use.
pub struct Parcel {
    pub header: Header,
    pub tensors: Vec<Box<dyn Buffer>>,
    /// Set by the edge.
    pub credit: Option<CreditGuard>,
}

impl Parcel {
    /// Creates a parcel without credit.
    pub fn new(header: Header, tensors: Vec<Box<dyn Buffer>>) -> Self {
        Self { header, tensors, credit: None }
    }

    /// Returns the number of bytes that it takes of an edge's credit.
    pub fn num_bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.meta().num_bytes()).sum()
    }
}

impl fmt::Debug for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parcel").field("header", &self.header).field("num_bytes", &self.num_bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parcels_are_named_in_words() {
        let unit = UnitId { step: StepId(3), index: 1 };
        let kinds = [ParcelKind::Items(unit), ParcelKind::Features(unit), ParcelKind::Gradient(unit)];
        let names = ["media items of unit 3.1", "features of unit 3.1", "gradients of unit 3.1"];
        assert_eq!(kinds.map(|kind| kind.to_string()), names);
    }
}
