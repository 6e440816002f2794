//! Gradients of inputs for given gradients of outputs.

use tch::{Kind, Tensor};

use super::error::{NativeError, last_error};
use super::ffi::{self, raw};

/// Returns the gradients of `inputs`, each in its shape and kind, when `outputs` have the gradients `grads` (same shapes and kinds), and
/// `None` for an input that does not take part. Frees the graph; touches no `.grad`. Every input must require a gradient.
///
/// # Errors
/// A shape does not fit, or a backward fails.
pub fn grad(outputs: &[&Tensor], grads: &[&Tensor], inputs: &[&Tensor]) -> Result<Vec<Option<Tensor>>, NativeError> {
    let inputs: Vec<_> = inputs.iter().map(|input| (*input, None)).collect();
    grad_into(outputs, grads, &inputs)
}

/// Works like [`grad`], where an input may come with a sum of its gradients, contiguous float32 of its shape: operators that can add to
/// the sum in place do, and the gradient that is returned is the rest, which the caller adds.
///
/// # Errors
/// Fails as [`grad`] does.
pub fn grad_into(
    outputs: &[&Tensor],
    grads: &[&Tensor],
    inputs: &[(&Tensor, Option<&Tensor>)],
) -> Result<Vec<Option<Tensor>>, NativeError> {
    assert_eq!(outputs.len(), grads.len(), "one gradient for each output");
    let is_sum = |x: &Tensor, sum: &Tensor| sum.kind() == Kind::Float && sum.size() == x.size() && sum.is_contiguous();
    assert!(inputs.iter().all(|(x, sum)| sum.is_none_or(|sum| is_sum(x, sum))), "a sum of gradients");
    let y: Vec<_> = outputs.iter().map(|t| raw(t)).collect();
    let dy: Vec<_> = grads.iter().map(|t| raw(t)).collect();
    let x: Vec<_> = inputs.iter().map(|(t, _)| raw(t)).collect();
    let sums: Vec<_> = inputs.iter().map(|(_, sum)| sum.map_or(std::ptr::null_mut(), raw)).collect();
    let mut found = vec![std::ptr::null_mut(); x.len()];
    // SAFETY: the arrays outlive the call and have the stated lengths; the tensors are alive, and sums have the kind,
    // shape and layout that operators write by; `found` has room for one pointer an input.
    let status = unsafe {
        let (num_outputs, num_inputs) = (y.len() as i32, x.len() as i32);
        ffi::lf_grad(y.as_ptr(), dy.as_ptr(), num_outputs, x.as_ptr(), sums.as_ptr(), num_inputs, found.as_mut_ptr())
    };
    if status < 0 {
        return Err(NativeError::Grad { message: last_error() });
    }
    // SAFETY: each pointer is null or a new tensor that nobody else owns.
    Ok(found.into_iter().map(|t| (!t.is_null()).then(|| unsafe { Tensor::from_ptr(t) })).collect())
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::grad;

    #[test]
    fn uses_the_given_gradient_and_leaves_unused_inputs_out() {
        let x = Tensor::from_slice(&[1f32, 2.0, 3.0]).set_requires_grad(true);
        let unused = Tensor::from_slice(&[1f32]).set_requires_grad(true);
        let y = &x * &x;
        let dy = Tensor::from_slice(&[1f32, 10.0, 100.0]);
        let found = grad(&[&y], &[&dy], &[&x, &unused]).unwrap();
        assert_eq!(found[0].as_ref().unwrap(), &Tensor::from_slice(&[2f32, 40.0, 600.0]));
        assert!(found[1].is_none());
    }

    #[test]
    fn a_wrong_shape_is_an_error() {
        let x = Tensor::ones([3], (Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
        let error = grad(&[&(&x * 2.0)], &[&Tensor::from_slice(&[1f32, 2.0])], &[&x]).unwrap_err();
        assert!(error.to_string().contains("shape"), "{error}");
    }
}
