//! The number of features that a picture has behind DaViT's convolutions: Florence-2's tower, which X-VLA has as well.

use serde_json::Value as Json;

/// The convolutions between the stages where the config does not give them.
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
    /// Reads the convolutions of `vision`, which a `config.json` has at `place`.
    ///
    /// # Errors
    /// The reason: a key that is wrong.
    pub fn of(vision: &Json, place: &str) -> Result<Self, String> {
        let sizes = |key: &str, default: &[u64], least: u64| {
            let found = match &vision[key] {
                Json::Null => default.to_vec(),
                list => list.as_array().into_iter().flatten().map(|it| it.as_u64().unwrap_or(u64::MAX)).collect(),
            };
            match !found.is_empty() && found.iter().all(|size| (least..=512).contains(size)) {
                true => Ok(found),
                false => Err(format!("`{place}.{key}` is {}, not a list of sizes", vision[key])),
            }
        };
        let (kernels, paddings) = (sizes("patch_size", &KERNELS, 1)?, sizes("patch_padding", &PADDINGS, 0)?);
        Ok(Self { kernels, strides: sizes("patch_stride", &STRIDES, 1)?, paddings })
    }

    /// Returns the side of the patches that a picture's values come in.
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
            if sides.iter().any(|side| side + 2 * padding < *kernel) {
                return Err(format!("a picture of {}×{} is smaller than a convolution", resolution[0], resolution[1]));
            }
            sides = sides.map(|side| (side + 2 * padding - kernel) / stride + 1);
        }
        Ok(sides.map(|side| side as usize))
    }

    /// Returns the number of features of a picture of so many pixels: one for each place of the last stage, and their mean.
    ///
    /// # Errors
    /// Fails as [`Convolutions::places`] does.
    pub fn num_features(&self, resolution: [usize; 2]) -> Result<usize, String> {
        self.places(resolution).map(|[rows, columns]| rows * columns + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paddings_alone_may_be_none() {
        let of = |vision: Json| Convolutions::of(&vision, "vision_config");
        let unpadded = of(json!({"patch_size": [4, 2], "patch_stride": [4, 2], "patch_padding": [0, 0]}));
        assert_eq!(unpadded.unwrap().places([32, 16]), Ok([4, 2]));
        for (key, list) in [("patch_size", [0, 3]), ("patch_stride", [4, 0]), ("patch_padding", [3, -1])] {
            let reason = of(json!({key: list})).err().unwrap_or_default();
            assert!(reason.contains(&format!("`vision_config.{key}` is [")), "{reason}");
        }
    }
}
