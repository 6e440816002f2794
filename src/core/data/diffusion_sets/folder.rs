//! The folder of a data set: pictures and lines of JSON.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::Value as Json;

/// Pictures in one folder.
const PER_FOLDER: usize = 1000;

/// Describes how many samples were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composed {
    pub num_train: usize,
    pub num_held_out: usize,
}

/// Writes file `number` of a part, and returns its name.
///
/// # Errors
/// The file or its folder cannot be written.
pub fn write_file(dir: &Path, part: &str, number: usize, extension: &str, bytes: &[u8]) -> std::io::Result<String> {
    let folder = format!("{part}/{:03}", number / PER_FOLDER);
    fs::create_dir_all(dir.join(&folder))?;
    let name = format!("{folder}/{number:06}.{extension}");
    fs::write(dir.join(&name), bytes)?;
    Ok(name)
}

/// Writes one object a line.
///
/// # Errors
/// The file cannot be written.
pub fn write_lines(path: &Path, lines: impl Iterator<Item = Json>) -> std::io::Result<()> {
    let mut file = BufWriter::new(fs::File::create(path)?);
    for line in lines {
        writeln!(file, "{line}")?;
    }
    file.flush()
}
