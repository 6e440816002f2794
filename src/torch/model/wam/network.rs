//! A policy on its parameters.
//!
//! Shapes: R rows, D width of a stream, A numbers of an action.

use tch::{Device, Kind, Tensor};

use super::config::WamConfig;
use super::flow::Bell;
use super::layout::Layout;
use super::stream::Stream;
use crate::model::dit::{Head, Patches, outer_map};
use crate::model::tower_blocks::Part;
use crate::nn::{Linear, take_rows};
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

/// Names of the streams, and of maps that Wan does not have.
const VIDEO: &str = "video";
const ACTION: &str = "action";
const ENCODER: &str = "action_encoder";
const HEAD: &str = "head";
const STATE: &str = "proprio_encoder";

/// A policy on its parameters.
pub(in crate::model) struct Network {
    pub(super) config: WamConfig,
    pub(super) video: Stream,
    pub(super) action: Stream,
    pub(super) patches: Part<Patches>,
    pub(super) encoder: Part<Linear>,
    /// `None`: there is no state.
    pub(super) state: Option<Part<Linear>>,
    pub(super) head: Part<Head>,
    pub(super) action_head: Part<Linear>,
    /// The weights of samples at the times of frames, and of actions.
    pub(super) bells: [Bell; 2],
    pub(super) policy: Policy,
    pub(super) device: Device,
    pub(super) kind: Kind,
}

/// Returns all parameters of a policy.
pub(super) fn specs(config: &WamConfig) -> Vec<ParamSpec> {
    let (video, action) = (&config.video, &config.action);
    let mut specs = [Patches::specs(video), Head::specs(video), Stream::specs(config, video, VIDEO)].concat();
    specs.extend(Stream::specs(config, action, ACTION));
    specs.extend(outer_map(&action.prefix, ENCODER, config.action_dim, action.width()));
    specs.extend(outer_map(&action.prefix, HEAD, action.width(), config.action_dim));
    if config.state_dim > 0 {
        specs.extend(outer_map(&config.prefix, STATE, config.state_dim, video.text_dim));
    }
    let frozen = |spec: ParamSpec| if config.is_of_video(&spec.name) { spec.frozen() } else { spec };
    if config.freezes_video { specs.into_iter().map(frozen).collect() } else { specs }
}

impl Network {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &WamConfig, params: &ParamStore, policy: Policy) -> Network {
        let (of_video, of_action) = (config.video.prefix.as_str(), config.action.prefix.as_str());
        Network {
            video: Stream::new(config, &config.video, VIDEO, params),
            action: Stream::new(config, &config.action, ACTION, params),
            patches: Part::new(params, of_video, Patches::new),
            encoder: Part::new(params, of_action, |scope| Linear::new(scope, ENCODER)),
            state: (config.state_dim > 0)
                .then(|| Part::new(params, config.prefix.as_str(), |scope| Linear::new(scope, STATE))),
            head: Part::new(params, of_video, |scope| Head::new(scope, &config.video)),
            action_head: Part::new(params, of_action, |scope| Linear::new(scope, HEAD)),
            bells: [&config.video_flow, &config.action_flow].map(Bell::new),
            policy,
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }
}

/// Returns the rows of text and states of all samples, and one of zeros behind them, as both streams map them. `state` has the map of
/// states and the states `[N, numbers]`.
pub(super) fn context(
    text: Option<&Tensor>,
    state: Option<(&Linear, &Tensor)>,
    width: i64,
    layout: &Layout,
    kind: Kind,
) -> Tensor {
    let states = state.map(|(map, values)| map.forward(&values.to_kind(kind)));
    let zeros = Tensor::zeros([1, width], (kind, layout.context.device()));
    let parts: Vec<&Tensor> = text.into_iter().chain(&states).chain([&zeros]).collect();
    take_rows(&Tensor::cat(&parts, 0), &layout.context)
}
