//! The layers before Wan's blocks, and the head behind them.
//!
//! Shapes: T tokens of all samples, R noise levels, D width, E numbers of a patch of the input, P of one of the output.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::conditions::mask;
use super::config::WanConfig;
use super::layout::{Context, frame};
use crate::device::upload;
use crate::model::dit::maps::{outer_map, std_of, zeroed};
use crate::model::dit::network::{Latents, Work};
use crate::model::dit::sample::Sample;
use crate::model::dit::segments::{Segments, wide};
use crate::model::dit::time::{TimeEmbedder, sinusoids};
use crate::model::tower_blocks::Part;
use crate::nn::{Activation, LayerNorm, Linear};
use crate::params::{Init, ParamSpec, ParamStore, Scope};
use crate::tape::{Policy, Slot, Tape};

/// The steps of the schedule: noise level 1 is this time.
const TIMES: f64 = 1000.0;
const PATCHES: &str = "patch_embedding";
/// Diffusers' name of the map from embeddings of noise levels to modulations.
const PROJECTION: &str = "condition_embedder.time_proj";
/// The epsilon of norms of pictures' tokens.
const IMAGE_EPS: f64 = 1e-5;

/// The layers before the blocks.
pub(super) struct Embed {
    config: WanConfig,
    patches: Part<Patches>,
    time: Part<Time>,
    text: Part<TwoMaps>,
    image: Option<Part<Image>>,
    device: Device,
    kind: Kind,
}

/// A linear map of patches, stored as a convolution `[D, channels, 1, rows, columns]`.
pub(in crate::model) struct Patches {
    weight: Tensor,
    bias: Tensor,
}

/// Noise levels to modulations and embeddings.
pub(in crate::model) struct Time {
    embedder: TimeEmbedder,
    projection: Linear,
}

/// Two linear maps with a tanh-GELU between.
pub(in crate::model) struct TwoMaps {
    first: Linear,
    second: Linear,
}

/// Tokens of pictures to keys' width.
struct Image {
    positions: Option<Tensor>,
    norms: [LayerNorm; 2],
    first: Linear,
    second: Linear,
}

pub(in crate::model) struct Head {
    /// `[1, 2, D]`.
    table: Tensor,
    output: Linear,
    eps: f64,
    /// Values of a patch of one channel.
    patch: i64,
}

impl Embed {
    /// Declares the layers before the blocks: patches, noise levels, text and, where the model reads them, states of pictures.
    pub fn specs(config: &WanConfig) -> Vec<ParamSpec> {
        let mut specs = Patches::specs(config);
        specs.extend(Time::specs(config));
        specs.extend(TwoMaps::specs_of_text(config));
        if let Some(image) = &config.image {
            let embedder = format!("{}condition_embedder.image_embedder.", config.prefix);
            let table =
                |rows: i64| ParamSpec::new(format!("{embedder}pos_embed"), &[1, rows, image.width], Init::Zeros);
            specs.extend(image.positions.map(table));
            specs.extend(LayerNorm::specs(&embedder, "norm1", image.width));
            specs.extend(outer_map(&embedder, "ff.net.0.proj", image.width, image.width));
            specs.extend(outer_map(&embedder, "ff.net.2", image.width, config.width()));
            specs.extend(LayerNorm::specs(&embedder, "norm2", config.width()));
        }
        specs
    }

    /// Takes the parameters that [`Embed::specs`] declares.
    pub fn new(config: &WanConfig, params: &ParamStore) -> Embed {
        let embedder = format!("{}condition_embedder.", config.prefix);
        let image = |scope: &Scope<'_>| Image {
            positions: scope.take_if("pos_embed"),
            norms: ["norm1", "norm2"].map(|name| LayerNorm::new(scope, name, IMAGE_EPS)),
            first: Linear::new(scope, "ff.net.0.proj"),
            second: Linear::new(scope, "ff.net.2"),
        };
        let prefix = config.prefix.as_str();
        Embed {
            patches: Part::new(params, prefix, Patches::new),
            time: Part::new(params, prefix, |scope| Time::new(scope, config)),
            text: Part::new(params, prefix, |scope| TwoMaps::of_text(scope, config)),
            image: config.image.map(|_| Part::new(params, format!("{embedder}image_embedder."), image)),
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }

