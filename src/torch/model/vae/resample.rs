//! Halving and doubling of values `[T, H, W, C]` in space and time, and the shortcuts beside them.

use tch::Tensor;

use super::blocks::{CausalConv, conv2d};
use super::past::Past;
use crate::params::Scope;

/// Half the rows and columns, and where `time` is there half the frames behind the first.
pub(super) struct Down {
    weight: Tensor,
    bias: Tensor,
    time: Option<CausalConv>,
}

/// Twice the rows and columns, and where `time` is there two frames of each but the first.
pub(super) struct Up {
    weight: Tensor,
    bias: Tensor,
    time: Option<CausalConv>,
}

impl Down {
    /// Takes the convolution that halves rows and columns, and the one that halves frames where `has_time`.
    pub fn new(scope: &Scope<'_>, name: &str, has_time: bool) -> Down {
        let [weight, bias] = ["weight", "bias"].map(|tensor| scope.take(&format!("{name}.resample.1.{tensor}")));
        Down { weight, bias, time: has_time.then(|| CausalConv::new(scope, &format!("{name}.time_conv"))) }
    }

    /// Maps `[T, H, W, C]` to `[T, H/2, W/2, out]`; of frames behind the first, with time, half as many.
    pub fn forward(&self, x_THWC: &Tensor, past: &mut Past) -> Tensor {
        let x = conv2d(x_THWC, &self.weight, Some(&self.bias), 2);
        let Some(conv) = &self.time else { return x };
        // The first frame stays as it is; of the others each second output sees two, and the one before them.
        match past.frames(Some(&x), 1) {
            Some(before) => conv.frames([&before, &x].into_iter(), (2, 2)),
            None if x.size()[0] == 1 => x,
            None => Tensor::cat(&[x.narrow(0, 0, 1), conv.frames([&x].into_iter(), (2, 2))], 0),
        }
    }
}

impl Up {
    /// Takes the convolution behind doubled rows and columns, and the one that doubles frames where `has_time`.
    pub fn new(scope: &Scope<'_>, name: &str, has_time: bool) -> Up {
        let [weight, bias] = ["weight", "bias"].map(|tensor| scope.take(&format!("{name}.resample.1.{tensor}")));
        Up { weight, bias, time: has_time.then(|| CausalConv::new(scope, &format!("{name}.time_conv"))) }
    }

    /// Maps `[T, H, W, C]` to `[T, 2H, 2W, out]`; of frames behind the first, with time, twice as many.
    pub fn forward(&self, x_THWC: &Tensor, past: &mut Past) -> Tensor {
        let x = match &self.time {
            Some(conv) => doubled_in_time(x_THWC, conv, past),
            None => x_THWC.shallow_clone(),
        };
        let [t, h, w, c] = <[i64; 4]>::try_from(x.size()).expect("[T, H, W, C]");
        let nearest = x.view([t, h, 1, w, 1, c]).expand([t, h, 2, w, 2, c], false).reshape([t, 2 * h, 2 * w, c]);
        conv2d(&nearest, &self.weight, Some(&self.bias), 1)
    }
}

/// Returns the first frame, and two frames for each one behind it. The convolution sees only those behind it: zeros stand before them,
/// not the first frame.
fn doubled_in_time(x_THWC: &Tensor, conv: &CausalConv, past: &mut Past) -> Tensor {
    let doubled = |x: &Tensor, past: &mut Past| {
        let halves = conv.forward(x, past).unflatten(-1, [2, -1]);
        halves.permute([0, 3, 1, 2, 4]).flatten(0, 1).contiguous()
    };
    if !past.is_first() {
        return doubled(x_THWC, past);
    }
    let (first, others) = (x_THWC.narrow(0, 0, 1), x_THWC.narrow(0, 1, x_THWC.size()[0] - 1));
    if others.size()[0] == 0 {
        past.frames(None, 0);
        return first;
    }
    Tensor::cat(&[first, doubled(&others, past)], 0)
}

/// Returns the means of blocks of so many frames, rows and columns: consecutive values by channel, frame, row and column are averaged to
/// `outputs` channels. Frames are filled up with zeros in front.
pub(super) fn block_means(x_THWC: &Tensor, [ft, fs]: [i64; 2], outputs: i64) -> Tensor {
    let missing = (ft - x_THWC.size()[0] % ft) % ft;
    let x = x_THWC.constant_pad_nd([0, 0, 0, 0, 0, 0, missing, 0]);
    let [t, h, w, c] = <[i64; 4]>::try_from(x.size()).expect("[T, H, W, C]");
    let blocks = x.reshape([t / ft, ft, h / fs, fs, w / fs, fs, c]).permute([0, 2, 4, 6, 1, 3, 5]);
    blocks.reshape([t / ft, h / fs, w / fs, outputs, -1]).mean_dim(-1, false, None)
}

/// Repeats every channel to the values of blocks of so many frames, rows and columns and `outputs` channels: `[T, H, W, C]` to
/// `[T·ft, H·fs, W·fs, outputs]`. Where `is_first`, the first frame's blocks lose all but their last frame.
pub(super) fn repeated_blocks(x_THWC: &Tensor, [ft, fs]: [i64; 2], outputs: i64, is_first: bool) -> Tensor {
    let [t, h, w, c] = <[i64; 4]>::try_from(x_THWC.size()).expect("[T, H, W, C]");
    let repeats = outputs * ft * fs * fs / c;
    let blocks = x_THWC.unsqueeze(-1).expand([t, h, w, c, repeats], false).reshape([t, h, w, outputs, ft, fs, fs]);
    let y = blocks.permute([0, 4, 1, 5, 2, 6, 3]).reshape([t * ft, h * fs, w * fs, outputs]);
    if is_first { y.narrow(0, ft - 1, t * ft - ft + 1) } else { y }
}
