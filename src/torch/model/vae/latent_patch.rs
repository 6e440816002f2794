//! Latents as the rows that a diffusion transformer takes.
//!
//! Shapes: T frames, H rows, W columns and C channels of latents; N tokens, X values of a token.

use tch::Tensor;

/// The latents that are one token of a transformer: so many frames, rows and columns (`patch_size` of its config).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentPatch(pub [i64; 3]);

impl LatentPatch {
    /// Returns the number of values of a token of latents with so many channels.
    pub fn width(&self, channels: i64) -> i64 {
        self.0.iter().product::<i64>() * channels
    }

    /// Returns the frames, rows and columns of tokens of latents of this size. A patch that is not full does not count.
    pub fn tokens(&self, latents: [i64; 3]) -> [i64; 3] {
        [0, 1, 2].map(|axis| latents[axis] / self.0[axis])
    }

    /// Maps `[T, H, W, C]` to `[N, X]`: tokens by frame, row and column; the values of each by channel, frame, row and column, as in
    /// `patch_embedding.weight.view(d, -1)` of Wan and in the packed latents of Qwen-Image.
    ///
    /// # Panics
    /// T, H or W is not a multiple of the patch.
    pub fn rows(&self, latents_THWC: &Tensor) -> Tensor {
        let [size @ .., channels] = <[i64; 4]>::try_from(latents_THWC.size()).expect("[T, H, W, C]");
        let ([t, h, w], [pt, ph, pw]) = (self.tokens(size), self.0);
        assert_eq!([t * pt, h * ph, w * pw], size, "latents are whole patches of {:?}", self.0);
        let split = latents_THWC.reshape([t, pt, h, ph, w, pw, channels]);
        split.permute([0, 2, 4, 6, 1, 3, 5]).reshape([t * h * w, self.width(channels)])
    }

    /// Returns the reverse of [`LatentPatch::rows`], for so many frames, rows and columns of `tokens`. `[N, X]` to `[T, H, W, C]`.
    ///
    /// # Panics
    /// There are not as many rows as tokens, or a row is not whole patches.
    pub fn latents(&self, rows_NX: &Tensor, tokens: [i64; 3]) -> Tensor {
        let ([t, h, w], [pt, ph, pw]) = (tokens, self.0);
        let split = rows_NX.reshape([t, h, w, -1, pt, ph, pw]).permute([0, 4, 1, 5, 2, 6, 3]);
        split.reshape([t * pt, h * ph, w * pw, -1])
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::LatentPatch;

    /// A token's row times the flattened weight is what the convolution of the reference gives.
    #[test]
    fn rows_are_in_the_order_of_the_patch_embedding() {
        let patch = LatentPatch([1, 2, 2]);
        let options = (Kind::Float, Device::Cpu);
        let (latents, weight) = (Tensor::randn([3, 4, 6, 5], options), Tensor::randn([7, 5, 1, 2, 2], options));
        let volume = latents.permute([3, 0, 1, 2]).unsqueeze(0);
        let convolved = volume.conv3d::<Tensor>(&weight, None, [1, 2, 2], [0, 0, 0], [1, 1, 1], 1);
        let expected = convolved.squeeze_dim(0).permute([1, 2, 3, 0]).reshape([-1, 7]);
        let rows = patch.rows(&latents);
        assert_eq!(rows.size(), [3 * 2 * 3, patch.width(5)]);
        assert!(rows.matmul(&weight.reshape([7, -1]).tr()).allclose(&expected, 1e-5, 1e-5, false));
        assert_eq!(patch.latents(&rows, [3, 2, 3]), latents);
        assert_eq!(LatentPatch([3, 1, 2]).latents(&LatentPatch([3, 1, 2]).rows(&latents), [1, 4, 3]), latents);
    }
}
