//! Finds the way in which a folder stores tensors that are stored in several ways. Publishers have one tensor for each expert of a layer,
//! or all of them stacked, as in the model or with rows and columns the other way round. The towers of CLIP and SigLIP are in
//! `vision_model.`, and where transformers 5 has saved a fresh one they are not. The folder's tensors decide, whatever is usual in the
//! family; saving is always in the family's own way.

use super::stored::Stored;
use crate::params::{ParamSpec, StoredTensor};

const GATE_UP: &str = "experts.gate_up_proj";
const DOWN: &str = "experts.down_proj";
const VISION_MODEL: &str = "vision_model.";
/// The map of Florence-2's features, which its first release has without `.weight` and the other way round.
const IMAGE_MAP: &str = ".image_projection.weight";

/// Returns the pieces of a parameter as the folder has them; the family's own where the folder has none of either kind.
pub(super) fn pieces_in<'a>(spec: &ParamSpec, find: &impl Fn(&str) -> Option<&'a Stored>) -> Vec<StoredTensor> {
    let stem = [GATE_UP, DOWN].into_iter().find_map(|end| spec.name.strip_suffix(end).map(|base| (base, end)));
    let (Some((base, end)), [experts, rows, cols]) = (stem, spec.whole_shape()) else {
        return spec.pieces.iter().map(|piece| with_or_without(piece.clone(), find)).collect();
    };
    let stacked = format!("{base}{end}");
    if find(&stacked).is_some() && !spec.pieces.is_empty() {
        return vec![as_stored(StoredTensor::whole(&stacked, spec.whole_shape()), base, find)];
    }
    let each = |expert: i64, name: &str, rows: Option<(i64, i64)>, shape: [i64; 2]| {
        let name = format!("{base}experts.{expert}.{name}.weight");
        StoredTensor { index: Some(expert), rows, ..StoredTensor::whole(&name, &shape) }
    };
    let is_split = find(&format!("{base}experts.0.down_proj.weight")).is_some();
    if !is_split || !matches!(spec.pieces.as_slice(), [only] if only.name == stacked) {
        return spec.pieces.clone();
    }
    let of_expert = |expert| match end {
        DOWN => vec![each(expert, "down_proj", None, [*rows, *cols])],
        _ => {
            let inner = rows / 2;
            let half = |name, start| each(expert, name, Some((start, inner)), [inner, *cols]);
            vec![half("gate_proj", 0), half("up_proj", inner)]
        }
    };
    (0..*experts).flat_map(of_expert).collect()
}

/// Leaves `vision_model.` out of a piece's name where the folder does, and takes the map of Florence-2's features as it has it.
fn with_or_without<'a>(piece: StoredTensor, find: &impl Fn(&str) -> Option<&'a Stored>) -> StoredTensor {
    let map = piece.name.strip_suffix(".weight").filter(|_| piece.name.ends_with(IMAGE_MAP)).map(str::to_owned);
    if let Some(name) = map.filter(|name| find(name).is_some()) {
        return StoredTensor { name, shape: piece.shape.iter().rev().copied().collect(), transposed: true, ..piece };
    }
    if !piece.name.contains(VISION_MODEL) || find(&piece.name).is_some() {
        return piece;
    }
    let name = piece.name.replacen(VISION_MODEL, "", 1);
    if find(&name).is_some() { StoredTensor { name, ..piece } } else { piece }
}

/// Turns a stacked piece to the orientation that it has in the folder. The orientation of a square piece follows from the other weights
/// of the same experts: gates and ups, and downs, are never both square.
fn as_stored<'a>(piece: StoredTensor, base: &str, find: &impl Fn(&str) -> Option<&'a Stored>) -> StoredTensor {
    let [experts, rows, cols] = piece.shape[..] else { unreachable!("stacked experts have three dimensions") };
    let is = |name: &str, shape: [i64; 3]| find(name).is_some_and(|stored| stored.shape == shape);
    let turned = match rows == cols {
        false => is(&piece.name, [experts, cols, rows]),
        true if piece.name.ends_with(DOWN) => is(&format!("{base}{GATE_UP}"), [experts, rows, 2 * cols]),
        true => is(&format!("{base}{DOWN}"), [experts, rows / 2, cols]),
    };
    match turned {
        true => StoredTensor { shape: vec![experts, cols, rows], transposed: true, ..piece },
        false => piece,
    }
}
