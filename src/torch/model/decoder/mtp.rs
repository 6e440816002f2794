//! Multi-token prediction (Gloeckle et al. 2024, in the sequential form of DeepSeek-V3, §2.2): a head joins the state at
//! a token with the embedding of the next one, runs one more layer, and predicts the token after that.
//!
//! Shapes: T tokens of a packed row, D hidden size, M counted targets of a head.

use std::rc::Rc;

use tch::Tensor;

use super::batch::{Targets, TextBatch};
use super::config::{DecoderConfig, LayerConfig};
use super::layer::Layer;
use super::moe::Recording;
use super::record::index;
use super::transformer::Decoder;
use crate::nn::{Context, Linear, ParamId, ParamSpec, ParamStore, Piece, RmsNorm, Scope};
use crate::tape::{Slot, Tape};

/// Describes how a checkpoint stores its prediction heads. Names are within a head, but the layer's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtpNames {
    /// The names of the first head; where it is a whole name and no number is to follow, the checkpoint can have one
    /// head only.
    pub heads: MtpPlace,
    pub embedding_norm: &'static str,
    pub hidden_norm: &'static str,
    pub project: &'static str,
    pub last_norm: &'static str,
    /// True if the state comes before the embedding in the joined vector.
    pub hidden_first: bool,
    /// Holds what checkpoints call the embedding and the head that every prediction head repeats, where they do.
    pub repeats: Option<[&'static str; 2]>,
}

/// Says where the heads stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MtpPlace {
    /// `{0}.{number}.`, counting from this number, the layer's tensors beside the head's own.
    Numbered(String, usize),
    /// The head's own tensors under `{0}.`, its layer under `{0}.layers.0.`
    Single(String),
}

/// The prediction heads of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct MtpConfig {
    pub names: MtpNames,
    /// The layer of every head.
    pub layer: LayerConfig,
    pub num_heads: usize,
    /// Each head's loss counts this much, divided by the number of heads.
    pub loss_weight: f64,
}

impl MtpConfig {
    /// Prefixes of head `number`'s own tensors and of its layer's.
    fn prefixes(&self, number: usize) -> (String, String) {
        match &self.names.heads {
            MtpPlace::Numbered(path, first) => {
                let prefix = format!("{path}.{}.", first + number);
                (prefix.clone(), prefix)
            }
            MtpPlace::Single(path) => (format!("{path}."), format!("{path}.layers.0.")),
        }
    }

    /// Returns what the heads repeat of the embedding, or of the model's head.
    pub(super) fn repeated(&self, head: bool, shape: &[i64]) -> Vec<Piece> {
        let Some(names) = self.names.repeats else { return Vec::new() };
        let name = names[usize::from(head)];
        let of_head = |number| Piece::repeated(&format!("{}{name}.weight", self.prefixes(number).0), shape);
        (0..self.num_heads).map(of_head).collect()
    }

    pub(super) fn specs(&self, config: &DecoderConfig) -> Vec<ParamSpec> {
        let (width, names) = (config.hidden_size, &self.names);
        let head = |number| {
            let (prefix, layer) = self.prefixes(number);
            let mut specs = Layer::specs(config, &self.layer, &layer);
            for norm in [names.embedding_norm, names.hidden_norm, names.last_norm] {
                specs.extend(config.norm.specs(&prefix, norm, width));
            }
            specs.extend(Linear::specs(&prefix, names.project, 2 * width, width, false, config.initializer_range));
            specs
        };
        (0..self.num_heads).flat_map(head).collect()
    }
}

struct Join {
    embedding_norm: RmsNorm,
    hidden_norm: RmsNorm,
    project: Linear,
    hidden_first: bool,
}

/// One prediction head on its parameters.
pub(super) struct MtpHead {
    join: Rc<Join>,
    join_ids: Vec<ParamId>,
    layer: Layer,
    last_norm: Rc<RmsNorm>,
    last_norm_ids: Vec<ParamId>,
}

impl MtpHead {
    pub fn all(config: &DecoderConfig, params: &ParamStore) -> Vec<MtpHead> {
        let Some(mtp) = &config.mtp else { return Vec::new() };
        let head = |number| {
            let (prefix, layer) = mtp.prefixes(number);
            let (scope, last) = (Scope::new(params, prefix.clone()), Scope::new(params, prefix));
            let join = Join {
                embedding_norm: config.norm.build(&scope, mtp.names.embedding_norm),
                hidden_norm: config.norm.build(&scope, mtp.names.hidden_norm),
                project: Linear::new(&scope, mtp.names.project),
                hidden_first: mtp.names.hidden_first,
            };
            MtpHead {
                join: Rc::new(join),
                join_ids: scope.into_ids(),
                layer: Layer::new(config, &mtp.layer, &layer, params),
                last_norm: Rc::new(config.norm.build(&last, mtp.names.last_norm)),
                last_norm_ids: last.into_ids(),
            }
        };
        (0..mtp.num_heads).map(head).collect()
    }
}

