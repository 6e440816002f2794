//! Byte format of a parcel.

use super::StreamError;
use crate::message::{decode, encode};
use crate::transport::{Buffer, Header, HostTensor, Parcel, TensorMeta};

/// Longest header: tens of tensors.
pub const MAX_HEADER: usize = 16 << 10;
/// Length of the header.
const LEN: usize = 4;

/// # Errors
/// Its header is too long.
pub fn write(parcel: &Parcel) -> Result<Vec<u8>, ()> {
    let metas: Vec<TensorMeta> = parcel.tensors.iter().map(|tensor| tensor.meta()).collect();
    let header = encode(&(parcel.header, &metas)).map_err(drop)?;
    if header.len() > MAX_HEADER {
        return Err(());
    }
    let body: usize = metas.iter().map(TensorMeta::num_bytes).sum();
    let mut bytes = vec![0; LEN + header.len() + body];
    bytes[..LEN].copy_from_slice(&(header.len() as u32).to_le_bytes());
    bytes[LEN..LEN + header.len()].copy_from_slice(&header);
    let mut at = LEN + header.len();
    for (tensor, meta) in parcel.tensors.iter().zip(&metas) {
        tensor.copy_to(&mut bytes[at..at + meta.num_bytes()]);
        at += meta.num_bytes();
    }
    Ok(bytes)
}

/// # Errors
/// It is none; its tensors are not as long as they say.
pub fn read(bytes: &[u8]) -> Result<Parcel, StreamError> {
    let (len, rest) = bytes.split_first_chunk::<LEN>().ok_or(StreamError::NotAParcel)?;
    let (header, mut rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or(StreamError::NotAParcel)?;
    let (header, metas): (Header, Vec<TensorMeta>) = decode(header).map_err(|_| StreamError::NotAParcel)?;
    // In u128: dimensions of a lying peer must not wrap around.
    let size = |meta: &TensorMeta| {
        let size = |sum: u128, &dim: &usize| sum.saturating_mul(dim as u128);
        meta.shape.iter().fold(meta.dtype.size() as u128, size)
    };
    let tensors = metas.iter().map(size).fold(0, u128::saturating_add);
    if tensors != rest.len() as u128 {
        return Err(StreamError::Unfit { tensors, body: rest.len() });
    }
    let tensors = metas.into_iter().map(|meta| {
        let (mine, after) = rest.split_at(meta.num_bytes());
        rest = after;
        Box::new(HostTensor::new(meta.dtype, &meta.shape, mine)) as Box<dyn Buffer>
    });
    Ok(Parcel::new(header, tensors.collect()))
}
