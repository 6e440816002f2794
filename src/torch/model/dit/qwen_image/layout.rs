//! Where the rows of a micro-batch lie in Qwen-Image's two streams and in their attention.

use std::ops::Range;

use loongforge_core::message::Grid;
use tch::{Device, Tensor};

use super::block::Context;
use super::config::QwenImageConfig;
use crate::model::dit::network::Work;
use crate::model::dit::rope::{Place, places, rotation};
use crate::model::dit::sample::Sample;
use crate::model::dit::segments::Segments;
use crate::nn::{Mask, PackedAttention};

/// The rows of a micro-batch.
pub(super) struct Layout {
    pub context: Context,
    /// Tokens of targets and references.
    pub num_tokens: i64,
    /// Noise levels of the rows of modulations.
    pub levels: Vec<f64>,
    /// Which of them are samples' own, of which text and targets are modulated.
    pub of_samples: Vec<i64>,
    /// Targets among the tokens of pictures; `None`: there is nothing else.
    pub targets: Option<Vec<i64>>,
    /// Segments of targets alone.
    pub head: Segments,
}

impl Layout {
    pub fn new(config: &QwenImageConfig, work: &Work<'_>, device: Device) -> Layout {
        let (samples, sigma) = (work.samples, work.sigma);
        let num_text = samples.iter().map(|sample| len(&sample.text)).sum::<i64>();
        let (mut levels, mut of_samples) = (Vec::new(), Vec::new());
        let (mut pictures, mut text, mut head) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ends, mut order, mut targets) = (vec![0usize], Vec::new(), Vec::new());
        let mut turned = [Vec::new(), Vec::new()];
        let (mut at_text, mut at) = (0, 0);
        for ((number, sample), sigma) in (0..).zip(samples).zip(sigma) {
            let level = levels.len() as i64;
            levels.push(*sigma);
            of_samples.push(level);
            let (num_text_rows, num_targets) = (len(&sample.text), sample.num_tokens());
            let references: i64 = sample.conditions.iter().map(|(grid, _)| grid.num_patches() as i64).sum();
            pictures.push((num_targets, level));
            let is_clean = references > 0 && config.clean_references;
            levels.extend(is_clean.then_some(0.0));
            pictures.push((references, level + i64::from(is_clean)));
            text.push((num_text_rows, number));
            head.push((num_targets, number));
            let tokens = at..at + num_targets + references;
            order.extend((at_text..at_text + num_text_rows).chain(tokens.clone().map(|token| num_text + token)));
            let mut places = turns(sample);
            turned[1].extend(places.split_off(num_text_rows as usize));
            turned[0].append(&mut places);
            targets.extend(at..at + num_targets);
            at_text += num_text_rows;
            at = tokens.end;
            ends.push(order.len());
        }
        let index = |rows: &[i64]| Tensor::from_slice(rows).to_device(device);
        let in_order = (0..).zip(&order).all(|(at, row)| at == *row);
        let inverse = || {
            let mut inverse = vec![0; order.len()];
            (0..).zip(&order).for_each(|(at, row)| inverse[*row as usize] = at);
            [index(&order), index(&inverse)]
        };
        // Segments of one row that follow each other are one.
        let pictures = if levels.len() == samples.len() { joined(&pictures) } else { pictures };
        let context = Context {
            pictures: Segments::new(&pictures, levels.len() as i64, device),
            text: Segments::new(&text, samples.len() as i64, device),
            order: (!in_order).then(inverse),
            rotations: turned.map(|places| rotation(&places, config.axes, device)),
            samples: PackedAttention::new(&ends, Mask::Full, device),
            num_text,
        };
        let head = Segments::new(&head, samples.len() as i64, device);
        Layout {
            context,
            levels,
            of_samples,
            num_tokens: at,
            targets: (targets.len() as i64 != at).then_some(targets),
            head,
        }
    }
}

fn joined(segments: &[(i64, i64)]) -> Vec<(i64, i64)> {
    segments.chunks(2).map(|two| (two[0].0 + two[1].0, two[0].1)).collect()
}

fn len(rows: &Range<i64>) -> i64 {
    rows.end - rows.start
}

/// The places of a sample's rows: of text on all axes alike, behind those of pictures, which are counted from their middle.
fn turns(sample: &Sample) -> Vec<Place> {
    let pictures: Vec<Grid> =
        std::iter::once(sample.grid).chain(sample.conditions.iter().map(|(grid, _)| *grid)).collect();
    let half = |side: u32| i64::from(side / 2);
    let first = pictures.iter().map(|grid| half(grid.h).max(half(grid.w))).max().unwrap_or(0);
    let text = (0..len(&sample.text)).map(|row| [first + row; 3]);
    let centered = |(number, grid): (i64, &Grid)| {
        let before = |side: u32| half(side) - i64::from(side);
        places(*grid, [number, before(grid.h), before(grid.w)]).collect::<Vec<_>>()
    };
    text.chain((0..).zip(&pictures).flat_map(centered)).collect()
}
