//! Describes where a model's tensor lies in the files: as itself, or packed with its scales.

use super::dtype::Dtype;
use super::file::TensorFile;
use super::names_in::NamesIn;
use super::packed::{INT4_A_WORD, MXFP4_BLOCK};
use loongforge_core::data::ModelCard;
use serde_json::Value;
use std::collections::BTreeMap;

/// A tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The shape of the values.
    pub shape: Vec<i64>,
    /// The dtype of the values; packed ones are unpacked to float32.
    pub dtype: Dtype,
    /// Bytes in the files, with scales.
    pub bytes: u64,
    pub(super) source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Plain(TensorPlace),
    Fp8 {
        weight: TensorPlace,
        scale: TensorPlace,
        block: [usize; 2],
    },
    /// Float8 with one scale, with one for each row, or without scales.
    PlainFp8 {
        weight: TensorPlace,
        scale: Option<TensorPlace>,
    },
    Int4 {
        packed: TensorPlace,
        scale: TensorPlace,
        zero_point: Option<TensorPlace>,
    },
    Mxfp4 {
        blocks: TensorPlace,
        scales: TensorPlace,
    },
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorPlace {
    pub file: usize,
    pub name: String,
}

impl Stored {
    /// Returns whether the tensor must be unpacked when it is read.
    pub fn is_packed(&self) -> bool {
        !matches!(self.source, Source::Plain(_))
    }

    /// Returns whether the plain tensor of this name has rows and columns the other way round: of stacked experts in MXFP4
    /// (gpt-oss), `[E, outputs, inputs]` packed and `[E, inputs, outputs]` where they are not.
    pub fn is_turned(&self) -> bool {
        matches!(self.source, Source::Mxfp4 { .. }) && self.shape.len() == 3
    }

    /// Returns the shape of the plain tensor of this name.
    pub fn plain_shape(&self) -> Vec<i64> {
        let mut shape = self.shape.clone();
        if self.is_turned() {
            shape.swap(1, 2);
        }
        shape
    }

    /// Returns the format as a person would call it.
    pub fn format(&self) -> String {
        match &self.source {
            Source::Plain(_) => self.dtype.to_string(),
            Source::Fp8 { block: [rows, cols], .. } => format!("F8_E4M3 {rows}x{cols}"),
            Source::PlainFp8 { .. } => "F8_E4M3".to_owned(),
            Source::Int4 { .. } => "INT4".to_owned(),
            Source::Mxfp4 { .. } => "MXFP4".to_owned(),
        }
    }
}

/// The settings of `config.json` about packing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quantization {
    fp8_block: [usize; 2],
    plain_fp8: PlainFp8,
}

/// Says whether FP8 without blocks is read: with one scale, or one for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlainFp8 {
    /// FP8 is not read: its scales could be missing.
    Unread,
    /// FP8 must have its scale (compressed-tensors).
    Scaled,
    /// FP8 may have no scale: nothing is said of packing.
    Any,
}

impl Quantization {
    /// # Errors
    /// A scheme that is not read here.
    pub fn read(config: &Value) -> Result<Self, String> {
        let mut found = Self { fp8_block: [128, 128], plain_fp8: PlainFp8::Any };
        let mut schemes = ModelCard::of(config).of_text().map(|keys| &keys["quantization_config"]);
        let Some(scheme) = schemes.find(|scheme| scheme.is_object()) else { return Ok(found) };
        found.plain_fp8 = PlainFp8::Unread;
        let method = scheme["quant_method"].as_str().unwrap_or("compressed-tensors");
        match method {
            "fp8" => {
                let Some(block) = scheme["weight_block_size"].as_array() else {
                    return Err(
                        "quantization_config.weight_block_size is missing: FP8 is only supported in blocks".into()
                    );
                };
                let block: Vec<usize> =
                    block.iter().filter_map(Value::as_u64).filter(|size| *size > 0).map(|size| size as usize).collect();
                found.fp8_block = block.try_into().map_err(|_| {
                    format!(
                        "quantization_config.weight_block_size must be two sizes, not {}",
                        scheme["weight_block_size"]
                    )
                })?;
            }
            "mxfp4" => {}
            "compressed-tensors" => match scheme["format"].as_str().unwrap_or("pack-quantized") {
                "pack-quantized" => {}
                "float-quantized" => found.plain_fp8 = PlainFp8::Scaled,
                format => {
                    return Err(format!(
                        "quantization_config.format is {format:?}; supported: \"pack-quantized\", \"float-quantized\""
                    ));
                }
            },
            other => {
                return Err(format!(
                    "quantization_config.quant_method is {other:?}; supported: \"fp8\", \"compressed-tensors\", \"mxfp4\""
                ));
            }
        }
        Ok(found)
    }
}

