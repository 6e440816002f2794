//! The stages of a model that a rank has, whom it computes them with, and how a replica's micro-batches get to its ranks.
//!
//! Tokens and features come to a replica's leader alone. Every rank knows the plan, and with it the size of everything,
//! so what the leader hands out has no headers. It sends without waiting, in the order of the packs, when it is about to
//! begin a pack itself: what a later stage waits for is on its way.

use crate::comm::{Mesh, Started};
use crate::device::upload;
use crate::model::{Column, Columns, FoundationModel, MicroBatch, SampleRow};
use crate::native::NativeError;
use crate::params::{ParamStore, ZeroStage};
use crate::tape::ContextShard;
use loongforge_core::config::ContextAttention;
use loongforge_core::engine::EngineError;
use loongforge_core::message::PoolName;
use loongforge_core::schedule::Pipeline;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// Tensors of a micro-batch that are handed out at most.
const MAX_TENSORS: usize = 64;

/// This rank's stages.
pub struct Stages {
    pub(super) mesh: Rc<Mesh>,
    pub(super) pipeline: Pipeline,
    /// The stages that are here, in the order of the layers.
    pub(super) models: Vec<Box<dyn FoundationModel>>,
    /// 0: rows are whole.
    pub(super) chunk_tokens: usize,
    /// The attention between the tokens of ranks that share a row.
    pub(super) context: ContextAttention,
    /// True if two packs are computed in turns where experts are spread over ranks.
    pub(super) overlaps_experts: bool,
}

/// A micro-batch with the features of its items, by input one tensor for each level; none where nobody here reads them.
pub(super) struct Filled {
    pub batch: MicroBatch,
    pub features: Vec<Vec<Tensor>>,
}

impl Stages {
    /// Returns a model that one rank has whole.
    pub fn whole(model: Box<dyn FoundationModel>) -> Stages {
        let pipeline = Pipeline { ranks: 1, virtual_stages: 1 };
        Stages {
            mesh: Rc::new(Mesh::single()),
            pipeline,
            models: vec![model],
            chunk_tokens: 0,
            context: ContextAttention::Ring,
            overlaps_experts: false,
        }
    }

    /// `models` are the stages that `pipeline` gives this rank of `mesh`; with `chunk_tokens` above 0 rows go through in
    /// chunks of so many tokens.
    pub fn new(
        mesh: Rc<Mesh>,
        pipeline: Pipeline,
        models: Vec<Box<dyn FoundationModel>>,
        chunk_tokens: usize,
    ) -> Stages {
        assert_eq!(models.len(), pipeline.virtual_stages, "a model for each stage");
        let context = ContextAttention::Ring;
        Stages { mesh, pipeline, models, chunk_tokens, context, overlaps_experts: false }
    }

    /// Sets how attention goes among ranks that share rows.
    pub fn with_context(self, context: ContextAttention) -> Stages {
        Stages { context, ..self }
    }

    /// Computes two packs in turns where experts are spread over ranks, so that one is computed while rows of the other are on their way.
    pub fn overlapping_experts(self, overlaps_experts: bool) -> Stages {
        Stages { overlaps_experts, ..self }
    }

    /// Returns the model of a stage that this rank has.
    pub(super) fn model(&self, stage: usize) -> &dyn FoundationModel {
        self.models[stage / self.pipeline.ranks].as_ref()
    }

    /// Returns any stage, for what all have in common.
    pub(super) fn any(&self) -> &dyn FoundationModel {
        self.models[0].as_ref()
    }

    /// Returns whether replicas meet within a micro-batch, and therefore need as many each.
    pub(super) fn in_step(&self, params: &ParamStore) -> bool {
        (params.sharding().shared >= ZeroStage::Gradients && params.sharding().world > 1) || self.mesh.ep.world() > 1
    }

    /// Returns whether two packs go in turns.
    pub(super) fn in_pairs(&self) -> bool {
        let is_plain = self.pipeline.stages() == 1 && self.chunk_tokens == 0;
        self.overlaps_experts && self.mesh.ep.world() > 1 && is_plain
    }

    /// Returns whether this rank counts the loss of the last stage.
    pub(super) fn counts_loss(&self) -> bool {
        self.mesh.tp.rank() == 0
    }

