//! A step on its way through a foundation: its packs, the schedule of their micro-batches, and what they have come to.

use super::evaluating::{Evaluating, one_by_one};
use super::rank::Rank;
use crate::comm::Started;
use crate::engine::buffer::take_over;
use crate::engine::pack_work::{Features, PackChunk, PackUnit, PackWork};
use crate::engine::routing::StepRouting;
use crate::engine::stages::Filled;
use crate::model::{Columns, FeatureInput, MicroBatch, NoisePurpose};
use crate::parallel::pipeline::PipelineRun;
use loongforge_core::config::LossWeighting;
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, Pack, PairReport, StepId, StepPlan, TowerSet, UnitId};
use std::collections::BTreeMap;
use tch::Tensor;

/// A planned step of one replica, as one of its ranks does it.
pub(super) struct Step {
    pub id: StepId,
    /// The weight of all targets together: the denominator of the mean.
    weight: f64,
    /// The evaluation that this step is; nothing is trained in it.
    pub evaluation: Option<Evaluating>,
    pub packs: Vec<PackWork>,
    pub run: PipelineRun,
    /// The pack and the chunk of each micro-batch; a filler is behind the packs.
    pub micro_batches: Vec<(usize, usize)>,
    pub sent: Vec<Started>,
    /// Summed on the device, and read once the step is done: reading waits for it.
    pub loss: Option<Tensor>,
    /// The measures of pairs of answers, summed on the device as well.
    pub measures: Option<Tensor>,
    pub routing: StepRouting,
    /// The towers whose encoders want gradients of their features.
    pub trained_towers: TowerSet,
    /// Gradients of the units that are done: an encoder in place of one that died needs them again.
    pub returned: BTreeMap<UnitId, Vec<Tensor>>,
    /// The encoder that each unit of this replica is given to.
    pub owners: BTreeMap<UnitId, ActorId>,
    /// A task of it was done.
    pub begun: bool,
    /// The point where a fault may break its gradients lies behind.
    pub is_past_fault_point: bool,
    /// Units of the step have moved between encoders: features are taken out of their edges at once, so that none waits behind another.
    pub is_regrouped: bool,
}

impl Step {
    /// Makes the step of a plan on this rank, whose units `owners` compute.
    pub fn new(plan: &StepPlan, rank: &Rank, owners: BTreeMap<UnitId, ActorId>, trained_towers: TowerSet) -> Step {
        let Rank { replica, stages, .. } = rank;
        let has_columns = !rank.columns().is_empty();
        let work = |pack| PackWork::new(pack, plan, has_columns);
        let packs: Vec<PackWork> = plan.packs_of(*replica).map(work).collect();
        let mut chunks: Vec<usize> = packs.iter().map(|work| stages.num_chunks(work.pack.num_tokens())).collect();
        if rank.is_in_step() {
            let of_replica = |pack: &Pack| plan.packs_of(pack.replica).count();
            let of_pool = plan.packs.iter().filter(|pack| pack.replica.pool == replica.pool);
            let most = of_pool.map(of_replica).max().unwrap_or(0);
            chunks.resize(most, 1);
        }
        let is_alone = rank.continues_alone() || plan.purpose.is_act();
        let to_continue = if is_alone { packs.len() } else { chunks.len() };
        let evaluation = Evaluating::of(plan.purpose, to_continue);
        if one_by_one(plan.purpose) {
            chunks.clear();
        }
        let mut run = PipelineRun::new(stages.mesh.clone(), stages.pipeline, &chunks);
        if stages.in_pairs() {
            run = run.in_pairs();
        }
        if evaluation.is_some() {
            run = run.forward_only();
        }
        let numbered = chunks.iter().enumerate();
        let micro_batches = numbered.flat_map(|(pack, count)| (0..*count).map(move |chunk| (pack, chunk))).collect();
        Step {
            id: plan.step,
            weight: weight_of(plan, stages.any().weighting()),
            evaluation,
            packs,
            run,
            micro_batches,
            sent: Vec::new(),
            loss: None,
            measures: None,
            routing: StepRouting::default(),
            trained_towers,
            returned: BTreeMap::new(),
            owners,
            begun: false,
            is_past_fault_point: false,
            is_regrouped: false,
        }
    }

    /// Returns whether features of a unit are yet to come.
    pub fn waits(&self) -> bool {
        self.packs.iter().flat_map(|pack| &pack.units).any(PackUnit::waits)
    }

    /// Returns whether every pack is done.
    pub fn is_finished(&self) -> bool {
        self.run.next().is_none() && self.evaluation.as_ref().is_none_or(|evaluation| !evaluation.has_left())
    }

    /// Returns the summed loss; reading it waits for the device.
    pub fn loss(&self) -> f64 {
        self.loss.as_ref().map_or(0.0, |sum| sum.double_value(&[]))
    }

