//! The decoder of an autoencoder: rows of latents to frames.

use tch::Tensor;

use super::config::VaeConfig;
use super::latent_patch::LatentPatch;
use super::network::{Network, specs};
use super::past::Past;
use super::tiles::Tiles;
use super::tower::from_places;
use crate::params::{ParamSpec, ParamStore, Scope};

/// Makes pictures of latents.
pub enum VaeDecoder {
    /// The latents are the pixels.
    Pixels(LatentPatch),
    Network(Box<NetworkDecoder>),
}

/// The decoder on the parameters of a store.
pub struct NetworkDecoder {
    config: VaeConfig,
    patch: LatentPatch,
    network: Network,
}

impl VaeConfig {
    /// Returns the decoder's parameters, under their names in the checkpoint.
    pub fn decoder_specs(&self) -> Vec<ParamSpec> {
        specs(&self.prefix, &self.decoder())
    }
}

impl VaeDecoder {
    /// Panics where the store was not made from `vae.decoder_specs()`, among others.
    pub fn network(vae: &VaeConfig, patch: LatentPatch, params: &ParamStore) -> VaeDecoder {
        let scope = Scope::new(params, vae.prefix.as_str());
        let network = Network::new(&vae.decoder(), &scope);
        VaeDecoder::Network(Box::new(NetworkDecoder { config: vae.clone(), patch, network }))
    }

    /// Maps rows of normalized latents of so many frames, rows and columns of `tokens` to pixels `[F, H, W, channels]` in [−1, 1]. One
    /// latent frame at a time, and of each one of `tiles` at a time, where they are given.
    pub fn decode(&self, rows_NX: &Tensor, tokens: [i64; 3], tiles: Option<&Tiles>) -> Tensor {
        match self {
            VaeDecoder::Pixels(patch) => patch.latents(rows_NX, tokens).clamp(-1.0, 1.0),
            VaeDecoder::Network(decoder) => {
                let latents = decoder.config.denormalized(&decoder.patch.latents(rows_NX, tokens));
                decoder.frames(&latents, tiles)
            }
        }
    }
}

impl NetworkDecoder {
    fn frames(&self, latents_THWC: &Tensor, tiles: Option<&Tiles>) -> Tensor {
        let [space, patch] = [self.config.factors()[1], self.config.patch];
        let places = match tiles {
            Some(tiles) => tiles.blended(latents_THWC, [space, patch], |tile| self.places(tile, 1)),
            None => self.places(latents_THWC, 1),
        };
        from_places(&places, patch).clamp(-1.0, 1.0)
    }

    /// Maps latents `[T, H, W, C]` to places of the network, `chunk` latent frames at a time: any number gives the same.
    pub(super) fn places(&self, latents_THWC: &Tensor, chunk: i64) -> Tensor {
        let frames = latents_THWC.size()[0];
        let mut past = Past::none();
        let chunks = (0..frames).step_by(chunk as usize).map(|start| {
            let len = chunk.min(frames - start);
            past.begin(start == 0, start + len == frames);
            self.network.forward(latents_THWC.narrow(0, start, len), &mut past)
        });
        Tensor::cat(&chunks.collect::<Vec<_>>(), 0)
    }
}
