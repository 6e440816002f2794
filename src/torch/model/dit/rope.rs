//! Rotary embeddings of three axes: neighbors of channels turn by frame, row and column, from float64 angles.
//!
//! Shapes: T tokens, C width of a head.

use loongforge_core::message::Grid;
use tch::{Device, Kind, Tensor};

use crate::model::tower_blocks::{AxialOrder, Rotation};

const THETA: f64 = 10_000.0;

/// A token's place: frame, row, column.
pub(in crate::model) type TokenPosition = [i64; 3];

/// Turns heads of tokens at `places`; `widths` are the channels of each axis, even numbers whose sum is C.
pub(in crate::model) fn rotation(places: &[TokenPosition], widths: [i64; 3], device: Device) -> Rotation {
    let flat: Vec<i64> = places.iter().flatten().copied().collect();
    let places_T3 = Tensor::from_slice(&flat).view([-1, 3]).to_kind(Kind::Double);
    let of_axis = |(axis, width): (i64, i64)| {
        let exponents =
            Tensor::arange_start_step(0, width, 2, (Kind::Double, Device::Cpu)) * (-THETA.ln() / width as f64);
        places_T3.narrow(1, axis, 1) * exponents.exp().unsqueeze(0)
    };
    let angles: Vec<Tensor> = (0..).zip(widths).map(of_axis).collect();
    Rotation::new(&Tensor::cat(&angles, 1), AxialOrder::Interleaved).to_device(device)
}

/// Returns the places of a grid's tokens, frames first: the first at `first`.
pub(in crate::model) fn places(grid: Grid, first: TokenPosition) -> impl Iterator<Item = TokenPosition> {
    let [t, h, w] = [grid.t, grid.h, grid.w].map(i64::from);
    let token = move |at: i64| [first[0] + at / (h * w), first[1] + at / w % h, first[2] + at % w];
    (0..t * h * w).map(token)
}
