//! A trained policy: its folder, the maker of its samples and its model.

use crate::eval::forward::computes;
use crate::model::locate::{ModelFolders, find_model};
use anyhow::{Context, Result, anyhow};
use loongforge_core::config::{Device, Precision};
use loongforge_core::data::policy::PolicyMaker;
use loongforge_core::data::{DataError, InProcess, ProcessorFolders, ProcessorOptions};
use loongforge_core::files;
use loongforge_core::observe::print_line;
use loongforge_core::rng::Rng;
use loongforge_core::robot::{Actions, Moment, Observation, Policy, PolicySpec};
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::{PolicyModel, open_device};
use loongforge_torch::model::ActionChunk;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A policy of a folder.
pub struct Trained {
    folder: PathBuf,
    /// Actions of a chunk that are executed, where the model's config says so.
    executed: Option<usize>,
    maker: PolicyMaker,
    model: PolicyModel,
    device: tch::Device,
    spec: PolicySpec,
    seed: u64,
    noise: Option<Vec<f32>>,
    /// Chunks that were not written as a whole.
    num_flawed: u64,
    /// Prompts that were cut off and are said.
    num_cut: u64,
}

impl Trained {
    /// Opens a checkpoint of a run, a run's folder, or another folder of a policy; adapters are added to the base that they name. `seed`
    /// is that of its noise. `embodiment` is the robot that acts; `None`: the only one.
    ///
    /// # Errors
    /// There is no such folder, base or embodiment, a file in it is missing or wrong, or it is of another kind of model.
    pub fn open(named: &str, embodiment: Option<&str>, seed: u64, device: &Device) -> Result<Self> {
        set_intra_op_threads(std::thread::available_parallelism().map_or(1, usize::from));
        let device = open_device(device).map_err(|error| anyhow!("{error}"))?;
        let folder = find_model(named)?;
        let ModelFolders { weights, adapters, config } = ModelFolders::find(&folder, None)?;
        let path = config.join("config.json");
        let json: Value = serde_json::from_str(&files::read_text(&path).with_context(|| path.display().to_string())?)
            .with_context(|| path.display().to_string())?;
        let folders = ProcessorFolders::of(&config);
        let mut maker = PolicyMaker::open(folders, &json, &ProcessorOptions::default(), Arc::new(InProcess))?;
        maker.choose(embodiment).map_err(|reason| anyhow!("{}: {reason}", folder.display()))?;
        let adapted = (weights.as_path(), adapters.as_deref());
        let model = PolicyModel::open_adapted(&config, adapted, device, Precision::Float32)?;
        let executed = json["n_action_steps"].as_u64().map(|count| count as usize);
        let spec = spec_of(&maker, &model, (&folder, embodiment), executed);
        Ok(Self { folder, executed, maker, model, device, spec, seed, noise: None, num_flawed: 0, num_cut: 0 })
    }

    /// Says that prompts are longer than the policy reads, of the first, the second, the fourth and so on.
    fn warn_of_cut(&mut self) {
        let (num_cut, most) = self.maker.cut_prompts();
        if num_cut > self.num_cut && num_cut.is_power_of_two() {
            print_line(&format!(
                "warning: a prompt was truncated to {most} tokens (tokenizer_max_length) ({num_cut} such prompts so far)"
            ));
        }
        self.num_cut = num_cut;
    }

    /// Lets another embodiment act; `None`: the only one.
    ///
    /// # Errors
    /// There is no such embodiment.
    pub fn choose(&mut self, embodiment: Option<&str>) -> Result<()> {
        self.maker.choose(embodiment).map_err(|reason| anyhow!("{}: {reason}", self.folder.display()))?;
        self.spec = spec_of(&self.maker, &self.model, (&self.folder, embodiment), self.executed);
        Ok(())
    }
}

/// Returns the reason why an observation is wrong: it is no sample of a file.
fn reason(error: DataError) -> String {
    if let DataError::Line(reason) = error { reason } else { error.to_string() }
}

