//! Rotary position embeddings (Su et al. 2021), in the half-split form of Hugging Face's models.
//!
//! Shapes: T tokens, H heads, C width of a head.

use tch::{Device, Kind, Tensor};

use crate::native::{can_fuse, norm_rope};

/// The cosine and sine of every token's angles, `[T, C]`, made once a micro-batch.
pub struct Rope {
    cos_TC: Tensor,
    sin_TC: Tensor,
}

impl Rope {
    /// One position for each token: `position_ids` `[T]`, int64 (`Qwen3RotaryEmbedding`). The tables have the kind of
    /// the model.
    pub fn plain(position_ids: &Tensor, head_dim: i64, theta: f64, kind: Kind) -> Rope {
        let angles =
            position_ids.to_kind(Kind::Float).unsqueeze(-1) * frequencies(head_dim, theta, position_ids.device());
        Rope::from_halves(&angles, kind)
    }

    /// Three positions for each token: `position_ids` `[3, T]`, int64, over frames, rows and columns, interleaved over
    /// the frequencies as t h w t h w … (`Qwen3VLTextRotaryEmbedding`). `sections` tells how many frequencies each has.
    pub fn interleaved(position_ids: &Tensor, head_dim: i64, theta: f64, sections: [i64; 3], kind: Kind) -> Rope {
        let axis_of: Vec<i64> = (0..head_dim / 2)
            .map(|frequency| {
                let axis = frequency % 3;
                if axis > 0 && frequency < 3 * sections[axis as usize] { axis } else { 0 }
            })
            .collect();
        let axis_of = Tensor::from_slice(&axis_of).to_device(position_ids.device());
        let positions = position_ids.to_kind(Kind::Float).index_select(0, &axis_of).tr();
        Rope::from_halves(&(positions * frequencies(head_dim, theta, position_ids.device())), kind)
    }

    /// A row and a column for each patch: `position_ids` `[T, 2]`; half of the frequencies each
    /// (`Qwen3VLVisionRotaryEmbedding`). Always float32.
    pub fn axial(position_ids: &Tensor, head_dim: i64, theta: f64) -> Rope {
        let axis = frequencies(head_dim / 2, theta, position_ids.device());
        let angles = position_ids.to_kind(Kind::Float).unsqueeze(-1) * axis;
        Rope::from_halves(&angles.flatten(1, 2), Kind::Float)
    }

    /// Angles `[T, C/2]`, used for both halves of a head.
    fn from_halves(angles: &Tensor, kind: Kind) -> Rope {
        let angles = Tensor::cat(&[angles, angles], -1);
        Rope { cos_TC: angles.cos().to_kind(kind), sin_TC: angles.sin().to_kind(kind) }
    }

    /// Turns the heads of `x_THC`. Computed in the tables' kind where that is wider, returned in that of `x_THC`.
    pub fn apply(&self, x_THC: &Tensor) -> Tensor {
        if let Some(tables) = self.tables().filter(|_| can_fuse(x_THC)) {
            return norm_rope(x_THC, None, Some(tables));
        }
        let halves = x_THC.chunk(2, -1);
        let turned = Tensor::cat(&[halves[1].neg(), halves[0].shallow_clone()], -1);
        (x_THC * self.cos_TC.unsqueeze(1) + turned * self.sin_TC.unsqueeze(1)).to_kind(x_THC.kind())
    }
}

impl Rope {
    /// For the fused operator: the tables, where they are of a kind that it takes.
    pub(super) fn tables(&self) -> Option<(&Tensor, &Tensor)> {
        can_fuse(&self.cos_TC).then_some((&self.cos_TC, &self.sin_TC))
    }
}

/// `theta^(-2i/width)`, float32, computed as transformers does.
fn frequencies(width: i64, theta: f64, device: Device) -> Tensor {
    let exponents = Tensor::arange_start_step(0, width, 2, (Kind::Float, Device::Cpu)) / width as f64;
    Tensor::from(theta as f32).pow(&exponents).reciprocal().to_device(device)
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::Rope;

    #[test]
    fn equal_positions_on_three_axes_are_plain_positions() {
        let positions = Tensor::from_slice(&[0i64, 1, 7, 300]);
        let three = positions.unsqueeze(0).expand([3, 4], false);
        let plain = Rope::plain(&positions, 24, 1e6, Kind::Float);
        let interleaved = Rope::interleaved(&three, 24, 1e6, [4, 4, 4], Kind::Float);
        assert_eq!(plain.cos_TC, interleaved.cos_TC);
        assert_eq!(plain.sin_TC, interleaved.sin_TC);
    }

    #[test]
    fn scores_depend_on_distance_only() {
        let rope = |at: i64| Rope::plain(&Tensor::from_slice(&[at, at + 3]), 8, 100.0, Kind::Float);
        let x = Tensor::arange(16, (Kind::Float, tch::Device::Cpu)).view([2, 1, 8]) / 16.0;
        let score = |at: i64| {
            let turned = rope(at).apply(&x);
            (turned.get(0) * turned.get(1)).sum(Kind::Float).double_value(&[])
        };
        assert!((score(0) - score(50)).abs() < 1e-4 && (score(0) - 1.0).abs() > 1e-2);
    }
}
