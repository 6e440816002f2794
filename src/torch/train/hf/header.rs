//! The header of a safetensors file, read strictly: whatever a file says, it is checked before a byte is allocated for
//! its tensors. Stricter than the format's own reader: a name that comes twice is an error, not the last one's.

use super::dtype::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes of a header at most, as in the format's own reader; a model of a million tensors stays below.
pub(super) const MAX_HEADER: u64 = 100_000_000;
/// Dimensions of a tensor at most, as in libtorch's reductions.
const MAX_DIMS: usize = 64;
/// The product of a tensor's sizes at most, also beside a size of 0: what packed values unpack to can be counted as well.
const MAX_ELEMENTS: u64 = 1 << 56;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub dtype: Dtype,
    pub shape: Vec<i64>,
    /// The first byte after the header, and how many there are.
    pub start: u64,
    pub len: u64,
}

/// The contents of a file's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub tensors: BTreeMap<String, TensorInfo>,
    /// `__metadata__`.
    pub notes: BTreeMap<String, String>,
}

impl Header {
    /// Reads the JSON of a header that ends at byte `data_start` of a file of `len` bytes.
    ///
    /// # Errors
    /// The header is wrong, and in which way.
    pub fn parse(json: &[u8], data_start: u64, len: u64) -> Result<Self, String> {
        let raw: Raw = serde_json::from_slice(json).map_err(|error| format!("its header: {error}"))?;
        let mut tensors = BTreeMap::new();
        for (name, entry) in raw.tensors {
            let info = entry.check().map_err(|reason| format!("{name}: {reason}"))?;
            tensors.insert(name, info);
        }
        let end = data_start.saturating_add(expect_end_to_end(&tensors)?);
        if end != len {
            return Err(format!("it has {len} bytes, but its header says {end}"));
        }
        Ok(Self { tensors, notes: raw.notes })
    }
}

/// The tensors must lie end to end, here is where: a gap could hide data, an overlap make it change twice.
fn expect_end_to_end(tensors: &BTreeMap<String, TensorInfo>) -> Result<u64, String> {
    let mut order: Vec<(&String, &TensorInfo)> = tensors.iter().collect();
    order.sort_by_key(|(_, info)| (info.start, info.len));
    let mut end = 0;
    for (name, info) in order {
        if info.start < end {
            return Err(format!("{name} overlaps the tensor before it: it begins at {} instead of {end}", info.start));
        }
        if info.start > end {
            return Err(format!("{} bytes before {name} belong to no tensor", info.start - end));
        }
        end += info.len;
    }
    Ok(end)
}

