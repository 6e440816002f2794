//! Describes where the frames of a batch of clips go in a tower's sequence, on the host. No tensors of the model here.
//!
//! F frames of all clips become S positions: clip by clip, chunk by chunk.

use loongforge_core::message::Grid;

use super::tower_config::{AudioTowerConfig, StemConfig};

/// A chunk of a clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The chunk's first frame among those of all clips.
    pub start: usize,
    /// Frames that the convolutions see.
    pub seen: usize,
    /// Positions that come of it.
    pub positions: usize,
}

#[derive(Debug)]
pub(super) struct AudioLayout {
    pub num_frames: usize,
    pub chunks: Vec<Chunk>,
    /// The ends of the windows whose rows attend to each other: `[0, …, S]`.
    pub windows: Vec<usize>,
    /// Positions of each clip that become features; what is left at its end is dropped.
    pub kept: Vec<(usize, usize)>,
}

impl AudioLayout {
    /// `unit` positions at a time become a feature.
    pub fn new(grids: &[Grid], config: &AudioTowerConfig, unit: i64) -> AudioLayout {
        let mut layout = AudioLayout { num_frames: 0, chunks: Vec::new(), windows: vec![0], kept: Vec::new() };
        let mut end = 0;
        for grid in grids {
            let (start, frames) = (layout.num_frames, grid.num_cells() as i64);
            layout.num_frames += frames as usize;
            let (own, first) = (config.own_frames(frames), end);
            for (number, at) in (0..own).step_by(config.chunk as usize).enumerate() {
                let positions = config.stem.halved(config.chunk.min(own - at)) as usize;
                let seen = config.chunk.min(frames - at) as usize;
                layout.chunks.push(Chunk { start: start + at as usize, seen, positions });
                if number > 0 && number as i64 % config.chunks_per_window == 0 {
                    layout.windows.push(end);
                }
                end += positions;
            }
            layout.windows.push(end);
            layout.kept.push((first, (end - first) / unit as usize * unit as usize));
        }
        layout
    }

    /// Returns S, the number of positions of all chunks.
    pub fn num_positions(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.positions).sum()
    }

    /// Returns each position's place in its chunk, `[S]`.
    pub fn places(&self) -> Vec<i64> {
        self.chunks.iter().flat_map(|chunk| 0..chunk.positions as i64).collect()
    }

    /// Returns the positions that become features; `None`: all.
    pub fn kept_rows(&self) -> Option<Vec<i64>> {
        let all = self.kept.iter().map(|(_, len)| len).sum::<usize>() == self.num_positions();
        let rows = || self.kept.iter().flat_map(|&(start, len)| start as i64..(start + len) as i64).collect();
        (!all).then(rows)
    }

    /// Returns the frames of every chunk, `len` of each: `None` behind its end.
    pub fn padded(&self, len: usize) -> impl Iterator<Item = Option<usize>> + '_ {
        self.chunks.iter().flat_map(move |chunk| (0..len).map(|at| (at < chunk.seen).then_some(chunk.start + at)))
    }

    /// Returns the frames that each output of the first convolution along time sees, the outputs of the first that each position sees,
    /// and the number of outputs of the first.
    pub fn taps(&self) -> (Vec<Option<usize>>, Vec<Option<usize>>, usize) {
        let (mut first, mut second, mut outputs) = (Vec::new(), Vec::new(), 0);
        // Around each output three inputs, where they are in the segment.
        let around = |at: usize, start: usize, len: usize| {
            (0..3).map(move |tap| (at + tap).checked_sub(1).filter(|&row| row < len).map(|row| start + row))
        };
        for chunk in &self.chunks {
            // Those that some position sees.
            let len = chunk.seen.min(2 * chunk.positions);
            (0..len).for_each(|at| first.extend(around(at, chunk.start, chunk.seen)));
            (0..chunk.positions).for_each(|at| second.extend(around(2 * at, outputs, len)));
            outputs += len;
        }
        (first, second, outputs)
    }
}

/// Returns the rows of a whole chunk that `stem` makes, of which a chunk has only the first.
pub(super) fn chunk_rows(stem: StemConfig, chunk: i64, chunks: &[Chunk]) -> Vec<i64> {
    let rows = stem.halved(chunk);
    let of = |(number, chunk): (usize, &Chunk)| {
        let start = number as i64 * rows;
        start..start + chunk.positions as i64
    };
    chunks.iter().enumerate().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::Grid;
    use serde_json::json;

    use super::{AudioLayout, Chunk};
    use crate::model::audio::parts;
    use crate::model::keys::Keys;

    fn clip(frames: u32) -> Grid {
        Grid { t: frames, h: 1, w: 1 }
    }

    fn layout(model_type: &str, clips: &[u32], unit: i64) -> AudioLayout {
        let config = json!({"model_type": model_type, "num_mel_bins": 4, "encoder_layers": 1, "encoder_attention_heads": 1,
            "encoder_ffn_dim": 8, "d_model": 4, "max_source_positions": 10, "n_window": 50, "n_window_infer": 200});
        let config = parts::read(&Keys::new(&config), None, 8).unwrap();
        AudioLayout::new(&clips.iter().map(|frames| clip(*frames)).collect::<Vec<_>>(), &config.tower, unit)
    }

    #[test]
    fn windows_are_of_whole_chunks_and_end_with_the_clip() {
        let layout = layout("qwen3_omni_moe_audio_encoder", &[250, 30], 1);
        assert_eq!(layout.chunks.iter().map(|chunk| chunk.positions).collect::<Vec<_>>(), [13, 13, 7, 4]);
        assert_eq!(layout.windows, [0, 26, 33, 37]);
        assert_eq!(layout.kept_rows(), None);
        let seen: Vec<_> = layout.padded(100).collect();
        assert_eq!((seen.len(), seen[249], seen[250], seen[300]), (400, Some(249), None, Some(250)));
    }

    #[test]
    fn frames_behind_a_clip_are_seen_and_have_no_positions() {
        // 5 frames of its own and 2 behind; an odd position at the end has no partner.
        let layout = layout("qwen2_audio_encoder", &[7], 2);
        assert_eq!(layout.chunks, [Chunk { start: 0, seen: 7, positions: 3 }]);
        assert_eq!(layout.kept_rows(), Some(vec![0, 1]));
        let (first, second, outputs) = layout.taps();
        assert_eq!(outputs, 6);
        assert_eq!(first[..3], [None, Some(0), Some(1)]);
        assert_eq!(first[15..], [Some(4), Some(5), Some(6)]);
        assert_eq!(second, [None, Some(0), Some(1), Some(1), Some(2), Some(3), Some(3), Some(4), Some(5)]);
        // A whole window: what lies behind it does not exist for the convolutions.
        assert_eq!(self::layout("qwen2_audio_encoder", &[22], 2).chunks[0].seen, 20);
    }
}
