//! Autoencoders as towers: pictures and clips to latents for a diffusion transformer, and latents to frames.

mod blocks;
mod config;
mod decoder;
mod latent_patch;
mod layout;
mod network;
mod parts;
mod past;
mod pixels;
mod resample;
mod tiles;
mod tower;

pub use config::VaeConfig;
pub use decoder::VaeDecoder;
pub use latent_patch::LatentPatch;
pub use parts::Autoencoder;
pub use pixels::PixelLatents;
pub use tiles::Tiles;
pub use tower::VaeLatents;

#[cfg(test)]
mod tests;