struct Raw {
    tensors: BTreeMap<String, RawInfo>,
    notes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawInfo {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl RawInfo {
    fn check(self) -> Result<TensorInfo, String> {
        let dtype = Dtype::from_name(&self.dtype).ok_or_else(|| format!("unknown type {:?}", self.dtype))?;
        if self.shape.len() > MAX_DIMS {
            return Err(format!("it has {} dimensions, but must have at most {MAX_DIMS}", self.shape.len()));
        }
        let product = self.shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim.max(1)));
        if product.is_none_or(|product| product > MAX_ELEMENTS) {
            return Err(format!("its shape {:?} is too large", self.shape));
        }
        let shape: Vec<i64> = self.shape.iter().map(|&dim| dim as i64).collect();
        let bits = self.shape.iter().product::<u64>() * dtype.bits();
        let [start, end] = self.data_offsets;
        let len =
            end.checked_sub(start).ok_or_else(|| format!("its data end at {end}, before they begin at {start}"))?;
        if !bits.is_multiple_of(8) || bits / 8 != len {
            let shape = &self.shape;
            return Err(format!(
                "{dtype} of shape {shape:?} takes {} bytes, but its offsets say {len}",
                bits.div_ceil(8)
            ));
        }
        Ok(TensorInfo { dtype, shape, start, len })
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut raw = Raw { tensors: BTreeMap::new(), notes: BTreeMap::new() };
        let mut has_notes = false;
        while let Some(name) = map.next_key::<String>()? {
            let twice = if name == "__metadata__" {
                raw.notes = map.next_value()?;
                std::mem::replace(&mut has_notes, true)
            } else {
                let entry = map.next_value()?;
                raw.tensors.insert(name.clone(), entry).is_some()
            };
            if twice {
                return Err(A::Error::custom(format!("{name} appears twice")));
            }
        }
        Ok(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str, data_len: u64) -> Result<Header, String> {
        Header::parse(json.as_bytes(), 0, data_len)
    }

    /// Some bytes are overwritten, left out or doubled, by the numbers of a generator.
    #[test]
    fn mutated_headers_are_refused_or_whole() {
        let seed = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}}"#;
        assert!(Header::parse(seed, 0, 26).is_ok());
        let mut state = 1u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let (mut num_whole, len) = (0, 26);
        for _ in 0..20_000 {
            let mut bytes = seed.to_vec();
            for _ in 0..=below(3) {
                let at = below(bytes.len());
                match below(4) {
                    0 => bytes[at] = below(256) as u8,
                    1 => bytes[at] = b"0123456789[]{}\":,-eE"[below(20)],
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"0123456789"[below(10)]),
                }
            }
            if let Ok(header) = Header::parse(&bytes, 0, len) {
                assert_eq!(header.tensors.values().map(|info| info.len).sum::<u64>(), len);
                num_whole += 1;
            }
        }
        assert!(num_whole > 0);
    }

    #[test]
    fn a_header_is_read() {
        let json = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
            "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"F32","shape":[0,9],"data_offsets":[16,16]}}   "#;
        let header = parse(json, 16).unwrap();
        assert_eq!(header.notes["format"], "pt");
        let want = TensorInfo { dtype: Dtype::BF16, shape: vec![2, 3], start: 4, len: 12 };
        assert_eq!((&header.tensors["b"], header.tensors.len()), (&want, 3));
        assert_eq!(parse("{}", 0).unwrap(), Header::default());
    }

    #[test]
    fn every_lie_is_named() {
        let cases = [
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 12, "header says 8"),
            (r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8, "takes 12 bytes, but its offsets say 8"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8, "before they begin at 8"),
            (r#"{"a":{"dtype":"Q3","shape":[2],"data_offsets":[0,8]}}"#, 8, "unknown type \"Q3\""),
            (r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#, 2, "takes 2 bytes"),
            (
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
                6,
                "b overlaps",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}}"#,
                9,
                "1 bytes before b belong to no tensor",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#,
                8,
                "a appears twice",
            ),
            (r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}"#, 0, "too large"),
            (r#"{"a":{"dtype":"F32","shape":[18446744073709551615,0],"data_offsets":[0,0]}}"#, 0, "too large"),
            (r#"{"a":{"dtype":"F32","shape":[4611686018427387904,2,0],"data_offsets":[0,0]}}"#, 0, "too large"),
            (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4, "its header"),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}}"#, 4, "its offsets say"),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"code":"x"}}"#, 4, "unknown field"),
            (r#"{"__metadata__":{"a":1}}"#, 0, "its header"),
            ("[]", 0, "an object of tensors"),
            ("", 0, "its header"),
        ];
        for (json, data_len, words) in cases {
            let reason = parse(json, data_len).unwrap_err();
            assert!(reason.contains(words), "{json}: {reason} lacks {words}");
        }
        assert!(parse(&"[".repeat(100_000), 0).is_err());
        let deep = |dims: usize| {
            let shape = vec!["1"; dims].join(",");
            parse(&format!(r#"{{"a":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,4]}}}}"#), 4)
        };
        assert!(deep(64).is_ok() && deep(65).unwrap_err().contains("65 dimensions, but must have at most 64"));
    }
}
