//! Attention whose mask is a rule over segments: rows of one kind and one chunk lie side by side, and a table says of two kinds in
//! which chunks the one sees the other. World-action models differ in such a table alone: which of clean frames, noised frames and
//! actions see each other. No mask is in memory: queries that see the same segments meet these keys, and no others.
//!
//! Shapes: T queries, K keys of all samples, H heads, C width of a head.

use std::ops::Range;

use tch::{Device, Tensor};

use super::attend::take_rows;
use super::cross_attention::{CrossAttention, DocumentKeys};
use crate::device::upload;

/// Says which chunks of keys a query's chunk sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    All,
    /// The query's own.
    Same,
    /// The query's own chunk and those before it; where there is a number, so many of these at most.
    UpTo(Option<u32>),
    /// The chunks before the query's own; where there is a number, so many at most.
    Before(Option<u32>),
}

/// Queries of a kind see keys of another in these chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRule<K: 'static> {
    pub queries: K,
    pub keys: K,
    pub chunks: Chunks,
}

/// A table of rules. Kinds for which it has none do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRules<K: 'static>(pub &'static [SegmentRule<K>]);

/// Rows of one kind and chunk of a sample, side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment<K> {
    pub kind: K,
    pub chunk: u32,
    pub rows: Range<i64>,
}

/// Describes which queries meet which keys; made once a micro-batch, for all layers.
pub struct SegmentAttention {
    attention: CrossAttention,
    /// The rows of the keys that are met, in the order in which `attention` has them; `None`: those of all keys as they are.
    taken: Option<Tensor>,
}

impl Chunks {
    fn include(self, query: u32, key: u32) -> bool {
        let is_near = |most: Option<u32>| most.is_none_or(|most| query - key <= most);
        match self {
            Chunks::All => true,
            Chunks::Same => query == key,
            Chunks::UpTo(most) => key <= query && is_near(most),
            Chunks::Before(most) => key < query && is_near(most),
        }
    }
}

impl<K: Copy + PartialEq> SegmentRules<K> {
    /// Returns whether rows of a kind and chunk see rows of another.
    pub fn see(&self, query: (K, u32), key: (K, u32)) -> bool {
        let is_met = |rule: &SegmentRule<K>| {
            rule.queries == query.0 && rule.keys == key.0 && rule.chunks.include(query.1, key.1)
        };
        self.0.iter().any(is_met)
    }
}

impl SegmentAttention {
    /// `samples` has of each sample the segments of its queries, which are all queries in their order, and of its keys, of
    /// `num_keys`. Panics where a query sees no key.
    pub fn new<K: Copy + PartialEq>(
        rules: SegmentRules<K>,
        samples: &[[Vec<Segment<K>>; 2]],
        num_keys: i64,
        device: Device,
    ) -> SegmentAttention {
        let mut ends = vec![0];
        let mut seen = Vec::<Vec<Range<i64>>>::new();
        for [queries, keys] in samples {
            let first = seen.len();
            for query in queries.iter().filter(|query| !query.rows.is_empty()) {
                let ranges = visible(rules, query, keys);
                let end = ends[ends.len() - 1] + (query.rows.end - query.rows.start) as usize;
                match seen[first..].last() == Some(&ranges) {
                    true => *ends.last_mut().expect("there is a first") = end,
                    false => {
                        seen.push(ranges);
                        ends.push(end);
                    }
                }
            }
        }
        let document = |rows: Range<i64>| DocumentKeys { rows, extra: None };
        let (mut taken, mut documents) = (Vec::new(), Vec::new());
        let are_ranges = seen.iter().all(|ranges| ranges.len() == 1);
        for ranges in seen {
            match are_ranges {
                true => documents.extend(ranges.into_iter().map(document)),
                false => {
                    let first = taken.len() as i64;
                    taken.extend(ranges.into_iter().flatten());
                    documents.push(document(first..taken.len() as i64));
                }
            }
        }
        let num_keys = if are_ranges { num_keys } else { taken.len() as i64 };
        SegmentAttention {
            attention: CrossAttention::new(&ends, &documents, num_keys, device),
            taken: (!are_ranges).then(|| upload(&Tensor::from_slice(&taken), device)),
        }
    }

    /// Maps `q_THC`, `k_KHC` and `v_KHC` to `[T, H·C]`.
    pub fn forward(&self, q_THC: &Tensor, k_KHC: &Tensor, v_KHC: &Tensor) -> Tensor {
        let Some(rows) = &self.taken else { return self.attention.forward(q_THC, k_KHC, v_KHC) };
        let [k, v] = [k_KHC, v_KHC].map(|x| {
            let size = x.size();
            take_rows(&x.flatten(1, 2), rows).view([-1, size[1], size[2]])
        });
        self.attention.forward(q_THC, &k, &v)
    }
}

