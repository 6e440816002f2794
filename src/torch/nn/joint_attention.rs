//! Attention of groups of rows, all of one length, to keys of two streams: those of a prefix, which lie in a row of their own,
//! and the group's own. Several groups may have one prefix. Groups whose prefixes have one length are computed together, and
//! nothing is padded.
//!
//! Shapes: S groups, L rows of each, P rows of all prefixes, H query heads, K key and value heads, C width of a head, B groups of
//! a batch.

use std::collections::BTreeMap;
use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::attend::{Scores, attend, take_rows};
use crate::device::upload;

/// Describes which rows meet which keys; made once a micro-batch, for all layers.
pub struct JointAttention {
    batches: Vec<Batch>,
    /// The place of each group among those of the batches; `None`: the batches have them in order.
    places: Option<Tensor>,
    /// `[1, 1, L, L]`, bool: which rows of a group see which; `None`: all see all.
    seen: Option<Tensor>,
    len: i64,
}

/// Groups whose prefixes have one length.
struct Batch {
    /// The groups, ascending; `None`: all of them.
    groups: Option<Tensor>,
    num_groups: i64,
    /// Rows of each prefix.
    num_keys: i64,
    /// The rows of their prefixes, end to end; `None`: all of them, in their order.
    rows: Option<Tensor>,
}

impl JointAttention {
    /// `prefixes` are the rows of each group's prefix among `num_rows`. `levels` `[L]` are those of a group's rows: a row sees its
    /// prefix and all rows whose level is not above its own.
    pub fn new(prefixes: &[Range<i64>], num_rows: i64, levels: &[u32], device: Device) -> JointAttention {
        let index = |values: &[i64]| upload(&Tensor::from_slice(values), device);
        let mut by_len = BTreeMap::<i64, Vec<usize>>::new();
        for (group, rows) in prefixes.iter().enumerate() {
            by_len.entry(rows.end - rows.start).or_default().push(group);
        }
        let mut order = Vec::new();
        let batch = |(num_keys, groups): (i64, Vec<usize>)| {
            let rows: Vec<i64> = groups.iter().flat_map(|group| prefixes[*group].clone()).collect();
            let in_order = rows.len() as i64 == num_rows && (0..).zip(&rows).all(|(at, row)| at == *row);
            let groups: Vec<i64> = groups.into_iter().map(|group| group as i64).collect();
            order.extend_from_slice(&groups);
            Batch {
                groups: (groups.len() < prefixes.len()).then(|| index(&groups)),
                num_groups: groups.len() as i64,
                num_keys,
                rows: (!in_order).then(|| index(&rows)),
            }
        };
        let batches: Vec<Batch> = by_len.into_iter().map(batch).collect();
        let mut places = vec![0i64; order.len()];
        (0..).zip(&order).for_each(|(place, group)| places[*group as usize] = place);
        let seen = || {
            let level = Tensor::from_slice(&levels.iter().map(|level| i64::from(*level)).collect::<Vec<_>>());
            let seen = level.unsqueeze(0).le_tensor(&level.unsqueeze(1));
            upload(&seen.view([1, 1, levels.len() as i64, levels.len() as i64]), device)
        };
        JointAttention {
            batches,
            places: (!places.is_sorted()).then(|| index(&places)),
            seen: levels.windows(2).any(|two| two[0] != two[1]).then(seen),
            len: levels.len() as i64,
        }
    }

    /// Maps queries `[S·L, H, C]` with keys and values of prefixes `[P, K, C]` and of the groups `[S·L, K, C]`, to `[S·L, H·C]`.
    pub fn forward(&self, q: &Tensor, prefix: [&Tensor; 2], own: [&Tensor; 2], scores: Scores) -> Tensor {
        self.joined(|batch| {
            let [k, v] = [0, 1].map(|at| {
                let prefix = batch.prefix(prefix[at]);
                Tensor::cat(&[prefix, batch.groups(own[at], self.len)], 1)
            });
            let mask = self.seen.as_ref().map(|seen| {
                let prefix = Tensor::ones([1, 1, self.len, batch.num_keys], (Kind::Bool, k.device()));
                Tensor::cat(&[prefix, seen.shallow_clone()], 3)
            });
            attend(&batch.groups(q, self.len), &k, &v, mask.as_ref(), false, scores)
        })
    }

    /// Works like [`JointAttention::forward`] without the groups' own keys and values: no prefix is empty.
    /// `q` `[S·L, H, C]`, `prefix` `[P, K, C]` each, to `[S·L, H·C]`.
    pub fn forward_prefix(&self, q: &Tensor, prefix: [&Tensor; 2], scores: Scores) -> Tensor {
        self.joined(|batch| {
            let [k, v] = prefix.map(|x| batch.prefix(x));
            attend(&batch.groups(q, self.len), &k, &v, None, false, scores)
        })
    }

    /// Joins the attended values `[B, L, H·C]` of the batches in the order of the groups: `[S·L, H·C]`.
    fn joined(&self, attended: impl Fn(&Batch) -> Tensor) -> Tensor {
        let attended: Vec<Tensor> = self.batches.iter().map(attended).collect();
        let y = if attended.len() == 1 { attended[0].shallow_clone() } else { Tensor::cat(&attended, 0) };
        match &self.places {
            Some(places) => take_rows(&y.flatten(1, 2), places).view([-1, y.size()[2]]),
            None => y.flatten(0, 1),
        }
    }
}

