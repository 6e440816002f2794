//! Computes how many frames and tokens a clip becomes in each family of models.

use serde_json::Value as Json;

use super::mel::{Frames, LogMel};
use super::settings::AudioSettings;

/// The frames that a tower looks at behind a clip, which its convolutions see and its attention does not (Qwen2-Audio).
const CONTEXT: usize = 2;
/// Samples to which Qwen3-ASR pads a clip where its settings say nothing.
const MIN_LENGTH: usize = 8_000;

/// A family of audio towers, by how its processor cuts a clip into frames and what its tower makes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AudioFamily {
    /// Whisper's encoder: always `chunk_length` seconds, one position for two frames.
    Whisper,
    Qwen2Audio,
    Qwen2_5Omni,
    Qwen3Omni,
    Qwen3Asr,
    Voxtral,
}

/// Says what is around a clip's samples, and which frames the tower is given. L is the clip's number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Zeros follow to `chunk_length`. The ⌈L/hop⌉ frames that begin within the clip are taken, and `context` more.
    Padded { context: usize },
    /// The clip is mirrored at its ends, after zeros where it is shorter than `min_samples`. ⌊L/hop⌋ frames are taken.
    Alone { min_samples: usize },
    /// Zeros follow to a whole number of `chunk_length`, one where `is_one`. All frames are taken.
    Chunks { is_one: bool },
}

impl AudioFamily {
    /// Returns the tokens before and behind a recording's placeholders, where the tokenizer has them.
    pub fn around(self) -> [&'static str; 2] {
        match self {
            Self::Whisper => ["", ""],
            Self::Qwen2Audio | Self::Qwen2_5Omni => ["<|audio_bos|>", "<|audio_eos|>"],
            Self::Qwen3Omni | Self::Qwen3Asr => ["<|audio_start|>", "<|audio_end|>"],
            Self::Voxtral => ["[BEGIN_AUDIO]", ""],
        }
    }

    /// Checks that the feature extractor's settings agree with the tower's section of `config.json`.
    ///
    /// # Errors
    /// The reason, naming both keys.
    pub fn check(self, settings: &AudioSettings, section: &Json) -> Result<(), String> {
        let number = |key: &str| section[key].as_u64().map(|number| number as usize);
        if let Some(bins) = number("num_mel_bins").filter(|&bins| bins != settings.feature_size) {
            return Err(format!(
                "feature_size is {}, but num_mel_bins of config.json is {bins}",
                settings.feature_size
            ));
        }
        let (width, inner) = (number("hidden_size"), number("intermediate_size"));
        if let (Self::Voxtral, Some(width), Some(inner)) = (self, width, inner)
            && inner != 4 * width
        {
            return Err(format!(
                "intermediate_size of config.json is {inner}; only 4 · hidden_size = {} is supported",
                4 * width
            ));
        }
        match self {
            Self::Whisper | Self::Qwen2Audio | Self::Voxtral => {
                let frames = settings.chunk_samples() / settings.hop_length;
                match number("max_source_positions").filter(|positions| 2 * positions != frames) {
                    Some(positions) => Err(format!(
                        "chunk_length is {frames} frames, but the tower takes {}: max_source_positions of config.json is \
                         {positions}",
                        2 * positions
                    )),
                    None => Ok(()),
                }
            }
            Self::Qwen3Omni | Self::Qwen3Asr => match number("n_window").filter(|&n_window| n_window != 50) {
                Some(n_window) => Err(format!("n_window of config.json is {n_window}; only 50 is supported")),
                None => Ok(()),
            },
            Self::Qwen2_5Omni => Ok(()),
        }
    }

    /// Returns how a clip is cut into the frames that the family's tower takes.
    pub fn framing(self, settings: &AudioSettings) -> Framing {
        match self {
            Self::Whisper => Framing::Chunks { is_one: true },
            Self::Qwen2Audio => Framing::Padded { context: CONTEXT },
            Self::Qwen2_5Omni => Framing::Padded { context: 0 },
            Self::Qwen3Omni => Framing::Alone { min_samples: 0 },
            Self::Qwen3Asr => Framing::Alone { min_samples: settings.min_length.unwrap_or(MIN_LENGTH) },
            Self::Voxtral => Framing::Chunks { is_one: false },
        }
    }

    /// Returns the number of states that the tower makes of so many frames of a clip, without context.
    pub fn num_states(self, num_frames: usize) -> usize {
        // A convolution of width 3 and stride 2.
        let half = |len: usize| len.div_ceil(2);
        match self {
            Self::Whisper | Self::Voxtral => half(num_frames),
            // The average of two convolved frames; an odd last one is dropped.
            Self::Qwen2Audio | Self::Qwen2_5Omni => half(num_frames) / 2,
            Self::Qwen3Omni | Self::Qwen3Asr => 13 * (num_frames / 100) + half(half(half(num_frames % 100))),
        }
    }

