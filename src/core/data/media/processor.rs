//! The interface of a family's processor.

use image::RgbImage;

use super::clock::Clock;
use super::expansion::Expansion;
use super::markers::Markers;
use super::sampling::Sampling;
use super::video::Video;

/// Pictures and videos of one family of models, as its Hugging Face processor treats them.
pub trait MediaProcessor: Send + Sync {
    /// Numbers of one patch: channels × frames × rows × columns.
    fn patch_dim(&self) -> usize;

    /// Features that a picture of this size, in pixels, becomes.
    ///
    /// # Errors
    /// Its shape is one that the model does not take.
    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String>;

    /// Returns the fewest features that a picture becomes whose header says this size, in pixels: decoding it may turn it upright.
    ///
    /// # Errors
    /// Its shape is one that the model does not take.
    fn least_image_features(&self, width: usize, height: usize) -> Result<usize, String> {
        Ok(self.num_image_features(width, height)?.min(self.num_image_features(height, width)?))
    }

    /// Returns the most features that a picture becomes, but for elongated ones.
    fn max_image_features(&self) -> usize;

    /// # Errors
    /// Its shape is one that the model does not take.
    fn image(&self, picture: &RgbImage) -> Result<Expansion, String>;

    /// Returns which frames of a video [`MediaProcessor::video`] is to be given.
    fn sampling(&self) -> &Sampling;

    /// # Errors
    /// Its shape is one that the model does not take, or the model takes no videos.
    fn video(&self, _: &Video) -> Result<Expansion, String> {
        Err("videos are not implemented for this model".to_owned())
    }

    /// Returns how the time of a video and of its sound are told together; `None` for a model that hears no video.
    fn clock(&self) -> Option<&Clock> {
        None
    }

    fn markers(&self) -> &Markers;
}
