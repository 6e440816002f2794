//! A folder's weights once more, in another type, other shards or with adapters added, without a model: one block of one
//! tensor at a time.

use super::checkpoint::{Checkpoint, num_bytes};
use super::dtype::Dtype;
use super::error::WeightsError;
use super::narrow::narrowed;
use super::save::{Entry, Writer, deal};
use super::shards::shard_name;
use super::stored::Stored;
use crate::native::bytes;
use crate::train::peft::Adapters;
use loongforge_core::message::SavedFile;
use serde_json::{Map, Value, json};
use std::path::Path;
use tch::{Kind, Tensor};

/// Elements that are in memory at once.
const BLOCK: i64 = 16 << 20;

/// The settings of the new files.
pub struct Rewrite<'a> {
    /// The type of floating-point tensors; `None` keeps what each has, and unpacks to bf16.
    pub dtype: Option<Dtype>,
    /// Parts of the names of tensors that `dtype` does not narrow where they are float32.
    pub float32: &'a [&'a str],
    pub max_shard_size: u64,
    /// Returns the name of a checkpoint's tensor in the new files; `None` leaves it out.
    pub rename: &'a dyn Fn(&str) -> Option<String>,
    /// The part of the new files' names before `.safetensors`, which may have a folder.
    pub stem: &'a str,
}

/// Returns `name` with another beginning, of the first pair whose first it begins with.
pub fn renamed(name: &str, begins: &[(&str, &str)]) -> String {
    let begin = begins.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
    begin.unwrap_or_else(|| name.to_owned())
}

/// Writes the tensors of `checkpoint` into `out`, which must be there, with an index where there are several files. Tensors that are no
/// floats are copied. The products of `adapters` are added in float32.
///
/// # Errors
/// A file cannot be read or written, a tensor's type is one that cannot be converted, or finite values would be infinite in the type
/// that they are written in.
pub fn rewrite(
    checkpoint: &Checkpoint,
    adapters: Option<&Adapters>,
    out: &Path,
    how: &Rewrite<'_>,
) -> Result<Vec<SavedFile>, WeightsError> {
    let renamed = checkpoint.tensors().filter_map(|(name, stored)| Some((name, stored, (how.rename)(name)?)));
    let tensors: Vec<(&str, &Stored, String)> = renamed.collect();
    let entry = |(name, stored, to): &(&str, &Stored, String)| {
        let stays = |dtype: Dtype| {
            stored.dtype == Dtype::F32 && dtype.bits() < 32 && how.float32.iter().any(|part| name.contains(part))
        };
        let dtype = match how.dtype {
            Some(dtype) if stays(dtype) => Dtype::F32,
            Some(dtype) if stored.dtype.is_plain_float() => dtype,
            None if stored.is_packed() => Dtype::BF16,
            _ => stored.dtype,
        };
        let grown = adapters.and_then(|adapters| adapters.grown().get(*name));
        let shape = grown.cloned().unwrap_or_else(|| stored.plain_shape());
        dtype.kind().map(|_| Entry { name: to.clone(), dtype, shape }).ok_or_else(|| {
            let (folder, name) = (checkpoint.folder().to_owned(), name.escape_debug());
            WeightsError::Convert { folder, reason: format!("{name} is {dtype}, which cannot be copied separately") }
        })
    };
    let entries = tensors.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    let sizes: Vec<u64> = entries.iter().map(|entry| num_bytes(&entry.shape, entry.dtype)).collect();
    let files = deal(&sizes, how.max_shard_size);
    let mut saved = Vec::new();
    for (index, range) in files.iter().enumerate() {
        let (entries, tensors) = (&entries[range.clone()], &tensors[range.clone()]);
        let name = shard_name(how.stem, index + 1, files.len());
        let mut writer = Writer::create(entries, &[("format", "pt")], out.into(), &name)?;
        for index in writer.order().to_vec() {
            let (stored, to) = (tensors[index].1, entries[index].dtype);
            let name = tensors[index].0;
            match adapters.filter(|adapters| adapters.changes(name)) {
                None => copy(checkpoint, (name, stored), to, &mut writer)?,
                Some(adapters) => {
                    let changed = plain(stored, adapters.apply(name, &checkpoint.read(stored, Kind::Float)?));
                    writer.write_tensor(&within(checkpoint, name, &changed, to)?)?;
                }
            }
        }
        saved.push(writer.finish()?);
    }
    if saved.len() > 1 {
        // Names in an index are without their folder.
        let plain = |file: &SavedFile| {
            let name = file.name.rsplit('/').next().unwrap_or_default().to_owned();
            SavedFile { name, ..file.clone() }
        };
        let plain: Vec<SavedFile> = saved.iter().map(plain).collect();
        let mut text = serde_json::to_vec_pretty(&index_of(&plain, sizes.iter().sum())).expect("JSON can be written");
        text.push(b'\n');
        let path = out.join(format!("{}.safetensors.index.json", how.stem));
        std::fs::write(&path, text).map_err(|source| WeightsError::Write { path, source })?;
    }
    Ok(saved)
}

fn copy(
    checkpoint: &Checkpoint,
    (name, stored): (&str, &Stored),
    to: Dtype,
    writer: &mut Writer<'_>,
) -> Result<(), WeightsError> {
    // What is rounded is read in a type that has all of it.
    let kind = match stored.dtype {
        Dtype::F64 if to != Dtype::F64 => Kind::Double,
        from if stored.is_packed() || from.is_plain_float() && from != to => Kind::Float,
        _ => to.kind().expect("only types that tensors have are written"),
    };
    let mut write = |values: Tensor| writer.write(bytes(&within(checkpoint, name, &values, to)?));
    let Some(&rows) = stored.shape.first() else { return write(checkpoint.read(stored, kind)?) };
    // There may be any number of rows without values.
    if stored.shape.contains(&0) {
        return Ok(());
    }
    let step = (BLOCK / stored.shape[1..].iter().product::<i64>().max(1)).max(1);
    let mut start = 0;
    while start < rows {
        let len = step.min(rows - start);
        write(plain(stored, checkpoint.read_rows(stored, start, len, kind)?))?;
        start += len;
    }
    Ok(())
}

/// Returns values of the tensor of this name as they are written.
///
/// # Errors
/// Finite ones would be infinite.
fn within(checkpoint: &Checkpoint, name: &str, values: &Tensor, to: Dtype) -> Result<Tensor, WeightsError> {
    narrowed(values, to).map_err(|beyond| WeightsError::Convert {
        folder: checkpoint.folder().to_owned(),
        reason: format!("{}: {beyond}", name.escape_debug()),
    })
}

/// Returns whole rows of a tensor as the plain tensor has them.
fn plain(stored: &Stored, rows: Tensor) -> Tensor {
    if stored.is_turned() { rows.transpose(1, 2).contiguous() } else { rows }
}

/// Returns `model.safetensors.index.json` as transformers writes it.
pub fn index_of(files: &[SavedFile], total_size: u64) -> Value {
    let mut places: Vec<(&String, &String)> =
        files.iter().flat_map(|file| file.tensors.iter().map(move |tensor| (tensor, &file.name))).collect();
    places.sort();
    let map: Map<String, Value> = places.into_iter().map(|(tensor, file)| (tensor.clone(), json!(file))).collect();
    json!({ "metadata": { "total_size": total_size }, "weight_map": map })
}
