//! Headers against a model's parameters: everything that does not fit, in one table, before anything is allocated.

use super::checkpoint::Checkpoint;
use super::dtype::Dtype;
use super::error::WeightsError;
use super::layout::pieces_in;
use super::mismatches::Mismatches;
use super::origin::Origin;
use super::stored::Stored;
use crate::params::{ParamSpec, StoredTensor};
use loongforge_core::config::glob;
use loongforge_core::data::{COMPONENTS, Component};
use std::collections::{BTreeMap, BTreeSet};

/// Tensors that some publishers store and no model needs: they are computed, or unused.
const NEVER_NEEDED: [&str; 11] = [
    "*.rotary_emb.inv_freq",
    "*.rope.inv_freq",
    "*.attn.masked_bias",
    "*.position_ids",
    // In old files of Wan that takes a first frame; nothing reads it.
    "*.attn2.norm_added_q.weight",
    // ComfyUI's notes in files of FP8, and scales for activations in FP8.
    "scaled_fp8",
    "*.scaled_fp8",
    "*.comfy_quant",
    "*.scale_input",
    "*.input_scale",
    // The first release of Florence-2 generates with it, and BART's encoder does not.
    "*.final_logits_bias",
];

/// Tables with one row a token: by the last two segments of their names.
const TOKEN_TABLES: [&str; 8] = [
    "embed_tokens.weight",
    "lm_head.weight",
    "wte.weight",
    "tok_embeddings.weight",
    "output.weight",
    "word_embeddings.weight",
    "shared_head.head.weight",
    // BART's, which is its head as well.
    "shared.weight",
];

/// Describes how strictly a folder is compared and what is made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Tensors of the folder that the model leaves out on purpose; `*` stands for anything.
    pub ignore: Vec<String>,
    /// Parameters that keep their value where the folder has none, such as fresh adapters; `*` stands for anything.
    pub optional: Vec<String>,
    /// Token tables may have fewer rows in the folder; the rows that are new become the mean of the others.
    pub resize_embeddings: bool,
    /// Weights that are rounded keep their values.
    pub keep_rounded: bool,
}

/// Compares a folder with all parameters of a model, those of every pool: what is missing, misshaped, of a type that
/// parameters cannot have, or too much.
///
/// # Errors
/// Fails with [`WeightsError::Mismatch`], which names all differences, where anything does not fit.
pub fn compare_weights(
    specs: &[ParamSpec],
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<(), WeightsError> {
    let find = |name: &str| checkpoint.get(name);
    let pieces: Vec<StoredTensor> = specs.iter().flat_map(|spec| pieces_in(spec, &find)).collect();
    let mut mismatches = missing_or_wrong(pieces.iter(), find, options);
    let known: BTreeMap<&str, &StoredTensor> = pieces.iter().map(|piece| (piece.name.as_str(), piece)).collect();
    let ignored = |name: &str| {
        let patterns = NEVER_NEEDED.into_iter().chain(options.ignore.iter().map(String::as_str));
        patterns.into_iter().any(|pattern| glob(pattern, name))
    };
    let extra = checkpoint.tensors().filter(|(name, _)| !known.contains_key(name) && !ignored(name));
    mismatches.extra = extra
        .filter(|(name, stored)| !is_tied_head(name, &stored.shape, &known))
        .map(|(name, stored)| (name.to_owned(), stored.shape.clone()))
        .collect();
    mismatches.into_result(&[checkpoint])
}

/// Works like [`compare_weights`] for parameters whose tensors may come from several folders, or from none: what is too
/// much in them cannot be known.
///
/// # Errors
/// Fails as [`compare_weights`] does.
pub fn compare_origin(specs: &[ParamSpec], origin: &Origin, options: &LoadOptions) -> Result<(), WeightsError> {
    let find = |name: &str| origin.find(name).map(|(_, stored)| stored);
    let pieces: Vec<StoredTensor> = specs.iter().flat_map(|spec| pieces_in(spec, &find)).collect();
    compare_part(pieces.iter(), origin, options)
}

/// Works like [`compare_weights`] for some of a model's parameters, so that what is too much cannot be known.
pub(super) fn compare_part<'a>(
    pieces: impl Iterator<Item = &'a StoredTensor>,
    origin: &Origin,
    options: &LoadOptions,
) -> Result<(), WeightsError> {
    let pieces = pieces.filter(|piece| origin.covers(&piece.name));
    let find = |name: &str| origin.find(name).map(|(_, stored)| stored);
    missing_or_wrong(pieces, find, options).into_result(&origin.checkpoints().collect::<Vec<_>>())
}

impl Checkpoint {
    /// Returns whether this piece is a table of tokens of which the folder has some rows only.
    pub(in crate::train) fn is_short_of(&self, piece: &StoredTensor) -> bool {
        let options = LoadOptions { resize_embeddings: true, ..LoadOptions::default() };
        self.get(&piece.name).is_some_and(|stored| may_grow(piece, &stored.shape, &options))
    }
}

/// Returns whether a folder's table may be loaded into a larger one.
pub(super) fn may_grow(piece: &StoredTensor, found: &[i64], options: &LoadOptions) -> bool {
    options.resize_embeddings
        && is_token_table(&piece.name)
        && !piece.transposed
        && matches!((found, piece.shape.as_slice()), ([rows, cols], [more, same]) if rows < more && cols == same && *rows > 0)
}

/// Returns whether a name matches a pattern of what may be missing.
pub(super) fn is_optional(name: &str, options: &LoadOptions) -> bool {
    options.optional.iter().any(|pattern| glob(pattern, name))
}

