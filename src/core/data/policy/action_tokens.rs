//! Actions as tokens of a language model: FAST's (`fast.rs`) take ids from the end of the vocabulary on down, as openpi and lerobot
//! have them. What follows the prompt ends with `|` and the tokenizer's end of a text.
//!
//! Pi0-FAST writes `<bos>Action: ` before them, as lerobot does. The prompt of Pi0.5 ends with `Action: `, so nothing stands before
//! them there; where samples have a text to learn, that comes first: `{text};\nAction: `.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value as Json;

use super::fast::{DecodedActions, FOLDER, FastTokenizer};
use super::spec::{Family, SampleSpec};
use crate::config::Policy;
use crate::data::error::DataError;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizer_file::token_text;

/// The text before action tokens.
const BEGIN: &str = "Action: ";
/// The text that ends them.
const BAR: &str = "|";

/// The tokens of the language model that stand for actions, and the tokens around them.
pub struct ActionTokens {
    /// The tokenizers, by the number of an action's numbers, since robots have more or fewer.
    fast: BTreeMap<usize, FastTokenizer>,
    /// The id of the first of FAST's tokens; that of another is less by it.
    first: i64,
    /// The id of the last one, which is the least.
    last: i64,
    begin: Vec<i64>,
    /// The token before `begin`, of a policy that writes actions.
    bos: Option<i64>,
    end: [i64; 2],
    max_tokens: usize,
}

/// The tokens that are learned behind a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenActions {
    pub ids: Vec<i64>,
    /// True if its first token is given, not predicted.
    pub is_begun: bool,
    pub was_cut: bool,
    pub num_clipped: usize,
}

impl ActionTokens {
    /// Opens the tokens of the policy in `folder`; `None` where it learns none. `spec` is that of any robot, and `widths` are the numbers
    /// that actions of all robots have.
    ///
    /// # Errors
    /// The folder of the FAST tokenizer is missing or wrong, or its tokens have no place in the vocabulary.
    pub fn open(
        spec: &SampleSpec,
        widths: &BTreeSet<usize>,
        folder: &Path,
        settings: &Policy,
        tokenizer: &Tokenizer,
        about: &Json,
    ) -> Result<Option<Self>, DataError> {
        let writes = spec.family == Family::Pi0Fast;
        check(spec.family, settings).map_err(|reason| DataError::file(&folder.join("config.json"), reason))?;
        if !writes && settings.token_weight == 0.0 {
            return Ok(None);
        }
        let at = settings.action_tokenizer.clone().unwrap_or_else(|| folder.join(FOLDER));
        if !at.is_dir() {
            let reason = "the folder does not exist; it must hold the FAST tokenizer of actions, tokenizer.json and \
                          processor_config.json (policy.action_tokenizer names another folder)";
            return Err(DataError::file(&at, reason));
        }
        let mut fast = BTreeMap::<usize, FastTokenizer>::new();
        for &width in widths {
            let own = match fast.values().next() {
                None => FastTokenizer::open(&at, spec.horizon, width)?,
                Some(other) => other.of_width(&at, width)?,
            };
            fast.insert(width, own);
        }
        let vocab_size = fast.values().next().map_or(0, FastTokenizer::vocab_size);
        let wrong = |reason: String| DataError::file(folder, reason);
        let id = |token: &str| {
            tokenizer
                .id(token)
                .ok_or_else(|| wrong(format!("its tokenizer has no token {token:?}, which action tokens need")))
        };
        let eos = tokenizer.special().eos;
        let eos = eos.ok_or_else(|| wrong("its tokenizer has no token that ends a text (eos_token)".to_owned()))?;
        let begin: Vec<i64> = tokenizer.encode(BEGIN)?.iter().map(|token| token.id).collect();
        if begin.is_empty() {
            return Err(wrong(format!("its tokenizer has no tokens for {BEGIN:?}")));
        }
        let bos = writes.then(|| id(token_text(&about["bos_token"]).unwrap_or("<bos>"))).transpose()?;
        let (first, end) = (spec.placeholder - spec.action_tokens.skip, [id(BAR)?, eos]);
        let last = first - vocab_size + 1;
        let around = begin.iter().chain(&bos).chain(&end);
        if last < 0 || around.clone().any(|id| (last..=first).contains(id)) {
            let reason = format!(
                "the {vocab_size} action tokens would have the ids {last} to {first} of the language model, which {BEGIN:?}, \
                 {BAR:?} and special tokens need"
            );
            return Err(wrong(reason));
        }
        Ok(Some(Self { fast, first, last, begin, bos, end, max_tokens: spec.action_tokens.max_tokens }))
    }

