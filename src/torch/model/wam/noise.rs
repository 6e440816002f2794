//! Noise and times of the samples of a micro-batch: frames and actions have draws of their own. A sample may have several
//! draws of its actions, all of which see the one first frame.
//!
//! Shapes: N samples, K draws of a sample's actions, T places of all samples' frames, P numbers of a place, H actions of a sample of A
//! numbers each.

use tch::Tensor;

use super::config::WamConfig;
use super::layout::Samples;
use crate::model::batch::SampleRow;
use crate::model::objective::Draw;

/// The draws of a sample: what it acts from, of which further ones follow, and what its frames are noised with.
const OF_ACTIONS: u32 = 0;
const OF_FRAMES: u32 = 1;

/// Noise and times: samples in their order, and the draws of each side by side.
pub(in crate::model) struct Noise {
    /// `[T, P]`, float32; that of given frames is not read.
    pub frames: Tensor,
    /// `[N·K·H, A]`, float32.
    pub actions: Tensor,
    /// N of frames, and N·K of actions.
    pub frame_times: Vec<f32>,
    pub action_times: Vec<f32>,
}

impl Noise {
    /// Draws for these samples, whose places `samples` counts.
    pub(super) fn draw(config: &WamConfig, rows: &[SampleRow], samples: &Samples, seed: u64) -> Noise {
        let draw = |row: &SampleRow, number| Draw { seed, sample: row.id, purpose: row.purpose, number };
        let width = config.video.patch_dim();
        let frames = rows.iter().zip(samples.latents());
        let frames = frames.map(|(row, latents)| draw(row, OF_FRAMES).noise(&[latents.end - latents.start, width]));
        let number = |of_sample: u32| if of_sample == 0 { OF_ACTIONS } else { OF_FRAMES + of_sample };
        let num_draws = config.options.noise_draws;
        let draws = || rows.iter().flat_map(|row| (0..num_draws).map(move |at| draw(row, number(at))));
        let actions = draws().map(|it| it.noise(&[config.horizon, config.action_dim]));
        let (of_frames, of_actions) = (config.video_flow.sampler(), config.action_flow.sampler());
        Noise {
            frames: Tensor::cat(&frames.collect::<Vec<_>>(), 0),
            actions: Tensor::cat(&actions.collect::<Vec<_>>(), 0),
            frame_times: rows.iter().map(|row| draw(row, OF_FRAMES).time(&of_frames) as f32).collect(),
            action_times: draws().map(|it| it.time(&of_actions) as f32).collect(),
        }
    }
}
