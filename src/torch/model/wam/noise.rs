//! The noise and times that are drawn for the samples of a micro-batch: frames and actions have noise and a time of their own each.
//!
//! Shapes: N samples, T places of all samples' frames, P numbers of a place, H actions of a sample of A numbers each.

use tch::Tensor;

use super::config::WamConfig;
use super::layout::Samples;
use crate::model::batch::SampleRow;
use crate::model::objective::Draw;

/// The draws of a sample: what it acts from, and what its frames are noised with.
const OF_ACTIONS: u32 = 0;
const OF_FRAMES: u32 = 1;

/// Noise and times, samples in their order.
pub(in crate::model) struct Noise {
    /// `[T, P]`, float32; that of given frames is not read.
    pub frames: Tensor,
    /// `[N·H, A]`, float32.
    pub actions: Tensor,
    /// N of each.
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
        let actions = rows.iter().map(|row| draw(row, OF_ACTIONS).noise(&[config.horizon, config.action_dim]));
        let (of_frames, of_actions) = (config.video_flow.sampler(), config.action_flow.sampler());
        Noise {
            frames: Tensor::cat(&frames.collect::<Vec<_>>(), 0),
            actions: Tensor::cat(&actions.collect::<Vec<_>>(), 0),
            frame_times: rows.iter().map(|row| draw(row, OF_FRAMES).time(&of_frames) as f32).collect(),
            action_times: rows.iter().map(|row| draw(row, OF_ACTIONS).time(&of_actions) as f32).collect(),
        }
    }
}
