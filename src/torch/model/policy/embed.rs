//! The rows that both streams begin with.
//!
//! Shapes: T tokens of all samples, N samples, S draws of all samples, L rows of a draw, D width of the prefix, E of actions.

use tch::{Kind, Tensor};

use super::config::{PolicyConfig, StateToken, TimeUse, starting, torch_std};
use crate::device::upload;
use crate::model::tower_blocks::Part;
use crate::native::embedding;
use crate::nn::Linear;
use crate::params::{Init, ParamSpec, ParamStore, Scope, StoredTensor};

const TABLE: &str = "embed_tokens.weight";
const ACTIONS: &str = "action_in_proj";
const STATE: &str = "state_proj";

/// The table of tokens, times the root of its width.
pub(super) struct Tokens {
    table: Tensor,
    image_token: i64,
    scale: f64,
}

/// The maps of noised actions, of their time, and of a state of the same stream.
pub(super) struct Actions {
    actions: Linear,
    time: [Linear; 2],
    state: Option<Linear>,
    use_of_time: TimeUse,
    periods: [f64; 2],
    width: i64,
}

/// The maps before the layers.
pub(super) struct Embed {
    pub tokens: Part<Tokens>,
    /// The map of a state that is a row of the prefix.
    pub state: Option<Part<Linear>>,
    pub actions: Part<Actions>,
}

/// Returns the names of the two maps of a time.
fn time_names(use_of_time: TimeUse) -> [&'static str; 2] {
    match use_of_time {
        TimeUse::Norms => ["time_mlp_in", "time_mlp_out"],
        TimeUse::Rows => ["action_time_mlp_in", "action_time_mlp_out"],
    }
}

/// Returns the parameters before the layers.
pub(super) fn specs(config: &PolicyConfig) -> Vec<ParamSpec> {
    let (prefix, width, visual) = (config.names.all, config.expert.width, config.visual_start);
    let table = [config.vocab_size, config.text.width];
    let std = if visual { (config.text.width as f64).powf(-0.5) } else { 0.02 };
    let name = format!("{}{TABLE}", config.text_prefix());
    let tokens = ParamSpec::new(name, &table, Init::Normal(std));
    // Pi stores the head, which is the table, as well.
    let head = |name: &str| StoredTensor::repeated(&format!("{}{name}", config.vlm_prefix()), &table);
    let pieces = tokens.pieces.iter().cloned().chain(config.names.head.map(head)).collect();
    let mut specs = config.of_prefix(vec![tokens.stored_as(pieces)]);
    let map =
        |name: &str, inputs: i64, outputs: i64| Linear::specs(prefix, name, inputs, outputs, true, torch_std(inputs));
    let actions = map(ACTIONS, config.action_dim, width);
    specs.extend(match visual {
        true => starting(actions, [Init::Normal(0.3 * torch_std(config.action_dim)), Init::Normal(1.0)]),
        false => actions,
    });
    let [first, second] = time_names(config.time);
    let inputs = if config.time == TimeUse::Rows { 2 * width } else { width };
    specs.extend(map(first, inputs, width));
    specs.extend(map(second, width, width));
    let state = match config.state {
        StateToken::None => Vec::new(),
        StateToken::Prefix | StateToken::PrefixLevel => map(STATE, config.state_dim, config.text.width),
        StateToken::Actions => map(STATE, config.state_dim, width),
    };
    specs.extend(state.into_iter().map(|spec| if config.frozen.state { spec.frozen() } else { spec }));
    specs
}

