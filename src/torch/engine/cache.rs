//! Features that a frozen encoder has made, by the content of their media item: every epoch shows the same pictures again. Encoders that
//! are trained have no cache, since their features change with every step.

use super::cache_folder::CacheFolder;
use super::cache_key::Key;
use super::spill::Spill;
use crate::device::upload;
use loongforge_core::message::Tower;
use lru::LruCache;
use std::collections::BTreeMap;
use std::io;
use tch::{Device, Tensor};

/// Features of the items that were used last, as many as `capacity` bytes hold, in host memory; of what makes room for them, as
/// much as a file holds.
pub(super) struct FeatureCache {
    capacity: u64,
    bytes: u64,
    entries: LruCache<Key, Entry>,
    spill: Option<Spill>,
    folders: BTreeMap<Tower, CacheFolder>,
}

struct Entry {
    features: Vec<Tensor>,
    bytes: u64,
}

impl FeatureCache {
    /// Keeps features of at most so many bytes; those that are not asked for longest go first.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, bytes: 0, entries: LruCache::unbounded(), spill: None, folders: BTreeMap::new() }
    }

    /// Adds a file for features that find no room in memory.
    pub fn with_spill(self, spill: Spill) -> Self {
        Self { spill: Some(spill), ..self }
    }

    /// Adds folders that outlive the run.
    pub fn with_folders(self, folders: BTreeMap<Tower, CacheFolder>) -> Self {
        Self { folders, ..self }
    }

    /// Returns whether actors that are asked for the same items may keep others of them: their files are on disks, which may fail.
    pub fn may_differ(&self) -> bool {
        self.spill.is_some()
    }

    /// Returns all levels of an item's features, `[features, width]` each.
    pub fn get(&mut self, tower: Tower, key: &Key) -> Option<Vec<Tensor>> {
        if let Some(entry) = self.entries.get(key) {
            return Some(entry.features.iter().map(Tensor::shallow_clone).collect());
        }
        let spilled = self.spill.as_ref().and_then(|spill| spill.get(key));
        spilled.or_else(|| self.folders.get(&tower)?.get(key))
    }

    /// Keeps what a tower has made of an item, in its folder too. Each level is `[features, D]`.
    pub fn keep(&mut self, tower: Tower, key: Key, features: &[Tensor]) {
        self.insert(key, features);
        self.write(tower, |folder| folder.insert(key, features));
    }

    /// Writes what the folders have not written yet.
    pub fn flush(&mut self) {
        Tower::ALL.into_iter().for_each(|tower| self.write(tower, CacheFolder::flush));
    }

    /// Gives up a folder that cannot be written to: the run goes on without it, and says so. Files are copied to a store while it goes
    /// on; one that does not take them is asked again with the next ones.
    fn write(&mut self, tower: Tower, write: impl FnOnce(&mut CacheFolder) -> io::Result<()>) {
        let Some(folder) = self.folders.get_mut(&tower) else { return };
        match write(folder) {
            Ok(()) => {
                if let Err(error) = folder.begin_sending() {
                    tracing::warn!("features of the {tower} tower are not copied to cache_store: {error}");
                }
            }
            Err(error) => {
                tracing::warn!("features of the {tower} tower are no longer kept in cache_dir: {error}");
                self.folders.remove(&tower);
            }
        }
    }

    /// Keeps an item's features in memory; what was used longest ago makes room, and goes to the file if there is one, as does what is
    /// larger than the whole memory.
    fn insert(&mut self, key: Key, features: &[Tensor]) {
        let size = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        let bytes = features.iter().map(size).sum();
        if self.entries.contains(&key) {
            return;
        }
        if bytes > self.capacity {
            self.spill.iter_mut().for_each(|spill| spill.insert(key, features));
            return;
        }
        while self.bytes + bytes > self.capacity {
            let (oldest, gone) = self.entries.pop_lru().expect("bytes are of entries");
            self.bytes -= gone.bytes;
            self.spill.iter_mut().for_each(|spill| spill.insert(oldest, &gone.features));
        }
        // A copy: a view would hold the whole unit's memory.
        let features = features.iter().map(|tensor| tensor.detach().to_device(Device::Cpu).copy()).collect();
        self.bytes += bytes;
        self.entries.put(key, Entry { features, bytes });
    }
}

