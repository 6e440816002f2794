//! Computes what one parameter gets from its adapter: the product of the two small maps, and with DoRA norms of its rows.

use tch::{Kind, Tensor};

use crate::comm::Mesh;
use crate::native::NativeError;
use crate::nn::moe::stacked_product;
use crate::params::{ADAPTER_PARTS, LinearModule, ParamId, ParamStore, StoredTensor, row_norms};

/// The change of one parameter, in float32: `scale · B A`.
pub(super) struct Pair {
    a: Tensor,
    b: Tensor,
    /// The norms of the rows, with DoRA.
    magnitude: Option<Tensor>,
    /// The number of maps that the parameter stacks.
    stacked: Option<i64>,
    scale: f64,
}

impl Pair {
    /// Makes the pair of `lora_A` `[r, in]` and `lora_B` `[out, r]`, and with DoRA norms `[out]`, of one map; of a stack of `stacked`
    /// maps E, `[E·r, in]` and `[out, r·E]`.
    pub fn new(mut parts: Vec<Tensor>, stacked: Option<i64>, scale: f64) -> Self {
        let magnitude = (parts.len() > 2).then(|| parts.remove(2));
        let b = parts.remove(1);
        Self { a: parts.remove(0), b, magnitude, stacked, scale }
    }

    /// Returns `base` with the adapter added, in the shape of `base`: `[out, in]` or `[E, out, in]` of a whole parameter, else that of
    /// its `piece` in the file.
    pub fn apply(&self, base: &Tensor, piece: Option<&StoredTensor>) -> Tensor {
        self.apply_by(base, piece, row_norms)
    }

    /// Works like [`Pair::apply`] where `norms_of` gives the norms of whole rows, of which `base` may have parts.
    fn apply_by(
        &self,
        base: &Tensor,
        piece: Option<&StoredTensor>,
        norms_of: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let product = match self.stacked {
            Some(count) => stacked_product(&self.a, &self.b, count, piece.and_then(|piece| piece.index)),
            None => self.b.matmul(&self.a),
        } * self.scale;
        let part = |tensor: &Tensor| match piece {
            Some(piece) => StoredTensor { index: None, ..piece.clone() }.view(tensor),
            None => tensor.shallow_clone(),
        };
        let sum = base + part(&product);
        let Some(magnitude) = &self.magnitude else { return sum };
        let is_turned = piece.is_some_and(|piece| piece.transposed);
        let norms = match piece.and_then(|piece| piece.rows) {
            Some((start, len)) => magnitude.narrow(0, start, len),
            None => magnitude.shallow_clone(),
        };
        let turned = |tensor: Tensor| if is_turned { tensor.tr() } else { tensor };
        let sum = turned(sum);
        let factor = norms / norms_of(&sum);
        turned(sum * factor.unsqueeze(-1))
    }
}

/// Returns a parameter with its adapter, in float32, where it has one; else as it is.
pub(in crate::train) fn merged(params: &ParamStore, id: ParamId) -> Tensor {
    merged_by(params, id, row_norms)
}

/// Works like [`merged`] for what this rank has of a parameter, of whose rows the ranks of `mesh` may have parts; each calls it.
///
/// # Errors
/// A rank is gone or did not come in time.
pub(in crate::train) fn merged_among(params: &ParamStore, id: ParamId, mesh: &Mesh) -> Result<Tensor, NativeError> {
    let module = LinearModule::of(params.spec(id));
    if module.is_none_or(|module| !params.joint_norms().contains_key(&module.path)) {
        return Ok(merged(params, id));
    }
    let mut summed = Ok(());
    let value = merged_by(params, id, |part| {
        let squares = row_norms(part).square();
        summed = mesh.tp.all_reduce_sum(&squares);
        squares.sqrt()
    });
    summed.map(|()| value)
}

fn merged_by(params: &ParamStore, id: ParamId, norms_of: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let (value, spec) = (params.value(id), params.spec(id));
    let Some(module) = LinearModule::of(spec) else { return value };
    let part = |part: &str| params.find(&format!("{}{part}", module.path));
    let Some(a) = part(ADAPTER_PARTS[0]) else { return value };
    let _no_grad = tch::no_grad_guard();
    let float = |id| params.leaf(id).detach().to_kind(Kind::Float);
    let parts = ADAPTER_PARTS.iter().filter_map(|name| part(name)).map(float).collect();
    let scale = params.spec(a).adapter.expect("an adapter's first parameter tells its scale").scale;
    Pair::new(parts, module.stacked, scale).apply_by(&value.to_kind(Kind::Float), None, norms_of).to_kind(value.kind())
}

/// Returns whether some of the parameters are adapters.
pub fn has_adapter(params: &ParamStore) -> bool {
    adapters(params).next().is_some()
}

/// Returns the adapters' parameters, with the paths of the maps they stand beside and which of an adapter's parts they are.
pub fn adapters(params: &ParamStore) -> impl Iterator<Item = (&str, usize, ParamId)> {
    params.ids().filter_map(|id| {
        let name = &params.spec(id).name;
        let part = |(part, end): (usize, &&str)| Some((name.strip_suffix(*end)?, part, id));
        ADAPTER_PARTS.iter().enumerate().find_map(part)
    })
}
