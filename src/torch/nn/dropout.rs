//! Dropout whose masks belong to keys: the same keys give the same mask, so that a segment can be computed twice, and no layout
//! of a batch moves a bit of it.
//!
//! Shapes: R rows, D numbers of a row.

use tch::{Kind, Tensor};

use crate::params::kept;

/// The keys of rows.
pub struct Dropout {
    /// `[R, 1]`, int64; `None`: nothing is dropped.
    keys: Option<Tensor>,
}

impl Dropout {
    /// Makes the dropout of rows with these keys, `[R]`, int64; `None`: nothing is dropped.
    pub fn new(keys: Option<Tensor>) -> Dropout {
        Dropout { keys: keys.map(|keys| keys.unsqueeze(1)) }
    }

    /// Returns `x` `[R, D]`: each number 0 with probability `rate`, else over `1 - rate`. `site` tells places of a model apart.
    pub fn forward(&self, x: Tensor, rate: f64, site: u64) -> Tensor {
        match &self.keys {
            Some(keys) if rate > 0.0 => {
                let places = Tensor::arange(x.size()[1], (keys.kind(), keys.device())) + site as i64;
                let kept = kept(&(keys + places), rate);
                let factors = (kept.to_kind(Kind::Float) / (1.0 - rate)).to_kind(x.kind());
                x * factors
            }
            _ => x,
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::Dropout;

    #[test]
    fn masks_belong_to_their_row_and_site() {
        let x = || Tensor::ones([4, 500], (Kind::Float, Device::Cpu));
        let keys = |keys: [i64; 4]| Dropout::new(Some(Tensor::from_slice(&keys)));
        let found = keys([5, 1 << 40, -7, 5]).forward(x(), 0.25, 3);
        assert!((found.mean(Kind::Float).double_value(&[]) - 1.0).abs() < 0.05);
        assert_eq!(found.get(0), found.get(3));
        assert_ne!(found.get(0), found.get(1));
        let other = keys([-7, 5, 9, 9]);
        assert_eq!(other.forward(x(), 0.25, 3).get(0), found.get(2));
        assert_ne!(other.forward(x(), 0.25, 4).get(0), found.get(2));
        assert_eq!(Dropout::new(None).forward(x(), 0.25, 3), x());
    }
}
