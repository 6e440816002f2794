//! The layers of an autoencoder, under the names that diffusers gives them.

use super::config::VaeConfig;
use super::network::{LayerConfig, Named, Shortcut};

use LayerConfig::{Attention, Block, Conv, Down, Norm, Residual, Up};

fn named(name: impl Into<String>, layer: LayerConfig) -> Named {
    Named { name: name.into(), layer }
}

/// Returns the middle, whose attention is the only one.
fn middle(part: &str, width: i64) -> Vec<Named> {
    let residual =
        |number: i64| named(format!("{part}.mid_block.resnets.{number}"), Residual { inputs: width, outputs: width });
    vec![residual(0), named(format!("{part}.mid_block.attentions.0"), Attention(width)), residual(1)]
}

/// Returns `count` residual blocks from one width to another, named by number from `first`.
fn residuals(prefix: &str, first: usize, count: usize, [inputs, outputs]: [i64; 2]) -> Vec<Named> {
    let block = |number: usize| {
        let inputs = if number == 0 { inputs } else { outputs };
        named(format!("{prefix}.{}", first + number), Residual { inputs, outputs })
    };
    (0..count).map(block).collect()
}

impl VaeConfig {
    /// Returns the factors by which this halving reduces frames, and rows and columns; `None` behind the last.
    fn halving(&self, number: usize) -> Option<[i64; 2]> {
        self.halves_time.get(number).map(|time| [1 + i64::from(*time), 2])
    }

    /// Returns the layers from pixels `[T, H, W, channels of a place]` to means and log-variances `[T', H', W', 2 · latent channels]`.
    pub(super) fn encoder(&self) -> Vec<Named> {
        let mut width = self.base[0];
        let inputs = self.pixel_channels * self.patch.pow(2);
        let mut layers = vec![named("encoder.conv_in", Conv { inputs, outputs: width, taps: 3 })];
        let mut flat = 0;
        for (level, multiplier) in self.multipliers.iter().enumerate() {
            let (outputs, halving) = (self.base[0] * multiplier, self.halving(level));
            let widths = [width, outputs];
            let down = halving.map(|[time, _]| Down { width: outputs, time: time > 1 });
            if self.has_shortcuts {
                let name = format!("encoder.down_blocks.{level}");
                let mut inner = residuals(&format!("{name}.resnets"), 0, self.num_blocks, widths);
                inner.extend(down.map(|down| named(format!("{name}.downsampler"), down)));
                let shortcut = Shortcut::Means { widths, factors: halving.unwrap_or([1, 1]) };
                layers.push(named(name, Block { layers: inner, shortcut }));
            } else {
                layers.extend(residuals("encoder.down_blocks", flat, self.num_blocks, widths));
                flat += self.num_blocks;
                if let Some(down) = down {
                    layers.push(named(format!("encoder.down_blocks.{flat}"), down));
                    flat += 1;
                }
            }
            width = outputs;
        }
        layers.extend(middle("encoder", width));
        let both = 2 * self.latent_channels;
        layers.push(named("encoder.norm_out", Norm(width)));
        layers.push(named("encoder.conv_out", Conv { inputs: width, outputs: both, taps: 3 }));
        layers.push(named("quant_conv", Conv { inputs: both, outputs: both, taps: 1 }));
        layers
    }

    /// Returns the layers from latents `[T, H, W, latent channels]` to pixels `[T', H', W', channels of a place]`.
    pub(super) fn decoder(&self) -> Vec<Named> {
        let latents = self.latent_channels;
        let mut width = self.base[1] * self.multipliers[self.multipliers.len() - 1];
        let mut layers = vec![
            named("post_quant_conv", Conv { inputs: latents, outputs: latents, taps: 1 }),
            named("decoder.conv_in", Conv { inputs: latents, outputs: width, taps: 3 }),
        ];
        layers.extend(middle("decoder", width));
        for (level, multiplier) in self.multipliers.iter().rev().enumerate() {
            let outputs = self.base[1] * multiplier;
            let doubling = self.halves_time.len().checked_sub(level + 1).and_then(|number| self.halving(number));
            let (name, widths) = (format!("decoder.up_blocks.{level}"), [width, outputs]);
            let mut inner = residuals(&format!("{name}.resnets"), 0, self.num_blocks + 1, widths);
            width = if self.has_shortcuts { outputs } else { outputs / 2 };
            let up = doubling.map(|[time, _]| Up { width: outputs, outputs: width, time: time > 1 });
            let place = if self.has_shortcuts { "upsampler" } else { "upsamplers.0" };
            inner.extend(up.map(|up| named(format!("{name}.{place}"), up)));
            match doubling.filter(|_| self.has_shortcuts) {
                Some(factors) => {
                    let shortcut = Shortcut::Repeats { widths, factors };
                    layers.push(named(name, Block { layers: inner, shortcut }));
                }
                None => layers.extend(inner),
            }
            if doubling.is_none() {
                width = outputs;
            }
        }
        let outputs = self.pixel_channels * self.patch.pow(2);
        layers.push(named("decoder.norm_out", Norm(width)));
        layers.push(named("decoder.conv_out", Conv { inputs: width, outputs, taps: 3 }));
        layers
    }

    /// Returns whether the channels of each level fit those of the next.
    pub(super) fn fits(&self) -> bool {
        let fits = |named: &Named| match &named.layer {
            Up { width, outputs, .. } => self.has_shortcuts || 2 * outputs == *width,
            Block { shortcut, .. } => shortcut.fits(),
            _ => true,
        };
        self.encoder().iter().chain(&self.decoder()).all(fits)
    }
}
