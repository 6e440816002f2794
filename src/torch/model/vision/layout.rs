//! Describes where the patches of a batch of pictures lie in a tower's sequence, on the host. No tensors of the model
//! here.
//!
//! Patches come in one order, attend in another (window by window, or behind a class token), and leave in merge order:
//! block by block of `merge` × `merge`, frame by frame, so that consecutive rows become one feature.

use loongforge_core::message::Grid;

use crate::nn::coordinates;

/// The order in which patches come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// Block by block, as they are merged.
    Merge,
    /// Row by row.
    Raster,
}

/// Says which patches attend to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The patches of a frame attend to each other.
    Frame,
    /// The patches of all frames of an item attend to each other.
    Item,
}

/// The settings that a layout depends on, beside the pictures' sizes.
pub(super) struct LayoutConfig {
    pub order: PatchOrder,
    pub merge: u32,
    pub span: Span,
    /// Learned tokens before each frame.
    pub num_tokens: usize,
    /// True if these leave as well.
    pub keeps_tokens: bool,
    /// Side of a window in blocks, where attention has windows.
    pub window: Option<u32>,
}

/// S rows, made of P patches and the learned tokens before each frame.
#[derive(Debug)]
pub(super) struct Layout {
    /// The patch of each row, or `None` for a learned token, `[S]`.
    pub rows: Vec<Option<usize>>,
    /// Row and column of each, `[S]`; zeros for a learned token.
    pub positions: Vec<[i64; 2]>,
    /// The ends of the documents whose rows attend to each other: `[0, …, S]`.
    pub documents: Vec<usize>,
    /// The same for windows; empty where there are none.
    pub windows: Vec<usize>,
    /// The row of each patch in merge order, `[P]`; behind those of the learned tokens of its frame, where they leave the tower as well.
    pub merged: Vec<usize>,
}

impl Layout {
    /// Lays out the patches of pictures of these `grids`, one picture a document.
    pub fn new(grids: &[Grid], config: &LayoutConfig) -> Layout {
        let mut layout = Layout {
            rows: Vec::new(),
            positions: Vec::new(),
            documents: vec![0],
            windows: if config.window.is_some() { vec![0] } else { Vec::new() },
            merged: Vec::new(),
        };
        let mut patches = 0;
        for &grid in grids {
            for _ in 0..grid.t {
                layout.push_frame(grid, config, patches);
                patches += grid.h as usize * grid.w as usize;
                if config.span == Span::Frame {
                    layout.documents.push(layout.rows.len());
                }
            }
            if config.span == Span::Item {
                layout.documents.push(layout.rows.len());
            }
        }
        layout
    }

    fn push_frame(&mut self, grid: Grid, config: &LayoutConfig, first_patch: usize) {
        if config.keeps_tokens {
            self.merged.extend(self.rows.len()..self.rows.len() + config.num_tokens);
        }
        self.rows.extend(vec![None; config.num_tokens]);
        self.positions.extend(vec![[0, 0]; config.num_tokens]);
        let place = |row: u32, column: u32| row as usize * grid.w as usize + column as usize;
        let size = grid.h as usize * grid.w as usize;
        let mut patch_at = vec![0; size];
        let input_merge = if config.order == PatchOrder::Merge { config.merge } else { 1 };
        for (patch, (row, column)) in coordinates(grid, input_merge).enumerate() {
            patch_at[place(row, column)] = first_patch + patch;
        }
        let mut row_at = vec![0; size];
        let mut push = |layout: &mut Layout, (row, column): (u32, u32)| {
            row_at[place(row, column)] = layout.rows.len();
            layout.rows.push(Some(patch_at[place(row, column)]));
            layout.positions.push([i64::from(row), i64::from(column)]);
        };
        match config.window {
            None => coordinates(grid, input_merge).for_each(|patch| push(self, patch)),
            Some(side) => {
                let side = side * config.merge;
                for (top, left) in (0..grid.h)
                    .step_by(side as usize)
                    .flat_map(|top| (0..grid.w).step_by(side as usize).map(move |left| (top, left)))
                {
                    let window = Grid { t: 1, h: side.min(grid.h - top), w: side.min(grid.w - left) };
                    coordinates(window, config.merge).for_each(|(row, column)| push(self, (top + row, left + column)));
                    self.windows.push(self.rows.len());
                }
            }
        }
        self.merged.extend(coordinates(grid, config.merge).map(|(row, column)| row_at[place(row, column)]));
    }