impl MtpHead {
    pub fn layer(&self) -> &Layer {
        &self.layer
    }
}

impl Join {
    fn forward(&self, embedding_TD: &Tensor, hidden_TD: &Tensor) -> Tensor {
        let embedding = self.embedding_norm.forward(embedding_TD);
        let hidden = self.hidden_norm.forward(hidden_TD);
        let both = if self.hidden_first { [hidden, embedding] } else { [embedding, hidden] };
        self.project.forward(&Tensor::cat(&both, -1))
    }
}

impl Decoder {
    /// The heads' losses, each with what it counts: `x` is what the decoder's last norm reads. Every sum of
    /// cross-entropies is scaled as the decoder's own, although a head counts fewer targets, by one a document.
    pub(super) fn record_mtp(
        &self,
        tape: &mut Tape,
        x: Slot,
        batch: &TextBatch,
        targets: &Targets,
        context: &Rc<Context>,
        recording: &mut Recording,
    ) -> Vec<(Slot, f64)> {
        let Some(config) = self.config.mtp.as_ref().filter(|_| !self.mtp.is_empty()) else { return Vec::new() };
        let (policy, last) = (recording.policy, self.last());
        let norm = last.norm.clone();
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        recording.set_alike(tape, true);
        let mut hidden = tape.run("mtp norm", &last.norm_ids, policy, &[x], 1, forward)[0];
        recording.set_alike(tape, false);
        let (mut ids, mut labels) = (batch.input_ids.shallow_clone(), targets.labels.clone());
        let mut losses = Vec::new();
        for (number, head) in self.mtp.iter().enumerate() {
            // Across a document's end comes a token that no counted position sees.
            ids = ids.roll(-1, 0);
            labels = shifted(&labels, &batch.cu_seqlens);
            let joined = self.record_join(tape, number, head, hidden, &ids, recording);
            let y = head.layer.record(tape, &format!("mtp {number}"), joined, context, recording);
            let norm = head.last_norm.clone();
            let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
            recording.set_alike(tape, true);
            hidden = tape.run(format!("mtp {number} norm"), &head.last_norm_ids, policy, &[y], 1, forward)[0];
            recording.set_alike(tape, false);
            let (rows, wanted) = counted(&labels);
            let entered = recording.enter(tape, hidden);
            let taken = tape.take_rows(entered, index(&rows, self.device));
            let loss = self.record_cross_entropy(tape, &format!("mtp {number} loss"), taken, &wanted, targets.scale);
            losses.push((loss, config.loss_weight / config.num_heads as f64));
        }
        losses
    }

    /// The state of every token joined with the embedding of the next one, `ids`.
    fn record_join(
        &self,
        tape: &mut Tape,
        number: usize,
        head: &MtpHead,
        hidden: Slot,
        ids: &Tensor,
        recording: &Recording,
    ) -> Slot {
        let (name, policy, join) = (format!("mtp {number} join"), recording.policy, head.join.clone());
        if recording.division.tp == 1 {
            let (table, ahead) = (self.token_table(), ids.to_device(self.device));
            let forward = move |reads: &[Tensor]| vec![join.forward(&table.look_up(&ahead), &reads[0])];
            let mut params = vec![self.embedding().id];
            params.extend(&head.join_ids);
            return tape.run(name, &params, policy, &[hidden], 1, forward)[0];
        }
        let ahead = self.record_tokens(tape, &format!("mtp {number} embed"), ids, recording);
        recording.set_alike(tape, true);
        let forward = move |reads: &[Tensor]| vec![join.forward(&reads[1], &reads[0])];
        let joined = tape.run(name, &head.join_ids, policy, &[hidden, ahead], 1, forward)[0];
        recording.set_alike(tape, false);
        joined
    }
}

/// The labels of a head from those of the one before: each token takes the next one's, a document's last none.
fn shifted(labels: &[i64], cu_seqlens: &[usize]) -> Vec<i64> {
    let mut shifted = vec![-100; labels.len()];
    for ends in cu_seqlens.windows(2).filter(|ends| ends[1] > ends[0]) {
        shifted[ends[0]..ends[1] - 1].copy_from_slice(&labels[ends[0] + 1..ends[1]]);
    }
    shifted
}

/// The rows that count, and their labels.
pub(super) fn counted(labels: &[i64]) -> (Vec<i64>, Vec<i64>) {
    (0..).zip(labels).filter(|(_, label)| **label >= 0).map(|(row, label)| (row, *label)).unzip()
}

#[cfg(test)]
mod tests {
    use super::{counted, shifted};

    #[test]
    fn labels_move_within_their_document() {
        let once = shifted(&[-100, 5, 6, 7, 8, 9], &[0, 4, 6]);
        assert_eq!(once, [5, 6, 7, -100, 9, -100]);
        assert_eq!(shifted(&once, &[0, 4, 6]), [6, 7, -100, -100, -100, -100]);
        assert_eq!(counted(&once), (vec![0, 1, 2, 4], vec![5, 6, 7, 9]));
    }
}
