//! Continuations where several ranks have the foundation, or frozen weights come layer by layer: each new token is read from a
//! forward of the whole pack, as an evaluation scores one, so that every layout that scores can continue. No keys and values are
//! kept between tokens.

use super::rank::Rank;
use super::scoring::{Judged, record_forward};
use crate::engine::stages::Filled;
use crate::model::{AnswerTokens, Columns, Decoding, FeatureInput, MicroBatch, POSITION_IDS};
use crate::parallel::pipeline::PipelineRun;
use crate::tape::Execution;
use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::engine::EngineError;
use tch::{Kind, Tensor};

/// The documents of a pack and what they were continued by.
struct Growing {
    filled: Filled,
    documents: Vec<Document>,
    /// The tokens around answers, where a decoder writes what follows, apart from the prompt.
    answers: Option<AnswerTokens>,
}

struct Document {
    input_ids: Vec<i64>,
    /// `[3, T]`, float.
    position_ids: Tensor,
    num_new: usize,
    has_ended: bool,
}

impl Growing {
    fn new(filled: Filled, answers: Option<AnswerTokens>) -> Self {
        let (ids, positions) = (filled.batch.input_ids(), filled.batch.columns.get(POSITION_IDS));
        let document = |ends: &[usize]| Document {
            input_ids: ids[ends[0]..ends[1]].to_vec(),
            position_ids: positions.narrow(1, ends[0] as i64, (ends[1] - ends[0]) as i64),
            num_new: 0,
            has_ended: false,
        };
        let mut documents: Vec<Document> = filled.batch.cu_seqlens.windows(2).map(document).collect();
        if let Some(AnswerTokens { start, .. }) = answers {
            documents.iter_mut().for_each(|document| {
                let first = Tensor::zeros([3, 1], (document.position_ids.kind(), document.position_ids.device()));
                document.input_ids.push(start);
                document.position_ids = Tensor::cat(&[&document.position_ids, &first], 1);
            });
        }
        Self { filled, documents, answers }
    }

    /// Returns a row of the documents as they are now, each with a target where its prompt ends, by which models tell prompts that see
    /// all of themselves, and one for what follows its last token.
    fn row(&self) -> Filled {
        let batch = &self.filled.batch;
        let device = batch.columns.device();
        let index = |values: &[i64]| Tensor::from_slice(values).to_device(device);
        let (mut ids, mut targets, mut cu_seqlens) = (Vec::new(), Vec::new(), vec![0]);
        for document in &self.documents {
            ids.extend(&document.input_ids);
            targets.resize(ids.len() - 1, IGNORE_INDEX);
            targets.push(0);
            if self.answers.is_none() {
                let prompt_end = ids.len() - document.num_new;
                targets[prompt_end - 1] = 0;
            }
            cu_seqlens.push(ids.len());
        }
        let positions: Vec<&Tensor> = self.documents.iter().map(|document| &document.position_ids).collect();
        let batch = MicroBatch {
            columns: Columns::of_tokens(index(&ids), Tensor::cat(&positions, 1), index(&targets)),
            cu_seqlens,
            row: None,
            samples: batch.samples.clone(),
            num_features: batch.num_features.clone(),
            shared_features: Vec::new(),
            ..*batch
        };
        let features = self.filled.features.iter().map(|levels| levels.iter().map(Tensor::shallow_clone).collect());
        Filled { batch, features: features.collect() }
    }

    /// Adds the token of this `step` to each document that has not ended.
    fn push(&mut self, step: u32, tokens: &[i64], decoding: &Decoding) {
        for (document, token) in self.documents.iter_mut().zip(tokens) {
            let forced = self.answers.and_then(|answers| answers.forced_at(step as usize, decoding.max_new_tokens));
            let token = forced.unwrap_or(*token);
            document.has_ended |= decoding.stop_token_ids.contains(&token);
            if document.has_ended {
                continue;
            }
            document.input_ids.push(token);
            document.num_new += 1;
            let positions = &document.position_ids;
            let next = match self.answers {
                // Those of the answer alone go on.
                Some(_) => positions.narrow(1, positions.size()[1] - 1, 1) + 1,
                None => (positions.max() + 1).expand([3, 1], false),
            };
            document.position_ids = Tensor::cat(&[positions, &next], 1);
        }
    }

    fn has_ended(&self) -> bool {
        self.documents.iter().all(|document| document.has_ended)
    }

    fn outputs(&self) -> Vec<Vec<i64>> {
        let new = |it: &Document| it.input_ids[it.input_ids.len() - it.num_new..].to_vec();
        self.documents.iter().map(new).collect()
    }
}

/// Continues the documents of a pack, on every rank of the replica; `None`: the model does not say what it predicts. Without a pack, this
/// rank takes part in the collectives of the replicas that continue theirs.
///
/// # Errors
/// A rank of the replica is gone.
pub(super) fn continue_together(
    rank: &Rank,
    filled: Option<Filled>,
    decoding: &Decoding,
) -> Result<Option<Vec<Vec<i64>>>, EngineError> {
    let _no_grad = tch::no_grad_guard();
    let meets_replicas = rank.is_in_step();
    let answers = rank.stages.any().answer_tokens();
    let mut growing = filled.map(|filled| Growing::new(filled, answers));
    let max_new_tokens = answers.map_or(usize::MAX, |answers| answers.max).min(decoding.max_new_tokens);
    let decoding = &Decoding { max_new_tokens, ..ending_at_placeholders(decoding, rank.inputs()) };
    for step in 0..decoding.max_new_tokens as u32 {
        let Some(tokens) = predict(rank, growing.as_ref().map(Growing::row))? else { return Ok(None) };
        if let Some(growing) = &mut growing {
            growing.push(step, &tokens, decoding);
        }
        // Replicas that meet read as many tokens as each other.
        if !meets_replicas && growing.as_ref().is_none_or(Growing::has_ended) {
            break;
        }
    }
    Ok(Some(growing.map(|growing| growing.outputs()).unwrap_or_default()))
}

