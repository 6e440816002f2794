//! The files that Megatron-Energon wants in a folder of shards (`energon prepare`, 7.4): names and counts, the split, and which class
//! reads samples. The offsets of samples are written with each shard. The SQLite index, which only joins and media by name need, is left
//! to `energon prepare --tar-index-only`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::job::{WrittenShard, write_json};
use super::shard::write_whole;
use crate::data::error::DataError;

/// Writes `.nv-meta`; everything is for training.
///
/// # Errors
/// A file cannot be written.
pub fn write(out: &Path, shards: &[WrittenShard], sample_type: &str) -> Result<(), DataError> {
    let folder = out.join(".nv-meta");
    fs::create_dir_all(&folder).map_err(|error| DataError::write(&folder, error))?;
    let counts: Map<String, Json> =
        shards.iter().map(|shard| (shard.name.clone(), Json::from(shard.samples))).collect();
    write_json(&folder.join(".info.json"), &json!({ "energon_version": null, "shard_counts": counts }))?;
    let mut split = "split_parts:\n  train:\n".to_owned();
    for shard in shards {
        let _ = writeln!(split, "  - {}", shard.name);
    }
    split += "  val: []\n  test: []\nexclude: []\n";
    write_whole(&folder.join("split.yaml"), split.as_bytes())?;
    let dataset = format!(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors:\n  sample_type: {sample_type}\n"
    );
    write_whole(&folder.join("dataset.yaml"), dataset.as_bytes())
}
