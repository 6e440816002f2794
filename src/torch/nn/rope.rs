//! Rotary position embeddings (Su et al. 2021): the tables of a micro-batch, and turning heads by them. The frequencies are those of
//! `rope_config.rs`.
//!
//! Shapes: T tokens, H heads, C width of a head, R channels of a head that turn.

use tch::{Device, Kind, Tensor};

use super::rope_config::{QueryScale, RopeAxes, RopeConfig, RopeLayout};
use crate::device::upload;
use crate::native::{Turn, can_fuse, is_table, norm_rope, turn_halves};

/// The cosine and sine of every token's angles, `[T, R]`, both halves alike; made once a micro-batch.
pub struct Rope {
    cos_TR: Tensor,
    sin_TR: Tensor,
    layout: RopeLayout,
    /// The factors of queries by position, `[T, 1, 1]`, in the model's kind.
    queries_T11: Option<Tensor>,
}

impl Rope {
    /// Makes the tables at `position_ids` `[T]`, or `[3, T]` where the axes are three; these are integers or real numbers. The tables
    /// have the kind of the model, but float32 on a CPU where that is bfloat16: the fused operator reads them so. They are where
    /// `position_ids` is. For frequencies that depend on a document's length, see [`Rope::packed`]. Panics where the axes do not fit.
    pub fn new(config: &RopeConfig, position_ids: &Tensor, kind: Kind) -> Rope {
        let (frequencies, scale) = config.frequencies(0);
        Rope::turning(config, position_ids, &frequencies.unsqueeze(0), scale, kind)
    }

    /// Works like [`Rope::new`] where documents end at `cu_seqlens` `[0, …, T]` and have `lens` tokens, of which some
    /// may be elsewhere: each is turned as if it were alone.
    pub fn packed(config: &RopeConfig, position_ids: &Tensor, cu_seqlens: &[usize], lens: &[i64], kind: Kind) -> Rope {
        if !config.depends_on_length() || lens.is_empty() {
            return Rope::new(config, position_ids, kind);
        }
        let (_, scale) = config.frequencies(0);
        let of_document = |(ends, len): (&[usize], &i64)| {
            config.frequencies(*len).0.unsqueeze(0).expand([(ends[1] - ends[0]) as i64, -1], false)
        };
        let rows: Vec<Tensor> = cu_seqlens.windows(2).zip(lens).map(of_document).collect();
        Rope::turning(config, position_ids, &Tensor::cat(&rows, 0), scale, kind)
    }

    /// `frequencies` of every token, `[T, R/2]`, or of all, `[1, R/2]`.
    fn turning(config: &RopeConfig, position_ids: &Tensor, frequencies: &Tensor, scale: f64, kind: Kind) -> Rope {
        let positions = position_ids.to_kind(Kind::Float);
        let positions = match &config.axes {
            RopeAxes::One => {
                assert_eq!(positions.dim(), 1, "one position a token");
                positions.unsqueeze(-1)
            }
            RopeAxes::Three(axis_of) => {
                assert_eq!(positions.size()[0], 3, "three positions a token");
                positions.index_select(0, &upload(&Tensor::from_slice(axis_of), positions.device())).tr()
            }
        };
        let queries_T11 = config.query_scale.map(|QueryScale { beta, original_max_position_embeddings }| {
            let times = (positions.flatten(0, -1) / original_max_position_embeddings as f64).floor();
            ((times + 1.0).log() * beta + 1.0).view([-1, 1, 1]).to_kind(kind)
        });
        let angles = positions * upload(frequencies, position_ids.device());
        Rope { queries_T11, ..Rope::from_halves(&angles, scale, config.layout, kind) }
    }

    /// Makes the tables of angles `[T, R/2]`, which are used for both halves.
    fn from_halves(angles: &Tensor, scale: f64, layout: RopeLayout, kind: Kind) -> Rope {
        let angles = Tensor::cat(&[angles, angles], -1);
        let kind = if kind == Kind::BFloat16 && angles.device() == Device::Cpu { Kind::Float } else { kind };
        let table = |x: Tensor| if scale == 1.0 { x.to_kind(kind) } else { (x * scale).to_kind(kind) };
        Rope { cos_TR: table(angles.cos()), sin_TR: table(angles.sin()), layout, queries_T11: None }
    }

