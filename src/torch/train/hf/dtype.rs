//! Element types of safetensors files, and plain conversions between those that parameters have.

use std::fmt;
use tch::Kind;

/// An element type as a header writes it. <https://huggingface.co/docs/safetensors>
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types)]
pub enum Dtype {
    BOOL,
    F4,
    F6_E2M3,
    F6_E3M2,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

/// Names and bits.
const TABLE: [(Dtype, &str, u64); 20] = [
    (Dtype::BOOL, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6_E2M3, "F6_E2M3", 6),
    (Dtype::F6_E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8_E5M2, "F8_E5M2", 8),
    (Dtype::F8_E4M3, "F8_E4M3", 8),
    (Dtype::F8_E8M0, "F8_E8M0", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::BF16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
];

impl Dtype {
    /// Returns the type of this name; `None` for a name that the format does not have.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }

    /// Returns the name in a header of safetensors, such as `BF16`.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|entry| entry.0 == self).expect("every type is in the table").1
    }

    /// Returns the bits of an element; fewer than 8 for packed types.
    pub fn bits(self) -> u64 {
        TABLE.iter().find(|entry| entry.0 == self).expect("every type is in the table").2
    }

    /// Returns the bytes of an element. It is for the types that parameters have, whose elements are whole bytes.
    pub fn bytes(self) -> usize {
        self.bits().div_ceil(8) as usize
    }

    /// Returns whether values of this type are converted to any other such type.
    pub fn is_plain_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }

    /// Returns the type of a tensor; `None` where a file has no such type.
    pub fn of(kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::Float => Self::F32,
            Kind::BFloat16 => Self::BF16,
            Kind::Half => Self::F16,
            Kind::Double => Self::F64,
            Kind::Int64 => Self::I64,
            Kind::Int => Self::I32,
            Kind::Int16 => Self::I16,
            Kind::Int8 => Self::I8,
            Kind::Uint8 => Self::U8,
            Kind::Bool => Self::BOOL,
            Kind::Float8e4m3fn => Self::F8_E4M3,
            _ => return None,
        })
    }

    /// Returns the kind of a tensor that holds such values.
    pub fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::F32 => Kind::Float,
            Self::BF16 => Kind::BFloat16,
            Self::F16 => Kind::Half,
            Self::F64 => Kind::Double,
            Self::I64 => Kind::Int64,
            Self::I32 => Kind::Int,
            Self::I16 => Kind::Int16,
            Self::I8 => Kind::Int8,
            Self::U8 => Kind::Uint8,
            Self::BOOL => Kind::Bool,
            _ => return None,
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Converts little-endian values of `from` to values of `to`, rounding to nearest even as libtorch does.
///
/// # Panics
/// The lengths do not fit each other, or the types differ and one of them is no plain float: a bug of the caller.
pub(super) fn convert(from: Dtype, to: Dtype, source: &[u8], target: &mut [u8]) {
    if from == to {
        return target.copy_from_slice(source);
    }
    assert!(from.is_plain_float() && to.is_plain_float(), "conversion from {from} to {to}");
    assert_eq!(source.len() / from.bytes(), target.len() / to.bytes(), "elements to convert");
    match from {
        Dtype::F64 if to == Dtype::F32 => map(source, target, |bytes| (f64::from_le_bytes(bytes) as f32).to_le_bytes()),
        Dtype::F64 => narrow(source, target, to, |bytes| f64::from_le_bytes(bytes) as f32),
        Dtype::F32 => narrow(source, target, to, f32::from_le_bytes),
        Dtype::BF16 => narrow(source, target, to, |bytes| from_bf16(u16::from_le_bytes(bytes))),
        _ => narrow(source, target, to, |bytes| from_f16(u16::from_le_bytes(bytes))),
    }
}

fn narrow<const N: usize>(source: &[u8], target: &mut [u8], to: Dtype, read: impl Fn([u8; N]) -> f32) {
    match to {
        Dtype::F32 => map(source, target, |bytes| read(bytes).to_le_bytes()),
        Dtype::BF16 => map(source, target, |bytes| to_bf16(read(bytes)).to_le_bytes()),
        Dtype::F16 => map(source, target, |bytes| to_f16(read(bytes)).to_le_bytes()),
        _ => map(source, target, |bytes| f64::from(read(bytes)).to_le_bytes()),
    }
}

