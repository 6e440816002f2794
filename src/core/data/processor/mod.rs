//! Conversations and texts to samples: chat template, tokenizer and media processor of one model folder together, the
//! counterpart of Hugging Face's `AutoProcessor`.

mod answered;
mod assemble;
mod groups;
mod guard;
mod loading;
mod notes;
mod open;
mod options;
mod packed;
mod pairs;
mod pictures;
mod room;
mod samples;
mod shown;
#[cfg(test)]
mod sound_tests;
#[cfg(test)]
mod system_tests;
#[cfg(test)]
mod tests;
mod towers;
mod truncate;
#[cfg(test)]
mod truncate_tests;

pub use groups::LABELS;
pub(super) use guard::guarded;
pub use open::Processor;
pub use options::{AskedBy, FlowOptions, Learned, Pairs, PolicyOptions, ProcessorFolders, ProcessorOptions, Sampled};