/// Returns the rows of the keys that a query sees, ascending, each run of them once.
fn visible<K: Copy + PartialEq>(rules: SegmentRules<K>, query: &Segment<K>, keys: &[Segment<K>]) -> Vec<Range<i64>> {
    let met = keys.iter().filter(|key| rules.see((query.kind, query.chunk), (key.kind, key.chunk)));
    let mut ranges: Vec<Range<i64>> = met.map(|key| key.rows.clone()).filter(|rows| !rows.is_empty()).collect();
    ranges.sort_by_key(|rows| rows.start);
    let mut joined = Vec::<Range<i64>>::new();
    for rows in ranges {
        match joined.last_mut() {
            Some(last) if last.end == rows.start => last.end = rows.end,
            _ => joined.push(rows),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Chunks, Segment, SegmentAttention, SegmentRule, SegmentRules};
    use crate::native::grad;

    /// The kinds of segments that LingBot-VA packs, beside frames and actions of FastWAM.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Of {
        Clean,
        Noised,
    }

    const fn rule(queries: Of, keys: Of, chunks: Chunks) -> SegmentRule<Of> {
        SegmentRule { queries, keys, chunks }
    }

    /// The first frame sees itself, all else sees everything.
    const FIRST: SegmentRules<Of> = SegmentRules(&[
        rule(Of::Clean, Of::Clean, Chunks::All),
        rule(Of::Noised, Of::Clean, Chunks::All),
        rule(Of::Noised, Of::Noised, Chunks::All),
    ]);
    /// Teacher forcing: what is noised sees its own chunk and clean ones before it; clean chunks see those up to their own.
    const FORCED: SegmentRules<Of> = SegmentRules(&[
        rule(Of::Clean, Of::Clean, Chunks::UpTo(Some(1))),
        rule(Of::Noised, Of::Clean, Chunks::Before(None)),
        rule(Of::Noised, Of::Noised, Chunks::Same),
    ]);

    fn segments(list: &[(Of, u32, i64)], mut at: i64) -> Vec<Segment<Of>> {
        let segment = |&(kind, chunk, len): &(Of, u32, i64)| {
            at += len;
            Segment { kind, chunk, rows: at - len..at }
        };
        list.iter().map(segment).collect()
    }

    /// Against attention with the mask of the same rules in memory: values and gradients, of samples of several sizes.
    #[test]
    fn segments_see_what_the_table_says() {
        use Of::{Clean, Noised};
        let samples: [&[(Of, u32, i64)]; 3] = [
            &[(Clean, 0, 2), (Noised, 0, 3), (Clean, 1, 2), (Noised, 1, 3), (Clean, 2, 1), (Noised, 2, 2)],
            &[(Clean, 0, 4), (Noised, 0, 1), (Noised, 1, 0)],
            &[(Noised, 0, 3)],
        ];
        for rules in [FIRST, FORCED] {
            let (mut at, mut all) = (0, Vec::new());
            for sample in samples {
                let own = segments(sample, at);
                at = own.last().map_or(at, |segment| segment.rows.end);
                all.push([own.clone(), own]);
            }
            tch::manual_seed(5);
            let random = || Tensor::randn([at, 2, 6], (Kind::Float, Device::Cpu)).set_requires_grad(true);
            let (q, k, v) = (random(), random(), random());
            let mask = Tensor::zeros([at, at], (Kind::Bool, Device::Cpu));
            for [queries, keys] in &all {
                for (query, key) in queries.iter().flat_map(|query| keys.iter().map(move |key| (query, key))) {
                    let len = |segment: &Segment<Of>| segment.rows.end - segment.rows.start;
                    let seen = rules.see((query.kind, query.chunk), (key.kind, key.chunk));
                    let place = mask.narrow(0, query.rows.start, len(query));
                    let _ = place.narrow(1, key.rows.start, len(key)).fill_(i64::from(seen));
                }
            }
            let heads = |x: &Tensor| x.transpose(0, 1);
            let scores = heads(&q).matmul(&heads(&k).transpose(1, 2)) / 6f64.sqrt();
            let scores = scores.masked_fill(&mask.logical_not(), f64::NEG_INFINITY).softmax(-1, Kind::Float);
            let expected = scores.matmul(&heads(&v)).transpose(0, 1).flatten(1, 2);
            let found = SegmentAttention::new(rules, &all, at, Device::Cpu).forward(&q, &k, &v);
            assert!(found.allclose(&expected, 1e-5, 1e-6, false), "{rules:?}");
            let seed = Tensor::randn(found.size(), (Kind::Float, Device::Cpu));
            let grads = |y: &Tensor| grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().map(Option::unwrap);
            for (found, expected) in grads(&found).zip(grads(&expected)) {
                assert!(found.allclose(&expected, 1e-4, 1e-6, false), "{rules:?}");
            }
        }
    }

    #[test]
    fn windows_count_chunks() {
        let seen = |chunks: Chunks| (0..4).filter(|key| chunks.include(2, *key)).collect::<Vec<u32>>();
        assert_eq!(seen(Chunks::UpTo(Some(1))), [1, 2]);
        assert_eq!(seen(Chunks::Before(Some(1))), [1]);
        assert_eq!(seen(Chunks::Same), [2]);
        assert_eq!(seen(Chunks::All), [0, 1, 2, 3]);
    }
}
