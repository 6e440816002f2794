//! Samples to replicas first, and packs on each replica afterwards: a replica with one dear sample is given fewer tokens, and
//! its packs are shorter, where whole packs that cost alike would leave it the dearest by far.

use super::limits::{Load, PackLimits, SampleSize};
use super::step::{collect, first_fit_decreasing, split_dearest};
use crate::message::SampleMeta;
use crate::schedule::CostModel;
use crate::schedule::balance::{Room, longest_first, refine};

/// Packs of each replica, `per_replica` of them, as ascending indices into `samples`, by their first sample. `None`: some
/// replica's share does not fit so many packs, or is too few samples for them.
pub(crate) fn deal(
    samples: &[SampleMeta],
    limits: PackLimits,
    cost: CostModel,
    num_replicas: usize,
    per_replica: usize,
) -> Option<Vec<Vec<Vec<usize>>>> {
    let costs: Vec<u64> = samples.iter().map(|sample| cost.sample(sample)).collect();
    let weights: Vec<u64> = samples.iter().map(|sample| u64::from(sample.num_tokens)).collect();
    let room = Room { weight: limits.max_tokens as u64, count: limits.max_samples.max(1) };
    let of_replica = Room { weight: room.weight * per_replica as u64, count: room.count.saturating_mul(per_replica) };
    let mut replica_of = longest_first(&costs, &weights, num_replicas, of_replica)?;
    refine(&costs, &weights, num_replicas, of_replica, &mut replica_of);
    let mut shares = vec![Vec::new(); num_replicas];
    replica_of.iter().zip(0..).for_each(|(&replica, sample)| shares[replica].push(sample));
    let pack = |share: Vec<usize>| {
        let of = |values: &[u64]| share.iter().map(|&sample| values[sample]).collect::<Vec<_>>();
        let (costs, weights) = (of(&costs), of(&weights));
        let alike = longest_first(&costs, &weights, per_replica, room).map(|bin_of| collect(&bin_of, per_replica));
        let packs = alike.unwrap_or_else(|| {
            let bin_of = first_fit_decreasing(&weights, room);
            let num_packs = bin_of.iter().max().map_or(0, |&bin| bin + 1);
            split_dearest(collect(&bin_of, num_packs), per_replica, &costs)
        });
        let mut packs: Vec<Vec<usize>> =
            packs.into_iter().map(|pack| pack.into_iter().map(|at| share[at]).collect()).collect();
        packs.iter_mut().for_each(|pack| pack.sort_unstable());
        packs.sort_unstable();
        let load = |pack: &Vec<usize>| {
            pack.iter().fold(Load::default(), |load, &sample| load.with(SampleSize::of(&samples[sample])))
        };
        (packs.len() == per_replica && packs.iter().all(|pack| load(pack).fits(&limits))).then_some(packs)
    };
    shares.into_iter().map(pack).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Grid, ItemMeta, SampleId};
    use proptest::prelude::*;

    fn samples(sizes: &[(u32, usize)]) -> Vec<SampleMeta> {
        let item = ItemMeta { grid: Grid { t: 1, h: 2, w: 2 }, num_features: 1 };
        let sample = |(id, &(num_tokens, num_items)): (u64, &(u32, usize))| SampleMeta {
            id: SampleId(id),
            owner: 0,
            num_tokens,
            num_targets: 1,
            items: vec![item; num_items],
            documents: Vec::new(),
        };
        (0..).zip(sizes).map(sample).collect()
    }

    proptest! {
        #[test]
        fn every_sample_once_and_limits_kept(
            sizes in prop::collection::vec((1_u32..=10, 0_usize..3), 1..40),
            replicas in 1_usize..4,
            per_replica in 1_usize..4,
            max_samples in 1_usize..8,
            max_images in prop::option::of(2_usize..5),
        ) {
            let max_images = max_images.unwrap_or(usize::MAX);
            let limits = PackLimits { max_samples, max_images, ..PackLimits::tokens(20) };
            let samples = samples(&sizes);
            let Some(dealt) = deal(&samples, limits, CostModel::decoder(2), replicas, per_replica) else { return Ok(()) };
            prop_assert_eq!(dealt.len(), replicas);
            prop_assert!(dealt.iter().all(|packs| packs.len() == per_replica && packs.is_sorted()));
            let packs = dealt.concat();
            for pack in &packs {
                let load = pack.iter().fold(Load::default(), |load, &at| load.with(SampleSize::of(&samples[at])));
                prop_assert!(!pack.is_empty() && pack.is_sorted() && load.fits(&limits));
            }
            let mut all = packs.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..samples.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn half_full_packs_can_always_be_dealt() {
        let dealt = deal(&samples(&[(5, 0); 24]), PackLimits::tokens(20), CostModel::decoder(2), 4, 3).unwrap();
        assert!(dealt.iter().flatten().all(|pack| pack.len() == 2), "{dealt:?}");
        assert!(deal(&samples(&[(5, 0); 5]), PackLimits::tokens(20), CostModel::decoder(2), 2, 3).is_none());
    }
}