fn is_token_table(name: &str) -> bool {
    TOKEN_TABLES
        .iter()
        .any(|table| name.strip_suffix(table).is_some_and(|start| start.is_empty() || start.ends_with('.')))
}

/// Returns whether a tensor is a head that a folder stores although it is the embedding: the model has no head, and an embedding of its
/// width.
fn is_tied_head(name: &str, shape: &[i64], known: &BTreeMap<&str, &StoredTensor>) -> bool {
    let heads = ["lm_head.weight", "output.weight"];
    let is_head = |name: &str| heads.iter().any(|head| name.ends_with(head));
    let ties = |piece: &&StoredTensor| is_token_table(&piece.name) && piece.shape.get(1) == shape.get(1);
    is_head(name) && known.keys().all(|name| !is_head(name)) && known.values().any(ties)
}

/// Returns whether values of this type can be read into the piece's parameter.
fn fits(piece: &StoredTensor, dtype: Dtype) -> bool {
    match piece.is_integer {
        true => matches!(dtype, Dtype::I64 | Dtype::I32),
        false => dtype.is_plain_float(),
    }
}

fn missing_or_wrong<'a, 'b>(
    pieces: impl Iterator<Item = &'a StoredTensor>,
    find: impl Fn(&str) -> Option<&'b Stored>,
    options: &LoadOptions,
) -> Mismatches {
    let mut mismatches = Mismatches::default();
    for piece in pieces.filter(|piece| !piece.repeats) {
        let name = || piece.name.clone();
        match find(&piece.name) {
            None if is_optional(&piece.name, options) => {}
            None => mismatches.missing.push((name(), piece.shape.clone())),
            Some(stored) if stored.shape != piece.shape && !may_grow(piece, &stored.shape, options) => {
                mismatches.misshaped.push((name(), stored.shape.clone(), piece.shape.clone()));
            }
            Some(stored) if !fits(piece, stored.dtype) => mismatches.untyped.push((name(), stored.dtype)),
            Some(_) => {}
        }
    }
    mismatches
}

impl Mismatches {
    fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.misshaped.is_empty() && self.untyped.is_empty() && self.extra.is_empty()
    }

    fn into_result(mut self, checkpoints: &[&Checkpoint]) -> Result<(), WeightsError> {
        if self.is_empty() {
            return Ok(());
        }
        self.hints = self.find_hints(checkpoints);
        let folders: Vec<String> =
            checkpoints.iter().map(|checkpoint| checkpoint.folder().display().to_string()).collect();
        Err(WeightsError::Mismatch { folder: folders.join(", ").into(), mismatches: Box::new(self) })
    }

    fn find_hints(&self, checkpoints: &[&Checkpoint]) -> Vec<String> {
        let mut hints = Vec::new();
        let tables = self.misshaped.iter().filter(|(name, ..)| is_token_table(name));
        if let Some((_, found, want)) = tables.into_iter().find(|(_, found, want)| found.get(1) == want.get(1)) {
            hints.push(match found[0] < want[0] {
                true => "if the tokenizer has grown, set model.resize_embeddings=true".to_owned(),
                false => {
                    format!("the folder has {} tokens: set vocab_size to this number in model.overrides", found[0])
                }
            });
        }
        if self.missing.iter().any(|(name, _)| name.ends_with("lm_head.weight")) {
            hints.push("if the head shares the embedding, set model.overrides.tie_word_embeddings=true".to_owned());
        }
        for Component { name, .. } in COMPONENTS {
            let is_of = |tensor: &str| tensor.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
            let is_opened = checkpoints.iter().any(|it| it.tensors().any(|(tensor, _)| is_of(tensor)));
            if !is_opened && self.missing.iter().any(|(tensor, _)| is_of(tensor)) {
                hints.push(format!("there are no `.safetensors` files of the {name}: check that its folder exists"));
            }
        }
        let has = |part: &str| self.extra.iter().any(|(name, _)| name.contains(part));
        if has("lora_") {
            hints.push("the folder holds an adapter: merge it, or name it as the adapter to load".to_owned());
        }
        if has("mtp") || has("eh_proj") {
            hints.push("the folder has multi-token prediction layers: set model.mtp.num_layers".to_owned());
        }
        if !self.extra.is_empty() && hints.is_empty() {
            hints.push(
                "if the folder has more than the model needs, name these tensors in model.load_ignore (* matches anything)"
                    .to_owned(),
            );
        }
        let untyped = self.untyped.iter().any(|(_, dtype)| dtype.bits() < 16);
        if untyped {
            hints
                .push("packed weights without their scales: check that config.json has quantization_config".to_owned());
        }
        let (missing, extra): (BTreeSet<&str>, BTreeSet<&str>) = (
            self.missing.iter().map(|(name, _)| name.as_str()).collect(),
            checkpoints.iter().flat_map(|checkpoint| checkpoint.tensors()).map(|(name, _)| name).collect(),
        );
        // All of a model under another prefix, as after some wrapper's save.
        for prefix in ["model.", "module.", "base_model.model.", "_orig_mod."] {
            let longer = |name: &&str| extra.contains(format!("{prefix}{name}").as_str());
            let shorter = |name: &&str| name.strip_prefix(prefix).is_some_and(|name| extra.contains(name));
            let count = missing.iter().filter(|name| longer(name) || shorter(name)).count();
            if count > 0 && count == missing.len() {
                let how = if missing.iter().all(longer) { "with" } else { "without" };
                hints.push(format!("the missing tensors exist {how} the prefix `{prefix}`: another class saved them"));
            }
        }
        hints
    }
}
