//! FAST action tokens (Pertsch et al. 2025), as `physical-intelligence/fast` and lerobot compute them: a chunk of normalized actions
//! becomes its orthonormal discrete cosine transform along time, times a scale, rounded; each coefficient, from the smallest that
//! the tokenizer knows on, is a character, low frequencies of all numbers first; BPE makes tokens of the text.
//!
//! A folder has `tokenizer.json` and `processor_config.json`. Code that lies beside them is carried into checkpoints, for lerobot
//! reads the folder by it, and never run here.
//!
//! Shapes: H actions of a chunk, A numbers of each.

use std::f64::consts::PI;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::data::error::DataError;
use crate::data::tokenizer_file::{read_json, read_tokenizer};
use crate::files;

/// The folder in a model folder that has its tokenizer of actions.
pub const FOLDER: &str = "action_tokenizer";
const CONFIG: &str = "processor_config.json";
const TOKENIZER: &str = "tokenizer.json";
/// Files that transformers reads such a folder by, where they are there.
const OTHERS: [&str; 3] = ["tokenizer_config.json", "special_tokens_map.json", "processing_action_tokenizer.py"];
/// Actions of a chunk, and numbers of a whole chunk, at most.
const MAX_STEPS: usize = 1024;
const MAX_NUMBERS: usize = 1 << 16;

/// Names, within a model folder, of the files that its tokenizer of actions has.
pub fn action_tokenizer_files(model: &Path) -> Vec<String> {
    let known = [CONFIG, TOKENIZER].into_iter().chain(OTHERS).map(|name| format!("{FOLDER}/{name}"));
    known.filter(|name| model.join(name).is_file()).collect()
}

/// Makes tokens of actions, and actions of tokens.
pub struct FastTokenizer {
    bpe: Arc<tokenizers::Tokenizer>,
    scale: f64,
    /// The coefficient whose character is 0.
    min_token: i64,
    steps: usize,
    width: usize,
    /// `[H, H]`: the orthonormal basis, a frequency a row.
    basis: Arc<[f64]>,
    files: Arc<[(String, Vec<u8>)]>,
}

/// The tokens of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    pub ids: Vec<i64>,
    /// Coefficients below the smallest that the tokenizer has, which became that.
    pub num_clipped: usize,
}

/// The actions of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedActions {
    /// `[H, A]`, row-major.
    pub values: Vec<f32>,
    /// The reason why the tokens are not a whole chunk; what is missing counts as coefficients of 0 then, and what is too much is left
    /// out.
    pub flaw: Option<String>,
}

impl FastTokenizer {
    /// Opens the tokenizer of a folder, for chunks of `steps` actions of `width` numbers.
    ///
    /// # Errors
    /// A file is missing or wrong, has a key that is not implemented, or is for other chunks; or chunks are too large.
    pub fn open(folder: &Path, steps: usize, width: usize) -> Result<Self, DataError> {
        let [scale, min_token] = checked(folder, [steps, width])?;
        let mut bpe = read_tokenizer(&folder.join(TOKENIZER))?;
        bpe.with_padding(None);
        bpe.with_truncation(None).map_err(|error| DataError::file(folder, error))?;
        let names =
            [CONFIG, TOKENIZER].into_iter().chain(OTHERS.into_iter().filter(|name| folder.join(name).is_file()));
        let file = |name: &str| {
            let path = folder.join(name);
            let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
            Ok((format!("{FOLDER}/{name}"), bytes))
        };
        let files = names.map(file).collect::<Result<Vec<_>, DataError>>()?;
        let (min_token, basis) = (min_token as i64, basis(steps).into());
        Ok(Self { bpe: Arc::new(bpe), scale, min_token, steps, width, basis, files: files.into() })
    }

    /// Returns the same tokenizer for actions of `width` numbers; `folder` is that of this one.
    ///
    /// # Errors
    /// Fails as [`FastTokenizer::open`] does.
    pub fn of_width(&self, folder: &Path, width: usize) -> Result<Self, DataError> {
        checked(folder, [self.steps, width])?;
        let (bpe, basis, files) = (self.bpe.clone(), self.basis.clone(), self.files.clone());
        Ok(Self { bpe, scale: self.scale, min_token: self.min_token, steps: self.steps, width, basis, files })
    }