fn map<const N: usize, const M: usize>(source: &[u8], target: &mut [u8], one: impl Fn([u8; N]) -> [u8; M]) {
    let (source, target) = (source.as_chunks::<N>().0, target.as_chunks_mut::<M>().0);
    for (from, to) in source.iter().zip(target) {
        *to = one(*from);
    }
}

/// Returns the values of a plain float type as float32.
pub(super) fn to_f32(from: Dtype, source: &[u8]) -> Vec<f32> {
    let mut bytes = vec![0; source.len() / from.bytes() * 4];
    convert(from, Dtype::F32, source, &mut bytes);
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Widens a bfloat16 exactly.
pub(super) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest bfloat16, ties to even; NaN stays one.
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return 0x7fc0;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

fn from_f16(bits: u16) -> f32 {
    let (sign, exponent, mantissa) = (u32::from(bits >> 15) << 31, u32::from(bits >> 10) & 31, u32::from(bits) & 1023);
    match exponent {
        // Subnormal: the mantissa counts 2^-24.
        0 => f32::from_bits(sign | (mantissa as f32 * 2f32.powi(-24)).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | mantissa << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | mantissa << 13),
    }
}

fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 16) as u16 & 0x8000, bits & 0x7fff_ffff);
    let even = |value: u32, shift: u32| (value + (1 << (shift - 1)) - 1 + ((value >> shift) & 1)) >> shift;
    sign | match magnitude {
        0x7f80_0001.. => 0x7e00,
        // 65520 and above round to infinity.
        0x477f_f000.. => 0x7c00,
        // Normal: from 2^-14.
        0x3880_0000.. => even(magnitude - 0x3800_0000, 13) as u16,
        // Subnormal: count 2^-24; below 2^-25 it is zero.
        0x3300_0000.. => even((magnitude & 0x7f_ffff) | 0x80_0000, 126 - (magnitude >> 23)) as u16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Tensor;

    #[test]
    fn conversions_are_libtorchs() {
        // Every half, their neighbors in float32, and powers across the whole range.
        let mut values: Vec<f32> = (0..=u16::MAX).map(from_f16).collect();
        for half in 0..0x7c00 {
            let bits = from_f16(half).to_bits();
            let next = from_f16(half + 1).to_bits();
            let middle = bits / 2 + next / 2;
            values.extend([middle - 1, middle, middle + 1, bits + 1].map(f32::from_bits));
        }
        values.extend((0..=u16::MAX).map(|bits| f32::from_bits(u32::from(bits) << 16 | 0x8000)));
        values.retain(|value| !value.is_nan());
        let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (dtype, kind) in [(Dtype::BF16, Kind::BFloat16), (Dtype::F16, Kind::Half), (Dtype::F64, Kind::Double)] {
            let want = Tensor::from_slice(&values).to_kind(kind);
            let mut want_bytes = vec![0; values.len() * dtype.bytes()];
            want.copy_data_u8(&mut want_bytes, values.len());
            let mut found = vec![0; want_bytes.len()];
            convert(Dtype::F32, dtype, &source, &mut found);
            let wrong = found.chunks(dtype.bytes()).zip(want_bytes.chunks(dtype.bytes())).position(|(a, b)| a != b);
            assert_eq!(wrong.map(|at| (dtype, values[at])), None);
            let mut back = vec![0; source.len()];
            convert(dtype, Dtype::F32, &found, &mut back);
            let want: Vec<f32> = Vec::try_from(want.to_kind(Kind::Float)).unwrap();
            assert_eq!(to_f32(Dtype::F32, &back), want);
        }
        assert_eq!(to_bf16(f32::NAN), 0x7fc0);
        assert!(from_f16(to_f16(f32::NAN)).is_nan() && from_f16(0x7c01).is_nan());
    }

    #[test]
    fn names_lead_back() {
        for (dtype, name, _) in TABLE {
            assert_eq!((Dtype::from_name(name), dtype.name()), (Some(dtype), name));
        }
        assert_eq!(Dtype::from_name("F128"), None);
    }
}
