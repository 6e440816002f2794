//! Memory layout of a slab: the control record with its two rings, then the arena; and the checks of a header.

use super::map::{Shared, pages};
use crate::message::{PackId, StepId, UnitId, Version};
use crate::transport::limits::{MAX_DIMS, MAX_PARCELS, MAX_TENSORS};
use crate::transport::{Dtype, Header, ParcelKind, TensorMeta};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Slots of an arena, entries of a ring: the number of parcels that may be in flight.
pub(super) const SLOTS: usize = MAX_PARCELS;
/// Tensors in a slot start at multiples of it.
const ALIGN: usize = 64;

type Line<T> = [T; 16];

/// Start of a slab. Counters wrap; the entry of count `n` is `n % SLOTS`. Each counter has a cache line of its own.
#[repr(C)]
pub(super) struct Control {
    /// Parcels sent, by the producer.
    pub(super) sent: Line<AtomicU32>,
    /// Slots returned, by the consumer.
    pub(super) freed: Line<AtomicU32>,
    /// 1 where the producer waits for credit.
    pub(super) starved: Line<AtomicU32>,
    /// `[0]`: the producer has left in order; `[1]`: the consumer has.
    pub(super) left: Line<AtomicU32>,
    pub(super) freed_slots: [AtomicU32; SLOTS],
    pub(super) headers: [[AtomicU64; WORDS]; SLOTS],
}

// SAFETY: atomics only, repr(C); 1280 bytes of u32 lie before the u64s, so there is no padding.
unsafe impl Shared for Control {}
const _: () = assert!(size_of::<Control>() == 4 * 64 + SLOTS * 4 + SLOTS * WORDS * 8);

/// Layout of a slab for an edge of `credit` bytes.
#[derive(Clone, Copy)]
pub(super) struct SlabLayout {
    pub(super) slot: usize,
    pub(super) arena: usize,
}

impl SlabLayout {
    /// Returns the layout, or `None` if the arena does not fit in the address space.
    pub(super) fn new(credit: usize) -> Option<Self> {
        let slot = pages(credit.checked_add(MAX_TENSORS * ALIGN).filter(|&slot| slot < 1 << 38)?);
        Some(Self { slot, arena: pages(size_of::<Control>()) })
    }

    /// Returns the number of bytes of the whole slab.
    pub(super) fn len(&self) -> usize {
        self.arena + SLOTS * self.slot
    }

    /// Returns the range of the slots.
    pub(super) fn arena(&self) -> Range<usize> {
        self.arena..self.len()
    }
}

/// Words of a header: step, version, index and kind, slot and number of tensors; then of each tensor its sizes and, in one
/// word, its number of dimensions and its type. Only what a parcel has is written and read.
pub(super) const WORDS: usize = HEAD + MAX_TENSORS * TENSOR;
const HEAD: usize = 4;
const TENSOR: usize = MAX_DIMS + 1;

/// Returns the word of two halves.
fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Tensors and their places in a slot, in bytes.
pub(super) type Placed = Vec<(TensorMeta, Range<usize>)>;

/// The contents of a slot: the header, and each tensor's place in the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) header: Header,
    pub(super) slot: usize,
    pub(super) tensors: Placed,
}

impl Contents {
    /// Returns the bytes that count against the credit.
    pub(super) fn num_bytes(&self) -> usize {
        self.tensors.iter().map(|(_, place)| place.len()).sum()
    }

    /// Returns the bytes of the slot that are in use.
    pub(super) fn room(&self) -> usize {
        self.tensors.last().map_or(0, |(_, place)| place.end)
    }

    /// Writes the header and the shapes of its tensors into a record of the ring.
    pub(super) fn write(&self, words: &[AtomicU64; WORDS]) {
        let (kind, step, index) = match self.header.kind {
            ParcelKind::Columns(pack) => (0, pack.step, pack.index),
            ParcelKind::Items(unit) => (1, unit.step, unit.index),
            ParcelKind::Features(unit) => (2, unit.step, unit.index),
            ParcelKind::Gradient(unit) => (3, unit.step, unit.index),
        };
        let head =
            [step.0, self.header.version.0, join(index, kind), join(self.slot as u32, self.tensors.len() as u32)];
        words.iter().zip(head).for_each(|(word, value)| word.store(value, Relaxed));
        for (words, (meta, _)) in words[HEAD..].chunks_exact(TENSOR).zip(&self.tensors) {
            words.iter().zip(&meta.shape).for_each(|(word, &size)| word.store(size as u64, Relaxed));
            words[MAX_DIMS].store(join(meta.shape.len() as u32, meta.dtype as u32), Relaxed);
        }
    }