    /// Turns the first R channels of every head of `x_THC`. Computed in the tables' kind where that is wider, returned
    /// in that of `x_THC`. `[T, H, C]` to `[T, H, C]`.
    pub fn apply(&self, x_THC: &Tensor) -> Tensor {
        self.apply_as(x_THC, self.layout)
    }

    /// Returns the turned queries `q_THC`, `[T, H, C]`, times the scale of their positions where there is one.
    pub fn scale_queries(&self, q_THC: Tensor) -> Tensor {
        match &self.queries_T11 {
            Some(scale_T11) => q_THC * scale_T11,
            None => q_THC,
        }
    }

    /// Works like `apply`, with another layout than the config's. `[T, H, C]` to `[T, H, C]`.
    pub fn apply_as(&self, x_THC: &Tensor, layout: RopeLayout) -> Tensor {
        if is_table(&self.cos_TR) && can_fuse(x_THC) {
            let neighbors = layout == RopeLayout::Interleaved;
            return norm_rope(x_THC, None, Some(Turn { cos: &self.cos_TR, sin: &self.sin_TR, neighbors }));
        }
        let (width, turning) = (x_THC.size()[2], self.cos_TR.size()[1]);
        if turning < width {
            let turned = self.apply_as(&x_THC.narrow(2, 0, turning), layout);
            return Tensor::cat(&[turned, x_THC.narrow(2, turning, width - turning)], -1);
        }
        if layout == RopeLayout::Interleaved {
            let split = x_THC.unflatten(-1, [-1, 2]).transpose(-1, -2).flatten(-2, -1);
            return self.apply_as(&split, RopeLayout::HalfSplit);
        }
        if x_THC.device().is_cuda() && x_THC.size()[0] == self.cos_TR.size()[0] {
            return turn_halves(x_THC, &self.cos_TR, &self.sin_TR);
        }
        let halves = x_THC.chunk(2, -1);
        let turned = Tensor::cat(&[halves[1].neg(), halves[0].shallow_clone()], -1);
        (x_THC * self.cos_TR.unsqueeze(1) + turned * self.sin_TR.unsqueeze(1)).to_kind(x_THC.kind())
    }

    /// Undoes `apply`, the order of channels included. Computed by plain operators. `[T, H, C]` to `[T, H, C]`.
    pub fn apply_back(&self, x_THC: &Tensor) -> Tensor {
        let (width, turning) = (x_THC.size()[2], self.width());
        if turning < width {
            let turned = self.apply_back(&x_THC.narrow(2, 0, turning));
            return Tensor::cat(&[turned, x_THC.narrow(2, turning, width - turning)], -1);
        }
        let halves = x_THC.chunk(2, -1);
        let turned = Tensor::cat(&[halves[1].shallow_clone(), halves[0].neg()], -1);
        let x_THR = (x_THC * self.cos_TR.unsqueeze(1) + turned * self.sin_TR.unsqueeze(1)).to_kind(x_THC.kind());
        match self.layout {
            RopeLayout::HalfSplit => x_THR,
            RopeLayout::Interleaved => x_THR.unflatten(-1, [2, -1]).transpose(-1, -2).flatten(-2, -1),
        }
    }

    /// Returns the number of channels of a head that turn.
    pub fn width(&self) -> i64 {
        self.cos_TR.size()[1]
    }

    /// Returns cosines and sines, `[T, R]`.
    pub fn tables(&self) -> [&Tensor; 2] {
        [&self.cos_TR, &self.sin_TR]
    }