    /// Returns the number of consecutive states that become one token, by the projector of `config`, a `config.json`: its own
    /// `stack_factor` where the model is put together from parts, else the family's.
    pub fn stack(self, config: &Json) -> usize {
        let projector = &config["audio_projector"];
        match projector["model_type"].is_string() {
            true => projector["stack_factor"].as_u64().map_or(1, |factor| factor.max(1) as usize),
            false if self == Self::Voxtral => 4,
            false => 1,
        }
    }
}

/// Makes frames of clips for one model.
pub struct FrontEnd {
    family: AudioFamily,
    /// Consecutive states of the tower that become one token.
    stack: usize,
    framing: Framing,
    mel: LogMel,
    hop: usize,
    rate: u32,
    chunk_samples: usize,
}

impl FrontEnd {
    /// `stack` consecutive states of the tower become one token ([`AudioFamily::stack`]).
    pub fn new(family: AudioFamily, stack: usize, settings: &AudioSettings) -> Self {
        let sizes = (settings.n_fft, settings.hop_length, settings.feature_size);
        Self {
            family,
            stack,
            framing: family.framing(settings),
            mel: LogMel::new(sizes, settings.sampling_rate),
            hop: settings.hop_length,
            rate: settings.sampling_rate,
            chunk_samples: settings.chunk_samples(),
        }
    }

    /// Samples a second that clips must have.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Returns the numbers of a frame: one for each mel filter.
    pub fn num_mels(&self) -> usize {
        self.mel.num_mels()
    }

    /// Returns the number of frames that begin within a clip of so many samples.
    pub fn num_heard(&self, num_samples: usize) -> usize {
        num_samples.div_ceil(self.hop)
    }

    /// Returns the number of tokens that a clip of so many samples becomes.
    ///
    /// # Errors
    /// The reason: it is too short or too long for the model.
    pub fn num_tokens(&self, num_samples: usize) -> Result<usize, String> {
        self.tokens_of(self.cut(num_samples)?.num_valid)
    }

    /// Returns the frames of a clip and the number of tokens that it becomes.
    ///
    /// # Errors
    /// The reason: it is too short or too long for the model.
    pub fn frames(&self, samples: &[f32]) -> Result<(Frames, usize), String> {
        let cut = self.cut(samples.len())?;
        let num_tokens = self.tokens_of(cut.num_valid)?;
        Ok((self.mel.frames(samples, cut.padded, cut.num_frames), num_tokens))
    }

    fn tokens_of(&self, num_frames: usize) -> Result<usize, String> {
        let num_states = self.family.num_states(num_frames);
        match num_states.is_multiple_of(self.stack) {
            true => Ok(num_states / self.stack),
            false => {
                let stack = self.stack;
                Err(format!(
                    "becomes {num_states} states, which is not a multiple of stack_factor = {stack} of the audio \
                     projector"
                ))
            }
        }
    }

    fn cut(&self, len: usize) -> Result<Cut, String> {
        let seconds = len as f64 / f64::from(self.rate);
        let chunk_seconds = self.chunk_samples as f64 / f64::from(self.rate);
        let too_long = || format!("lasts {seconds:.2} s, but the model takes at most {chunk_seconds} s (chunk_length)");
        let cut = match self.framing {
            Framing::Padded { .. } | Framing::Chunks { is_one: true } if len > self.chunk_samples => {
                return Err(too_long());
            }
            Framing::Padded { context } => {
                let num_valid = len.div_ceil(self.hop);
                Cut { padded: self.chunk_samples, num_frames: num_valid + context, num_valid }
            }
            Framing::Alone { min_samples } => {
                let padded = len.max(min_samples);
                let num_frames = padded / self.hop;
                Cut { padded, num_frames, num_valid: num_frames }
            }
            Framing::Chunks { .. } => {
                let padded = len.div_ceil(self.chunk_samples) * self.chunk_samples;
                let num_frames = padded / self.hop;
                Cut { padded, num_frames, num_valid: num_frames }
            }
        };
        let least = self.mel.num_mirrored() + 1;
        if len == 0 || cut.padded < least || self.family.num_states(cut.num_valid) == 0 {
            return Err(format!("has {len} samples at {} Hz, too few for one token", self.rate));
        }
        Ok(cut)
    }
}

/// Describes how a clip is padded and cut.
struct Cut {
    /// Samples with zeros behind the clip.
    padded: usize,
    /// Frames that are given to the tower.
    num_frames: usize,
    /// Frames of the clip.
    num_valid: usize,
}