    /// Records the hidden states of this rank's tokens `[T, D]`, the modulations of all blocks `[R, 6, D]` and the embeddings of noise
    /// levels `[R, D]`, float32, rows of text with one of the padding behind them `[K + 1, D]`, and tokens of pictures `[I, D]`, where
    /// there are some.
    pub fn record(&self, tape: &mut Tape, work: &Work<'_>, context: &Context, latents: &Latents) -> Vec<Slot> {
        let policy = work.policy;
        let mut input = self.record_input(tape, work, latents);
        if let Some(own) = &context.own {
            input = tape.take_rows(input, own.clone());
        }
        let part = self.patches.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        let x = tape.run("patches", &self.patches.ids, policy, &[input], 1, forward)[0];

        let times: Vec<f64> = context.levels.iter().map(|sigma| TIMES * sigma).collect();
        let waves = sinusoids(&times, 1.0, self.config.freq_dim, self.device);
        let part = self.time.part.clone();
        let forward = move |_: &[Tensor]| part.forward(&waves).into();
        let of_levels = tape.run("noise levels", &self.time.ids, policy, &[], 2, forward);

        let (part, kind, device, width) = (self.text.part.clone(), self.kind, self.device, self.config.text_dim);
        let forward = move |reads: &[Tensor]| {
            let behind = Tensor::zeros([1, width], (kind, device));
            let rows = reads.first().map_or_else(|| behind.shallow_clone(), |text| Tensor::cat(&[text, &behind], 0));
            vec![part.forward(&rows)]
        };
        let reads: Vec<Slot> = latents.text.into_iter().collect();
        let text = tape.run("text", &self.text.ids, policy, &reads, 1, forward)[0];

        let pictures = latents.pictures;
        let pictures = self.image.as_ref().and_then(|image| self.record_pictures(tape, image, pictures, policy));
        [x, of_levels[0], of_levels[1], text].into_iter().chain(pictures).collect()
    }

    /// Records the tokens of pictures in keys' width. `None` where there are none, as in a filler: the parameters are entered all the
    /// same, since replicas that share them out enter them together.
    fn record_pictures(
        &self,
        tape: &mut Tape,
        Part { part, ids }: &Part<Image>,
        pictures: Option<Slot>,
        policy: Policy,
    ) -> Option<Slot> {
        let Some(pictures) = pictures else {
            let nothing = Tensor::zeros([0], (self.kind, self.device));
            tape.run("no pictures", ids, Policy::Keep, &[], 1, move |_| vec![nothing.shallow_clone()]);
            return None;
        };
        let part = part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        Some(tape.run("pictures", ids, policy, &[pictures], 1, forward)[0])
    }

