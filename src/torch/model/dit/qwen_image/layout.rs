//! Places of a micro-batch's rows in Qwen-Image's two streams and in their attention.

use std::ops::Range;
use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::{Device, Tensor};

use super::block::Context;
use super::config::QwenImageConfig;
use crate::device::upload;
use crate::model::dit::network::Work;
use crate::model::dit::rope::{TokenPosition, places, rotation};
use crate::model::dit::sample::Sample;
use crate::model::dit::segments::Segments;
use crate::model::dit::share::{Samples, Share, of_tokens};

/// The rows of a micro-batch, or of a rank's share of it.
pub(super) struct Layout {
    pub context: Context,
    /// Tokens of targets and references.
    pub num_tokens: i64,
    /// Noise levels of the rows of modulations.
    pub levels: Vec<f64>,
    /// The numbers of those that are samples' own, by which text and targets are modulated.
    pub of_samples: Vec<i64>,
    /// Targets among the tokens of pictures; `None`: there is nothing else.
    pub targets: Option<Vec<i64>>,
    /// Segments of targets alone.
    pub head: Segments,
    /// This rank's rows of text and of pictures among those of all samples; `None`: all of them.
    pub own: Option<[Rc<Tensor>; 2]>,
}

/// The places of rows.
struct Rows {
    num_text: i64,
    num_pictures: i64,
    /// The ends of samples in the attention.
    ends: Vec<usize>,
    /// The row among those of text and, behind them, pictures of each row of the attention.
    order: Vec<i64>,
    /// The places of rows of text and of pictures.
    turned: [Vec<TokenPosition>; 2],
    /// Segments `(tokens, row)` of pictures, of text, and of targets alone.
    pictures: Vec<(i64, i64)>,
    text: Vec<(i64, i64)>,
    head: Vec<(i64, i64)>,
    /// Targets among the rows of pictures.
    targets: Vec<i64>,
    levels: Vec<f64>,
    of_samples: Vec<i64>,
}

/// A rank's rows of text and of pictures, and its targets among all targets.
struct Own {
    text: Vec<i64>,
    pictures: Vec<i64>,
    targets: Vec<i64>,
}

impl Rows {
    fn new(config: &QwenImageConfig, work: &Work<'_>) -> Rows {
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
            let references: i64 = sample.conditions.iter().map(|(grid, _)| grid.num_cells() as i64).sum();
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
        // Segments of one row that follow each other are one.
        let pictures = if levels.len() == samples.len() { joined(&pictures) } else { pictures };
        Rows { num_text, num_pictures: at, ends, order, turned, pictures, text, head, targets, levels, of_samples }
    }

    fn own(&self, share: Share) -> Own {
        let rows = share.tokens(&self.ends).into_iter().map(|row| self.order[row as usize]);
        let (text, pictures): (Vec<i64>, Vec<i64>) = rows.partition(|row| *row < self.num_text);
        let pictures: Vec<i64> = pictures.into_iter().map(|row| row - self.num_text).collect();
        let targets = pictures.iter().filter_map(|row| self.targets.binary_search(row).ok());
        Own { text, targets: targets.map(|target| target as i64).collect(), pictures }
    }

    /// Returns the rows of a share, numbered anew; samples end where they did.
    fn of(self, share: Share, own: &Own) -> Rows {
        let num_text = own.text.len() as i64;
        let (mut text, mut pictures) = (0..num_text, num_text..);
        let is_text = share.tokens(&self.ends).into_iter().map(|row| self.order[row as usize] < self.num_text);
        let next = |is_text: bool| if is_text { text.next() } else { pictures.next() };
        let order = is_text.map(next).map(|row| row.expect("as many rows")).collect();
        let is_target = |(_, row): &(i64, &i64)| self.targets.binary_search(row).is_ok();
        let taken = |places: &[TokenPosition], rows: &[i64]| rows.iter().map(|row| places[*row as usize]).collect();
        Rows {
            num_text,
            num_pictures: own.pictures.len() as i64,
            order,
            turned: [taken(&self.turned[0], &own.text), taken(&self.turned[1], &own.pictures)],
            pictures: of_tokens(&self.pictures, &own.pictures),
            text: of_tokens(&self.text, &own.text),
            head: of_tokens(&self.head, &own.targets),
            targets: (0..).zip(&own.pictures).filter(is_target).map(|(at, _)| at).collect(),
            ..self
        }
    }
}

impl Layout {
    /// Lays out the rows of a micro-batch on `device`: where text, references and targets are in both streams, in the
    /// attention, and in what is read out.
    pub fn new(config: &QwenImageConfig, work: &Work<'_>, device: Device) -> Layout {
        let index = |rows: &[i64]| upload(&Tensor::from_slice(rows), device);
        let (mut rows, mut own) = (Rows::new(config, work), None);
        if let Some(share) = work.share {
            let found = rows.own(share);
            own = Some([&found.text, &found.pictures].map(|rows| Rc::new(index(rows))));
            rows = rows.of(share, &found);
        }
        let in_order = (0..).zip(&rows.order).all(|(at, row)| at == *row);
        let inverse = || {
            let mut inverse = vec![0; rows.order.len()];
            (0..).zip(&rows.order).for_each(|(at, row)| inverse[*row as usize] = at);
            [index(&rows.order), index(&inverse)]
        };
        let (num_levels, num_samples) = (rows.levels.len() as i64, work.samples.len() as i64);
        let context = Context {
            pictures: Segments::new(&rows.pictures, num_levels, device),
            text: Segments::new(&rows.text, num_samples, device),
            order: (!in_order).then(inverse),
            rotations: rows.turned.map(|places| rotation(&places, config.axes, device)),
            samples: Samples::new(&rows.ends, work.share, device),
            num_text: rows.num_text,
        };
        Layout {
            context,
            levels: rows.levels,
            of_samples: rows.of_samples,
            num_tokens: rows.num_pictures,
            targets: (rows.targets.len() as i64 != rows.num_pictures).then_some(rows.targets),
            head: Segments::new(&rows.head, num_samples, device),
            own,
        }
    }
}

/// Returns the tokens of all samples' targets that a rank computes; `None`: all of them.
pub(super) fn own_targets(config: &QwenImageConfig, work: &Work<'_>) -> Option<Vec<i64>> {
    work.share.map(|share| Rows::new(config, work).own(share).targets)
}

/// Returns a rank's rows of pictures, and those of text; none where all are here.
pub(super) fn own_rows(config: &QwenImageConfig, work: &Work<'_>) -> Vec<Vec<i64>> {
    let Some(share) = work.share else { return Vec::new() };
    let Own { text, pictures, .. } = Rows::new(config, work).own(share);
    vec![pictures, text]
}

fn joined(segments: &[(i64, i64)]) -> Vec<(i64, i64)> {
    segments.chunks(2).map(|two| (two[0].0 + two[1].0, two[0].1)).collect()
}

fn len(rows: &Range<i64>) -> i64 {
    rows.end - rows.start
}

/// Returns the places of a sample's rows: of text on all axes alike, behind those of pictures, which are counted from their middle.
fn turns(sample: &Sample) -> Vec<TokenPosition> {
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
