//! The decoder on the parameters of a store.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::batch::TextBatch;
use super::config::DecoderConfig;
use super::layer::{FeedForward, Layer};
use super::mtp::MtpHead;
use super::recording::Split;
use super::streams::LastNorm;
use crate::device::upload;
use crate::model::objective::soft_capped;
use crate::model::routing::ExpertSet;
use crate::model::stage::Stage;
use crate::native::is_dry_run;
use crate::nn::moe::Router;
use crate::nn::{Context, DeltaDocuments, LayerCache, Mask, PackedAttention, Rope, RopeConfig, SharedRows};
use crate::params::{Init, ParamId, ParamSpec, ParamStore, Scope, ZeroStage};

/// A decoder-only transformer, or a stage of one.
pub struct Decoder {
    pub(super) config: DecoderConfig,
    pub(super) stage: Stage,
    pub(super) device: Device,
    pub(super) kind: Kind,
    /// Other replicas enter every layer together with this one: parameters, or sums of gradients, are shared out among them.
    pub(super) meets_replicas: bool,
    /// Multiplies embeddings, rounded as one of them is.
    pub(super) embedding_scale: Option<f64>,
    embed: Option<Table>,
    /// The layers of the stage.
    pub(super) layers: Vec<Layer>,
    last: Option<Last>,
    pub(super) mtp: Vec<MtpHead>,
}

/// The table of the embedding or of the head, `[V, D]`, with its place among the parameters.
pub(super) struct Table {
    pub weight: Tensor,
    pub id: ParamId,
}

/// The norm and the head behind the last layer.
pub(super) struct Last {
    pub norm: Rc<LastNorm>,
    pub norm_ids: Vec<ParamId>,
    pub head: Table,
    /// The bias of the head, `[V]`.
    pub head_bias: Option<Table>,
}

impl Decoder {
    /// Returns the parameters, under their names in `model.safetensors`.
    pub fn specs(config: &DecoderConfig) -> Vec<ParamSpec> {
        Decoder::stage_specs(config, &Stage::whole(config.num_layers()))
    }

    /// Returns the parameters of a stage, under the same names.
    pub fn stage_specs(config: &DecoderConfig, stage: &Stage) -> Vec<ParamSpec> {
        let mut specs = Decoder::named_specs(config, stage);
        for piece in specs.iter_mut().flat_map(|spec| &mut spec.pieces) {
            piece.name = config.names.in_files(&piece.name);
        }
        specs
    }

    /// Works like `stage_specs`, whose pieces are called as the modules.
    fn named_specs(config: &DecoderConfig, stage: &Stage) -> Vec<ParamSpec> {
        let tied = config.tie_word_embeddings;
        // Of the embedding, of the head, or of a table that is both.
        let table = |name: String, is_head: &[bool]| {
            let shape = [config.vocab_size, config.hidden_size];
            let mut spec = ParamSpec::new(name, &shape, Init::Normal(config.initializer_range));
            for &head in is_head {
                spec.pieces.extend(config.mtp.iter().flat_map(|mtp| mtp.repeated(head, &shape)));
            }
            spec
        };
        let mut specs = Vec::new();
        if stage.has_embedding(config) {
            let table = table(config.embedding_weight(), if tied { &[false, true] } else { &[false] });
            specs.push(ParamSpec { is_copy: !stage.is_first, ..table });
        }
        for number in stage.layers.clone() {
            specs.extend(Layer::specs(config, &config.layers[number], &config.layer_prefix(number)));
        }
        if !stage.is_last {
            return specs;
        }
        specs.extend(LastNorm::specs(config, "", &config.names.norm));
        if !tied {
            specs.push(table(config.head_weight(), &[true]));
        }
        if config.head_bias {
            specs.push(ParamSpec::new(config.head_bias_name(), &[config.vocab_size], Init::Zeros));
        }
        specs.extend(config.mtp.iter().flat_map(|mtp| mtp.specs(config)));
        specs
    }

    /// Panics where the store was not made from this config's `specs`.
    pub fn new(config: &DecoderConfig, params: &ParamStore) -> Decoder {
        Decoder::stage(config, Stage::whole(config.num_layers()), params)
    }