    /// Records the input's patches `[T, E]`: noisy latents, and what is known of the clip.
    fn record_input(&self, tape: &mut Tape, work: &Work<'_>, latents: &Latents) -> Slot {
        let (noised, samples) = (latents.noised, work.samples);
        let Some(clean) = latents.clean.filter(|_| samples.iter().any(|sample| !sample.conditions.is_empty())) else {
            return self.record_without_conditions(tape, noised);
        };
        let index = |rows: Vec<i64>| Rc::new(upload(&Tensor::from_slice(&rows), self.device));
        let conditions = samples.iter().filter_map(|sample| sample.conditions.first());
        let known = tape.take_rows(clean, index(conditions.flat_map(|(_, rows)| rows.clone()).collect()));
        let (channels, [rows, columns]) = (self.config.mask_channels(), self.config.patch);
        let (mut num_tokens, mut given) = (0, Vec::new());
        for sample in samples {
            let count = match sample.conditions.is_empty() {
                true => 0,
                false if channels == 0 => frame(sample),
                false => sample.num_tokens(),
            };
            given.extend(num_tokens..num_tokens + count);
            num_tokens += sample.num_tokens();
        }
        if channels == 0 {
            return tape.put_rows(noised, index(given), known);
        }
        // Zeros are the mask and the condition of a sample that has none.
        let size = channels * rows * columns;
        let mask = |sample: &Sample| match sample.conditions.is_empty() {
            true => Tensor::zeros([sample.num_tokens(), size], (Kind::Float, self.device)),
            false => mask(sample.grid, channels, rows * columns, sample.pictures.len() > 1, self.device),
        };
        let masks = Tensor::cat(&samples.iter().map(mask).collect::<Vec<_>>(), 0).to_kind(self.kind);
        let places = ((given.len() as i64) < num_tokens).then(|| index(given));
        let beside = move |reads: &[Tensor]| {
            let known = &reads[1];
            let known = match &places {
                Some(places) => {
                    let zeros = Tensor::zeros([num_tokens, known.size()[1]], (known.kind(), known.device()));
                    zeros.index_copy(0, places, known)
                }
                None => known.shallow_clone(),
            };
            vec![Tensor::cat(&[&reads[0], &masks, &known], 1)]
        };
        tape.run("conditions", &[], Policy::Recompute, &[noised, known], 1, beside)[0]
    }

    /// Records the input's patches `[T, E]` where no sample has a condition, or of a filler: zeros stand for the mask and the condition
    /// that the model reads.
    fn record_without_conditions(&self, tape: &mut Tape, noised: Slot) -> Slot {
        let [rows, columns] = self.config.patch;
        let missing = (self.config.in_channels - self.config.out_channels) * rows * columns;
        if missing == 0 {
            return noised;
        }
        let beside = move |reads: &[Tensor]| vec![reads[0].constant_pad_nd([0, missing])];
        tape.run("no conditions", &[], Policy::Recompute, &[noised], 1, beside)[0]
    }
}

impl Patches {
    /// Declares the convolution of patches, `[D, channels, 1, rows, columns]` with a bias.
    pub fn specs(config: &WanConfig) -> Vec<ParamSpec> {
        let (prefix, [rows, columns]) = (config.prefix.as_str(), config.patch);
        let shape = [config.width(), config.in_channels, 1, rows, columns];
        let std = std_of(config.in_channels * rows * columns);
        vec![
            ParamSpec::new(format!("{prefix}{PATCHES}.weight"), &shape, Init::Normal(std)),
            ParamSpec::new(format!("{prefix}{PATCHES}.bias"), &[config.width()], Init::Zeros),
        ]
    }

    /// Takes the convolution of patches.
    pub fn new(scope: &Scope<'_>) -> Patches {
        Patches { weight: scope.take(&format!("{PATCHES}.weight")), bias: scope.take(&format!("{PATCHES}.bias")) }
    }

    /// Maps `[T, E]` to `[T, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        crate::native::linear(x, &self.weight.flatten(1, -1), Some(&self.bias))
    }
}

impl Time {
    /// Declares the embedding of noise levels and the map `[6·D, D]` to the modulations of all blocks.
    pub fn specs(config: &WanConfig) -> Vec<ParamSpec> {
        let (prefix, width) = (config.prefix.as_str(), config.width());
        let mut specs = TimeEmbedder::specs_of(prefix, &Self::names(config), config.freq_dim, width);
        specs.extend(outer_map(prefix, &config.outside(PROJECTION), width, 6 * width));
        specs
    }

