//! Sums of all values up to each, in a fixed order on every device.

use tch::{Device, Tensor};

/// Values of a block.
const BLOCK: i64 = 256;

/// Returns the sum of each value and those before it along the last dimension, `[…, N]` to `[…, N]`. libtorch's `cumsum` of real numbers
/// on a GPU adds in an order that is not fixed, and fails where operators are to be deterministic. On a GPU a value that is not finite
/// makes the sums of its block NaN.
pub fn prefix_sums(x: &Tensor) -> Tensor {
    if x.device() == Device::Cpu { x.cumsum(-1, None) } else { by_products(x) }
}

/// Computes prefix sums as products with a triangle of ones, within blocks and then over them.
fn by_products(x: &Tensor) -> Tensor {
    let len = x.size().last().copied().expect("a dimension");
    let within = |x: &Tensor, len: i64| x.matmul(&Tensor::ones([len, len], (x.kind(), x.device())).triu(0));
    if len <= BLOCK {
        return within(x, len);
    }
    let missing = (BLOCK - len % BLOCK) % BLOCK;
    let sums = within(&x.constant_pad_nd([0, missing]).unflatten(-1, [-1, BLOCK]), BLOCK);
    let of_blocks = sums.select(-1, BLOCK - 1);
    let before = by_products(&of_blocks) - of_blocks;
    (sums + before.unsqueeze(-1)).flatten(-2, -1).narrow(-1, 0, len)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{BLOCK, by_products};

    #[test]
    fn products_and_libtorch_find_the_same_sums() {
        for len in [1, 64, BLOCK, BLOCK + 1, 3 * BLOCK, 1000] {
            let x = Tensor::randn([2, 3, len], (Kind::Double, Device::Cpu));
            assert!(by_products(&x).allclose(&x.cumsum(-1, None), 1e-12, 1e-12, false), "{len}");
        }
        let all = Tensor::ones([BLOCK * BLOCK + 1], (Kind::Double, Device::Cpu));
        assert_eq!(by_products(&all).double_value(&[BLOCK * BLOCK]), (BLOCK * BLOCK + 1) as f64);
    }
}