    /// Panics where the store does not have what [`Decoder::stage_specs`] says.
    pub fn stage(config: &DecoderConfig, stage: Stage, params: &ParamStore) -> Decoder {
        let table = |name: String| Table { weight: params.get(&name), id: params.id(&name) };
        let last = stage.is_last.then(|| {
            let scope = Scope::new(params, "");
            let norm = Rc::new(LastNorm::new(config, &scope, &config.names.norm));
            let head_bias = config.head_bias.then(|| table(config.head_bias_name()));
            Last { norm, norm_ids: scope.into_ids(), head: table(config.head_weight()), head_bias }
        });
        let layer = |number: usize| Layer::new(config, &config.layers[number], &config.layer_prefix(number), params);
        let kind = params.flat().kind();
        // By way of float32, as transformers keeps it.
        let rounded = |scale: f64| Tensor::from(scale as f32).to_kind(kind).double_value(&[]);
        let sharding = params.sharding();
        Decoder {
            device: params.flat().device(),
            kind,
            meets_replicas: sharding.shared >= ZeroStage::Gradients && sharding.world > 1,
            embedding_scale: config.embedding_scale.map(rounded),
            embed: stage.has_embedding(config).then(|| table(config.embedding_weight())),
            layers: stage.layers.clone().map(layer).collect(),
            mtp: if stage.is_last { MtpHead::all(config, params) } else { Vec::new() },
            last,
            stage,
            config: config.clone(),
        }
    }

    /// Returns the config of this rank's part of the decoder.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Returns the stage's layers with their numbers in the model.
    pub(super) fn numbered_layers(&self) -> impl Iterator<Item = (usize, &Layer)> {
        self.stage.layers.clone().zip(&self.layers)
    }

    /// Panics where the stage does not have the embedding.
    pub(super) fn embedding(&self) -> &Table {
        self.embed.as_ref().expect("a stage with the embedding")
    }

    /// Panics where the stage is not the last.
    pub(super) fn last(&self) -> &Last {
        self.last.as_ref().expect("the last stage")
    }

