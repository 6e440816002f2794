//! A policy as a foundation, whatever its build.

use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use super::config::PolicyOptions;
use super::noise::samples_of;
use super::robot::RobotPolicy;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Column;
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationShape, FoundationTape};
use crate::model::objective::FlowSettings;
use crate::model::towers::{FeatureInput, ModelTower, Towers};
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

/// The build of a policy, as data. [`PolicyFamily`] makes a foundation of it.
pub(in crate::model) trait Architecture: RobotPolicy + Clone + Debug + Send + Sync + 'static {
    type Network: PolicyNetwork;

    /// Returns the policy's parameters, under their names in `model.safetensors`.
    fn specs(&self) -> Vec<ParamSpec>;

    /// Returns the features that it takes from each tower.
    fn inputs(&self) -> Vec<FeatureInput>;

    /// Returns the columns that it reads of samples.
    fn columns(&self) -> Vec<Column>;

    /// Returns the sizes that planning and estimates need.
    fn shape(&self) -> FoundationShape;

    /// Returns the policy without the vision-language model before its actions, and this as a tower in place of `towers`; `None`: it cannot
    /// be split so.
    fn with_prefix_tower(&self, _towers: &Towers) -> Option<(Self, ModelTower)> {
        None
    }

    fn set_options(&mut self, options: PolicyOptions);

    /// Returns the policy on parameters made from [`Architecture::specs`]. Panics where the store lacks one of them.
    fn network(&self, params: &ParamStore, policy: Policy) -> Self::Network;
}

/// A policy on its parameters, which learns from samples and noise.
pub(in crate::model) trait PolicyNetwork {
    type Noise;

    /// Draws what is random for the samples of a batch.
    fn draw(&self, batch: &MicroBatch, rows: &[SampleRow], seed: u64) -> Self::Noise;

    /// Records forward and loss of a micro-batch with this noise.
    fn record(
        &self,
        batch: &MicroBatch,
        rows: &[SampleRow],
        noise: &Self::Noise,
        flow: &FlowSettings,
        inputs: &[FeatureInput],
    ) -> FoundationTape;
}

/// A policy that learns actions from noised ones.
#[derive(Clone, Debug)]
pub(in crate::model) struct PolicyFamily<A> {
    config: A,
    inputs: Vec<FeatureInput>,
    flow: FlowSettings,
}

impl<A: Architecture> PolicyFamily<A> {
    /// Returns the policy with the mean square error of a run without a seed.
    pub fn new(config: A) -> PolicyFamily<A> {
        let (inputs, flow) = (config.inputs(), FlowSettings::default());
        PolicyFamily { config, inputs, flow }
    }

    /// Returns the same policy with these settings.
    #[must_use]
    pub fn with_options(mut self, options: PolicyOptions) -> PolicyFamily<A> {
        self.config.set_options(options);
        self
    }

    /// Builds the policy on the parameters of a store; its tape keeps activations as `policy` says.
    pub fn model(&self, params: &ParamStore, policy: Policy) -> PolicyModel<A> {
        PolicyModel {
            network: self.config.network(params, policy),
            columns: self.config.columns().into(),
            family: self.clone(),
        }
    }
}

impl<A: Architecture> FoundationFamily for PolicyFamily<A> {
    fn specs(&self) -> Vec<ParamSpec> {
        self.config.specs()
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> Vec<Column> {
        self.config.columns()
    }

    fn shape(&self) -> FoundationShape {
        self.config.shape()
    }

    fn with_flow(&self, flow: FlowSettings) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(PolicyFamily { flow, ..self.clone() }))
    }

    fn with_policy(&self, options: PolicyOptions) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(self.clone().with_options(options)))
    }

    fn with_prefix_tower(&self, towers: &Towers) -> Option<(Arc<dyn FoundationFamily>, ModelTower)> {
        let (config, tower) = self.config.with_prefix_tower(towers)?;
        let inputs = config.inputs();
        let foundation: Arc<dyn FoundationFamily> = Arc::new(PolicyFamily { config, inputs, flow: self.flow.clone() });
        Some((foundation, tower))
    }

    fn as_policy(&self) -> Option<&dyn RobotPolicy> {
        Some(&self.config)
    }

    fn needs_whole_rows(&self) -> Option<&'static str> {
        Some("a robot policy")
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        Box::new(self.model(params, policy))
    }
}

/// A policy on its parameters.
pub(in crate::model) struct PolicyModel<A: Architecture> {
    network: A::Network,
    columns: Rc<[Column]>,
    family: PolicyFamily<A>,
}

impl<A: Architecture> PolicyModel<A> {
    /// Draws what is random for a batch.
    pub fn draw(&self, batch: &MicroBatch) -> <A::Network as PolicyNetwork>::Noise {
        self.network.draw(batch, &samples_of(batch), self.family.flow.seed)
    }

    /// Records forward and loss of a micro-batch with this noise.
    pub fn record_with(&self, batch: &MicroBatch, noise: &<A::Network as PolicyNetwork>::Noise) -> FoundationTape {
        self.network.record(batch, &samples_of(batch), noise, &self.family.flow, &self.family.inputs)
    }
}

impl<A: Architecture> FoundationModel for PolicyModel<A> {
    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.family.inputs
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        self.record_with(batch, &self.draw(batch))
    }
}
