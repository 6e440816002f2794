//! Wan's transformer on its parameters, and how it is recorded.
//!
//! Shapes: T tokens of all samples, R noise levels, D width, E numbers of a patch of the input, P of one of the output.

use std::rc::Rc;

use loongforge_core::message::ItemMeta;
use tch::{Device, Kind, Tensor};

use super::block::{self, Context, FeedForward, PromptAttention, SelfAttention};
use super::conditions::mask;
use super::config::WanConfig;
use crate::model::batch::SampleRow;
use crate::model::dit::maps::{outer_map, std_of, zeroed};
use crate::model::dit::network::{Latents, Network};
use crate::model::dit::rope::{places, rotation};
use crate::model::dit::sample::Sample;
use crate::model::dit::segments::{Segments, wide};
use crate::model::dit::time::{TimeEmbedder, sinusoids};
use crate::model::tower_blocks::Part;
use crate::nn::{Activation, CrossAttention, DocumentKeys, LayerNorm, Linear, Mask, PackedAttention};
use crate::params::{Init, ParamSpec, ParamStore, Scope};
use crate::tape::{Policy, Slot, Tape};

/// The steps of the schedule: noise level 1 is this time.
const TIMES: f64 = 1000.0;
/// The epsilon of norms of pictures' tokens.
const IMAGE_EPS: f64 = 1e-5;

pub(in crate::model::dit) struct Wan {
    config: WanConfig,
    patches: Part<Patches>,
    time: Part<Time>,
    text: Part<TwoMaps>,
    image: Option<Part<Image>>,
    blocks: Vec<Block>,
    head: Part<Head>,
    device: Device,
    kind: Kind,
}

struct Block {
    attention: Part<SelfAttention>,
    prompt: Part<PromptAttention>,
    mlp: Part<FeedForward>,
}

/// A linear map of patches, stored as a convolution `[D, channels, 1, rows, columns]`.
struct Patches {
    weight: Tensor,
    bias: Tensor,
}

struct Time {
    embedder: TimeEmbedder,
    projection: Linear,
}

/// Two linear maps with a tanh-GELU between.
struct TwoMaps {
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

struct Head {
    /// `[1, 2, D]`.
    table: Tensor,
    output: Linear,
    eps: f64,
    /// Values of a patch of one channel.
    patch: i64,
}

/// The parameters of a transformer.
pub(super) fn specs(config: &WanConfig) -> Vec<ParamSpec> {
    let (prefix, width) = (config.prefix.as_str(), config.width());
    let [rows, columns] = config.patch;
    let embedder = format!("{prefix}condition_embedder.");
    let patches = config.in_channels * rows * columns;
    let head = Init::Normal((width as f64).powf(-0.5));
    let mut specs = vec![
        ParamSpec::new(format!("{prefix}scale_shift_table"), &[1, 2, width], head),
        ParamSpec::new(
            format!("{prefix}patch_embedding.weight"),
            &[width, config.in_channels, 1, rows, columns],
            Init::Normal(std_of(patches)),
        ),
        ParamSpec::new(format!("{prefix}patch_embedding.bias"), &[width], Init::Zeros),
    ];
    specs.extend(TimeEmbedder::specs(&embedder, "time_embedder", config.freq_dim, width));
    specs.extend(outer_map(&embedder, "time_proj", width, 6 * width));
    specs.extend(outer_map(&embedder, "text_embedder.linear_1", config.text_dim, width));
    specs.extend(outer_map(&embedder, "text_embedder.linear_2", width, width));
    if let Some(image) = &config.image {
        let embedder = format!("{embedder}image_embedder.");
        if let Some(positions) = image.positions {
            specs.push(ParamSpec::new(format!("{embedder}pos_embed"), &[1, positions, image.width], Init::Zeros));
        }
        specs.extend(LayerNorm::specs(&embedder, "norm1", image.width));
        specs.extend(outer_map(&embedder, "ff.net.0.proj", image.width, image.width));
        specs.extend(outer_map(&embedder, "ff.net.2", image.width, width));
        specs.extend(LayerNorm::specs(&embedder, "norm2", width));
    }
    specs.extend((0..config.num_layers).flat_map(|number| block::specs(config, &format!("{prefix}blocks.{number}."))));
    specs.extend(zeroed(outer_map(prefix, "proj_out", width, config.patch_dim())));
    specs
}

impl Wan {
    /// Panics where the store was not made from [`specs`].
    pub fn new(config: &WanConfig, params: &ParamStore) -> Wan {
        let prefix = config.prefix.as_str();
        let embedder = format!("{prefix}condition_embedder.");
        let image = |scope: &Scope<'_>| Image {
            positions: scope.take_if("pos_embed"),
            norms: ["norm1", "norm2"].map(|name| LayerNorm::new(scope, name, IMAGE_EPS)),
            first: Linear::new(scope, "ff.net.0.proj"),
            second: Linear::new(scope, "ff.net.2"),
        };
        let block = |number: usize| {
            let prefix = format!("{prefix}blocks.{number}.");
            Block {
                attention: Part::new(params, prefix.as_str(), |scope| SelfAttention::new(scope, config)),
                prompt: Part::new(params, prefix.as_str(), |scope| PromptAttention::new(scope, config)),
                mlp: Part::new(params, prefix.as_str(), |scope| FeedForward::new(scope, config)),
            }
        };
        Wan {
            patches: Part::new(params, prefix, |scope| Patches {
                weight: scope.take("patch_embedding.weight"),
                bias: scope.take("patch_embedding.bias"),
            }),
            time: Part::new(params, embedder.as_str(), |scope| Time {
                embedder: TimeEmbedder::new(scope, "time_embedder"),
                projection: Linear::new(scope, "time_proj"),
            }),
            text: Part::new(params, embedder.as_str(), |scope| TwoMaps {
                first: Linear::new(scope, "text_embedder.linear_1"),
                second: Linear::new(scope, "text_embedder.linear_2"),
            }),
            image: config.image.map(|_| Part::new(params, format!("{embedder}image_embedder."), image)),
            blocks: (0..config.num_layers).map(block).collect(),
            head: Part::new(params, prefix, |scope| Head {
                table: scope.take("scale_shift_table"),
                output: Linear::new(scope, "proj_out"),
                eps: config.eps,
                patch: config.patch[0] * config.patch[1],
            }),
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }

