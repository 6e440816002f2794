//! The results that the routers of experts leave on a tape.

use tch::Tensor;

use crate::tape::Slot;

/// The results of routers on a tape, all in kept slots.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    pub losses: RouterLosses,
    /// One for each set of experts in the order of the layers, those of prediction heads last.
    pub experts: Vec<RoutedExperts>,
}

/// Losses of all routers together, unweighted scalars, where they are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouterLosses {
    /// The load-balancing loss.
    pub aux: Option<Slot>,
    /// The sum over layers of the mean z-loss.
    pub z: Option<Slot>,
    /// The sum over layers and tokens of the indexers' losses, and what makes it this micro-batch's part of the step's mean.
    pub indexers: Option<(Slot, f64)>,
    /// The part of the step's targets that the micro-batch has, by which its losses count in the step's.
    pub share: f64,
}

/// A set of experts of a model.
pub struct ExpertSet {
    /// The name of the layer, as [`RoutedExperts::layer`].
    pub layer: String,
    pub media: bool,
    pub num_experts: i64,
    /// The balancing bias, `[E]`: the parameter itself.
    pub bias: Option<Tensor>,
}

/// The routing to one set of experts.
#[derive(Clone, Debug)]
pub struct RoutedExperts {
    /// The layer, as segments are named: `layer 3`, `mtp 0`.
    pub layer: String,
    /// True if these are the experts of pictures and videos alone.
    pub media: bool,
    /// The number of rows that each expert got: `[E]`, int64.
    pub counts: Slot,
    /// Logits `[T, E]`, weights `[T, K]` and chosen experts `[T, K]` of the tokens routed here, where asked for.
    pub outputs: Option<[Slot; 3]>,
}