/// Returns the model's tensors in these files, `names` of which say what the model calls them.
///
/// # Errors
/// Parts of a packed tensor are missing or do not fit each other, or two tensors have one name.
pub(super) fn gather(
    files: &[TensorFile],
    names: &[NamesIn],
    quantization: &Quantization,
) -> Result<BTreeMap<String, Stored>, String> {
    let mut parts = Parts { files, places: BTreeMap::new() };
    for (file, (open, names)) in files.iter().zip(names).enumerate() {
        for name in open.tensors().keys() {
            let ours = names.ours(name);
            let other = parts.places.insert(ours.clone(), TensorPlace { file, name: name.clone() });
            if let Some(other) = other {
                return Err(format!("{} and {name} are both {ours}", other.name));
            }
        }
    }
    let mut tensors = BTreeMap::new();
    let names: Vec<String> = parts.places.keys().cloned().collect();
    for name in &names {
        let base = |ending: &str| name.strip_suffix(ending).map(str::to_owned);
        let packed =
            if let Some(weight) = base("_scale_inv").filter(|weight| parts.dtype(weight) == Some(Dtype::F8_E4M3)) {
                Some((weight.clone(), parts.fp8(&weight, name, quantization.fp8_block)))
            } else if let Some((weight, dtype)) = parts.beside_scale(name) {
                let stored = match dtype {
                    Dtype::I8 => parts.fp4(&weight, name),
                    _ => parts.fp8(&weight, name, quantization.fp8_block),
                };
                Some((weight, stored))
            } else if let Some(weight) = base("_packed").filter(|_| parts.dtype(name) == Some(Dtype::I32)) {
                Some((weight.clone(), parts.int4(&weight)))
            } else {
                let weight = base("_blocks").filter(|_| parts.dtype(name) == Some(Dtype::U8));
                weight.map(|weight| (weight.clone(), parts.mxfp4(&weight)))
            };
        // What is of another format has scales of another name, and is taken there.
        let is_plain = quantization.plain_fp8 != PlainFp8::Unread
            && parts.dtype(name) == Some(Dtype::F8_E4M3)
            && parts.dtype(&format!("{name}_scale_inv")).is_none();
        let is_scaled = quantization.plain_fp8 == PlainFp8::Scaled;
        let packed = packed.or_else(|| is_plain.then(|| (name.clone(), parts.plain_fp8(name, is_scaled))));
        if let Some((weight, stored)) = packed {
            tensors.insert(weight.clone(), stored.map_err(|reason| format!("{weight}: {reason}"))?);
        }
    }
    for (name, place) in std::mem::take(&mut parts.places) {
        let info = &files[place.file].tensors()[&place.name];
        let stored =
            Stored { shape: info.shape.clone(), dtype: info.dtype, bytes: info.len, source: Source::Plain(place) };
        tensors.entry(name).or_insert(stored);
    }
    Ok(tensors)
}

/// The files' tensors that are not yet part of another one.
struct Parts<'a> {
    files: &'a [TensorFile],
    places: BTreeMap<String, TensorPlace>,
}

