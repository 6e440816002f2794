//! An audio tower as data: every tower that is built in is Whisper's encoder with other choices. The files `whisper.rs`, `qwen2_5.rs` and
//! `qwen3.rs` read these choices from a family's `config.json`.

use crate::model::tower_blocks::{BlockConfig, TowerNorm};
use crate::nn::{Activation, Linear, RowConv};
use crate::params::{Init, ParamSpec};

/// A tower: frames of log-mel bins in, one state for each few of them out.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioTowerConfig {
    /// The prefix of all names.
    pub prefix: String,
    /// Log-mel bins of a frame.
    pub num_mel_bins: i64,
    pub stem: StemConfig,
    /// The activation of the stem.
    pub activation: Activation,
    /// Frames that are convolved together. A longer clip is cut into such chunks and a shorter rest.
    pub chunk: i64,
    /// Frames at the end of each clip that have no state of their own. The convolutions see them, as they see the reference's
    /// padding behind a clip.
    pub frames_behind: i64,
    pub positions: AudioPositions,
    /// Chunks that attend to each other.
    pub chunks_per_window: i64,
    pub num_layers: i64,
    pub block: BlockConfig,
    /// True if pairs of states are averaged before the last norm.
    pub pool: bool,
    pub final_norm: (&'static str, TowerNorm),
    /// A parameter that the checkpoint has and that nothing computes with: its name and shape. It is kept as it is.
    pub unused: Option<(&'static str, [i64; 2])>,
}

/// The convolutions before the blocks, with three taps each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StemConfig {
    /// `conv1` and `conv2` along time, the second with stride 2.
    Line,
    /// `conv2d1` to `conv2d3` over bins and time, of so many channels, with stride 2 each, and the linear map `conv_out` of a
    /// position's channels and bins. A chunk's end is padded with zeros to a whole chunk.
    Plane { channels: i64 },
}

/// Tells a state its place. Places restart with each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AudioPositions {
    /// The table `embed_positions.weight` of so many places, which is not trained.
    Table(i64),
    /// Sines and cosines, not stored.
    Sinusoids,
}

pub(super) const CONVS: [&str; 2] = ["conv1", "conv2"];
pub(super) const PLANE_CONVS: [&str; 3] = ["conv2d1", "conv2d2", "conv2d3"];
pub(super) const CONV_OUT: &str = "conv_out";
pub(super) const TABLE: &str = "embed_positions.weight";
/// Taps of a convolution along each axis.
pub(super) const TAPS: i64 = 3;

impl StemConfig {
    /// Returns the number of positions of a chunk of so many frames; of bins as well.
    pub(super) fn halved(self, frames: i64) -> i64 {
        let halvings = if self == StemConfig::Line { 1 } else { PLANE_CONVS.len() };
        (0..halvings).fold(frames, |frames, _| (frames + 1) / 2)
    }
}

impl AudioTowerConfig {
    /// Returns the width of a state.
    pub fn width(&self) -> i64 {
        self.block.width
    }

    /// Returns the number of frames of a clip that have states, of so many that come.
    pub(super) fn own_frames(&self, frames: i64) -> i64 {
        (frames - self.frames_behind).max(0)
    }

    /// Returns the number of rows that the blocks compute for a clip of so many frames.
    pub(super) fn num_positions(&self, frames: i64) -> i64 {
        let own = self.own_frames(frames);
        own / self.chunk * self.stem.halved(self.chunk) + self.stem.halved(own % self.chunk)
    }

    /// Returns the number of states of a clip of so many frames.
    pub fn num_states(&self, frames: i64) -> i64 {
        self.num_positions(frames) / if self.pool { 2 } else { 1 }
    }

    /// Returns the parameters, under their names in the checkpoint.
    pub fn specs(&self) -> Vec<ParamSpec> {
        let (width, prefix, std) = (self.width(), self.prefix.as_str(), self.block.initializer_range);
        let named = |name: &str, shape: &[i64], init| ParamSpec::new(format!("{prefix}{name}"), shape, init);
        let mut specs = Vec::new();
        match self.stem {
            StemConfig::Line => {
                for (name, inputs) in CONVS.iter().zip([self.num_mel_bins, width]) {
                    specs.extend(RowConv::specs(prefix, name, inputs, width, TAPS, std));
                }
            }
            StemConfig::Plane { channels } => {
                for (name, inputs) in PLANE_CONVS.iter().zip([1, channels, channels]) {
                    let shape = [channels, inputs, TAPS, TAPS];
                    specs.push(named(&format!("{name}.weight"), &shape, Init::Normal(std)));
                    specs.push(named(&format!("{name}.bias"), &[channels], Init::Zeros));
                }
                let inputs = channels * self.stem.halved(self.num_mel_bins);
                specs.extend(Linear::specs(prefix, CONV_OUT, inputs, width, false, std));
            }
        }
        if let AudioPositions::Table(places) = self.positions {
            specs.push(named(TABLE, &[places, width], Init::Sinusoids(width)).frozen());
        }
        if let Some((name, shape)) = &self.unused {
            specs.push(named(name, shape, Init::Normal(std)).frozen());
        }
        specs.extend(self.final_norm.1.specs(prefix, self.final_norm.0, width));
        for number in 0..self.num_layers {
            specs.extend(self.block.specs(&self.layer_prefix(number)));
        }
        specs
    }

    pub(super) fn layer_prefix(&self, number: i64) -> String {
        format!("{}layers.{number}.", self.prefix)
    }
}