    /// Scores `[…, V]` of the next token, for hidden states `[…, D]` after the last norm.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        let Last { head, head_bias, .. } = self.last();
        let scores = hidden.linear(&head.weight, head_bias.as_ref().map(|bias| &bias.weight));
        let scores = match self.config.score_divisor {
            Some(divisor) => scores / divisor,
            None => scores,
        };
        match self.config.final_soft_cap {
            Some(cap) => soft_capped(&scores, cap),
            None => scores,
        }
    }

    /// Returns by rotary embeddings what the layers that have them share of a packed row whose documents end at
    /// `cu_seqlens`.
    pub(super) fn contexts(&self, position_ids: &Tensor, cu_seqlens: &[usize], mask: Mask) -> Vec<Rc<Context>> {
        let lens = match self.config.depends_on_length() {
            true => spans(position_ids, cu_seqlens),
            false => Vec::new(),
        };
        self.contexts_with(self.ropes(position_ids, cu_seqlens, &lens), cu_seqlens, mask, None)
    }

    /// Works like `contexts` for a batch, which may be some tokens of a row.
    pub(super) fn contexts_of(&self, batch: &TextBatch) -> Vec<Rc<Context>> {
        let mask = batch.mask.clone();
        if let Some(shared) = &batch.shared {
            let ropes = self.ropes(&batch.position_ids, &batch.cu_seqlens, &[]);
            return self.contexts_with(ropes, &batch.cu_seqlens, mask, Some(&**shared));
        }
        let Some(row) = &batch.row else { return self.contexts(&batch.position_ids, &batch.cu_seqlens, mask) };
        let lens: Vec<i64> = row.split().document_lens().map(|len| len as i64).collect();
        self.contexts_with(self.ropes(&batch.position_ids, &batch.cu_seqlens, &lens), &batch.cu_seqlens, mask, None)
    }

    fn contexts_with(
        &self,
        ropes: Vec<Rope>,
        cu_seqlens: &[usize],
        mask: Mask,
        shared: Option<&SharedRows>,
    ) -> Vec<Rc<Context>> {
        let device = self.device;
        let documents = PackedAttention::new(cu_seqlens, mask, device);
        let documents = Rc::new(match shared {
            Some(shared) => documents.with_shared(shared),
            None => documents,
        });
        let chosen = Rc::new(LayerCache::default());
        let delta = self.config.gated_delta().filter(|_| cu_seqlens.last().is_some_and(|tokens| *tokens > 0));
        let gated_delta = delta.map(|delta| Rc::new(DeltaDocuments::new(cu_seqlens, delta, device)));
        let context = |rope| Context {
            rope,
            documents: documents.clone(),
            cu_seqlens: cu_seqlens.to_vec(),
            chosen: chosen.clone(),
            gated_delta: gated_delta.clone(),
        };
        ropes.into_iter().map(|rope| Rc::new(context(rope))).collect()
    }

    /// Returns the decoder's sets of experts in the order of the layers, those of prediction heads last.
    pub fn expert_sets(&self) -> Vec<ExpertSet> {
        let layers =
            self.stage.layers.clone().zip(&self.layers).map(|(number, layer)| (format!("layer {number}"), layer));
        let heads = self.mtp.iter().enumerate().map(|(number, head)| (format!("mtp {number}"), &head.layer));
        let sets = layers.chain(heads).flat_map(|(name, layer)| {
            let moe = match &layer.feed_forward {
                FeedForward::Moe(moe) => Some(moe),
                FeedForward::Dense(_) => None,
            };
            let set = move |(media, router): (bool, &Router)| ExpertSet {
                layer: name.clone(),
                media,
                num_experts: router.config().num_experts,
                bias: router.bias().map(Tensor::shallow_clone),
            };
            moe.into_iter().flat_map(|moe| moe.routers()).map(set)
        });
        sets.collect()
    }

    /// Returns which tokens of a row have experts of their own; `None` where no layer has such, or no token. Where ranks go through the
    /// layers `together`, or experts are spread over them, others may have such tokens: then all send rows to both sets of experts,
    /// maybe none.
    pub(super) fn split(&self, input_ids: &Tensor, together: bool) -> Option<Split> {
        let token_ids = self.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForward::Moe(moe) => moe.media_token_ids(),
            FeedForward::Dense(_) => None,
        })?;
        let input_ids = Vec::<i64>::try_from(input_ids).expect("a row of integers");
        let split = Split::new(&input_ids, token_ids, self.device);
        (split.media.numel() > 0 || together || self.config.parallel.ep > 1).then_some(split)
    }

    /// Returns the tables of all its rotary embeddings, each as [`Rope::packed`] makes them.
    pub(super) fn ropes(&self, position_ids: &Tensor, cu_seqlens: &[usize], lens: &[i64]) -> Vec<Rope> {
        let position_ids = upload(position_ids, self.device);
        let tables = |rope: &RopeConfig| Rope::packed(rope, &position_ids, cu_seqlens, lens, self.kind);
        self.config.ropes().into_iter().map(tables).collect()
    }
}

/// Returns the length of each document in positions, as transformers counts it: a picture has fewer of them than tokens. In a dry run,
/// which computes no numbers, it is the number of tokens.
fn spans(position_ids: &Tensor, cu_seqlens: &[usize]) -> Vec<i64> {
    let is_dry = is_dry_run();
    let span = |ends: &[usize]| match (ends[1] - ends[0]) as i64 {
        0 => 0,
        len if is_dry => len,
        len => position_ids.narrow(-1, ends[0] as i64, len).max().int64_value(&[]) + 1,
    };
    cu_seqlens.windows(2).map(span).collect()
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::spans;
    use crate::native::DryRun;

    #[test]
    fn a_document_is_as_long_as_its_positions() {
        let text = Tensor::from_slice(&[0i64, 1, 2, 0, 1]);
        assert_eq!(spans(&text, &[0, 3, 3, 5]), [3, 0, 2]);
        // Four tokens of a picture between two words, on three axes; then one word.
        let axes = [[0i64, 1, 1, 1, 1, 3, 0], [0, 1, 1, 2, 2, 3, 0], [0, 1, 2, 1, 2, 3, 0]];
        assert_eq!(spans(&Tensor::from_slice2(&axes), &[0, 6, 7]), [4, 1]);
    }

    /// The maximum of a dry run's positions was whatever lay in memory, and `check` ended with a panic where that was no integer.
    #[test]
    fn a_dry_run_counts_the_tokens_of_documents() {
        let positions = Tensor::from_slice(&[7f32, 1e30, f32::NAN, 0.0, 1.0]);
        let _dry = DryRun::begin();
        assert_eq!(spans(&positions, &[0, 3, 3, 5]), [3, 0, 2]);
    }
}