    /// Returns whether the first latent frame of a sample is given, clean (TI2V).
    fn is_given(&self, sample: &Sample) -> bool {
        self.config.mask_channels() == 0 && !sample.conditions.is_empty()
    }

    fn context(&self, samples: &[Sample], sigma: &[f64], num_text: i64) -> (Context, Vec<f64>) {
        let (mut ends, mut turned) = (vec![0], Vec::new());
        let (mut levels, mut segments) = (Vec::new(), Vec::new());
        let mut level = |tokens: i64, sigma: f64| {
            if tokens > 0 {
                segments.push((tokens, levels.len() as i64));
                levels.push(sigma);
            }
        };
        for (sample, sigma) in samples.iter().zip(sigma) {
            let clean = if self.is_given(sample) { frame(sample) } else { 0 };
            level(clean, 0.0);
            level(sample.num_tokens() - clean, *sigma);
            ends.push(ends[ends.len() - 1] + sample.num_tokens() as usize);
            turned.extend(places(sample.grid, [0; 3]));
        }
        // Rows of text behind a prompt are equal: one row, the last, stands for all of them.
        let prompt = |sample: &Sample| {
            let missing = self.config.text_rows - (sample.text.end - sample.text.start);
            let missing = if sample.text.is_empty() { missing.max(1) } else { missing };
            let extra = (missing > 0).then(|| (num_text, (missing as f64).ln()));
            DocumentKeys { rows: sample.text.clone(), extra }
        };
        let prompts: Vec<DocumentKeys> = samples.iter().map(prompt).collect();
        let pictures = |sample: &Sample| {
            let ends = sample.pictures.first().zip(sample.pictures.last());
            DocumentKeys { rows: ends.map_or(0..0, |(first, last)| first.start..last.end), extra: None }
        };
        let pictures: Vec<DocumentKeys> = samples.iter().map(pictures).collect();
        let num_pictures = pictures.iter().map(|keys| keys.rows.end).max().unwrap_or(0);
        let has_pictures = self.config.image.is_some() && num_pictures > 0;
        let context = Context {
            segments: Segments::new(&segments, levels.len() as i64, self.device),
            rotation: rotation(&turned, self.config.axes(), self.device),
            clips: PackedAttention::new(&ends, Mask::Full, self.device),
            prompts: CrossAttention::new(&ends, &prompts, num_text + 1, self.device),
            pictures: has_pictures.then(|| CrossAttention::new(&ends, &pictures, num_pictures, self.device)),
        };
        (context, levels)
    }

    /// The input's patches `[T, E]`: noisy latents, and what is known of the clip.
    fn record_input(&self, tape: &mut Tape, samples: &[Sample], latents: &Latents) -> Slot {
        let noised = latents.noised;
        let Some(clean) = latents.clean.filter(|_| samples.iter().any(|sample| !sample.conditions.is_empty())) else {
            return noised;
        };
        let index = |rows: Vec<i64>| Rc::new(Tensor::from_slice(&rows).to_device(self.device));
        let conditions = samples.iter().filter_map(|sample| sample.conditions.first());
        let known = tape.take_rows(clean, index(conditions.flat_map(|(_, rows)| rows.clone()).collect()));
        let (channels, [rows, columns]) = (self.config.mask_channels(), self.config.patch);
        if channels == 0 {
            let mut start = 0;
            let mut given = Vec::new();
            for sample in samples {
                given.extend(start..start + if self.is_given(sample) { frame(sample) } else { 0 });
                start += sample.num_tokens();
            }
            return tape.put_rows(noised, index(given), known);
        }
        let mask =
            |sample: &Sample| mask(sample.grid, channels, rows * columns, sample.pictures.len() > 1, self.device);
        let masks = Tensor::cat(&samples.iter().map(mask).collect::<Vec<_>>(), 0).to_kind(self.kind);
        let beside = move |reads: &[Tensor]| vec![Tensor::cat(&[&reads[0], &masks, &reads[1]], 1)];
        tape.run("conditions", &[], Policy::Recompute, &[noised, known], 1, beside)[0]
    }
}

/// The tokens of a frame.
fn frame(sample: &Sample) -> i64 {
    i64::from(sample.grid.h) * i64::from(sample.grid.w)
}

impl Network for Wan {
    fn counted(&self, sample: &Sample) -> std::ops::Range<i64> {
        if self.is_given(sample) { frame(sample)..sample.num_tokens() } else { 0..sample.num_tokens() }
    }

