//! Threads that read samples and hand their items to encoders, each item once.

use super::visits::{Visit, Visits};
use loongforge_core::data::Sample;
use loongforge_core::engine::{SampleSource, WithHeldOut};
use loongforge_core::message::{SampleId, SkippedSample, Tower};
use loongforge_torch::engine::{Key, KeyedItem};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

/// The way to the encoders of each tower.
pub type Queues = BTreeMap<Tower, flume::Sender<KeyedItem>>;

/// The visits that were read, and the samples that were bad.
#[derive(Default)]
pub struct Fed {
    pub visits: [u64; 2],
    pub bad: Vec<SkippedSample>,
}

/// The state that the feeders share.
#[derive(Default)]
struct Shared {
    fed: Fed,
    /// Items that were handed on.
    items: HashSet<Key>,
    /// True for the visits that were good, by data set, sample, and what was chosen of it.
    visited: HashMap<(usize, u64, u64), bool>,
}

/// Reads all visits on so many threads. Ends early where encoders have ended.
pub fn feed(
    samples: &WithHeldOut,
    visits: &Visits,
    queues: Queues,
    threads: usize,
    done: &(impl Fn(&Visit) + Sync),
) -> Fed {
    let shared = Mutex::new(Shared::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (queues, shared) = (queues.clone(), &shared);
            scope.spawn(move || {
                while let Some(visit) = visits.next() {
                    if !feed_one(samples, visits, &visit, &queues, shared) {
                        return;
                    }
                    done(&visit);
                }
            });
        }
    });
    drop(queues);
    shared.into_inner().expect("feeders do not panic").fed
}

/// Returns false where an encoder has ended.
fn feed_one(samples: &WithHeldOut, visits: &Visits, visit: &Visit, queues: &Queues, shared: &Mutex<Shared>) -> bool {
    let lock = || shared.lock().expect("feeders do not panic");
    let bad = |bad: SkippedSample| {
        if matches!(visit, Visit::Train(_)) {
            visits.bad();
        }
        lock().fed.bad.push(bad);
        true
    };
    let (id, number) = match *visit {
        Visit::Train(id) => (id, 0),
        Visit::HeldOut(id) => (id, 1),
    };
    let place = match visit {
        Visit::Train(SampleId(position)) => {
            let (set, index) = samples.train.place_of(*position);
            if !visits.is_own(set, index) {
                return true;
            }
            match samples.train.choice(*position) {
                Ok(choice) => Some((set, index, choice)),
                Err(found) => return bad(found.into_message(id)),
            }
        }
        Visit::HeldOut(_) => None,
    };
    match place.and_then(|place| lock().visited.get(&place).copied()) {
        Some(true) => {
            lock().fed.visits[number] += 1;
            return true;
        }
        Some(false) => {
            visits.bad();
            return true;
        }
        None => {}
    }
    let sample = samples.sample(id);
    if let Some(place) = place {
        lock().visited.insert(place, sample.is_ok());
    }
    let sample = match sample {
        Ok(sample) => sample,
        Err(found) => return bad(found),
    };
    lock().fed.visits[number] += 1;
    items(&sample, queues).all(|(item, queue)| !lock().items.insert(item.key) || queue.send(item).is_ok())
}

/// Returns the items of a sample that are encoded, and where they go.
fn items<'a>(
    sample: &'a Sample,
    queues: &'a Queues,
) -> impl Iterator<Item = (KeyedItem, &'a flume::Sender<KeyedItem>)> {
    let with = sample.meta.items.iter().zip(&sample.media);
    with.filter_map(|(meta, media)| {
        let queue = queues.get(&meta.tower)?;
        Some((KeyedItem::new(meta.tower, media.grid, &media.pixels), queue))
    })
}