    /// Ids are below it.
    pub fn vocab_size(&self) -> i64 {
        self.bpe.get_vocab_size(true) as i64
    }

    /// Names, within a model folder, and contents of its files.
    pub fn files(&self) -> &[(String, Vec<u8>)] {
        &self.files
    }

    /// Returns the tokens of a chunk `[H, A]` of normalized actions, row-major.
    ///
    /// # Errors
    /// The reason: another size, a number that is not finite, or a coefficient that the tokenizer has no token for.
    pub fn encode(&self, actions: &[f32]) -> Result<Encoded, String> {
        let Self { steps, width, .. } = *self;
        if actions.len() != steps * width {
            return Err(format!(
                "expected a chunk of {steps} actions of {width} numbers, found {} numbers",
                actions.len()
            ));
        }
        let (mut text, mut num_clipped) = (String::new(), 0);
        for frequency in self.basis.chunks(steps) {
            for number in 0..width {
                let along = actions[number..].iter().step_by(width);
                let sum: f64 = frequency.iter().zip(along).map(|(by, value)| by * f64::from(*value)).sum();
                let coefficient = (sum * self.scale).round_ties_even();
                num_clipped += usize::from(coefficient < self.min_token as f64);
                let place = (coefficient - self.min_token as f64).max(0.0);
                // Not `place`, whose maximum is no NaN.
                let is_number = coefficient.is_finite() && place <= f64::from(u32::MAX);
                let letter = is_number.then_some(place as u32).and_then(char::from_u32);
                text.push(
                    letter.ok_or_else(|| format!("the coefficient {coefficient} of action tokens is too large"))?,
                );
            }
        }
        let encoding = self.bpe.encode(text.as_str(), true).map_err(|error| error.to_string())?;
        let ids: Vec<u32> = encoding.get_ids().to_vec();
        // BPE leaves out what its alphabet lacks.
        let found = self.bpe.decode(&ids, false).map_err(|error| error.to_string())?;
        if found != text {
            let lost = text.chars().zip(found.chars().map(Some).chain(std::iter::repeat(None)));
            let at = lost.take_while(|(own, other)| Some(*own) == *other).count();
            let letter = text.chars().nth(at).map_or(0, |letter| i64::from(u32::from(letter)));
            return Err(format!(
                "the tokenizer of actions has no token for the coefficient {}",
                letter + self.min_token
            ));
        }
        Ok(Encoded { ids: ids.into_iter().map(i64::from).collect(), num_clipped })
    }

    /// Returns the chunk `[H, A]` of normalized actions that tokens stand for, exactly.
    ///
    /// # Errors
    /// The reason why they stand for none.
    pub fn decode(&self, ids: &[i64]) -> Result<Vec<f32>, String> {
        let DecodedActions { values, flaw } = self.decode_any(ids);
        flaw.map_or(Ok(values), Err)
    }