impl Parts<'_> {
    fn dtype(&self, name: &str) -> Option<Dtype> {
        let place = self.places.get(name)?;
        Some(self.files[place.file].tensors()[&place.name].dtype)
    }

    /// Takes a part out; its shape and bytes.
    fn take(&mut self, name: &str) -> Result<(TensorPlace, Vec<i64>, u64), String> {
        let place = self.places.remove(name).ok_or_else(|| format!("{name} is missing"))?;
        let info = &self.files[place.file].tensors()[&place.name];
        Ok((place, info.shape.clone(), info.len))
    }

    /// Returns the weight beside the scale `MODULE.scale`, as DeepSeek-V4 is published, and its type: FP8, or two numbers a byte.
    fn beside_scale(&self, name: &str) -> Option<(String, Dtype)> {
        let weight = format!("{}.weight", name.strip_suffix(".scale")?);
        let dtype = self.dtype(&weight).filter(|dtype| matches!(dtype, Dtype::F8_E4M3 | Dtype::I8))?;
        Some((weight, dtype))
    }

    fn fp8(&mut self, weight: &str, scale: &str, block: [usize; 2]) -> Result<Stored, String> {
        let (weight, shape, bytes) = self.take(weight)?;
        let (scale, scale_shape, scale_bytes) = match self.dtype(scale) {
            Some(Dtype::F8_E8M0) => self.take(scale)?,
            _ => self.take_float(scale)?,
        };
        let mut want = shape.clone();
        let [.., rows, cols] = want.as_mut_slice() else {
            return Err(format!("FP8 of shape {shape:?} cannot have blocks"));
        };
        *rows = rows.div_euclid_up(block[0]);
        *cols = cols.div_euclid_up(block[1]);
        if scale_shape != want {
            return Err(format!("its scales have the shape {scale_shape:?}, but blocks of {block:?} need {want:?}"));
        }
        let source = Source::Fp8 { weight, scale, block };
        Ok(Stored { shape, dtype: Dtype::F32, bytes: bytes + scale_bytes, source })
    }

    /// Finds a weight as ComfyUI and compressed-tensors store it: `NAME.weight` beside its scale, which [`NamesIn`] calls
    /// `NAME.weight_scale`, or alone unless it `is_scaled`.
    fn plain_fp8(&mut self, weight: &str, is_scaled: bool) -> Result<Stored, String> {
        let name = Some(format!("{weight}_scale")).filter(|name| self.dtype(name).is_some());
        if is_scaled && name.is_none() {
            return Err(format!("{weight}_scale is missing"));
        }
        let (weight, shape, mut bytes) = self.take(weight)?;
        let scale = name.map(|name| self.take_float(&name)).transpose()?;
        if let Some((_, scale, more)) = &scale {
            let of_rows = shape.len() == 2 && (scale == &shape[..1] || scale == &[shape[0], 1]);
            let is_one = scale.iter().product::<i64>() == 1 && !shape.is_empty();
            if !is_one && !of_rows {
                return Err(format!(
                    "its scales have the shape {scale:?}, but must be one number, or one for each row of {shape:?}"
                ));
            }
            bytes += more;
        }
        let source = Source::PlainFp8 { weight, scale: scale.map(|(place, ..)| place) };
        Ok(Stored { shape, dtype: Dtype::F32, bytes, source })
    }

    fn int4(&mut self, weight: &str) -> Result<Stored, String> {
        let (packed, packed_shape, bytes) = self.take(&format!("{weight}_packed"))?;
        let (scale, scale_shape, scale_bytes) = self.take_float(&format!("{weight}_scale"))?;
        let (place, ..) = self.take(&format!("{weight}_shape"))?;
        let shape = self.small_integers(&place)?;
        let (&[rows, cols], &[scale_rows, groups]) = (shape.as_slice(), scale_shape.as_slice()) else {
            return Err(format!("INT4 of shape {shape:?} with scales {scale_shape:?}: both must have two dimensions"));
        };
        let words = cols.div_euclid_up(INT4_A_WORD);
        if rows <= 0 || cols <= 0 || packed_shape != [rows, words] {
            return Err(format!("INT4 of shape {shape:?} must be packed as [{rows}, {words}], not {packed_shape:?}"));
        }
        if scale_rows != rows || groups <= 0 || cols % groups != 0 {
            return Err(format!("its scales have the shape {scale_shape:?}, which does not divide {shape:?}"));
        }
        let mut bytes = bytes + scale_bytes;
        let name = format!("{weight}_zero_point");
        let zero_point = match self.dtype(&name) {
            None => None,
            Some(Dtype::I32) => {
                let (place, found, more) = self.take(&name)?;
                let want = [rows.div_euclid_up(INT4_A_WORD), groups];
                if found != want {
                    return Err(format!("its zero points have the shape {found:?}, but must have {want:?}"));
                }
                bytes += more;
                Some(place)
            }
            Some(other) => return Err(format!("its zero points are {other}, but must be I32")),
        };
        Ok(Stored { shape, dtype: Dtype::F32, bytes, source: Source::Int4 { packed, scale, zero_point } })
    }

    fn mxfp4(&mut self, weight: &str) -> Result<Stored, String> {
        let (blocks, mut shape, bytes) = self.take(&format!("{weight}_blocks"))?;
        let (scales, scale_shape, scale_bytes) = self.take(&format!("{weight}_scales"))?;
        let half = MXFP4_BLOCK as i64 / 2;
        let dtype = self.files[scales.file].tensors()[&scales.name].dtype;
        if shape.len() < 3 || shape.pop() != Some(half) || shape != scale_shape {
            return Err(format!("MXFP4 needs blocks [.., M, G, {half}] and scales [.., M, G], not {scale_shape:?}"));
        }
        if !matches!(dtype, Dtype::U8 | Dtype::F8_E8M0) {
            return Err(format!("its scales are {dtype}, but must be U8"));
        }
        let groups = shape.pop().unwrap_or_default();
        shape.push(groups * MXFP4_BLOCK as i64);
        let source = Source::Mxfp4 { blocks, scales };
        Ok(Stored { shape, dtype: Dtype::F32, bytes: bytes + scale_bytes, source })
    }

    /// Finds a weight in MXFP4 as DeepSeek-V4 has it: `[M, N / 2]` and scales `[M, N / 32]`.
    fn fp4(&mut self, weight: &str, scale: &str) -> Result<Stored, String> {
        let (blocks, mut shape, bytes) = self.take(weight)?;
        let (scales, scale_shape, scale_bytes) = self.take(scale)?;
        let dtype = self.files[scales.file].tensors()[&scales.name].dtype;
        let half = MXFP4_BLOCK as i64 / 2;
        let fits = |rows: i64, cols: i64| cols % half == 0 && scale_shape == [rows, cols / half];
        if !matches!(shape[..], [rows, cols] if fits(rows, cols)) {
            return Err(format!(
                "FP4 needs bytes [M, N / 2] and scales [M, N / 32], not {shape:?} and {scale_shape:?}"
            ));
        }
        if dtype != Dtype::F8_E8M0 {
            return Err(format!("its scales are {dtype}, but must be F8_E8M0"));
        }
        shape[1] *= 2;
        let source = Source::Mxfp4 { blocks, scales };
        Ok(Stored { shape, dtype: Dtype::F32, bytes: bytes + scale_bytes, source })
    }

    fn take_float(&mut self, name: &str) -> Result<(TensorPlace, Vec<i64>, u64), String> {
        match self.dtype(name) {
            Some(dtype) if !dtype.is_plain_float() => Err(format!("{name} is {dtype}, but must be a float")),
            _ => self.take(name),
        }
    }

    /// Returns the values of a tensor of a few integers.
    fn small_integers(&self, place: &TensorPlace) -> Result<Vec<i64>, String> {
        let (name, file) = (&place.name, &self.files[place.file]);
        let info = &file.tensors()[name];
        if info.shape != [2] || !matches!(info.dtype, Dtype::I32 | Dtype::I64) {
            return Err(format!("{name} is {} {:?}, but must be two integers", info.dtype, info.shape));
        }
        let mut bytes = vec![0; info.len as usize];
        file.read_at(info, 0, &mut bytes).map_err(|error| error.to_string())?;
        let wide = bytes.as_chunks::<8>().0.iter().map(|value| i64::from_le_bytes(*value));
        let narrow = bytes.as_chunks::<4>().0.iter().map(|value| i64::from(i32::from_le_bytes(*value)));
        Ok(if info.dtype == Dtype::I64 { wide.collect() } else { narrow.collect() })
    }
}

trait CeilDivision {
    fn div_euclid_up(self, by: usize) -> i64;
}

impl CeilDivision for i64 {
    fn div_euclid_up(self, by: usize) -> i64 {
        let by = by as i64;
        self / by + i64::from(self % by != 0)
    }
}