/// Returns a decoding that ends also at a token that stands for features: in a row it would take those of a prompt.
fn ending_at_placeholders(decoding: &Decoding, inputs: &[FeatureInput]) -> Decoding {
    let mut decoding = decoding.clone();
    decoding.stop_token_ids.extend(inputs.iter().flat_map(|input| &input.placeholders));
    decoding
}

/// Returns the token that the model predicts at the end of each document of a row, on every rank of the replica.
fn predict(rank: &Rank, filled: Option<Filled>) -> Result<Option<Vec<i64>>, EngineError> {
    let (params, stages, device) = (rank.state.params(), &rank.stages, rank.device());
    let documents: Vec<usize> = filled.as_ref().map(|filled| filled.batch.cu_seqlens[1..].to_vec()).unwrap_or_default();
    let targets = filled.as_ref().map(|filled| filled.batch.targets()).unwrap_or_default();
    // Behind each token that is a target.
    let ends: Vec<usize> = (1..).zip(&targets).filter(|(_, target)| **target >= 0).map(|(end, _)| end).collect();
    let filler = || {
        let batch = MicroBatch { evaluates: true, ..MicroBatch::filler(stages.any().columns(), device) };
        vec![Filled { batch, features: Vec::new() }]
    };
    let row_tokens = documents.last().copied().unwrap_or(1);
    let chunks = filled.map_or_else(|| Ok(filler()), |filled| stages.chunks(filled, params))?;
    let mut run = PipelineRun::new(stages.mesh.clone(), stages.pipeline, &[chunks.len()]).forward_only();
    let (mut found, mut is_silent) = (Vec::new(), false);
    while let Some(task) = run.next() {
        let Filled { batch, features } = &chunks[task.micro_batch];
        let (forward, judged) = record_forward(stages, task.stage, batch, features, row_tokens);
        let predicted = judged.and_then(Judged::tokens);
        is_silent |= forward.loss.is_some() && predicted.is_none();
        let begin = |_, tape, inputs| Ok::<_, EngineError>(Execution::forward_only(tape, params.clone(), inputs));
        let counts = stages.counts_loss();
        run.forward(params, vec![forward], begin, |_, run| {
            found.extend(predicted.filter(|_| counts).map(|slot| run.value(slot).copy()));
        })?;
    }
    run.finish()?;
    // The sum over ranks of what each has found, and whether one's model is silent.
    let all = Tensor::zeros([ends.len() as i64 + 1], (Kind::Int64, device));
    let _ = all.narrow(0, ends.len() as i64, 1).fill_(i64::from(is_silent));
    if !found.is_empty() && !ends.is_empty() {
        let places = places(&ends, chunks.first().and_then(|chunk| chunk.batch.row.as_ref().map(|row| row.rows())));
        let _ = all.shallow_clone().index_copy_(0, &places.to_device(device), &Tensor::cat(&found, 0));
    }
    stages.mesh.replica.all_reduce_sum(&all)?;
    let mut all = Vec::<i64>::try_from(&all).expect("a row of integers");
    let says_all = all.pop() == Some(0);
    let of_documents = ends.iter().zip(all).filter(|(end, _)| documents.contains(end)).map(|(_, token)| token);
    Ok(says_all.then(|| of_documents.collect()))
}

/// Returns the numbers of the targets that this rank has, in the order of its tokens. Target `i` of the row is at the token before
/// `ends[i]`; `rows` are the rank's rows, where ranks share the row.
fn places(ends: &[usize], rows: Option<Tensor>) -> Tensor {
    let Some(rows) = rows else { return Tensor::arange(ends.len() as i64, (Kind::Int64, tch::Device::Cpu)) };
    let rows = Vec::<i64>::try_from(rows).expect("a row of integers");
    let places = rows.iter().filter_map(|row| ends.iter().position(|end| *end as i64 == row + 1));
    Tensor::from_slice(&places.map(|at| at as i64).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::token_columns;
    use loongforge_core::message::Tower;
    use tch::Device;

    #[test]
    fn a_prompt_ends_at_its_first_target_however_long_its_answer_is() {
        let ids = Tensor::from_slice(&[1i64, 2, 3, 4, 5]);
        let positions = Tensor::zeros([3, 5], (Kind::Float, Device::Cpu));
        let columns = Columns::of_tokens(ids, positions, Tensor::from_slice(&[IGNORE_INDEX; 5]));
        let filler = MicroBatch::filler(&token_columns().into(), Device::Cpu);
        let batch = MicroBatch { columns, cu_seqlens: vec![0, 3, 5], evaluates: true, ..filler };
        let mut growing = Growing::new(Filled { batch, features: Vec::new() }, None);
        assert_eq!(growing.row().batch.targets(), [-100, -100, 0, -100, 0]);
        let decoding = Decoding { max_new_tokens: 3, ..Decoding::default() };
        let pictures = FeatureInput { tower: Tower::Vision, num_tensors: 1, width: 4, placeholders: vec![9] };
        let decoding = ending_at_placeholders(&decoding, &[pictures]);
        growing.push(0, &[6, 9], &decoding);
        growing.push(1, &[7, 8], &decoding);
        let row = growing.row().batch;
        assert_eq!((row.input_ids(), row.cu_seqlens.as_slice()), (vec![1, 2, 3, 6, 7, 4, 5], &[0, 5, 7][..]));
        assert_eq!(row.targets(), [-100, -100, 0, -100, 0, -100, 0]);
    }
}