    /// Returns the rotations of other tokens, by rows of these tables. Cosines and sines are `[T, R]`.
    #[must_use]
    pub fn with_tables(&self, tables: [Tensor; 2]) -> Rope {
        let [cos_TR, sin_TR] = tables.map(|table| table.contiguous());
        Rope { cos_TR, sin_TR, layout: self.layout, queries_T11: None }
    }

    /// Returns the tables for the fused operator behind a norm, where it takes them.
    pub(super) fn turn(&self) -> Option<Turn<'_>> {
        let fits = self.layout == RopeLayout::HalfSplit && is_table(&self.cos_TR);
        fits.then_some(Turn { cos: &self.cos_TR, sin: &self.sin_TR, neighbors: false })
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::Rope;
    use crate::nn::{RopeAxes, RopeConfig, RopeLayout};

    #[test]
    fn equal_positions_on_three_axes_are_plain_positions() {
        let positions = Tensor::from_slice(&[0i64, 1, 7, 300]);
        let three = positions.unsqueeze(0).expand([3, 4], false);
        let config = RopeConfig::plain(24, 1e6);
        let plain = Rope::new(&config, &positions, Kind::Float);
        for axes in [RopeAxes::interleaved(12, [4, 4]), RopeAxes::contiguous(&[6, 3, 3])] {
            let rope = Rope::new(&RopeConfig { axes, ..config.clone() }, &three, Kind::Float);
            assert_eq!((&plain.cos_TR, &plain.sin_TR), (&rope.cos_TR, &rope.sin_TR));
        }
    }

    #[test]
    fn scores_depend_on_distance_only() {
        for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
            let config = RopeConfig { layout, ..RopeConfig::plain(8, 100.0) };
            let rope = |at: i64| Rope::new(&config, &Tensor::from_slice(&[at, at + 3]), Kind::Float);
            let x = Tensor::arange(16, (Kind::Float, Device::Cpu)).view([2, 1, 8]) / 16.0;
            let score = |at: i64| {
                let turned = rope(at).apply(&x);
                (turned.get(0) * turned.get(1)).sum(Kind::Float).double_value(&[])
            };
            assert!((score(0) - score(50)).abs() < 1e-4 && (score(0) - 1.0).abs() > 1e-2);
        }
    }

    #[test]
    fn what_was_turned_is_turned_back() {
        let x = Tensor::arange(24, (Kind::Float, Device::Cpu)).view([2, 2, 6]) / 24.0;
        for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
            let config = RopeConfig { layout, ..RopeConfig::plain(4, 100.0) };
            let rope = Rope::new(&config, &Tensor::from_slice(&[3i64, 11]), Kind::Float);
            let back = rope.apply_back(&rope.apply(&x));
            assert!(back.allclose(&x, 1e-5, 1e-6, false), "{layout:?}: {back:?}");
        }
    }

    /// Channels 2i and 2i + 1 as a complex number, and the channels past R untouched; fused and by plain operators.
    #[test]
    fn a_pair_is_turned_by_its_angle() {
        let turned =
            |a: f64, b: f64, angle: f64| [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()];
        let neighbors = (turned(1.0, 2.0, 2.0), turned(3.0, 4.0, 0.2));
        let halves = (turned(1.0, 3.0, 2.0), turned(2.0, 4.0, 0.2));
        for kind in [Kind::Float, Kind::Double] {
            let x = Tensor::from_slice(&[1f64, 2.0, 3.0, 4.0, 5.0, 6.0]).view([1, 1, 6]).to_kind(kind);
            for (layout, ([a, b], [c, d])) in [(RopeLayout::Interleaved, neighbors), (RopeLayout::HalfSplit, halves)] {
                let config = RopeConfig { layout, ..RopeConfig::plain(4, 100.0) };
                let found = Rope::new(&config, &Tensor::from_slice(&[2i64]), kind).apply(&x);
                let expected = Tensor::from_slice(&[a, c, b, d, 5.0, 6.0]).view([1, 1, 6]).to_kind(kind);
                assert!(found.allclose(&expected, 1e-5, 1e-6, false), "{layout:?} {kind:?}");
            }
        }
    }
}
