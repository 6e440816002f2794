//! Features that a cache has no memory for, in a file. Features in the file stay there: epochs go over the same items in turn, and making
//! room for the newest would drop each just before it comes again.

use super::cache_key::Key;
use crate::native::bytes;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// A file without a name: it is gone when the process is.
pub(super) struct Spill {
    file: File,
    capacity: u64,
    len: u64,
    entries: HashMap<Key, Vec<SpilledLevel>>,
}

/// Describes where one level of an item's features lies.
struct SpilledLevel {
    offset: u64,
    shape: Vec<i64>,
    kind: Kind,
}

impl Spill {
    /// Returns a file of `capacity` bytes at most, in `folder`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(folder: &Path, capacity: u64) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { file: tempfile::tempfile_in(folder)?, capacity, len: 0, entries: HashMap::new() })
    }

    /// Returns all levels of an item's features. `None` also where the disk fails: the item is encoded again. Each level is
    /// `[features, D]`.
    pub fn get(&self, key: &Key) -> Option<Vec<Tensor>> {
        let read = |place: &SpilledLevel| {
            let numel = place.shape.iter().product::<i64>() as usize;
            let mut content = vec![0; numel * place.kind.elt_size_in_bytes()];
            self.file.read_exact_at(&mut content, place.offset).ok()?;
            Some(Tensor::from_data_size(&content, &place.shape, place.kind))
        };
        self.entries.get(key)?.iter().map(read).collect()
    }

    /// Writes an item's features, on the CPU, if there is room. Once the disk has failed there is none.
    /// Each level is `[features, D]`.
    pub fn insert(&mut self, key: Key, features: &[Tensor]) {
        let size = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        let added: usize = features.iter().map(size).sum();
        if self.len + added as u64 > self.capacity || self.entries.contains_key(&key) {
            return;
        }
        let mut places = Vec::new();
        for tensor in features {
            let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
            let content = bytes(&tensor);
            if self.file.write_all_at(content, self.len).is_err() {
                self.capacity = 0;
                return;
            }
            places.push(SpilledLevel { offset: self.len, shape: tensor.size(), kind: tensor.kind() });
            self.len += content.len() as u64;
        }
        self.entries.insert(key, places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::message::{Grid, Tower};

    fn key(first: f32) -> Key {
        Key::of(Tower::Vision, Grid { t: 1, h: 1, w: 1 }, &Tensor::from_slice(&[first]).view([1, 1]))
    }

    #[test]
    fn what_was_written_is_read_bit_for_bit_and_the_file_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(&folder.path().join("new"), 40).unwrap();
        // Two levels, one of them of two bytes an element, and not contiguous.
        let level = Tensor::from_slice(&[1.0_f32, -2.5, 3.0, f32::MIN_POSITIVE]).view([2, 2]).tr();
        let half = Tensor::from_slice(&[0.5_f32, 7.0]).to_kind(Kind::BFloat16);
        spill.insert(key(1.0), &[level.shallow_clone(), half.shallow_clone()]);
        // 20 of 40 bytes are taken: one more fits, a third does not.
        spill.insert(key(2.0), &[Tensor::from_slice(&[4.0_f32; 5])]);
        spill.insert(key(3.0), &[Tensor::from_slice(&[5.0_f32])]);
        let kept = spill.get(&key(1.0)).unwrap();
        assert!(kept[0].equal(&level) && kept[1].equal(&half));
        assert_eq!((kept[0].size(), kept[1].kind()), (vec![2, 2], Kind::BFloat16));
        assert!(spill.get(&key(2.0)).is_some() && spill.get(&key(3.0)).is_none());
        assert_eq!(std::fs::read_dir(folder.path().join("new")).unwrap().count(), 0, "the file has no name");
    }
}