    /// Returns the number of chunks of a row.
    pub(super) fn num_chunks(&self, num_tokens: usize) -> usize {
        if self.chunk_tokens == 0 { 1 } else { num_tokens.div_ceil(self.chunk_tokens).max(1) }
    }

    /// Works like [`FoundationModel::dropout_rows`] also for a later chunk of a row, whose tokens are numbered in the row.
    pub(super) fn dropout_rows(&self, stage: usize, chunk: usize, batch: &MicroBatch, device: Device) -> Vec<Tensor> {
        if chunk == 0 {
            return self.model(stage).dropout_rows(batch);
        }
        let first = (chunk * self.chunk_tokens) as i64;
        vec![Tensor::arange(batch.num_tokens(), (Kind::Int64, device)) + first]
    }

    /// Returns a row with its features, cut.
    ///
    /// # Errors
    /// The model needs whole rows.
    pub(super) fn chunks(&self, filled: Filled, params: &ParamStore) -> Result<Vec<Filled>, EngineError> {
        if self.mesh.cp.world() > 1 {
            return Ok(vec![self.share(filled, params)]);
        }
        if self.chunk_tokens == 0 {
            return Ok(vec![filled]);
        }
        let pieces = self.any().pieces(&filled.batch, self.chunk_tokens);
        let pieces = pieces.map_err(|what| whole_rows(PoolName::FOUNDATION, what))?;
        let mut rows = vec![0; filled.features.len()];
        let with_features = |batch: MicroBatch| {
            let of_input = |(levels, (row, &len)): (&Vec<Tensor>, (&mut i64, &i64))| {
                let own = levels.iter().filter(|_| len > 0).map(|level| level.narrow(0, *row, len)).collect();
                *row += len;
                own
            };
            let features = filled.features.iter().zip(rows.iter_mut().zip(&batch.num_features)).map(of_input).collect();
            Filled { batch, features }
        };
        Ok(pieces.into_iter().map(with_features).collect())
    }

    /// This rank's tokens of a row, with the features that they have places for: maybe no row of them.
    fn share(&self, filled: Filled, params: &ParamStore) -> Filled {
        let Filled { batch, mut features } = filled;
        let (group, device) = (&self.mesh.cp, params.flat().device());
        let row = Rc::new(ContextShard::new(&batch.cu_seqlens, group.world(), group.rank(), self.context, device));
        let inputs = self.any().inputs();
        let own: Vec<Vec<i64>> = match batch.num_features.iter().all(|rows| *rows == 0) {
            true => vec![Vec::new(); inputs.len()],
            false if self.any().needs_all_features() => {
                batch.num_features.iter().map(|rows| (0..*rows).collect()).collect()
            }
            false => self.any().feature_rows(&batch).iter().map(|rows| row.features(rows)).collect(),
        };
        if self.mesh.is_first_stage() {
            features.resize_with(inputs.len(), Vec::new);
            for (levels, input) in features.iter_mut().zip(inputs).filter(|(levels, _)| levels.is_empty()) {
                let none = || Tensor::zeros([0, input.width], (input.kind(params.flat().kind()), device));
                levels.extend((0..input.num_tensors).map(|_| none()));
            }
        }
        let of_input = |(levels, own): (&Vec<Tensor>, &Vec<i64>)| {
            let index = upload(&Tensor::from_slice(own), device);
            levels.iter().map(|level| level.index_select(0, &index)).collect()
        };
        let features = features.iter().zip(&own).map(of_input).collect();
        Filled { batch: batch.share(row, own), features }
    }

