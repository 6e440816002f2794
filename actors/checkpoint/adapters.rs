//! Merges adapters written by several engines into the single file that PEFT reads.

use loongforge_core::checkpoint::{CheckpointError, FileEntry, sha256};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const WHOLE: &str = "adapter_model.safetensors";
const PART: &str = "adapter_model-";

/// Maximum size of a header; larger ones are not from our engines.
const MAX_HEADER: u64 = 100_000_000;

/// A part, open behind its header.
struct Part {
    path: PathBuf,
    file: BufReader<File>,
    header: Map<String, Value>,
    bytes: u64,
}

/// Replaces the adapter parts among `files` of `dir` by one file with all their tensors.
///
/// # Errors
/// Fails if a part is not what an engine writes, two parts have a tensor of the same name, or the file cannot be written.
pub(super) fn join(dir: &Path, files: &mut BTreeMap<String, FileEntry>) -> Result<(), CheckpointError> {
    let names: Vec<String> = files.keys().filter(|name| name.starts_with(PART)).cloned().collect();
    if names.is_empty() {
        return Ok(());
    }
    let path = dir.join(WHOLE);
    let mut parts = Vec::new();
    for name in &names {
        let part = dir.join(name);
        parts.push(open(&part).map_err(CheckpointError::read(&part))?);
    }
    let header = header(&parts).map_err(|what| CheckpointError::torn(dir, what))?;
    write(&path, &header, &mut parts)?;
    for name in names {
        files.remove(&name);
        let part = dir.join(name);
        fs::remove_file(&part).map_err(CheckpointError::write(&part))?;
    }
    let entry = || Ok(FileEntry { bytes: fs::metadata(&path)?.len(), sha256: sha256(&path)? });
    files.insert(WHOLE.to_owned(), entry().map_err(CheckpointError::read(&path))?);
    Ok(())
}

fn open(path: &Path) -> io::Result<Part> {
    let total = fs::metadata(path)?.len();
    let mut file = BufReader::new(File::open(path)?);
    let mut len = [0; 8];
    file.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    let bytes = total.checked_sub(8 + len.min(MAX_HEADER + 1)).filter(|_| len <= MAX_HEADER);
    let bytes = bytes.ok_or_else(|| io::Error::other("its header is longer than the file"))?;
    let mut header = vec![0; len as usize];
    file.read_exact(&mut header)?;
    Ok(Part { path: path.to_owned(), file, header: serde_json::from_slice(&header)?, bytes })
}

/// Returns the tensors of all parts, whose bytes lie one part after the other.
fn header(parts: &[Part]) -> Result<Vec<u8>, String> {
    let mut all = Map::new();
    let mut start = 0;
    for part in parts {
        for (name, entry) in &part.header {
            let mut entry = entry.clone();
            if name != "__metadata__" {
                let offsets = entry["data_offsets"].as_array().into_iter().flatten().filter_map(Value::as_u64);
                entry["data_offsets"] = json!(offsets.map(|offset| start + offset).collect::<Vec<_>>());
                if all.contains_key(name) {
                    return Err(format!("{name} is in two parts of the adapters"));
                }
            }
            all.insert(name.clone(), entry);
        }
        start += part.bytes;
    }
    let mut text = serde_json::to_vec(&all).expect("JSON values can be written");
    // Tensors begin at multiples of eight bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok(text)
}

fn write(path: &Path, header: &[u8], parts: &mut [Part]) -> Result<(), CheckpointError> {
    let mut file = BufWriter::new(File::create(path).map_err(CheckpointError::write(path))?);
    let begin = file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(header));
    begin.map_err(CheckpointError::write(path))?;
    for part in parts {
        let copied = io::copy(&mut part.file, &mut file).map_err(CheckpointError::write(path))?;
        if copied != part.bytes {
            return Err(CheckpointError::torn(path, format!("{} is shorter than it was", part.path.display())));
        }
    }
    file.flush().map_err(CheckpointError::write(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(dir: &Path, number: usize, name: &str, bytes: &[u8]) -> (String, FileEntry) {
        let header = json!({
            "__metadata__": {"format": "pt"},
            name: {"dtype": "U8", "shape": [bytes.len()], "data_offsets": [0, bytes.len()]},
        });
        let header = serde_json::to_vec(&header).unwrap();
        let file = format!("{PART}{number:05}-of-00002.safetensors");
        let text = [&(header.len() as u64).to_le_bytes()[..], &header, bytes].concat();
        fs::write(dir.join(&file), text).unwrap();
        (file, FileEntry { bytes: 0, sha256: String::new() })
    }

    #[test]
    fn parts_are_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut files = BTreeMap::from([part(dir, 1, "a", &[1, 2, 3]), part(dir, 2, "b", &[4, 5])]);
        join(dir, &mut files).unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), [WHOLE]);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
        let mut joined = open(&dir.join(WHOLE)).unwrap();
        assert_eq!(joined.header["b"]["data_offsets"], json!([3, 5]));
        let mut bytes = Vec::new();
        joined.file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 5]);
        assert_eq!(files[WHOLE].bytes, fs::metadata(dir.join(WHOLE)).unwrap().len());

        let mut files = BTreeMap::from([part(dir, 1, "a", &[1]), part(dir, 2, "a", &[2])]);
        let error = join(dir, &mut files).unwrap_err().to_string();
        assert!(error.contains("a is in two parts"), "{error}");
    }
}
