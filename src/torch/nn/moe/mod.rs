//! Mixture of experts, dropless: a router, experts as grouped matrix products, shared experts, and what keeps the
//! experts' loads even. The steps are separate so that whoever runs them can put a collective between any two:
//! route, dispatch (tokens sorted by expert), experts, combine.
//!
//! Shapes: T tokens, D hidden size, E experts, K experts a token, N = T·K rows, F inner width of an expert.

mod adapter;
mod balance;
mod config;
mod experts;
mod groups;
mod names;
mod order;
mod router;
mod shared;

pub use adapter::stacked_product;
pub use balance::{aux_loss, choices_by_softmax, update_bias, z_loss};
pub use config::{
    ExpertGroups, GroupScore, MediaExperts, MoeConfig, Normalize, RouterConfig, RouterScores, SharedExpertsConfig,
};
pub use experts::{Experts, ExpertsGrads};
pub use names::{BiasName, ExpertNames, MoeNames};
pub use order::Order;
pub use router::{Router, TokenRouting};
pub use shared::SharedExperts;
