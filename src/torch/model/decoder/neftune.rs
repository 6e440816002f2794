//! NEFTune (Jain et al. 2023): uniform noise on the embeddings of tokens, in training. Its size is `alpha / sqrt(L · D)` for a
//! document of L tokens and a width of D, as the paper and transformers' trainer have it; there L is the length of a padded
//! batch, here that of the document itself.
//!
//! The noise of a token belongs to the run's seed, its sample, its document in it and its place there: so it is the same
//! whatever is packed with what, on any number of replicas and ranks, and after a resume.
//!
//! Shapes: T tokens, D hidden size.

use std::ops::Range;
use std::rc::Rc;

use loongforge_core::rng::{Rng, STEP};
use tch::{Device, Kind, Tensor};

use crate::device::upload;
use crate::model::batch::MicroBatch;
use crate::tape::{Policy, Slot, Tape};

/// Tells these numbers from others of the same seed and sample.
const SALT: u64 = 0x006e_6566_7475_6e65;
/// Numbers that are drawn at a time: they are drawn as int64.
const AT_ONCE: i64 = 1 << 22;

/// The setting of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neftune {
    pub alpha: f64,
    /// The run's seed.
    pub seed: u64,
}

/// The noise of a batch's tokens, not yet drawn.
#[derive(Clone, Debug)]
pub struct EmbeddingNoise {
    /// The key of each token's noise, `[T]`.
    keys: Vec<i64>,
    /// The largest number that is added to the token's embedding, `[T]`.
    sizes: Vec<f32>,
}

impl Neftune {
    /// Returns the noise of a batch's own tokens, at embeddings of this width; `None` where no sample is known, as in what ranks compute
    /// to take part. Panics of a piece of a row.
    pub fn of(&self, batch: &MicroBatch, width: i64) -> Option<EmbeddingNoise> {
        assert!(batch.past.is_none(), "the documents of a piece of a row are longer than the piece");
        if batch.samples.is_empty() {
            return None;
        }
        let lens: Vec<usize> = match &batch.row {
            Some(row) => row.split().document_lens().collect(),
            None => batch.cu_seqlens.windows(2).map(|ends| ends[1] - ends[0]).collect(),
        };
        let mut lens = lens.into_iter();
        let mut all = EmbeddingNoise { keys: Vec::new(), sizes: Vec::new() };
        for sample in batch.samples.iter() {
            let (end, mut document) = (all.keys.len() + sample.num_tokens, 0);
            while all.keys.len() < end {
                let len = lens.next().expect("the documents of a row are those of its samples");
                let mut keys = Rng::salted(SALT, &[self.seed, sample.id.0, document]);
                all.keys.extend((0..len).map(|_| keys.next_u64() as i64));
                let size = self.alpha / ((len as f64) * (width as f64)).sqrt();
                all.sizes.extend(std::iter::repeat_n(size as f32, len));
                document += 1;
            }
        }
        Some(match &batch.row {
            None => all,
            Some(row) => {
                let own = row.split().rows(row.rank());
                EmbeddingNoise {
                    keys: own.iter().map(|row| all.keys[*row as usize]).collect(),
                    sizes: own.iter().map(|row| all.sizes[*row as usize]).collect(),
                }
            }
        })
    }
}

impl EmbeddingNoise {
    /// Adds that of the tokens `own` to their embeddings `x`.
    pub(super) fn record(&self, tape: &mut Tape, x: Slot, own: &Range<i64>, policy: Policy, device: Device) -> Slot {
        let own = own.start as usize..own.end as usize;
        let keys_T1 = Rc::new(upload(&Tensor::from_slice(&self.keys[own.clone()]), device).unsqueeze(1));
        let sizes_T1 = Rc::new(upload(&Tensor::from_slice(&self.sizes[own]), device).unsqueeze(1));
        let add = move |reads: &[Tensor]| {
            let noise_TD = uniform(&keys_T1, reads[0].size()[1]) * &*sizes_T1;
            vec![&reads[0] + noise_TD.to_kind(reads[0].kind())]
        };
        tape.run("embedding noise", &[], policy, &[x], 1, add)[0]
    }
}

/// Returns numbers `[T, D]` between -1 and 1, float32: number d of a key is the upper 24 bits of [`Counter::unit`] of it.
///
/// [`Counter::unit`]: loongforge_core::rng::Counter::unit
fn uniform(keys_T1: &Tensor, width: i64) -> Tensor {
    let (len, device) = (keys_T1.size()[0], keys_T1.device());
    let steps_D = (Tensor::arange(width, (Kind::Int64, device)) + 1) * STEP as i64;
    let all_TD = Tensor::empty([len, width], (Kind::Float, device));
    let at_once = (AT_ONCE / width).max(1);
    for start in (0..len).step_by(at_once as usize) {
        let rows = at_once.min(len - start);
        let bits = shifted(&mixed(&(keys_T1.narrow(0, start, rows) + &steps_D)), 40).to_kind(Kind::Float);
        let units = (bits + 0.5) * (2.0 / f64::from(1 << 24)) - 1.0;
        all_TD.narrow(0, start, rows).copy_(&units);
    }
    all_TD
}