    /// Works like [`FastTokenizer::decode`] with any tokens, as lerobot does: a text that is too long is cut off, and one that is too
    /// short ends with coefficients of 0. Here it also ends before a token that is unknown and before bytes that are no character,
    /// which would be an enormous coefficient.
    pub fn decode_any(&self, ids: &[i64]) -> DecodedActions {
        let len = self.steps * self.width;
        let is_known = |id: &&i64| u32::try_from(**id).is_ok_and(|id| self.bpe.id_to_token(id).is_some());
        let known: Vec<u32> = ids.iter().take_while(is_known).map(|id| *id as u32).collect();
        let mut flaw = ids.get(known.len()).map(|id| format!("the tokenizer of actions has no token {id}"));
        let text = self.bpe.decode(&known, false).unwrap_or_else(|error| {
            flaw = Some(error.to_string());
            String::new()
        });
        let letters: Vec<char> =
            text.chars().take(len + 1).take_while(|it| *it != char::REPLACEMENT_CHARACTER).collect();
        if letters.len() != len && flaw.is_none() {
            let [steps, width] = [self.steps, self.width];
            let many = if letters.len() > len { "more than".to_owned() } else { format!("{} of", letters.len()) };
            flaw =
                Some(format!("action tokens have {many} the {len} coefficients of {steps} actions of {width} numbers"));
        }
        let mut coefficients = vec![0.0; len];
        for (coefficient, letter) in coefficients.iter_mut().zip(letters) {
            *coefficient = (i64::from(u32::from(letter)) + self.min_token) as f64 / self.scale;
        }
        let value = |at: usize| {
            let (step, number) = (at / self.width, at % self.width);
            let along = coefficients[number..].iter().step_by(self.width);
            self.basis[step..].iter().step_by(self.steps).zip(along).map(|(by, it)| by * it).sum::<f64>() as f32
        };
        DecodedActions { values: (0..len).map(value).collect(), flaw }
    }
}

/// Returns the scale and the smallest coefficient that a folder's config says, for chunks of so many actions of so many numbers.
fn checked(folder: &Path, [steps, width]: [usize; 2]) -> Result<[f64; 2], DataError> {
    let path = folder.join(CONFIG);
    let config = read_json(&path)?;
    let found = settings(&config, [steps, width]).map_err(|reason| DataError::file(&path, reason))?;
    if steps == 0 || width == 0 || steps > MAX_STEPS || steps.saturating_mul(width) > MAX_NUMBERS {
        let reason = format!(
            "chunks of {steps} actions of {width} numbers are not supported: at most {MAX_STEPS} actions, and \
             {MAX_NUMBERS} numbers in all"
        );
        return Err(DataError::file(folder, reason));
    }
    Ok(found)
}

/// Returns the scale and the smallest coefficient.
fn settings(config: &Json, chunk: [usize; 2]) -> Result<[f64; 2], String> {
    let known = ["action_dim", "auto_map", "min_token", "processor_class", "scale", "time_horizon", "vocab_size"];
    let keys = config.as_object().ok_or("is not a map of keys")?;
    if let Some(key) = keys.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(format!("`{key}` is not implemented"));
    }
    if !matches!(config["processor_class"].as_str(), None | Some("UniversalActionProcessor")) {
        return Err(format!("`processor_class` is {}; supported: UniversalActionProcessor", config["processor_class"]));
    }
    for (key, own) in ["time_horizon", "action_dim"].into_iter().zip(chunk) {
        if !config[key].is_null() && config[key].as_u64() != Some(own as u64) {
            return Err(format!("`{key}` is {}, but the policy's is {own}", config[key]));
        }
    }
    let scale = config["scale"].as_f64().or(config["scale"].is_null().then_some(10.0));
    let scale = scale.filter(|scale| scale.is_finite() && *scale > 0.0);
    let min_token = config["min_token"].as_i64().or(config["min_token"].is_null().then_some(0));
    let min_token = min_token.filter(|it| it.unsigned_abs() < 1 << 20);
    match (scale, min_token) {
        (Some(scale), Some(min_token)) => Ok([scale, min_token as f64]),
        (None, _) => Err(format!("`scale` is {}, not a number above 0", config["scale"])),
        (_, None) => Err(format!("`min_token` is {}, not a whole number", config["min_token"])),
    }
}

/// Returns the orthonormal cosine transform (DCT-II) of so many steps.
fn basis(steps: usize) -> Vec<f64> {
    let len = steps as f64;
    let value = |at: usize| {
        let (frequency, step) = ((at / steps) as f64, (at % steps) as f64);
        let by = if frequency == 0.0 { 1.0 } else { 2.0 };
        (by / len).sqrt() * (PI * (2.0 * step + 1.0) * frequency / (2.0 * len)).cos()
    };
    (0..steps * steps).map(value).collect()
}

#[cfg(test)]
#[path = "fast_tests.rs"]
mod tests;