    /// Returns the files of its folder, which belong into every checkpoint.
    pub fn files(&self) -> &[(String, Vec<u8>)] {
        self.fast.values().next().map(FastTokenizer::files).unwrap_or_default()
    }

    /// Returns the token that an answer begins with, of a policy that writes actions.
    pub fn bos(&self) -> Option<i64> {
        self.bos
    }

    /// Returns the token that ends actions.
    pub fn bar(&self) -> i64 {
        self.end[0]
    }

    /// Returns the tokens that follow the prompt of a sample with these normalized actions `[H, width]`, and a text to write before them.
    /// Panics where no robot has this width.
    ///
    /// # Errors
    /// The actions have no tokens, or the text no ids or the one that ends actions.
    pub fn answer(
        &self,
        actions: &[f32],
        width: usize,
        text: Option<&str>,
        tokenizer: &Tokenizer,
    ) -> Result<WrittenActions, DataError> {
        let encoded = self.fast[&width].encode(actions).map_err(DataError::Line)?;
        let mut ids: Vec<i64> = self.bos.into_iter().collect();
        if let Some(text) = text {
            ids.extend(tokenizer.encode(&format!("{text};\n"))?.iter().map(|token| token.id));
            if self.bos.is_some() && ids.contains(&self.bar()) {
                return Err(DataError::Line(format!("its text to learn has the token {BAR:?}, which ends actions")));
            }
        }
        if text.is_some() || self.bos.is_some() {
            ids.extend(&self.begin);
        }
        ids.extend(encoded.ids.iter().map(|id| self.first - id));
        ids.extend(self.end);
        let was_cut = ids.len() > self.max_tokens;
        ids.truncate(self.max_tokens);
        Ok(WrittenActions { ids, is_begun: self.bos.is_some(), was_cut, num_clipped: encoded.num_clipped })
    }

    /// Returns the actions of `width` numbers that a language model has written: of its tokens before the first `|`, without `Action: `
    /// and a text before that. Panics where no robot has this width.
    pub fn actions(&self, written: &[i64], width: usize) -> DecodedActions {
        let own = written.split(|id| *id == self.bar()).next().unwrap_or_default();
        let own = self.without_text(own);
        let begins = own.starts_with(&self.begin);
        // lerobot takes all of them out, wherever they are.
        let (mut ids, mut tokens) = (own, Vec::new());
        while let Some(id) = ids.first() {
            match ids.strip_prefix(self.begin.as_slice()) {
                Some(rest) => ids = rest,
                None => {
                    tokens.push(self.first - id);
                    ids = &ids[1..];
                }
            }
        }
        let mut found = self.fast[&width].decode_any(&tokens);
        if !begins && found.flaw.is_none() {
            found.flaw = Some(format!("the generated text does not begin with {BEGIN:?}"));
        }
        found
    }

    /// Returns the tokens of `written` from the first `Action: ` on if tokens other than those of actions precede it
    /// (`policy.text_target`), else all.
    fn without_text<'a>(&self, written: &'a [i64]) -> &'a [i64] {
        let at = written.windows(self.begin.len()).position(|ids| ids == self.begin.as_slice());
        let is_action = |id: &i64| (self.last..=self.first).contains(id);
        match at {
            Some(at) if !written[..at].iter().all(is_action) => &written[at..],
            _ => written,
        }
    }
}

/// Checks that settings of tokens have an effect on the policy.
fn check(family: Family, settings: &Policy) -> Result<(), String> {
    let Policy { token_weight, flow_weight, action_tokenizer, text_target, .. } = settings;
    let learns = *token_weight > 0.0;
    if family == Family::Pi0Fast && (learns || *flow_weight != 1.0) {
        return Err(
            "Pi0-FAST is trained only by the loss of its tokens: leave out policy.token_weight and flow_weight"
                .to_owned(),
        );
    }
    if family == Family::Pi0Fast && (settings.noise_draws != 1 || settings.mask_padding == Some(true)) {
        return Err("Pi0-FAST learns whole chunks without noise: leave out policy.noise_draws and policy.mask_padding"
            .to_owned());
    }
    if learns && !matches!(family, Family::Pi0 | Family::Pi05 | Family::Pi0Fast) {
        return Err("policy.token_weight: of the policies trained by flow matching, only pi05 and pi0 can also learn \
                    action tokens"
            .to_owned());
    }
    let idle = [
        ("action_tokenizer", action_tokenizer.is_some()),
        ("text_target", text_target.is_some()),
        ("flow_weight", *flow_weight != 1.0),
    ];
    match idle.into_iter().find(|(_, is_set)| *is_set && !learns && family != Family::Pi0Fast) {
        Some((key, _)) => {
            Err(format!("policy.{key} is only for policies that learn action tokens, but policy.token_weight is 0"))
        }
        None => Ok(()),
    }
}
