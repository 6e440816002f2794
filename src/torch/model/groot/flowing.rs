//! The noise and times that are drawn for a micro-batch, and its samples between noise and actions.
//!
//! Shapes: N samples, K draws of each, H actions of a sample of A numbers each. Times are the reference's: 0 is noise, 1 are actions.

use tch::{Device, Kind, Tensor};

use super::config::{EMBODIMENT, GrootConfig};
use super::rows::Drawn;
use crate::device::upload;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::objective::Draw;
use crate::model::policy::{ACTIONS, STATE, WEIGHTS, shares};

/// The numbers of the random streams of a sample beside noise and time: whether its state is hidden, masks of rows and of tokens, and
/// noise of its state.
const HIDDEN: u32 = 0;
const OF_ROWS: u32 = 1;
const OF_TOKENS: u32 = 2;
const OF_STATE: u32 = 3;

/// The numbers that are drawn for all samples, in their order, the draws of each side by side.
pub(in crate::model) struct Noise {
    /// `[N·K, H, A]`, float32.
    pub noise: Tensor,
    /// N·K times.
    pub times: Vec<f32>,
    /// 0 where a state is hidden, else 1, `[N·K]`, float32; `None`: none is.
    pub keeps: Option<Tensor>,
    /// The noise that is added to the rows of states, `[N·K, 1, D]`, float32; `None`: nothing is.
    pub state_noise: Option<Tensor>,
    /// The keys of tokens, and of rows of draws, int64, for dropout; `None`: nothing is dropped.
    pub dropout: [Option<Tensor>; 2],
}

impl Noise {
    /// Draws for the samples of a batch.
    pub fn draw(config: &GrootConfig, batch: &MicroBatch, rows: &[SampleRow], seed: u64) -> Noise {
        let draw = |row: &SampleRow, number| Draw { seed, sample: row.id, purpose: row.purpose, number };
        let num_draws = config.options.noise_draws;
        let draws: Vec<Draw> =
            rows.iter().flat_map(|row| (0..num_draws).map(move |number| draw(row, number))).collect();
        let noise: Vec<Tensor> = draws.iter().map(|it| it.noise(&[1, config.horizon, config.action_dim])).collect();
        let kept = |it: &Draw| if it.chance(HIDDEN) < config.state_dropout { 0f32 } else { 1.0 };
        let trains = !batch.evaluates;
        let keeps = (trains && config.state_dropout > 0.0)
            .then(|| Tensor::from_slice(&draws.iter().map(kept).collect::<Vec<f32>>()));
        let of_state = |it: &Draw| it.noise_of(OF_STATE, &[1, 1, config.actions.width()]) * config.state_noise;
        let state_noise = (trains && config.state_noise > 0.0)
            .then(|| Tensor::cat(&draws.iter().map(of_state).collect::<Vec<Tensor>>(), 0));
        // What is frozen is in eval mode in the reference, so that nothing is dropped there.
        let keys = |is_tuned: bool, rate: f64, keys: &dyn Fn() -> Vec<i64>| {
            (trains && is_tuned && rate > 0.0).then(|| Tensor::from_slice(&keys()))
        };
        let of_tokens = || {
            let lens = batch.cu_seqlens.windows(2).map(|ends| ends[1] - ends[0]);
            rows.iter().zip(lens).flat_map(|(row, len)| draw(row, 0).keys(OF_TOKENS, len)).collect()
        };
        let of_rows = || draws.iter().flat_map(|it| it.keys(OF_ROWS, config.num_rows() as usize)).collect();
        Noise {
            noise: Tensor::cat(&noise, 0),
            times: draws.iter().map(|it| (1.0 - it.time(&config.times)) as f32).collect(),
            keeps,
            state_noise,
            dropout: [
                keys(config.tuned.vlln, config.context.dropout, &of_tokens),
                keys(config.tuned.diffusion_model, config.actions.dropout, &of_rows),
            ],
        }
    }
}

/// The draws of a micro-batch, on the model's device, float32.
pub(super) struct Flowing {
    pub drawn: Drawn,
    /// The velocity from noise to actions, `[N·K·H, A]`.
    pub target: Tensor,
    times: Vec<f32>,
    /// `[N, 1, H, A]`: what elements count.
    weights: Tensor,
}

impl Flowing {
    /// Noises the actions of a micro-batch: `x = (1 − t) · noise + t · actions` for each draw of a sample, on `device`.
    pub fn new(config: &GrootConfig, batch: &MicroBatch, noise: &Noise, device: Device) -> Flowing {
        let (num_samples, num_draws) = (batch.cu_seqlens.len() as i64 - 1, i64::from(config.options.noise_draws));
        let of_samples = |name: &str| {
            let values = batch.columns.get(name).to_device(device).to_kind(Kind::Float);
            values.view([num_samples, 1, config.horizon, config.action_dim])
        };
        let (actions, weights) = (of_samples(ACTIONS), of_samples(WEIGHTS));
        let of_draws = |x: &Tensor| x.repeat_interleave_self_int(num_draws, 0, None);
        let noise_of = upload(&noise.noise, device).view([num_samples, num_draws, config.horizon, config.action_dim]);
        let times = upload(&Tensor::from_slice(&noise.times), device).view([num_samples, num_draws, 1, 1]);
        let noised: Tensor = (1.0 - &times) * &noise_of + &times * &actions;
        let state = of_draws(&batch.columns.get(STATE).to_device(device).to_kind(Kind::Float)).unsqueeze(1);
        let drawn = Drawn {
            state,
            keeps: noise.keeps.as_ref().map(|keeps| upload(keeps, device)),
            state_noise: noise.state_noise.as_ref().map(|noise| upload(noise, device)),
            noised: noised.flatten(0, 1),
            times: noise.times.iter().map(|time| (time * config.num_buckets as f32) as i64).collect(),
            embodiment: of_draws(&batch.columns.get(EMBODIMENT).to_device(device)),
        };
        let target = (&actions - &noise_of).view([-1, config.action_dim]);
        Flowing { drawn, target, times: noise.times.clone(), weights }
    }

    /// Returns the weight of each element `[N·K·H, A]`: an even share of the sample's for each of its draws, times `at` of its time,
    /// where 1 is noise; nothing of a sample that does not count.
    pub fn weight(&self, rows: &[SampleRow], at: impl Fn(f64) -> f64) -> Tensor {
        let shares = shares(rows, &self.times, |time| at(1.0 - time), self.weights.device());
        (&self.weights * shares).view(self.target.size().as_slice())
    }
}
