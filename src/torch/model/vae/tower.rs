//! The encoder of an autoencoder as a tower: pictures and clips to normalized latents, one row a token of the transformer.
//! It is never trained.

use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::message::Grid;
use tch::Tensor;

use super::config::VaeConfig;
use super::latent_patch::LatentPatch;
use super::network::{Network, specs};
use super::past::Past;
use super::pixels::size;
use crate::model::encoder::{EncoderFamily, EncoderModel, EncoderTape};
use crate::model::tower_blocks::Part;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// A tower whose features are the means of an autoencoder, normalized by channel.
#[derive(Clone, Debug, PartialEq)]
pub struct VaeLatents {
    pub vae: VaeConfig,
    pub patch: LatentPatch,
    /// The standard deviations of latents stand beside their means, divided alike.
    pub deviations: bool,
}

/// The encoder on the parameters of a store.
struct VaeEncoder {
    part: Part<Encoder>,
    policy: Policy,
}

/// The network from pixels to latents.
pub(super) struct Encoder {
    config: VaeConfig,
    patch: LatentPatch,
    network: Network,
    deviations: bool,
}

impl EncoderFamily for VaeLatents {
    fn specs(&self) -> Vec<ParamSpec> {
        specs(&self.vae.prefix, &self.vae.encoder())
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        Box::new(VaeEncoder { part: Encoder::part(self, params), policy })
    }

    fn num_outputs(&self) -> usize {
        1 + usize::from(self.deviations)
    }

    fn with_deviations(&self) -> Option<Arc<dyn EncoderFamily>> {
        Some(Arc::new(VaeLatents { deviations: true, ..self.clone() }))
    }

    fn patch_dim(&self) -> i64 {
        self.vae.pixel_channels
    }

    fn prefixes(&self) -> [&str; 2] {
        [&self.vae.prefix, ""]
    }

    fn num_features(&self, grid: Grid) -> usize {
        self.patch.tokens(self.vae.latent_size(size(grid))).iter().product::<i64>() as usize
    }
}

impl EncoderModel for VaeEncoder {
    /// Items are encoded one by one, so that an item's features have the same bits whatever else is in the batch.
    fn record(&self, grids: &[Grid]) -> EncoderTape {
        let mut tape = Tape::new();
        let pixels = tape.input(false);
        let num_outputs = 1 + usize::from(self.part.part.deviations);
        let mut start = 0;
        let mut items = Vec::new();
        for (number, grid) in grids.iter().enumerate() {
            let (encoder, [t, h, w], first) = (self.part.part.clone(), size(*grid), start);
            start += t * h * w;
            let forward =
                move |reads: &[Tensor]| encoder.rows(&reads[0].narrow(0, first, t * h * w).view([t, h, w, -1]));
            let name = format!("item {number}");
            items.push(tape.run(name, &self.part.ids, self.policy, &[pixels], num_outputs, forward));
        }
        let mut outputs = Vec::new();
        for output in 0..num_outputs {
            let of_items: Vec<Slot> = items.iter().map(|slots| slots[output]).collect();
            let forward = |reads: &[Tensor]| vec![Tensor::cat(reads, 0)];
            outputs.push(tape.run("latents", &[], self.policy, &of_items, 1, forward)[0]);
        }
        EncoderTape { tape: Rc::new(tape), pixels, outputs }
    }
}

impl Encoder {
    /// Takes the encoder's parameters as a part of a tape.
    pub fn part(family: &VaeLatents, params: &ParamStore) -> Part<Encoder> {
        let VaeLatents { vae, patch, deviations } = family;
        Part::new(params, vae.prefix.as_str(), |scope| Encoder {
            config: vae.clone(),
            patch: *patch,
            network: Network::new(&vae.encoder(), scope),
            deviations: *deviations,
        })
    }

    /// Maps pixels `[T, H, W, channels]` in [−1, 1] to rows of latents, and of their deviations where these are wanted.
    fn rows(&self, pixels_THWC: &Tensor) -> Vec<Tensor> {
        let moments = self.moments(pixels_THWC, [1, self.config.factors()[0]]);
        let deviations = self.deviations.then(|| self.config.deviations(&moments));
        std::iter::once(self.config.means(&moments)).chain(deviations).map(|x| self.patch.rows(&x)).collect()
    }

