//! How many features a picture has behind DaViT's convolutions: Florence-2's tower, which X-VLA has as well.

use serde_json::Value as Json;

/// What the convolutions between the stages are where the config does not say.
const KERNELS: [u64; 4] = [7, 3, 3, 3];
const STRIDES: [u64; 4] = [4, 2, 2, 2];
const PADDINGS: [u64; 4] = [3, 1, 1, 1];

/// The convolutions before each stage.
pub(in crate::data) struct Convolutions {
    kernels: Vec<u64>,
    strides: Vec<u64>,
    paddings: Vec<u64>,
}

impl Convolutions {
    /// Those of `vision`, which a `config.json` has at `place`.
    ///
    /// # Errors
    /// The reason: a key that is wrong.
    pub fn of(vision: &Json, place: &str) -> Result<Self, String> {
        let sizes = |key: &str, default: &[u64]| {
            let found = match &vision[key] {
                Json::Null => default.to_vec(),
                list => list.as_array().into_iter().flatten().map(|it| it.as_u64().unwrap_or(u64::MAX)).collect(),
            };
            match !found.is_empty() && found.iter().all(|size| *size <= 512) && found[0] > 0 {
                true => Ok(found),
                false => Err(format!("`{place}.{key}` is {}, not a list of sizes", vision[key])),
            }
        };
        let (kernels, paddings) = (sizes("patch_size", &KERNELS)?, sizes("patch_padding", &PADDINGS)?);
        Ok(Self { kernels, strides: sizes("patch_stride", &STRIDES)?, paddings })
    }

    /// The side of the patches that a picture's values come in.
    pub fn patch(&self) -> usize {
        self.strides[0] as usize
    }

    /// Rows and columns behind the last stage of a picture of so many pixels.
    ///
    /// # Errors
    /// The reason: the picture is smaller than a convolution.
    pub fn places(&self, resolution: [usize; 2]) -> Result<[usize; 2], String> {
        let mut sides = resolution.map(|side| side as u64);
        for ((kernel, stride), padding) in self.kernels.iter().zip(&self.strides).zip(&self.paddings) {
            if *stride == 0 || sides.iter().any(|side| side + 2 * padding < *kernel) {
                return Err(format!("a picture of {}×{} is smaller than a convolution", resolution[0], resolution[1]));
            }
            sides = sides.map(|side| (side + 2 * padding - kernel) / stride + 1);
        }
        Ok(sides.map(|side| side as usize))
    }

    /// Features of a picture of so many pixels: a place of the last stage each, and their mean.
    ///
    /// # Errors
    /// As [`Convolutions::places`].
    pub fn num_features(&self, resolution: [usize; 2]) -> Result<usize, String> {
        self.places(resolution).map(|[rows, columns]| rows * columns + 1)
    }
}
