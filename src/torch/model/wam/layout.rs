//! The rows of a micro-batch's samples in both streams, and what their blocks read beside them.
//!
//! Shapes: N samples, T places of all samples' frames, K rows of text and states of all samples.

use std::ops::Range;

use loongforge_core::message::Grid;
use tch::{Device, Tensor};

use super::config::{LATENT_ID, Of, TEXT_ID, WamConfig};
use crate::device::upload;
use crate::model::dit::{Segments, Tables, TokenPosition, places, rotation};
use crate::nn::{CrossAttention, DocumentKeys, Segment, SegmentAttention};

/// The places and texts of each sample among those of all.
pub(super) struct Samples {
    latents: Vec<Range<i64>>,
    texts: Vec<Range<i64>>,
}

/// Made once a micro-batch, for all layers.
pub(super) struct Layout {
    pub video: Tables,
    pub action: Tables,
    /// The attention of frames to the keys of frames, and that of actions to the keys of frames and, behind them, of actions.
    pub frames_see: SegmentAttention,
    pub actions_see: SegmentAttention,
    /// Rows of text, then states, then a row of zeros, in the order in which samples have them; the zeros are the last.
    pub context: Tensor,
    /// Places of each sample's frames: those of the first, and those behind it.
    pub frames: Vec<[i64; 2]>,
}

impl Samples {
    /// Finds the samples by the ids of their rows, which end at `ends` `[0, …]`.
    pub fn of(ids: &[i64], ends: &[usize]) -> Samples {
        let counted = |id: i64| {
            let mut end = 0;
            let mut next = |count: i64| {
                end += count;
                end - count..end
            };
            let of_sample = |two: &[usize]| ids[two[0]..two[1]].iter().filter(|own| **own == id).count() as i64;
            ends.windows(2).map(|two| next(of_sample(two))).collect::<Vec<_>>()
        };
        Samples { latents: counted(LATENT_ID), texts: counted(TEXT_ID) }
    }

    /// Returns one sample without a text, with all of its frames.
    pub fn filler(config: &WamConfig) -> Samples {
        let rows = config.num_frames * config.frame_rows();
        Samples { latents: std::iter::once(0..rows).collect(), texts: std::iter::once(0..0).collect() }
    }

    /// Returns the rows of each sample's latents.
    pub fn latents(&self) -> impl Iterator<Item = &Range<i64>> {
        self.latents.iter()
    }

    /// Returns the number of samples.
    pub fn count(&self) -> i64 {
        self.latents.len() as i64
    }

    /// Returns the number of places of all frames.
    pub fn num_latents(&self) -> i64 {
        self.latents.last().map_or(0, |latents| latents.end)
    }

    fn num_text(&self) -> i64 {
        self.texts.last().map_or(0, |texts| texts.end)
    }
}

