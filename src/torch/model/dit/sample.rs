//! Places of a sample's features in the inputs of a micro-batch.

use std::ops::Range;

use loongforge_core::message::{Grid, ItemMeta, Tower};

use crate::model::batch::SampleRow;

/// One sample of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// The target in patches of the transformer: frames, rows, columns.
    pub grid: Grid,
    /// The rows of its clean latent; `None`: it is to be made.
    pub target: Option<Range<i64>>,
    /// The other latents: conditions or references, with their grids in patches.
    pub conditions: Vec<(Grid, Range<i64>)>,
    /// The rows of its prompt.
    pub text: Range<i64>,
    /// The rows of its pictures for an image encoder, one range a picture.
    pub pictures: Vec<Range<i64>>,
}

impl Sample {
    /// Returns the number of patches of the target.
    pub fn num_tokens(&self) -> i64 {
        self.grid.num_cells() as i64
    }
}

/// Returns the samples of a micro-batch. `prompt` chooses among a sample's texts; one with fewer has no text. `has_target` tells of a
/// sample's latents whether the first is its target. Panics where a sample has no target to be made.
pub(super) fn samples(
    rows: &[SampleRow],
    prompt: usize,
    has_target: impl Fn(&SampleRow, &[ItemMeta]) -> bool,
) -> Vec<Sample> {
    let mut ends = [0i64; Tower::ALL.len()];
    let mut sample = |row: &SampleRow| {
        let mut of = |tower: Tower| -> Vec<(ItemMeta, Range<i64>)> {
            let end = &mut ends[tower as usize];
            let ranged = |item: &ItemMeta| {
                *end += i64::from(item.num_features);
                (*item, *end - i64::from(item.num_features)..*end)
            };
            row.items.iter().filter(|item| item.tower == tower).map(ranged).collect()
        };
        let (latents, texts, pictures) = (of(Tower::Vae), of(Tower::Text), of(Tower::Vision));
        let metas: Vec<ItemMeta> = latents.iter().map(|(item, _)| *item).collect();
        let has_target = has_target(row, &metas);
        let mut latents = latents.into_iter().map(|(item, rows)| (in_patches(&item), rows));
        Sample {
            grid: row.target.expect("a diffusion model's sample has a target").grid,
            target: has_target.then(|| latents.next().map(|(_, rows)| rows)).flatten(),
            conditions: latents.collect(),
            text: texts.into_iter().nth(prompt).map_or(0..0, |(_, rows)| rows),
            pictures: pictures.into_iter().map(|(_, rows)| rows).collect(),
        }
    };
    rows.iter().map(&mut sample).collect()
}

/// Returns the grid of a picture's patches: its features are as many times fewer than its pixels along rows and columns. For a clip,
/// whose frames are fewer as well, the grid has rows and columns of one frame only where these can be told.
fn in_patches(item: &ItemMeta) -> Grid {
    let Grid { h, w, .. } = item.grid;
    let num_features = u64::from(item.num_features).max(1);
    let factor = (u64::from(h) * u64::from(w) / num_features).isqrt().max(1) as u32;
    Grid { t: 1, h: h / factor, w: w / factor }
}
