//! Parameters that are trained themselves beside adapters: PEFT saves the modules that hold them (`modules_to_save`).

use super::names::PREFIX;
use crate::model::TreeNames;
use crate::params::{ParamSpec, Role, StoredTensor};
use std::collections::BTreeSet;
use tch::Tensor;

/// A tensor of PEFT's, and the part of a parameter that it is.
pub struct WholePiece {
    pub in_file: String,
    pub shape: Vec<i64>,
    /// The part of the parameter, in a checkpoint's shape; `None`: all of it, in its own.
    piece: Option<StoredTensor>,
    /// The rows of the part, in the order of the file.
    rows: Option<Vec<i64>>,
    /// True if this is the head that a model has in its embedding, which another piece is.
    pub is_tied_head: bool,
}

impl WholePiece {
    /// Returns the part of `param`, which has the whole parameter's shape, that the file holds, in the file's shape `[…]`.
    pub fn take(&self, param: &Tensor) -> Tensor {
        let part = self.piece.as_ref().map_or_else(|| param.shallow_clone(), |piece| piece.view(param));
        match &self.rows {
            Some(rows) => part.index_select(0, &Tensor::from_slice(rows).to_device(part.device())),
            None => part,
        }
    }

    /// Puts the file's `tensor`, of the file's shape `[…]`, into `param`, which has the whole parameter's shape.
    pub fn put(&self, param: &Tensor, tensor: &Tensor) {
        let mut part = self.piece.as_ref().map_or_else(|| param.shallow_clone(), |piece| piece.view(param));
        match &self.rows {
            Some(rows) => drop(part.index_copy_(0, &Tensor::from_slice(rows), &tensor.to_kind(part.kind()))),
            None => part.copy_(tensor),
        }
    }
}

/// Returns the tensors that a parameter is in PEFT's files; none of an adapter's.
pub fn whole_pieces(spec: &ParamSpec, tree: &TreeNames) -> Vec<WholePiece> {
    let pieces: Vec<&StoredTensor> = spec.pieces.iter().filter(|piece| !piece.repeats).collect();
    let all_of = |name: &str| -> Vec<WholePiece> {
        let shape = spec.whole_shape();
        let part = |part: crate::model::TreePart| WholePiece {
            in_file: format!("{PREFIX}{}", part.name),
            shape: part.rows.as_ref().map_or(shape.to_vec(), |rows| [&[rows.len() as i64][..], &shape[1..]].concat()),
            piece: None,
            rows: part.rows,
            is_tied_head: false,
        };
        tree.parts(name, shape.first().copied().unwrap_or(1)).into_iter().map(part).collect()
    };
    match pieces.as_slice() {
        [] => Vec::new(),
        [only] if only.index.is_none() => {
            let name = tree.known(&spec.name, &only.name);
            let mut found = all_of(name);
            // PEFT saves a tied head once more.
            found.extend(tree.tied_head(name).map(|head| WholePiece {
                in_file: format!("{PREFIX}{head}"),
                shape: spec.whole_shape().to_vec(),
                piece: None,
                rows: None,
                is_tied_head: true,
            }));
            found
        }
        // transformers has stacks of experts in one parameter, as we do.
        several if several.iter().any(|piece| piece.index.is_some()) => all_of(&spec.name),
        several => several
            .iter()
            .map(|piece| WholePiece {
                in_file: format!("{PREFIX}{}", tree.name(&piece.name)),
                shape: piece.shape.clone(),
                piece: Some((*piece).clone()),
                rows: None,
                is_tied_head: false,
            })
            .collect(),
    }
}

/// Returns the modules that hold parameters which are trained themselves, in the module tree: PEFT replaces whole modules, so that none
/// of them is within another one.
pub fn modules_to_save<'a>(specs: impl Iterator<Item = &'a ParamSpec>, tree: &TreeNames) -> BTreeSet<String> {
    let trained = specs.filter(|spec| spec.role == Role::Trained);
    // A tied head follows its embedding.
    let tied = |name: &str, spec: &ParamSpec| tree.tied_head(&spec.name).is_some_and(|head| name.ends_with(&head));
    let names = trained.flat_map(|spec| {
        let names = whole_pieces(spec, tree).into_iter().map(|piece| piece.in_file);
        names.filter(|name| !tied(name, spec)).collect::<Vec<_>>()
    });
    let holders = names.filter_map(|name| Some(name.strip_prefix(PREFIX)?.rsplit_once('.')?.0.to_owned()));
    let all: BTreeSet<String> = holders.collect();
    all.iter().filter(|name| !is_within(name, &all)).cloned().collect()
}

/// Returns whether a module or parameter is within one of these modules.
pub fn is_within(name: &str, modules: &BTreeSet<String>) -> bool {
    name.match_indices('.').any(|(dot, _)| modules.contains(&name[..dot]))
}

/// Returns whether one of these modules holds the parameter, which PEFT's files have then.
pub fn is_saved(spec: &ParamSpec, modules: &BTreeSet<String>, tree: &TreeNames) -> bool {
    let names = |piece: &WholePiece| piece.in_file.strip_prefix(PREFIX).is_some_and(|name| is_within(name, modules));
    whole_pieces(spec, tree).iter().any(names)
}