    /// Returns the measures of pairs of answers; `None` where samples are none.
    pub fn pairs(&self) -> Option<PairReport> {
        let sums: Vec<f64> = Vec::try_from(self.measures.as_ref()?).expect("a row of numbers");
        Some(PairReport::new(sums.try_into().expect("as many measures as a report has")))
    }

    /// Gets a pack's tokens and features, cut into chunks. False where the leader does not have them yet.
    ///
    /// # Errors
    /// Fails as [`Step::assemble`] does, and where the model needs whole rows.
    pub fn fill(&mut self, number: usize, rank: &Rank) -> Result<bool, EngineError> {
        let Some(filled) = self.assemble(number, rank)? else { return Ok(false) };
        let chunks = rank.stages.chunks(filled, rank.state.params())?;
        self.packs[number].chunks = chunks.into_iter().map(PackChunk::new).collect();
        Ok(true)
    }

    /// Gets a pack's tokens and features, whole; `None` where the leader does not have them yet.
    ///
    /// # Errors
    /// Data actors sent something that does not fit the samples, or a rank of the replica is gone.
    pub fn assemble(&mut self, number: usize, rank: &Rank) -> Result<Option<Filled>, EngineError> {
        let (params, device) = (rank.state.params(), rank.device());
        let evaluates = self.evaluation.is_some();
        let noise = self.evaluation.as_ref().map_or(NoisePurpose::Training, Evaluating::noise);
        let trained = self.trained_towers;
        let work = &mut self.packs[number];
        let (inputs, columns) = (rank.inputs(), rank.columns());
        let num_features = work.num_features(inputs);
        let sizes = |columns| MicroBatch {
            columns,
            cu_seqlens: work.pack.cu_seqlens(),
            samples: work.rows(noise),
            loss_scale: if evaluates { 1.0 } else { 1.0 / self.weight },
            num_features,
            feature_grads: !trained.is_empty() && !evaluates,
            constant_features: inputs.iter().map(|it| it.tower).filter(|&tower| !trained.contains(tower)).collect(),
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates,
        };
        if !rank.stages.mesh.is_leader() {
            let num_samples = work.pack.samples.len();
            return Ok(Some(rank.stages.take(number, sizes(Columns::to_come(columns)), num_samples, params)?));
        }
        if !work.tokens.is_complete() || work.units.iter().any(PackUnit::waits) {
            return Ok(None);
        }
        let whole = columns.iter().enumerate().map(|(index, column)| work.column(index, column));
        let columns = Columns::new(columns, whole.collect::<Result<_, _>>()?);
        let batch = sizes(columns.on_device(device));
        let of_input = |input: &FeatureInput| {
            let kind = input.kind(params.flat().kind());
            let units = || work.units.iter().filter(|unit| unit.tower == input.tower);
            let level = |index: usize| {
                let zeros = |rows| Tensor::zeros([rows, input.width], (kind, device));
                let mut of_units: Vec<Tensor> = units().map(|unit| unit.level(index, zeros)).collect();
                let rows = if of_units.len() == 1 { of_units.remove(0) } else { Tensor::cat(&of_units, 0) };
                rows.to_kind(kind)
            };
            let levels = if units().next().is_none() { 0 } else { input.num_tensors };
            (0..levels).map(level).collect()
        };
        let filled = Filled { batch, features: inputs.iter().map(of_input).collect() };
        work.tokens.clear();
        // Packs that are computed along with this one wait for their credit.
        let is_along = self.run.most_alive() > 1;
        if is_along {
            let features = work.units.iter_mut().filter_map(|unit| unit.features.as_mut());
            features.for_each(|(_, features)| *features = Features { tensors: Vec::new(), credit: None });
        }
        // Tensors that are sent on are held to the end of the step: later packs of it wait for their credit.
        if is_along || rank.stages.mesh.replica.world() > 1 {
            take_over(filled.batch.columns.held().chain(filled.features.iter().flatten()));
        }
        self.sent.extend(rank.stages.hand_out(number, &filled)?);
        Ok(Some(filled))
    }
}

/// Returns the weight of the targets of a plan together. It is the same for every layout: samples are summed by their positions in the
/// stream.
fn weight_of(plan: &StepPlan, weighting: LossWeighting) -> f64 {
    if weighting == LossWeighting::Token {
        return plan.num_targets.max(1) as f64;
    }
    let samples = plan.packs.iter().flat_map(|pack| pack.samples.iter());
    let by_id: BTreeMap<_, _> = samples.map(|sample| (sample.id, sample.num_targets)).collect();
    let of_sample = |num_targets: u32| f64::from(num_targets) * weighting.of_target(num_targets);
    let sum: f64 = by_id.into_values().map(of_sample).sum();
    if sum > 0.0 { sum } else { 1.0 }
}
