//! Tensors in parcels: a `Tensor` moves as it is inside a process, and is read from bytes when it comes from outside.

use loongforge_core::transport::{Buffer, Dtype, TensorMeta};
use std::any::Any;
use tch::{Device, Kind, Tensor};

/// A tensor on its way to another engine. Contiguous.
pub struct TorchBuffer(Tensor);

impl TorchBuffer {
    /// # Panics
    /// The kind has no place in a parcel.
    pub fn new(tensor: &Tensor) -> Self {
        dtype(tensor.kind());
        Self(tensor.detach().contiguous())
    }

    /// The tensor of a received buffer, on `device`.
    pub fn into_tensor(buffer: Box<dyn Buffer>, device: Device) -> Tensor {
        if let Some(bytes) = buffer.bytes() {
            let meta = buffer.meta();
            let shape: Vec<i64> = meta.shape.iter().map(|&dim| dim as i64).collect();
            return Tensor::from_data_size(bytes, &shape, kind(meta.dtype)).to_device(device);
        }
        let any = buffer.into_any().downcast::<TorchBuffer>();
        any.expect("a buffer without host bytes is a tensor").0.to_device(device)
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