/// Returns one level of several items' features, one below the other, in the type that the tower gave them: the sums of a reference
/// model are more exact than its weights.
pub(super) fn stack(items: &[Vec<Tensor>], level: usize, device: Device) -> Tensor {
    let of_level: Vec<Tensor> = items.iter().map(|levels| upload(&levels[level], device)).collect();
    Tensor::cat(&of_level, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::message::Grid;
    use tch::Kind;

    fn key(first: f32) -> Key {
        Key::of(Tower::Vision, Grid { t: 1, h: 1, w: 2 }, &Tensor::from_slice(&[first, 1.0]).view([2, 1]))
    }

    #[test]
    fn content_and_grid_are_the_key() {
        assert_eq!(key(0.5), key(0.5));
        assert_ne!(key(0.5), key(0.25));
        let pixels = Tensor::from_slice(&[0.5_f32, 1.0]).view([2, 1]);
        assert_ne!(key(0.5), Key::of(Tower::Vision, Grid { t: 1, h: 2, w: 1 }, &pixels));
        // A view of a larger tensor has the content of its own rows.
        let rows = Tensor::from_slice(&[9.0_f32, 0.5, 1.0]).view([3, 1]);
        assert_eq!(key(0.5), Key::of(Tower::Vision, Grid { t: 1, h: 1, w: 2 }, &rows.narrow(0, 1, 2)));
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let features = |value: f32| [Tensor::from_slice(&[value; 4])];
        // Two entries of 16 bytes.
        let mut cache = FeatureCache::new(40);
        cache.insert(key(1.0), &features(1.0));
        cache.insert(key(2.0), &features(2.0));
        assert!(cache.get(Tower::Vision, &key(1.0)).is_some());
        cache.insert(key(3.0), &features(3.0));
        assert!(cache.get(Tower::Vision, &key(2.0)).is_none());
        let kept = cache.get(Tower::Vision, &key(1.0)).unwrap();
        assert_eq!(Vec::<f32>::try_from(&kept[0]).unwrap(), [1.0; 4]);
        cache.insert(key(4.0), &[Tensor::zeros([11], (Kind::Float, Device::Cpu))]);
        assert!(cache.get(Tower::Vision, &key(4.0)).is_none() && cache.get(Tower::Vision, &key(3.0)).is_some());
    }

    /// The sums of a reference model in bfloat16, whose digits would be lost in its type.
    #[test]
    fn features_keep_the_digits_that_the_tower_gave_them() {
        let sums = [[-350.137_f32, 1e-6], [-12.25, 3e-7]];
        let items = sums.map(|sums| vec![Tensor::from_slice(&sums).view([1, 2])]);
        let stacked = stack(&items, 0, Device::Cpu);
        assert_eq!((stacked.size(), stacked.kind()), (vec![2, 2], Kind::Float));
        assert_eq!(Vec::<f32>::try_from(stacked.view([4])).unwrap(), sums.concat());
    }

    #[test]
    fn what_makes_room_goes_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = FeatureCache::new(16).with_spill(Spill::new(folder.path(), 36).unwrap());
        for value in [1.0, 2.0, 3.0, 4.0] {
            cache.insert(key(value), &[Tensor::from_slice(&[value; 4])]);
        }
        let mut kept =
            |value: f32| cache.get(Tower::Vision, &key(value)).map(|kept| Vec::<f32>::try_from(&kept[0]).unwrap());
        // The fourth lies in memory, the first two in the file, which has no room for the third.
        assert_eq!([1.0, 2.0, 4.0].map(&mut kept), [1.0, 2.0, 4.0].map(|value| Some(vec![value; 4])));
        assert_eq!(kept(3.0), None);
    }
}
