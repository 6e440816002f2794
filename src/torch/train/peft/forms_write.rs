//! Writes adapters in the single files that other programs load.

use super::error::AdapterError;
use super::folder::AdapterFolder;
use super::forms::{LoraForm, METADATA, Written};
use super::keys::ALPHA;
use super::names::SECOND;
use crate::train::hf::{Dtype, WeightsError, narrowed, write_tensor_file};
use loongforge_core::message::SavedFile;
use std::path::Path;
use tch::Tensor;

/// Writes the adapters of `folder`, which may have any form, into the file `out`; where two transformers have some and the form
/// has no names for that, into two files with `_high_noise` and `_low_noise` in their names, as those of the second alone have it. The
/// factor alpha / r is in B where the form has no alpha. Without `dtype` the adapters keep their type.
///
/// # Errors
/// The folder holds what the form has no place for, finite values would be infinite in the type, or a file cannot be read or written.
pub fn write_lora(
    folder: &AdapterFolder,
    form: LoraForm,
    dtype: Option<Dtype>,
    out: &Path,
) -> Result<Vec<SavedFile>, AdapterError> {
    let maps = folder.maps()?;
    let (low, high): (Vec<_>, Vec<_>) = maps.into_iter().partition(|map| map.path.starts_with(SECOND));
    let parts = match (form, low.is_empty(), high.is_empty()) {
        (LoraForm::Diffusers, ..) => vec![("", [high, low].into_iter().flatten().collect())],
        (_, true, _) => vec![("", high)],
        (_, false, true) => vec![("_low_noise", low)],
        _ => vec![("_high_noise", high), ("_low_noise", low)],
    };
    let stem = out.file_stem().unwrap_or_default().to_string_lossy();
    let write = |(end, maps): (&str, Vec<Written>)| {
        let (tensors, notes) = form.tensors(&maps).map_err(|what| folder.mismatch(vec![what]))?;
        let tensors: Vec<(String, Tensor)> =
            tensors.into_iter().map(|named| in_type(folder, named, dtype)).collect::<Result<_, AdapterError>>()?;
        let mut all = vec![("format", "pt")];
        all.extend(notes.iter().map(|text| (METADATA, text.as_str())));
        let dir = out.parent().unwrap_or(Path::new("."));
        Ok(write_tensor_file(&tensors, &all, dir, &format!("{stem}{end}.safetensors"))?)
    };
    parts.into_iter().map(write).collect()
}

/// Returns a tensor of a file in the type that is asked for; alpha is a single number and stays exact.
///
/// # Errors
/// Finite values would be infinite.
fn in_type(
    folder: &AdapterFolder,
    (name, tensor): (String, Tensor),
    dtype: Option<Dtype>,
) -> Result<(String, Tensor), AdapterError> {
    let Some(dtype) = dtype.filter(|_| !name.ends_with(ALPHA)) else { return Ok((name, tensor)) };
    match narrowed(&tensor, dtype) {
        Ok(tensor) => Ok((name, tensor)),
        Err(beyond) => {
            let reason = format!("{}: {beyond}", name.escape_debug());
            Err(WeightsError::Convert { folder: folder.first_file().to_owned(), reason }.into())
        }
    }
}

#[cfg(test)]
#[path = "forms_tests.rs"]
mod tests;