/// Returns [`loongforge_core::rng::mix`] of int64.
fn mixed(z: &Tensor) -> Tensor {
    let z = z.bitwise_xor_tensor(&shifted(z, 30)) * 0xbf58_476d_1ce4_e5b9_u64 as i64;
    let z = z.bitwise_xor_tensor(&shifted(&z, 27)) * 0x94d0_49bb_1331_11eb_u64 as i64;
    z.bitwise_xor_tensor(&shifted(&z, 31))
}

/// Returns the bits shifted to the right, with zeros before them.
fn shifted(z: &Tensor, by: i64) -> Tensor {
    z.bitwise_right_shift_tensor_scalar(by).bitwise_and((1i64 << (64 - by)) - 1)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use loongforge_core::config::ContextAttention;
    use loongforge_core::message::{SampleId, SampleMeta};
    use loongforge_core::rng::Counter;
    use tch::{Device, Kind, Tensor};

    use super::{EmbeddingNoise, Neftune, uniform};
    use crate::model::batch::{MicroBatch, SampleRow};
    use crate::model::columns::token_columns;
    use crate::model::objective::NoisePurpose;
    use crate::tape::ContextShard;

    const NEFTUNE: Neftune = Neftune { alpha: 5.0, seed: 3 };
    const WIDTH: i64 = 8;

    /// Returns samples with the lengths of their documents, in one row.
    fn batch(samples: &[(u64, &[usize])]) -> MicroBatch {
        let row = |(id, lens): &(u64, &[usize])| {
            let meta = SampleMeta::of_tokens(SampleId(*id), lens.iter().sum::<usize>() as u32, 1);
            SampleRow::new(&meta, NoisePurpose::Training)
        };
        let ends = samples.iter().flat_map(|(_, lens)| lens.iter()).scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        MicroBatch {
            cu_seqlens: std::iter::once(0).chain(ends).collect(),
            samples: samples.iter().map(row).collect(),
            ..MicroBatch::filler(&token_columns().into(), Device::Cpu)
        }
    }

    fn noise(batch: &MicroBatch) -> Tensor {
        let EmbeddingNoise { keys, sizes } = NEFTUNE.of(batch, WIDTH).unwrap();
        uniform(&Tensor::from_slice(&keys).unsqueeze(1), WIDTH) * Tensor::from_slice(&sizes).unsqueeze(1)
    }

    #[test]
    fn numbers_are_those_of_the_control_planes_generator() {
        let keys = [7i64, -1, i64::MIN];
        let found = uniform(&Tensor::from_slice(&keys).unsqueeze(1), 5);
        for (row, key) in keys.iter().enumerate() {
            for at in 0..5 {
                let expected = 2.0 * Counter::of(*key as u64).unit(at) - 1.0;
                let found = found.double_value(&[row as i64, at as i64]);
                // 24 bits of 53.
                assert!((found - expected).abs() <= 2f64.powi(-23), "{found} {expected}");
            }
        }
        let many = uniform(&Tensor::arange(2000, (Kind::Int64, Device::Cpu)).unsqueeze(1), 100);
        let moment = |of: Tensor| of.mean(Kind::Double).double_value(&[]);
        // Of a uniform number between -1 and 1: 0 and 1/3.
        assert!(moment(many.shallow_clone()).abs() < 0.01 && (moment(many.square()) - 1.0 / 3.0).abs() < 0.01);
    }

    #[test]
    fn noise_belongs_to_the_sample_and_has_the_size_of_its_document() {
        let whole = noise(&batch(&[(4, &[6]), (9, &[3, 5])]));
        assert_eq!(noise(&batch(&[(9, &[3, 5])])), whole.narrow(0, 6, 8), "whatever is packed before it");
        assert_eq!(noise(&batch(&[(9, &[3, 5]), (4, &[6])])).narrow(0, 8, 6), whole.narrow(0, 0, 6));
        for (start, len) in [(0, 6), (6, 3), (9, 5)] {
            let most = whole.narrow(0, start, len).abs().max().double_value(&[]);
            let size = 5.0 / ((len * WIDTH) as f64).sqrt();
            assert!(most <= size && most > 0.8 * size, "{most} of {size}");
        }
        let other = |neftune: Neftune, id| neftune.of(&batch(&[(id, &[6])]), WIDTH).unwrap().keys;
        assert_ne!(other(NEFTUNE, 4), other(NEFTUNE, 5));
        assert_ne!(other(NEFTUNE, 4), other(Neftune { seed: 4, ..NEFTUNE }, 4));
        assert!(NEFTUNE.of(&MicroBatch::filler(&token_columns().into(), Device::Cpu), WIDTH).is_none());
    }

    #[test]
    fn ranks_that_share_a_row_have_the_rows_of_the_whole() {
        let whole = batch(&[(4, &[6]), (9, &[3, 15])]);
        let expected = noise(&whole);
        for rank in 0..2 {
            let shard = Rc::new(ContextShard::new(&whole.cu_seqlens, 2, rank, ContextAttention::Ring, Device::Cpu));
            let rows = shard.rows();
            let own = MicroBatch {
                cu_seqlens: shard.split().cu_seqlens(rank),
                row: Some(shard),
                ..batch(&[(4, &[6]), (9, &[3, 15])])
            };
            assert_eq!(noise(&own), expected.index_select(0, &rows));
        }
    }
}
