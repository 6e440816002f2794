//! loongforge trains language, vision-language, audio and diffusion models and robot policies, with encoders and the main model in
//! separate pools.
//!
//! Three packages and a thin root: [`core`] decides, [`torch`] computes, [`actors`] run. The root puts engines into
//! actors ([`run::engines`]), lets programs compose runs of their own ([`compose`]) and is the command line ([`cli`]).
//!
//! A run in code, on pictures of digits that are composed here; `examples/compose_run.rs` has an encoder of its own:
//!
//! ```
//! use loongforge::compose::Composition;
//! use loongforge::core::data::digits::{self, Digits};
//!
//! let dir = tempfile::tempdir()?;
//! let root = dir.path().display();
//! digits::compose(&dir.path().join("data"), &Digits { seed: 0, num_train: 16, num_held_out: 1 })?;
//! digits::write_model(&dir.path().join("model"), &digits::MODEL)?;
//! let run = Composition::from_yaml(&format!(
//!     "run: {{ name: first, dir: {root}/run }}
//! model: {{ load: {root}/model, weights: random }}
//! data: {{ train: [{{ path: {root}/data/train.jsonl }}] }}
//! train: {{ steps: 2, global_batch_size: 8, lr: 3e-3 }}"
//! ))?;
//! run.run_with(|step| println!("step {}: loss {:.3}", step.step.0, step.loss))?;
//! assert!(dir.path().join("run/checkpoints/step-00000002/model.safetensors.index.json").is_file());
//! # Ok::<(), anyhow::Error>(())
//! ```

pub mod answer;
pub mod checkpoint;
pub mod cli;
pub mod drill;
pub mod estimate;
pub mod eval;
pub mod model;
pub mod policy;
pub mod preflight;
pub mod run;
pub mod sandbox;
pub mod serve;

pub use loongforge_actors as actors;
pub use loongforge_core as core;
pub use loongforge_torch as torch;
pub use model::{FolderError, ModelFolder};
pub use run::compose;
