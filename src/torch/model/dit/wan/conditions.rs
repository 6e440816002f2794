//! Tells Wan's image-to-video models which frames of a clip are given.

use loongforge_core::message::Grid;
use tch::{Device, Tensor};

use crate::device::upload;

/// Returns the mask of given frames of a clip, as tokens of its latent: `[t · h · w, channels · patch]`, float32, channels before a
/// patch's values. The first frame is given, and the last one where `has_last`. Channel `c` of frame `t` stands for frame
/// `1 + (t − 1) · channels + c` of the pixels; all of frame 0 stand for the first.
pub(super) fn mask(grid: Grid, channels: i64, patch: i64, has_last: bool, device: Device) -> Tensor {
    let last = i64::from(grid.t) - 1;
    let given = |frame: i64, channel: i64| frame == 0 || (has_last && frame == last && channel == channels - 1);
    let frame = |frame: i64| (0..channels).map(move |channel| f32::from(u8::from(given(frame, channel))));
    let values: Vec<f32> = (0..=last).flat_map(frame).collect();
    let tokens = i64::from(grid.h) * i64::from(grid.w);
    let mask_T1C1 = upload(&Tensor::from_slice(&values), device).view([last + 1, 1, channels, 1]);
    mask_T1C1.expand([last + 1, tokens, channels, patch], false).reshape([(last + 1) * tokens, channels * patch])
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::Grid;
    use tch::{Device, Tensor};

    use super::mask;

    /// Diffusers' `prepare_latents` of a clip of 9 frames: ones for given frames of pixels, the first repeated 4 times, in
    /// groups of 4.
    #[test]
    fn channels_stand_for_frames_of_pixels() {
        let grid = Grid { t: 3, h: 1, w: 2 };
        let by_token = |frames: [[f32; 4]; 3]| {
            let rows: Vec<f32> = frames.iter().flat_map(|frame| [*frame, *frame].concat()).collect();
            Tensor::from_slice(&rows).view([6, 4, 1]).expand([6, 4, 2], false).reshape([6, 8])
        };
        let first = by_token([[1.0; 4], [0.0; 4], [0.0; 4]]);
        assert_eq!(mask(grid, 4, 2, false, Device::Cpu), first);
        let both = by_token([[1.0; 4], [0.0; 4], [0.0, 0.0, 0.0, 1.0]]);
        assert_eq!(mask(grid, 4, 2, true, Device::Cpu), both);
    }
}