/// Returns the policy's spec for the maker's robot.
fn spec_of(
    maker: &PolicyMaker,
    model: &PolicyModel,
    (folder, embodiment): (&Path, Option<&str>),
    executed: Option<usize>,
) -> PolicySpec {
    let chunk_size = maker.horizon();
    PolicySpec {
        name: match embodiment {
            Some(robot) => format!("{} for {robot}", folder.display()),
            None => folder.display().to_string(),
        },
        cameras: maker.cameras().to_vec(),
        state_width: maker.state_dim(),
        action_width: maker.action_dim(),
        chunk_size,
        num_executed: executed.unwrap_or(chunk_size).clamp(1, chunk_size),
        reads_prompt: true,
        continues_chunks: model.continues_chunks(),
        data: maker.data_names(),
    }
}

impl Policy for Trained {
    fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    fn execute(&mut self, num_executed: usize) {
        self.spec.num_executed = num_executed;
    }

    fn begin_with(&mut self, noise: Vec<f32>) -> Result<(), String> {
        let ActionChunk { horizon, action_dim, writes, .. } = *self.model.chunk();
        if writes {
            return Err("this policy generates actions as tokens, not from noise".to_owned());
        }
        if noise.len() as i64 != horizon * action_dim {
            return Err(format!("noise has {} numbers, expected {horizon} x {action_dim}", noise.len()));
        }
        self.noise = Some(noise);
        Ok(())
    }

    fn act(&mut self, observation: &Observation, moment: Moment) -> Result<Actions, String> {
        self.chunk(observation, moment, PolicyMaker::actions)
    }

    fn has_failed(&self) -> bool {
        !computes(self.device)
    }

    fn act_as_recorded(&mut self, observation: &Observation, moment: Moment) -> Result<Actions, String> {
        self.chunk(observation, moment, PolicyMaker::actions_as_recorded)
    }
}

/// Makes actions of normalized ones, in a state.
type Restore = fn(&PolicyMaker, &[f32], &[f32]) -> Result<Vec<f32>, DataError>;

impl Trained {
    /// Returns a chunk of actions, which `restore` makes of normalized ones.
    fn chunk(&mut self, observation: &Observation, moment: Moment, restore: Restore) -> Result<Actions, String> {
        let sample = self.maker.observe(observation).map_err(reason)?;
        self.warn_of_cut();
        if let Some((stop, most)) = self.maker.writes() {
            if !observation.begun.is_empty() {
                return Err("this policy generates actions as tokens and cannot continue a started chunk".to_owned());
            }
            let written = self.model.write(&sample, stop, most).map_err(|error| error.to_string())?;
            let (normalized, flaw) = self.maker.read_tokens(&written);
            if let Some(flaw) = flaw {
                self.num_flawed += 1;
                // A policy that has learned little does so every time.
                if self.num_flawed.is_power_of_two() {
                    let so_far = self.num_flawed;
                    let effect = "missing values count as 0, and surplus values are dropped";
                    print_line(&format!("warning: {flaw}: {effect} ({so_far} such chunks so far)"));
                }
            }
            let values = restore(&self.maker, &normalized, &observation.state).map_err(|error| error.to_string())?;
            return Ok(Actions { width: self.spec.action_width, values });
        }
        let begun = self.maker.begun(&observation.begun, &observation.state).map_err(reason)?;
        let drawn = || self.model.noise(Rng::new(&[self.seed, moment.episode, moment.request]).next_u64());
        let noise = self.noise.clone().unwrap_or_else(drawn);
        let normalized = self.model.act_after(&sample, &noise, self.model.chunk().num_steps as usize, &begun);
        let normalized = normalized.map_err(|error| error.to_string())?;
        let mut values = restore(&self.maker, &normalized, &observation.state).map_err(|error| error.to_string())?;
        // What was given is given back, without the rounding of scales.
        values[..observation.begun.len()].copy_from_slice(&observation.begun);
        Ok(Actions { width: self.spec.action_width, values })
    }
}
