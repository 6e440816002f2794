//! An npm package `emoji-datasource-*`: its table and its pictures of 64 × 64. Names in it are keys; nothing is unpacked.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::Value as Json;
use tar::Archive;

use crate::data::error::DataError;

const MAX_TABLE_BYTES: u64 = 64 << 20;
const MAX_PICTURE_BYTES: u64 = 1 << 20;
/// The largest size of all pictures together.
const MAX_BYTES: u64 = 1 << 30;

/// The parts of a package that are read.
pub(super) struct Package {
    pub table: Vec<Emoji>,
    /// PNG files by the name that the table gives them.
    pub pictures: BTreeMap<String, Vec<u8>>,
}

/// A row of `emoji.json`.
#[derive(Deserialize)]
pub(super) struct Emoji {
    pub name: Option<String>,
    pub short_name: String,
    pub image: String,
    pub category: String,
    /// The variants, by the code of a skin tone, or of two.
    #[serde(default)]
    pub skin_variations: BTreeMap<String, Variation>,
}

#[derive(Deserialize)]
pub(super) struct Variation {
    pub image: String,
}

impl Package {
    /// # Errors
    /// The file cannot be read, or is no such package.
    pub fn read(path: &Path) -> Result<Package, DataError> {
        let wrong = |reason: String| DataError::file(path, reason);
        let damaged = |error: std::io::Error| wrong(format!("is not a .tgz of npm: {error}"));
        let file = File::open(path).map_err(|error| DataError::read(path, error))?;
        let mut archive = Archive::new(GzDecoder::new(file));
        let (mut table, mut pictures, mut sum) = (None, BTreeMap::new(), 0);
        for entry in archive.entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let picture = match name.split('/').collect::<Vec<_>>()[..] {
                ["package", "emoji.json"] => None,
                ["package", "img", _, "64", picture] if picture.ends_with(".png") => Some(picture.to_owned()),
                _ => continue,
            };
            let limit = if picture.is_some() { MAX_PICTURE_BYTES } else { MAX_TABLE_BYTES };
            sum += entry.size();
            if entry.size() > limit || sum > MAX_BYTES {
                return Err(wrong(format!("{name:?} has {} bytes: too large for this package", entry.size())));
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(damaged)?;
            match picture {
                Some(picture) => drop(pictures.insert(picture, bytes)),
                None => table = Some(bytes),
            }
        }
        let table = table.filter(|_| !pictures.is_empty()).ok_or_else(|| {
            wrong("has no emoji.json and img/SET/64: name a package like emoji-datasource-google-16.0.0.tgz".to_owned())
        })?;
        let rows: Vec<Json> = serde_json::from_slice(&table).map_err(|error| wrong(format!("emoji.json: {error}")))?;
        let row = |row| serde_json::from_value(row).map_err(|error| wrong(format!("emoji.json: {error}")));
        Ok(Package { table: rows.into_iter().map(row).collect::<Result<_, _>>()?, pictures })
    }
}
