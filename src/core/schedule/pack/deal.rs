//! Assigns samples to replicas first and packs them there afterwards: a replica with one costly sample gets fewer tokens and
//! shorter packs, where whole packs of equal cost would leave it the costliest by far.

use super::limits::{Load, PackLimits, SampleSize};
use super::step::{collect, first_fit_decreasing, split_costliest};
use crate::message::SampleMeta;
use crate::schedule::CostModel;
use crate::schedule::balance::{Capacity, longest_first, refine};
use std::cmp::Reverse;

/// Returns the packs of each replica, `per_replica` of them, as ascending indices into `samples`, ordered by their first sample. A
/// sample that does not fit in its replica's packs goes to another replica. `None`: it fits nowhere, or a replica has too few
/// samples.
pub(crate) fn deal(
    samples: &[SampleMeta],
    limits: PackLimits,
    cost: CostModel,
    num_replicas: usize,
    per_replica: usize,
) -> Option<Vec<Vec<Vec<usize>>>> {
    let costs: Vec<u64> = samples.iter().map(|sample| cost.sample(sample)).collect();
    let weights: Vec<u64> = samples.iter().map(|sample| u64::from(sample.num_tokens)).collect();
    let room = Capacity { weight: limits.max_tokens as u64, count: limits.max_samples.max(1) };
    let of_replica =
        Capacity { weight: room.weight * per_replica as u64, count: room.count.saturating_mul(per_replica) };
    let mut replica_of = longest_first(&costs, &weights, num_replicas, of_replica)?;
    refine(&costs, &weights, num_replicas, of_replica, &mut replica_of);
    let mut shares = vec![Vec::new(); num_replicas];
    replica_of.iter().zip(0..).for_each(|(&replica, sample)| shares[replica].push(sample));
    let sizes: Vec<SampleSize> = samples.iter().map(SampleSize::of).collect();
    let mut left_over = Vec::new();
    let mut dealt: Vec<Vec<Bin>> = Vec::with_capacity(num_replicas);
    for share in shares {
        let of = |values: &[u64]| share.iter().map(|&sample| values[sample]).collect::<Vec<_>>();
        let (costs, weights) = (of(&costs), of(&weights));
        let alike = longest_first(&costs, &weights, per_replica, room).map(|bin_of| collect(&bin_of, per_replica));
        let mut packs = alike.unwrap_or_else(|| {
            let bin_of = first_fit_decreasing(&weights, room);
            let num_packs = bin_of.iter().max().map_or(0, |&bin| bin + 1);
            split_costliest(collect(&bin_of, num_packs), per_replica, &costs)
        });
        let too_many = packs.split_off(per_replica.min(packs.len()));
        left_over.extend(too_many.into_iter().flatten().map(|at| share[at]));
        let bin = |pack: Vec<usize>| Bin::new(pack.into_iter().map(|at| share[at]).collect(), &sizes);
        packs.resize_with(per_replica, Vec::new);
        dealt.push(packs.into_iter().map(bin).collect());
    }
    let mut loads: Vec<u64> =
        dealt.iter().map(|bins| bins.iter().flat_map(|bin| &bin.samples).map(|&sample| costs[sample]).sum()).collect();
    left_over.sort_unstable_by_key(|&sample| (Reverse(weights[sample]), sample));
    for sample in left_over {
        place(sample, sizes[sample], &limits, costs[sample], &mut dealt, &mut loads)?;
    }
    let is_whole = |bin: &Bin| !bin.samples.is_empty() && bin.load.fits(&limits);
    dealt.iter().flatten().all(is_whole).then(|| dealt.into_iter().map(in_order).collect())
}

/// A pack under construction.
struct Bin {
    samples: Vec<usize>,
    load: Load,
}

impl Bin {
    fn new(samples: Vec<usize>, sizes: &[SampleSize]) -> Self {
        let load = samples.iter().fold(Load::default(), |load, &sample| load.with(sizes[sample]));
        Self { samples, load }
    }
}

/// Puts a sample that its replica has no room for into the roomiest pack that takes it, on the cheapest replica that has one.
fn place(
    sample: usize,
    size: SampleSize,
    limits: &PackLimits,
    cost: u64,
    dealt: &mut [Vec<Bin>],
    loads: &mut [u64],
) -> Option<()> {
    let takes = |bin: &Bin| bin.load.with(size).fits(limits);
    let with_room = (0..dealt.len()).filter(|&replica| dealt[replica].iter().any(takes));
    let replica = with_room.min_by_key(|&replica| loads[replica])?;
    let bins = dealt[replica].iter_mut().filter(|bin| bin.load.with(size).fits(limits));
    let bin = bins.min_by_key(|bin| bin.load.tokens)?;
    bin.samples.push(sample);
    bin.load = bin.load.with(size);
    loads[replica] += cost;
    Some(())
}

fn in_order(bins: Vec<Bin>) -> Vec<Vec<usize>> {
    let mut packs: Vec<Vec<usize>> = bins.into_iter().map(|bin| bin.samples).collect();
    packs.iter_mut().for_each(|pack| pack.sort_unstable());
    packs.sort_unstable();
    packs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Grid, ItemMeta, SampleId, Tower};
    use proptest::prelude::*;

    fn samples(sizes: &[(u32, usize)]) -> Vec<SampleMeta> {
        let item = ItemMeta { tower: Tower::Vision, grid: Grid { t: 1, h: 2, w: 2 }, num_features: 1 };
        let sample = |(id, &(num_tokens, num_items)): (u64, &(u32, usize))| SampleMeta {
            items: vec![item; num_items],
            ..SampleMeta::of_tokens(SampleId(id), num_tokens, 1)
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
        // The second replica is the cheapest for all of 11, and has room for two.
        let dealt =
            deal(&samples(&[(20, 0), (11, 0), (11, 0), (11, 0)]), PackLimits::tokens(20), CostModel::decoder(2), 2, 2);
        assert_eq!(dealt.unwrap(), [[vec![0], vec![3]], [vec![1], vec![2]]]);
        assert!(deal(&samples(&[(5, 0); 5]), PackLimits::tokens(20), CostModel::decoder(2), 2, 3).is_none());
    }

    /// The lengths are Pareto of exponent 0.9 from 400 tokens, as many as fill 97 % of four packs of 32,768 on each of 64 replicas: many
    /// are longer than half a pack.
    #[test]
    fn long_samples_are_dealt_evenly() {
        let (mut state, mut room) = (1_u64, 64 * 4 * 32_768 * 97 / 100);
        let mut sizes = Vec::new();
        loop {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            let length = (400.0 * uniform.powf(-1.0 / 0.9)).ceil();
            if length > 32_768.0 {
                continue;
            }
            room -= length as i64;
            if room < 0 {
                break;
            }
            sizes.push((length as u32, 0));
        }
        let (samples, cost) = (samples(&sizes), CostModel::decoder(2048));
        let dealt = deal(&samples, PackLimits::tokens(32_768), cost, 64, 4).unwrap();
        let load = |packs: &Vec<Vec<usize>>| packs.iter().flatten().map(|&at| cost.sample(&samples[at])).sum::<u64>();
        let loads: Vec<u64> = dealt.iter().map(load).collect();
        let mean = loads.iter().sum::<u64>() / 64;
        let most = *loads.iter().max().unwrap();
        assert!(most <= mean + mean / 25, "{most} of {mean}");
    }
}