    /// Returns the gradients of all of a row's features, by input `num_features`, on every rank that shares it, from those of this
    /// rank's.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub(super) fn gather_features(
        &self,
        batch: &MicroBatch,
        grads: Vec<Vec<Tensor>>,
        num_features: &[i64],
    ) -> Result<Vec<Vec<Tensor>>, NativeError> {
        let Some(row) = &batch.row else { return Ok(grads) };
        let of_input = |(input, levels): (usize, Vec<Tensor>)| match num_features[input] {
            0 => Ok(Vec::new()),
            all => {
                let own = &batch.shared_features[input];
                levels.iter().map(|grad| row.gather_features(&self.mesh.cp, grad, own, all)).collect()
            }
        };
        grads.into_iter().enumerate().map(of_input).collect()
    }

    /// Sends pack `number` of a step from the leader to the other ranks of its replica.
    pub(super) fn hand_out(&self, number: usize, filled: &Filled) -> Result<Vec<Started>, NativeError> {
        let (group, layout) = (&self.mesh.replica, self.mesh.layout());
        let (weights, columns) = (weights(&filled.batch), filled.batch.columns.tensors_on_host());
        let reads_features = |rank: usize| layout.place(rank).pp == 0;
        // They leave a GPU once for all.
        let features = filled.features.iter().flatten().filter(|_| (1..group.world()).any(reads_features));
        let features: Vec<Tensor> = features.map(|tensor| tensor.to_device(Device::Cpu)).collect();
        let mut started = Vec::new();
        for rank in 1..group.world() {
            let features = features.iter().filter(|_| reads_features(rank));
            for (index, tensor) in weights.iter().chain(columns).chain(features).enumerate() {
                started.push(group.start_send(&tensor.contiguous(), rank, tag(number, index))?);
            }
        }
        Ok(started)
    }

    /// Takes pack `number` of so many samples from the leader; `like` has the other sizes.
    pub(super) fn take(
        &self,
        number: usize,
        like: MicroBatch,
        num_samples: usize,
        params: &ParamStore,
    ) -> Result<Filled, NativeError> {
        let (flat, columns) = (params.flat(), self.any().columns());
        // On the host, where the leader has them, and where some are read.
        let of_column = |column: &Column| {
            let size = column.size(column.num_rows(like.num_tokens(), num_samples as i64));
            Tensor::empty(&size, (column.kind, Device::Cpu))
        };
        let weights = weights(&like);
        let mut tensors: Vec<Tensor> = weights.into_iter().chain(columns.iter().map(of_column)).collect();
        let inputs = self.any().inputs().iter().zip(&like.num_features).filter(|_| self.mesh.is_first_stage());
        let num_levels: Vec<usize> =
            inputs.clone().map(|(it, rows)| if *rows > 0 { it.num_tensors } else { 0 }).collect();
        for ((input, rows), levels) in inputs.zip(&num_levels) {
            let level = || Tensor::empty([*rows, input.width], (input.kind(flat.kind()), flat.device()));
            tensors.extend((0..*levels).map(|_| level()));
        }
        let numbered = tensors.iter().enumerate();
        let started = numbered.map(|(index, tensor)| self.mesh.replica.start_recv(tensor, 0, tag(number, index)));
        started.collect::<Vec<_>>().into_iter().try_for_each(|started| started?.wait())?;
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().expect("as many tensors as were taken");
        let samples = match has_targets(&like) {
            true => with_weights(&like.samples, &next()),
            false => like.samples.clone(),
        };
        let columns = Columns::new(columns, columns.iter().map(|_| next()).collect()).on_device(flat.device());
        let batch = MicroBatch { samples, columns, ..like };
        let features = num_levels.iter().map(|levels| (0..*levels).map(|_| next()).collect()).collect();
        Ok(Filled { batch, features })
    }
}

/// Returns the weights of samples in the loss `[samples]`, int64, where that is in no column: the leader alone knows of all features that
/// are missing.
fn weights(batch: &MicroBatch) -> Option<Tensor> {
    let weights = || batch.samples.iter().map(|sample| i64::from(sample.num_targets)).collect::<Vec<_>>();
    has_targets(batch).then(|| Tensor::from_slice(&weights()))
}

fn has_targets(batch: &MicroBatch) -> bool {
    batch.samples.iter().any(|sample| sample.target.is_some())
}

fn with_weights(samples: &[SampleRow], weights: &Tensor) -> Rc<[SampleRow]> {
    let weights = Vec::<i64>::try_from(weights).expect("a row of integers");
    let with = |(sample, weight): (&SampleRow, i64)| SampleRow { num_targets: weight as u32, ..sample.clone() };
    samples.iter().zip(weights).map(with).collect()
}

fn tag(number: usize, index: usize) -> i32 {
    assert!(index < MAX_TENSORS, "tensors of a micro-batch");
    (number * MAX_TENSORS + index) as i32
}

/// Returns the error of chunks of a model that cannot compute a row in pieces.
pub(super) fn whole_rows(pool: PoolName, what: &str) -> EngineError {
    format!("pools.{pool}.chunk_tokens: rows cannot be split with {what}; set it to 0").into()
}