impl Layout {
    /// Each sample has `num_draws` groups of actions. Panics where a sample's places are not whole frames.
    pub fn new(config: &WamConfig, samples: &Samples, num_draws: i64, device: Device) -> Layout {
        let frame = config.frame_rows();
        let frames: Vec<[i64; 2]> = samples.latents().map(|latents| split(latents, frame)).collect();
        let (text_rows, states) = (samples.num_text(), if config.state_dim > 0 { samples.count() } else { 0 });
        let mut context = Vec::new();
        let zeros = text_rows + states;
        let mut keys = Vec::new();
        for (number, texts) in (0..).zip(&samples.texts) {
            let first = context.len() as i64;
            context.extend(texts.clone());
            context.extend((states > 0).then_some(text_rows + number));
            // Rows of text behind a prompt are zeros, which are seen: one row, the last, stands for all of them.
            let missing = config.video.text_rows - (texts.end - texts.start);
            let extra = (missing > 0).then(|| (zeros, (missing as f64).ln()));
            keys.push(DocumentKeys { rows: first..context.len() as i64, extra });
        }
        context.push(zeros);
        let meet = |rows: &mut dyn Iterator<Item = i64>| {
            let mut ends = vec![0usize];
            rows.for_each(|count| ends.push(ends[ends.len() - 1] + count as usize));
            CrossAttention::new(&ends, &keys, zeros + 1, device)
        };
        let mut clips = samples.latents().map(|latents| latents.end - latents.start);
        let (count, horizon) = (samples.count(), config.horizon);
        let video = Tables {
            segments: Segments::new(&modulated(&frames), 1 + count, device),
            rotation: rotation(&turned(config, samples), config.video.axes(), device),
            prompts: meet(&mut clips),
            pictures: None,
        };
        let groups = count * num_draws;
        let action = Tables {
            segments: Segments::new(&(0..groups).map(|row| (horizon, row)).collect::<Vec<_>>(), groups, device),
            rotation: rotation(&actions_turned(groups, horizon), [config.action.head_dim, 0, 0], device),
            prompts: meet(&mut (0..count).map(|_| num_draws * horizon)),
            pictures: None,
        };
        let [of_frames, of_actions] = segments(samples, &frames, num_draws, horizon);
        let num_latents = samples.num_latents();
        let see = |queries: &[Vec<Segment<Of>>], keys: Vec<Vec<Segment<Of>>>, num_keys| {
            let pairs: Vec<_> = queries.iter().cloned().zip(keys).map(<[_; 2]>::from).collect();
            SegmentAttention::new(config.rules, &pairs, num_keys, device)
        };
        let both = of_frames.iter().zip(&of_actions).map(|(frames, actions)| [frames.as_slice(), actions].concat());
        Layout {
            actions_see: see(&of_actions, both.collect(), num_latents + groups * horizon),
            frames_see: see(&of_frames, of_frames.clone(), num_latents),
            context: upload(&Tensor::from_slice(&context), device),
            video,
            action,
            frames,
        }
    }
}

/// Returns the number of places of the first frame, and of those behind it.
fn split(latents: &Range<i64>, frame: i64) -> [i64; 2] {
    let rows = latents.end - latents.start;
    assert!(rows > 0 && rows % frame == 0, "{rows} places are not whole frames of {frame}");
    [frame, rows - frame]
}

/// `(places, row of modulations)`: that of time 0 is the first, and then each sample has one.
fn modulated(frames: &[[i64; 2]]) -> Vec<(i64, i64)> {
    (1..).zip(frames).flat_map(|(row, [first, others])| [(*first, 0), (*others, row)]).collect()
}

fn turned(config: &WamConfig, samples: &Samples) -> Vec<TokenPosition> {
    let [rows, columns] = config.frame;
    let grid = |latents: &Range<i64>| {
        let t = (latents.end - latents.start) / config.frame_rows();
        Grid { t: t as u32, h: rows as u32, w: columns as u32 }
    };
    samples.latents().flat_map(|latents| places(grid(latents), [0; 3])).collect()
}

/// Actions turn by their number alone.
fn actions_turned(count: i64, horizon: i64) -> Vec<TokenPosition> {
    (0..count).flat_map(|_| (0..horizon).map(|step| [step, 0, 0])).collect()
}

/// Returns the segments of frames among frames, and of actions behind all frames, by sample. Each draw of a sample's actions is a chunk.
fn segments(samples: &Samples, frames: &[[i64; 2]], num_draws: i64, horizon: i64) -> [Vec<Vec<Segment<Of>>>; 2] {
    let segment = |kind, rows| Segment { kind, chunk: 0, rows };
    let of_frames = samples.latents().zip(frames).map(|(latents, [first, _])| {
        let end = latents.start + first;
        vec![segment(Of::First, latents.start..end), segment(Of::Frames, end..latents.end)]
    });
    let behind = samples.num_latents();
    let of_draw = |row: i64, draw: i64| {
        let begin = behind + (row * num_draws + draw) * horizon;
        Segment { kind: Of::Actions, chunk: draw as u32, rows: begin..begin + horizon }
    };
    let of_actions = (0..samples.count()).map(|row| (0..num_draws).map(|draw| of_draw(row, draw)).collect());
    [of_frames.collect(), of_actions.collect()]
}