impl Batch {
    /// Maps `[P, K, C]` to `[B, rows of a prefix, K, C]`.
    fn prefix(&self, x: &Tensor) -> Tensor {
        let size = x.size();
        let rows = match &self.rows {
            Some(rows) => take_rows(&x.flatten(1, 2), rows),
            None => x.contiguous(),
        };
        rows.view([self.num_groups, self.num_keys, size[1], size[2]])
    }

    /// Maps `[S·L, heads, C]` to `[B, L, heads, C]`.
    fn groups(&self, x: &Tensor, len: i64) -> Tensor {
        let size = x.size();
        let by_group = x.reshape([-1, len * size[1] * size[2]]);
        let taken = match &self.groups {
            Some(groups) => take_rows(&by_group, groups),
            None => by_group,
        };
        taken.view([self.num_groups, len, size[1], size[2]])
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use tch::{Device, Kind, Tensor};

    use super::JointAttention;
    use crate::native::grad;
    use crate::nn::Scores;

    /// A group at a time by the definition, with gradients: prefixes of several lengths, shared and alone, and all levels.
    #[test]
    fn groups_see_their_prefix_and_the_levels_up_to_their_own() {
        let cases = [
            (vec![(0, 5), (5, 10)], 10, vec![1, 1, 1]),
            (vec![(0, 5), (0, 5), (5, 7), (5, 7), (7, 12)], 12, vec![1, 2, 2]),
            (vec![(4, 4), (0, 4)], 4, vec![1, 2, 3]),
            (vec![(0, 1)], 1, vec![0]),
        ];
        for (prefixes, num_rows, levels) in &cases {
            let prefixes: Vec<Range<i64>> = prefixes.iter().map(|(begin, end)| *begin..*end).collect();
            let (prefixes, num_rows) = (&prefixes[..], *num_rows);
            tch::manual_seed(4);
            let len = levels.len() as i64;
            let random = |rows: i64, heads: i64| {
                Tensor::randn([rows, heads, 6], (Kind::Float, Device::Cpu)).set_requires_grad(true)
            };
            let num_own = prefixes.len() as i64 * len;
            let (q, pk, pv) = (random(num_own, 4), random(num_rows, 2), random(num_rows, 2));
            let (k, v) = (random(num_own, 2), random(num_own, 2));
            let group = |(number, rows): (i64, &Range<i64>)| {
                let keys = |prefix: &Tensor, own: &Tensor| {
                    let prefix = prefix.narrow(0, rows.start, rows.end - rows.start);
                    let all = Tensor::cat(&[prefix, own.narrow(0, number * len, len)], 0);
                    all.repeat_interleave_self_int(2, 1, None).transpose(0, 1)
                };
                let q = q.narrow(0, number * len, len).transpose(0, 1);
                let mut scores = q.matmul(&keys(&pk, &k).transpose(1, 2)) / 6f64.sqrt();
                for (at, level) in (0..).zip(levels) {
                    for (other, _) in (0..).zip(levels).filter(|(_, other)| *other > level) {
                        let _ = scores.select(1, at).select(1, rows.end - rows.start + other).fill_(f64::NEG_INFINITY);
                    }
                }
                scores = scores.softmax(-1, Kind::Float);
                scores.matmul(&keys(&pv, &v)).transpose(0, 1).flatten(1, 2)
            };
            let expected = Tensor::cat(&(0..).zip(prefixes).map(group).collect::<Vec<_>>(), 0);
            let attention = JointAttention::new(prefixes, num_rows, levels, Device::Cpu);
            let found = attention.forward(&q, [&pk, &pv], [&k, &v], Scores::default());
            assert!(found.allclose(&expected, 1e-5, 1e-6, false), "{prefixes:?} {levels:?}");
            if prefixes.iter().all(|rows| !rows.is_empty()) {
                let alone = |(number, rows): (i64, &Range<i64>)| {
                    let keys = |x: &Tensor| {
                        let rows = x.narrow(0, rows.start, rows.end - rows.start);
                        rows.repeat_interleave_self_int(2, 1, None).transpose(0, 1)
                    };
                    let scores = q.narrow(0, number * len, len).transpose(0, 1).matmul(&keys(&pk).transpose(1, 2));
                    let weights = (scores / 6f64.sqrt()).softmax(-1, Kind::Float);
                    weights.matmul(&keys(&pv)).transpose(0, 1).flatten(1, 2)
                };
                let expected = Tensor::cat(&(0..).zip(prefixes).map(alone).collect::<Vec<_>>(), 0);
                let found = attention.forward_prefix(&q, [&pk, &pv], Scores::default());
                assert!(found.allclose(&expected, 1e-5, 1e-6, false), "{prefixes:?} without their own");
            }
            let seed = Tensor::randn(found.size(), (Kind::Float, Device::Cpu));
            let of = |y: &Tensor| grad(&[y], &[&seed], &[&q, &pk, &pv, &k, &v]).unwrap();
            for (found, expected) in of(&found).into_iter().zip(of(&expected)) {
                assert!(found.unwrap().allclose(&expected.unwrap(), 1e-4, 1e-6, false), "{prefixes:?}");
            }
        }
    }
}
