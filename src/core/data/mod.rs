//! Samples: read, rendered, tokenized, cut into patches — plain buffers, no tensors.
//!
//! ```text
//! files ─ lines ─ messages ─ template ── expand ─ tokenizer ─┐
//!                          └ media ──────┘───────────────────┴ processor ─ sample     dataset: position → sample
//! ```
//!
//! A sample that cannot be used is a [`BadSample`], never the end of a run by itself.

mod animation;
pub mod audio;
mod bad;
mod card;
mod column;
mod contexts;
mod cpu;
mod dataset;
mod decode;
mod decoder;
mod detokenize;
mod diffusion;
pub mod diffusion_sets;
pub mod digits;
pub mod emoji;
mod epochs;
mod error;
mod exchange;
mod expand;
mod file_kind;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
pub mod heard_and_seen;
mod in_process;
mod kind;
mod learned;
pub mod lerobot;
mod limits;
mod locator;
mod maker;
pub mod media;
mod new_folder;
mod npy;
mod open_maker;
mod packed;
mod places;
pub mod policy;
mod policy_samples;
mod positions;
mod processor;
pub mod roll_call;
mod sample;
mod sentencepiece;
mod source;
mod split;
pub mod spoken_digits;
mod tally;
mod template;
mod tiktoken;
mod tokenizer;
mod tokenizer_file;
pub mod tools;

pub use audio::AudioFamily;
pub use bad::BadSampleList;
pub use card::{
    COMPONENTS, Component, DIFFUSION, Edits, EncoderDecoder, FASTWAM, GrootVersion, MODEL_INDEX, ModelCard, OwnTower,
    Section, VisionCut, fastwam_networks, frozen_towers, groot_backbone, has_dtype, is_diffusion, is_fastwam,
    is_policy, policy_vocabulary, register_towers,
};
pub use column::{ColumnValues, ColumnView, JoinedColumn, SampleColumn, Values, join_column};
pub use contexts::TEXT_TOKENIZER;
pub use cpu::MAX_DECODE_SECONDS;
pub use dataset::{Dataset, PACKED_ALREADY};
pub use decode::{Decoded, decode_rgb, decode_rgb_into};
pub use decoder::{MediaDecoder, SampledFrames};
pub use detokenize::{StopStrings, TextStream};
pub use diffusion::LatentSpace;
pub use epochs::{Epochs, EpochsError, count_samples, settle_steps};
pub use error::{BadSample, DataError};
pub use exchange::Exchange;
pub use in_process::{InProcess, decode_clip, decode_stretch, open_rgb, read_rgb, read_rgb_with};
pub use limits::{Limits, MAX_VIDEO_BYTES};
pub use locator::Locator;
pub use maker::SampleMaker;
pub use media::VideoSource;
pub(crate) use new_folder::NewFolder;
pub use open_maker::{OpenMaker, Opened, open_maker, register_makers};
pub use packed::{PackedKind, PackedMedia, PackedSample};
pub use positions::{PositionKind, Span};
pub use processor::{
    AskedBy, FlowOptions, LABELS, Learned, Pairs, PolicyOptions, Processor, ProcessorFolders, ProcessorOptions, Sampled,
};
pub use sample::{IGNORE_INDEX, Media, Sample};
pub use sentencepiece::{PieceKind, SentencePiece, sentence_pieces};
pub use source::fingerprint;
pub use source::strict::parse as parse_strictly;
pub use source::{
    Captioned, Content, Conversation, Fingerprint, IMAGE_PLACEHOLDER, Labeled, MediaSource, Mixture, Part, Question,
    SampleLocation, Source, TextPiece, Turn, Written,
};
pub use source::{HUB_CARD, HubListing, HubPath, choose_hub_files, hub_cache, hub_snapshot, is_plain_hub_name};
pub use template::{ChatTemplate, NAMED_TEMPLATES, built_in};
pub use tokenizer::{SpecialTokens, Token, Tokenizer, tokenizer_json};