    fn has_target(&self, row: &SampleRow, latents: &[ItemMeta]) -> bool {
        // A condition has the target's size, but a given frame.
        let expected = if self.config.mask_channels() > 0 { 2 } else { 1 };
        let tokens = row.target.map_or(0, |target| target.grid.num_patches());
        latents.len() >= expected && latents[0].num_features as usize == tokens
    }

    fn record(&self, tape: &mut Tape, samples: &[Sample], sigma: &[f64], latents: &Latents, policy: Policy) -> Slot {
        let (context, levels) = self.context(samples, sigma, latents.num_text);
        let context = Rc::new(context);
        let input = self.record_input(tape, samples, latents);
        let part = self.patches.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        let mut x = tape.run("patches", &self.patches.ids, policy, &[input], 1, forward)[0];

        let times: Vec<f64> = levels.iter().map(|sigma| TIMES * sigma).collect();
        let waves = sinusoids(&times, 1.0, self.config.freq_dim, self.device);
        let part = self.time.part.clone();
        let forward = move |_: &[Tensor]| part.forward(&waves).into();
        let [level, modulations] = two(tape.run("noise levels", &self.time.ids, policy, &[], 2, forward));

        let (part, kind, device, width) = (self.text.part.clone(), self.kind, self.device, self.config.text_dim);
        let forward = move |reads: &[Tensor]| {
            let behind = Tensor::zeros([1, width], (kind, device));
            let rows = reads.first().map_or_else(|| behind.shallow_clone(), |text| Tensor::cat(&[text, &behind], 0));
            vec![part.forward(&rows)]
        };
        let reads: Vec<Slot> = latents.text.into_iter().collect();
        let text = tape.run("text", &self.text.ids, policy, &reads, 1, forward)[0];

        let pictures = self.image.as_ref().zip(latents.pictures).map(|(image, pictures)| {
            let part = image.part.clone();
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
            tape.run("pictures", &image.ids, policy, &[pictures], 1, forward)[0]
        });

        for (number, block) in self.blocks.iter().enumerate() {
            let (part, at) = (block.attention.part.clone(), context.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at)];
            let name = format!("block {number} attention");
            let y = tape.run(name, &block.attention.ids, policy, &[x, modulations], 1, forward)[0];
            x = tape.add(x, y);
            let (part, at) = (block.prompt.part.clone(), context.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], reads.get(2), &at)];
            let reads: Vec<Slot> = [x, text].into_iter().chain(pictures).collect();
            let y = tape.run(format!("block {number} prompt"), &block.prompt.ids, policy, &reads, 1, forward)[0];
            x = tape.add(x, y);
            let (part, at) = (block.mlp.part.clone(), context.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at)];
            let y = tape.run(format!("block {number} mlp"), &block.mlp.ids, policy, &[x, modulations], 1, forward)[0];
            x = tape.add(x, y);
        }
        let part = self.head.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &context.segments)];
        tape.run("head", &self.head.ids, policy, &[x, level], 1, forward)[0]
    }
}

/// Two slots of an operation.
fn two(slots: Vec<Slot>) -> [Slot; 2] {
    [slots[0], slots[1]]
}

impl Patches {
    /// `[T, E]` to `[T, D]`.
    fn forward(&self, x: &Tensor) -> Tensor {
        crate::native::linear(x, &self.weight.flatten(1, -1), Some(&self.bias))
    }
}

impl Time {
    /// Sinusoids `[R, channels]` to the embeddings of noise levels `[R, D]` and the modulations of all blocks `[R, 6, D]`,
    /// float32.
    fn forward(&self, waves: &Tensor) -> [Tensor; 2] {
        let level = self.embedder.forward(waves);
        let modulations = self.projection.forward_wide(&level.silu()).unflatten(-1, [6, -1]);
        [level, modulations]
    }
}

impl TwoMaps {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.second.forward(&Activation::GeluTanh.forward(&self.first.forward(x)))
    }
}

impl Image {
    /// `[I, width]` to `[I, D]`.
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
    /// `x` `[T, D]` and noise levels `[R, D]` to velocities `[T, P]`, channels before a patch's values.
    fn forward(&self, x: &Tensor, level: &Tensor, segments: &Segments) -> Tensor {
        let sum = wide(level).unsqueeze(1) + wide(&self.table);
        let x = segments.modulate(x, &sum.select(1, 0), &sum.select(1, 1), self.eps);
        // The map gives a patch's values before channels.
        self.output.forward(&x).unflatten(-1, [self.patch, -1]).transpose(1, 2).flatten(1, 2)
    }
}
