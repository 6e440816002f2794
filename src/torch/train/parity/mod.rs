//! Parity with the reference: a fixture folder holds a tiny model, one batch and what transformers makes of them;
//! this runs the batch through our models and tells how far the numbers are apart.
//!
//! The folder's format is that of the oracle: `config.json`, `model.safetensors`, `inputs.safetensors`,
//! `expected.safetensors` and `fixture.json`. Those of robot policies and of Florence-2 are compared by `model/fixture`.

mod compare;
mod drift;
mod export;
mod fixture;
mod indexers;
mod models;
mod report;
mod run;
mod scores;
mod state;

pub use crate::model::FixtureError;
pub use compare::{Steps, compare_steps};
pub use drift::{Drift, drift};
pub use export::export;
pub use fixture::towers_of;
pub(crate) use fixture::{Document, Fixture};
pub(crate) use models::reference_parts;
pub use report::{ParityReport, Row};
pub use run::{is_of_tokens, parity};
pub use state::ParityError;