    /// Returns the place of each row in all learned tokens of a frame, `num_tokens` of them, followed by all patches.
    pub fn places(&self, num_tokens: usize) -> Vec<i64> {
        let mut token = 0;
        let place = |row: &Option<usize>| {
            token = if row.is_some() { 0 } else { token + 1 };
            row.map_or(token as i64 - 1, |patch| (num_tokens + patch) as i64)
        };
        self.rows.iter().map(place).collect()
    }

    /// Returns whether the sequence is the patches as they come.
    pub fn is_plain(&self) -> bool {
        self.rows.iter().enumerate().all(|(row, patch)| *patch == Some(row))
    }

    /// Returns whether the rows are in merge order, and nothing else is among them.
    pub fn is_merged(&self) -> bool {
        self.merged.len() == self.rows.len() && self.merged.iter().enumerate().all(|(at, row)| at == *row)
    }
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::Grid;

    use super::{Layout, LayoutConfig, PatchOrder, Span};

    const CONFIG: LayoutConfig = LayoutConfig {
        order: PatchOrder::Merge,
        merge: 2,
        span: Span::Frame,
        num_tokens: 0,
        keeps_tokens: false,
        window: None,
    };

    fn grid(t: u32, h: u32, w: u32) -> Grid {
        Grid { t, h, w }
    }

    #[test]
    fn windows_hold_whole_blocks_and_the_edges_are_smaller() {
        // 2 x 3 blocks in windows of 2 x 2 blocks: one whole window and one of 2 x 1.
        let config = LayoutConfig { window: Some(2), ..CONFIG };
        let layout = Layout::new(&[grid(1, 4, 6)], &config);
        assert_eq!(layout.windows, [0, 16, 24]);
        assert_eq!(layout.documents, [0, 24]);
        let blocks: Vec<usize> = layout.rows.iter().step_by(4).map(|patch| patch.unwrap() / 4).collect();
        assert_eq!(blocks, [0, 1, 3, 4, 2, 5]);
        assert_eq!(layout.positions[..4], [[0, 0], [0, 1], [1, 0], [1, 1]]);
        assert_eq!(layout.positions[16], [0, 4]);
        // What leaves is what came.
        let back: Vec<usize> = layout.merged.iter().map(|row| layout.rows[*row].unwrap()).collect();
        assert_eq!(back, (0..24).collect::<Vec<_>>());
    }

    #[test]
    fn raster_patches_behind_class_tokens_leave_in_merge_order() {
        let config = LayoutConfig { order: PatchOrder::Raster, num_tokens: 1, ..CONFIG };
        let layout = Layout::new(&[grid(2, 2, 4)], &config);
        assert_eq!(layout.documents, [0, 9, 18]);
        assert_eq!((layout.rows[0], layout.rows[9], layout.rows[10]), (None, None, Some(8)));
        let back: Vec<usize> = layout.merged.iter().map(|row| layout.rows[*row].unwrap()).collect();
        assert_eq!(back, [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]);
        assert!(!layout.is_plain() && !layout.is_merged());
        let layout = Layout::new(&[grid(2, 2, 2)], &LayoutConfig { num_tokens: 3, ..config });
        assert_eq!(layout.places(3), [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10]);
    }

    #[test]
    fn frames_of_an_item_attend_together() {
        let layout = Layout::new(&[grid(2, 2, 2), grid(1, 2, 2)], &LayoutConfig { span: Span::Item, ..CONFIG });
        assert_eq!(layout.documents, [0, 8, 12]);
        assert!(layout.is_plain() && layout.is_merged());
    }
}