impl Embed {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &PolicyConfig, params: &ParamStore) -> Embed {
        let tokens = |scope: &Scope<'_>| Tokens {
            table: scope.take(TABLE),
            image_token: config.image_token,
            scale: (config.text.width as f64).sqrt(),
        };
        let prefix = config.names.all;
        let state = |scope: &Scope<'_>| Linear::new(scope, STATE);
        let actions = |scope: &Scope<'_>| Actions {
            actions: Linear::new(scope, ACTIONS),
            time: time_names(config.time).map(|name| Linear::new(scope, name)),
            state: (config.state == StateToken::Actions).then(|| state(scope)),
            use_of_time: config.time,
            periods: config.periods,
            width: config.expert.width,
        };
        Embed {
            tokens: Part::new(params, config.text_prefix(), tokens),
            state: config.state.is_in_prefix().then(|| Part::new(params, prefix, state)),
            actions: Part::new(params, prefix, actions),
        }
    }
}

impl Tokens {
    /// Maps ids `[T]`, int64, to rows `[T, D]`; those that features replace have any values.
    pub fn look_up(&self, ids: &Tensor) -> Tensor {
        let known = ids.masked_fill(&ids.eq(self.image_token), 0);
        self.scaled(&embedding(&self.table, &known, -1))
    }

    /// Returns the table `[V, D]`, which scores tokens as well.
    pub fn table(&self) -> &Tensor {
        &self.table
    }

    /// Returns the rows `[T, D]` times the root of their width.
    pub fn scaled(&self, x: &Tensor) -> Tensor {
        x * self.scale
    }
}

impl Actions {
    /// Maps noised actions `[S·H, A]` at `times` `[S]`, or `[S·H]` where norms have the time and each action its own, both float32, with
    /// states `[S, X]` where they have rows, to rows `[S·L, E]` in `kind`, and the condition of norms, `[S, E]` or `[S·H, E]`, float32,
    /// where they have one.
    pub fn forward(
        &self,
        noised: &Tensor,
        times: &Tensor,
        state: Option<&Tensor>,
        kind: Kind,
    ) -> (Tensor, Option<Tensor>) {
        let waves = sinusoids(times, self.width, self.periods);
        let x = self.actions.forward_wide(noised);
        let [first, second] = &self.time;
        match self.use_of_time {
            TimeUse::Norms => {
                let condition = second.forward_wide(&first.forward_wide(&waves).silu()).silu();
                (self.with_state(x, state, times).to_kind(kind), Some(condition))
            }
            TimeUse::Rows => {
                let by_draw = x.unflatten(0, [times.size()[0], -1]);
                let both = Tensor::cat(&[&by_draw, &waves.unsqueeze(1).expand_as(&by_draw)], 2).flatten(0, 1);
                let x = second.forward_wide(&first.forward_wide(&both).silu());
                (self.with_state(x, state, times).to_kind(kind), None)
            }
        }
    }

    /// Returns the rows of actions `[S·H, E]` with each draw's state before them: `[S·L, E]`.
    fn with_state(&self, x: Tensor, state: Option<&Tensor>, times: &Tensor) -> Tensor {
        let Some((map, state)) = self.state.as_ref().zip(state) else { return x };
        let rows = map.forward_wide(state).unsqueeze(1);
        Tensor::cat(&[rows, x.unflatten(0, [times.size()[0], -1])], 1).flatten(0, 1)
    }
}

/// Returns sines and then cosines of `2πt / period` with periods between these two, evenly in their logarithms: `[S, width]`, float32 of
/// what is computed in float64.
fn sinusoids(times: &Tensor, width: i64, [shortest, longest]: [f64; 2]) -> Tensor {
    let half = width / 2;
    let step = 1.0 / (half - 1).max(1) as f64;
    let periods: Vec<f64> = (0..half).map(|at| shortest * (longest / shortest).powf(at as f64 * step)).collect();
    let turns: Vec<f64> = periods.iter().map(|period| 1.0 / period * 2.0 * std::f64::consts::PI).collect();
    let angles = times.to_kind(Kind::Double).unsqueeze(1) * upload(&Tensor::from_slice(&turns), times.device());
    Tensor::cat(&[angles.sin(), angles.cos()], 1).to_kind(Kind::Float)
}