    /// Maps pixels `[T, H, W, 3]` to latents `[T, H, W, C]` of their own sizes, so many frames at a time: see [`Encoder::moments`].
    ///
    /// # Panics
    /// The frames behind the first are not whole latents.
    #[cfg(test)]
    pub fn latents(&self, pixels_THWC: &Tensor, frames: [i64; 2]) -> Tensor {
        self.config.means(&self.moments(pixels_THWC, frames))
    }

    /// Maps pixels `[T, H, W, 3]` to means and logarithms of variances `[T, H, W, 2·C]`, so many frames at a time: `first`, which is one
    /// more than a multiple of the frames of a latent, and then a multiple of them. All such numbers give the same; more take more
    /// memory.
    ///
    /// # Panics
    /// The frames behind the first are not whole latents.
    pub fn moments(&self, pixels_THWC: &Tensor, [first, others]: [i64; 2]) -> Tensor {
        let frames = pixels_THWC.size()[0];
        assert_eq!((frames - 1) % self.config.factors()[0], 0, "{frames} frames are not one and whole latents");
        let x_THWC = into_places(pixels_THWC, self.config.patch);
        let mut past = Past::none();
        let starts = std::iter::once(0).chain((first..frames).step_by(others as usize));
        let moments = starts.map(|start| {
            let len = if start == 0 { first } else { others.min(frames - start) };
            past.begin(start == 0, start + len == frames);
            self.network.forward(x_THWC.narrow(0, start, len), &mut past)
        });
        Tensor::cat(&moments.collect::<Vec<_>>(), 0)
    }
}

impl VaeConfig {
    /// Returns the mean and the standard deviation of each channel, in the type of `x`.
    fn statistics(&self, x: &Tensor) -> [Tensor; 2] {
        [&self.mean, &self.std].map(|values| Tensor::from_slice(values).to_device(x.device()).to_kind(x.kind()))
    }

    /// Returns the means among `moments` `[…, 2·C]`, by the mean and standard deviation of all latents: `[…, C]`.
    fn means(&self, moments: &Tensor) -> Tensor {
        let x = moments.narrow(-1, 0, self.latent_channels);
        let [mean, std] = self.statistics(&x);
        (x - mean) / std
    }

    /// Returns the standard deviations that belong to the means of `moments` `[…, 2·C]`: `[…, C]`. Logarithms of variances are limited as
    /// in diffusers.
    pub(super) fn deviations(&self, moments: &Tensor) -> Tensor {
        let x = moments.narrow(-1, self.latent_channels, self.latent_channels);
        let [_, std] = self.statistics(&x);
        (x.clamp(-30.0, 20.0) * 0.5).exp() / std
    }

    /// Returns the latents, as the autoencoder gives them, of what `means` made of them.
    pub(super) fn denormalized(&self, x: &Tensor) -> Tensor {
        let [mean, std] = self.statistics(x);
        x * std + mean
    }
}

/// Returns squares of pixels as places of the network: `[T, H, W, C]` to `[T, H/s, W/s, C·s²]`, values by channel, column, row.
fn into_places(pixels_THWC: &Tensor, side: i64) -> Tensor {
    let [t, h, w, c] = <[i64; 4]>::try_from(pixels_THWC.size()).expect("[T, H, W, C]");
    let squares = pixels_THWC.reshape([t, h / side, side, w / side, side, c]);
    squares.permute([0, 1, 3, 5, 4, 2]).reshape([t, h / side, w / side, -1])
}

/// Returns the reverse of `into_places`.
pub(super) fn from_places(x_THWC: &Tensor, side: i64) -> Tensor {
    let [t, h, w, _] = <[i64; 4]>::try_from(x_THWC.size()).expect("[T, H, W, C]");
    let squares = x_THWC.reshape([t, h, w, -1, side, side]).permute([0, 1, 5, 2, 4, 3]);
    squares.reshape([t, h * side, w * side, -1])
}
