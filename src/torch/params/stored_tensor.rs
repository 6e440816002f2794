//! Describes how a parameter is stored in a Hugging Face checkpoint when it is not one tensor of the same shape.

use tch::Tensor;

/// A tensor of the checkpoint, and the part of the parameter that it holds: experts of a stacked weight, one of several
/// projections that are computed as one, a transposed matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// The name in the checkpoint.
    pub name: String,
    /// The shape in the checkpoint.
    pub shape: Vec<i64>,
    /// The part of the parameter at this index of its first dimension.
    pub index: Option<i64>,
    /// The rows of that part, start and length along its first dimension.
    pub rows: Option<(i64, i64)>,
    /// True if the checkpoint has the last two dimensions the other way round.
    pub transposed: bool,
    /// True if the checkpoint repeats what another of the parameter's pieces holds: it is written, and never read.
    pub repeats: bool,
    /// True if its values are whole numbers, which the checkpoint has as such (int64).
    pub is_integer: bool,
}

impl StoredTensor {
    /// Returns the parameter itself.
    pub fn whole(name: &str, shape: &[i64]) -> StoredTensor {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        StoredTensor { name, shape, index: None, rows: None, transposed: false, repeats: false, is_integer: false }
    }

    /// Returns the parameter itself once more.
    pub fn repeated(name: &str, shape: &[i64]) -> StoredTensor {
        StoredTensor { repeats: true, ..StoredTensor::whole(name, shape) }
    }

    /// Returns the part of `param` (or of a tensor of its shape, such as its gradient) that the checkpoint's tensor holds: a view, in the
    /// checkpoint's shape `[…]`. Panics where the piece is not of this parameter.
    pub fn view(&self, param: &Tensor) -> Tensor {
        let mut view = param.shallow_clone();
        if let Some(index) = self.index {
            view = view.get(index);
        }
        if let Some((start, len)) = self.rows {
            view = view.narrow(0, start, len);
        }
        if self.transposed {
            view = view.transpose(-1, -2);
        }
        assert_eq!(view.size(), self.shape, "piece {}", self.name);
        view
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::StoredTensor;

    #[test]
    fn pieces_are_views_in_the_files_shape() {
        let param = Tensor::zeros([2, 6, 3], (Kind::Float, Device::Cpu));
        let piece = |index, rows, transposed, shape: &[i64]| StoredTensor {
            index,
            rows,
            transposed,
            ..StoredTensor::whole("x", shape)
        };
        let _ = piece(Some(1), Some((4, 2)), true, &[3, 2]).view(&param).fill_(1.0);
        let filled = param.sum_dim_intlist([2i64].as_slice(), false, Kind::Float);
        assert_eq!(
            Vec::<f32>::try_from(filled.flatten(0, -1)).unwrap(),
            [0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 3., 3.]
        );
        assert_eq!(StoredTensor::whole("x", &[2, 6, 3]).view(&param), param);
        assert_eq!(piece(None, None, true, &[2, 3, 6]).view(&param).size(), [2, 3, 6]);
    }
}