    /// Copies a header out of shared memory, each word once, and checks it.
    ///
    /// # Errors
    /// The header is wrong, and in which way.
    pub(super) fn read(words: &[AtomicU64; WORDS], credit: usize) -> Result<Self, String> {
        let head: [u64; HEAD] = std::array::from_fn(|at| words[at].load(Relaxed));
        let ((index, kind), (slot, num_tensors)) = (split(head[2]), split(head[3]));
        let step = StepId(head[0]);
        let kind = match kind {
            0 => ParcelKind::Columns(PackId { step, index }),
            1 => ParcelKind::Items(UnitId { step, index }),
            2 => ParcelKind::Features(UnitId { step, index }),
            3 => ParcelKind::Gradient(UnitId { step, index }),
            kind => return Err(format!("the unknown parcel kind {kind}")),
        };
        if slot as usize >= SLOTS {
            return Err(format!("the invalid slot {slot} of {SLOTS}"));
        }
        if num_tensors as usize > MAX_TENSORS {
            return Err(format!("{num_tensors} tensors, more than the limit of {MAX_TENSORS}"));
        }
        let tensors = words[HEAD..].chunks_exact(TENSOR).take(num_tensors as usize);
        let metas: Vec<TensorMeta> = tensors.map(read_tensor).collect::<Result<_, _>>()?;
        let placed = place(metas.iter().cloned());
        let is_within = |placed: &Placed| placed.iter().map(|(_, place)| place.len()).sum::<usize>() <= credit;
        let tensors =
            placed.filter(is_within).ok_or_else(|| format!("tensors {metas:?} beyond the credit of {credit} bytes"))?;
        let header = Header { kind, version: Version(head[1]) };
        Ok(Contents { header, slot: slot as usize, tensors })
    }
}

fn read_tensor(words: &[AtomicU64]) -> Result<TensorMeta, String> {
    let (num_dims, dtype) = split(words[MAX_DIMS].load(Relaxed));
    let dtype = match dtype {
        0 => Dtype::F32,
        1 => Dtype::Bf16,
        2 => Dtype::I64,
        dtype => return Err(format!("the unknown dtype {dtype}")),
    };
    if num_dims as usize > MAX_DIMS {
        return Err(format!("{num_dims} dimensions, more than the limit of {MAX_DIMS}"));
    }
    let size =
        |word: &AtomicU64| usize::try_from(word.load(Relaxed)).map_err(|_| "a dimension out of range".to_owned());
    Ok(TensorMeta { dtype, shape: words[..num_dims as usize].iter().map(size).collect::<Result<_, _>>()? })
}

/// Returns the places of tensors in a slot: in order, each aligned. `None` if there are too many tensors, dimensions or bytes.
pub(super) fn place(metas: impl ExactSizeIterator<Item = TensorMeta>) -> Option<Placed> {
    let mut end = 0usize;
    let place = |meta: TensorMeta| {
        let elements = meta.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
        let start = end.checked_next_multiple_of(ALIGN)?;
        end = start.checked_add(elements.checked_mul(meta.dtype.size())?)?;
        (meta.shape.len() <= MAX_DIMS).then_some((meta, start..end))
    };
    if metas.len() > MAX_TENSORS { None } else { metas.map(place).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(values: impl IntoIterator<Item = u64>) -> [AtomicU64; WORDS] {
        let mut values = values.into_iter();
        std::array::from_fn(|_| AtomicU64::new(values.next().unwrap_or(0)))
    }

    fn metas() -> impl Strategy<Value = Vec<TensorMeta>> {
        let dtype = prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::I64)];
        let meta = (dtype, prop::collection::vec(0usize..20, 0..=MAX_DIMS));
        prop::collection::vec(meta.prop_map(|(dtype, shape)| TensorMeta { dtype, shape }), 0..=MAX_TENSORS)
    }

    proptest! {
        #[test]
        fn headers_come_back(metas in metas(), step: u64, index: u32, version: u64, kind in 0u8..4, slot in 0..SLOTS) {
            let unit = UnitId { step: StepId(step), index };
            let kind = match kind {
                0 => ParcelKind::Columns(PackId { step: StepId(step), index }),
                1 => ParcelKind::Items(unit),
                2 => ParcelKind::Features(unit),
                _ => ParcelKind::Gradient(unit),
            };
            let tensors = place(metas.into_iter()).unwrap();
            let contents = Contents { header: Header { kind, version: Version(version) }, slot, tensors };
            let words = words([]);
            contents.write(&words);
            let bytes = contents.num_bytes();
            prop_assert!(bytes == 0 || Contents::read(&words, bytes - 1).is_err());
            prop_assert_eq!(Contents::read(&words, bytes), Ok(contents));
        }

        /// Whatever a peer writes is a header whose tensors lie inside the slot, or an error.
        #[test]
        fn nonsense_is_refused(values in prop::collection::vec(prop_oneof![0u64..9, any::<u64>()], WORDS)) {
            let credit = 1 << 20;
            if let Ok(contents) = Contents::read(&words(values), credit) {
                prop_assert!(contents.room() <= SlabLayout::new(credit).unwrap().slot && contents.slot < SLOTS);
                for (meta, place) in &contents.tensors {
                    prop_assert_eq!(meta.num_bytes(), place.len());
                }
            }
        }
    }

    #[test]
    fn a_shape_whose_product_overflows_is_refused() {
        let meta = TensorMeta { dtype: Dtype::F32, shape: vec![1 << 33, 1 << 33] };
        assert_eq!(place([meta].into_iter()), None);
        let zero = TensorMeta { dtype: Dtype::F32, shape: vec![0, usize::MAX] };
        assert_eq!(place([zero].into_iter()).map(|placed| placed[0].1.len()), Some(0));
    }
}