    /// Takes the parameters that [`Time::specs`] declares.
    pub fn new(scope: &Scope<'_>, config: &WanConfig) -> Time {
        Time {
            embedder: TimeEmbedder::of(scope, &Self::names(config)),
            projection: Linear::new(scope, &config.outside(PROJECTION)),
        }
    }

    fn names(config: &WanConfig) -> [String; 2] {
        ["linear_1", "linear_2"].map(|map| config.outside(&format!("condition_embedder.time_embedder.{map}")))
    }

    /// Maps sinusoids `[R, channels]` to modulations `[R, 6, D]` and embeddings `[R, D]`, float32.
    pub fn forward(&self, waves: &Tensor) -> [Tensor; 2] {
        let level = self.embedder.forward(waves);
        let modulations = self.projection.forward_wide(&level.silu()).unflatten(-1, [6, -1]);
        [modulations, level]
    }
}

impl TwoMaps {
    /// Returns the maps of rows of text.
    pub fn specs_of_text(config: &WanConfig) -> Vec<ParamSpec> {
        let (prefix, width, [first, second]) = (config.prefix.as_str(), config.width(), Self::names_of_text(config));
        let first = outer_map(prefix, &first, config.text_dim, width);
        first.into_iter().chain(outer_map(prefix, &second, width, width)).collect()
    }

    /// Takes both maps of text states to the width of the blocks.
    pub fn of_text(scope: &Scope<'_>, config: &WanConfig) -> TwoMaps {
        let [first, second] = Self::names_of_text(config).map(|name| Linear::new(scope, &name));
        TwoMaps { first, second }
    }

    fn names_of_text(config: &WanConfig) -> [String; 2] {
        ["linear_1", "linear_2"].map(|map| config.outside(&format!("condition_embedder.text_embedder.{map}")))
    }

    /// Maps `[rows, inputs]` to `[rows, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        self.second.forward(&Activation::GeluTanh.forward(&self.first.forward(x)))
    }
}

impl Image {
    /// Maps `[I, width]` to `[I, D]`.
    fn forward(&self, x: &Tensor) -> Tensor {
        let placed = match &self.positions {
            Some(table) => (x.unflatten(0, [-1, table.size()[1]]) + table).flatten(0, 1),
            None => x.shallow_clone(),
        };
        let [first, last] = &self.norms;
        let inner = Activation::Gelu.forward(&self.first.forward(&first.forward_wide(&placed)));
        last.forward_wide(&self.second.forward(&inner))
    }
}

impl Head {
    /// Declares the modulations `[1, 2, D]` and the map to patches, whose first values are zeros.
    pub fn specs(config: &WanConfig) -> Vec<ParamSpec> {
        let (prefix, width) = (config.prefix.as_str(), config.width());
        let table = Init::Normal((width as f64).powf(-0.5));
        let name = format!("{prefix}{}", config.outside("scale_shift_table"));
        let mut specs = vec![ParamSpec::new(name, &[1, 2, width], table)];
        specs.extend(zeroed(outer_map(prefix, &config.outside("proj_out"), width, config.patch_dim())));
        specs
    }

    /// Takes the parameters that [`Head::specs`] declares.
    pub fn new(scope: &Scope<'_>, config: &WanConfig) -> Head {
        Head {
            table: scope.take(&config.outside("scale_shift_table")),
            output: Linear::new(scope, &config.outside("proj_out")),
            eps: config.eps,
            patch: config.patch[0] * config.patch[1],
        }
    }

    /// Maps `x` `[T, D]` and noise levels `[R, D]` to velocities `[T, P]`, channels before a patch's values.
    pub fn forward(&self, x: &Tensor, level: &Tensor, segments: &Segments) -> Tensor {
        let sum = wide(level).unsqueeze(1) + wide(&self.table);
        let x = segments.modulate(x, &sum, 0, self.eps);
        // The map gives a patch's values before channels.
        self.output.forward(&x).unflatten(-1, [self.patch, -1]).transpose(1, 2).flatten(1, 2)
    }
}
