//! Any operator of libtorch by its schema name, for those that tch does not offer.

use std::ffi::{CString, c_void};

use tch::Tensor;

use super::error::{NativeError, last_error};
use super::ffi::{self, RawArg, raw};

/// The most tensors that one operator may return.
const MAX_OUTPUTS: usize = 64;

/// One argument of an operator, in the order of its schema.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    None,
    Tensor(&'a Tensor),
    Int(i64),
    Double(f64),
    Bool(bool),
    Ints(&'a [i64]),
    Tensors(&'a [&'a Tensor]),
}

/// A handle on an operator; finding one costs microseconds, so keep it.
pub struct Op {
    name: String,
    handle: *mut c_void,
}

// SAFETY: the handle is an entry of libtorch's operator table, which lives as long as the process and is thread-safe.
unsafe impl Send for Op {}
// SAFETY: as above.
unsafe impl Sync for Op {}

impl Op {
    /// Finds `name`, for example `aten::_fused_adamw_`, and its overload, empty for the plain one.
    ///
    /// # Errors
    /// libtorch has no such operator.
    pub fn find(name: &str, overload: &str) -> Result<Op, NativeError> {
        let c_name = CString::new(name).map_err(|_| NativeError::Nul { what: "an operator's name" })?;
        let c_overload = CString::new(overload).map_err(|_| NativeError::Nul { what: "an operator's overload" })?;
        // SAFETY: both strings are NUL-terminated and outlive the call.
        let handle = unsafe { ffi::lf_find_op(c_name.as_ptr(), c_overload.as_ptr()) };
        if handle.is_null() {
            return Err(NativeError::UnknownOp { name: name.to_string(), message: last_error() });
        }
        Ok(Op { name: name.to_string(), handle })
    }

    /// Calls the operator; trailing arguments that are left out take the schema's defaults. Returns its tensors in the operator's shapes,
    /// a list flattened; an in-place operator returns the tensors that it changed.
    ///
    /// # Errors
    /// The arguments do not fit the schema, or the operator fails.
    pub fn call(&self, args: &[Arg<'_>]) -> Result<Vec<Tensor>, NativeError> {
        let lists: Vec<Vec<_>> = args
            .iter()
            .map(|arg| if let Arg::Tensors(list) = arg { list.iter().map(|t| raw(t)).collect() } else { Vec::new() })
            .collect();
        let raw_args: Vec<RawArg> = args.iter().zip(&lists).map(|(arg, list)| lower(arg, list)).collect();
        let mut outputs = [std::ptr::null_mut(); MAX_OUTPUTS];
        // SAFETY: the arguments and the lists they point into outlive the call; `outputs` has room for MAX_OUTPUTS.
        let count = unsafe {
            let (args, num_args) = (raw_args.as_ptr(), raw_args.len() as i32);
            ffi::lf_call_op(self.handle, args, num_args, outputs.as_mut_ptr(), MAX_OUTPUTS as i32)
        };
        if count < 0 {
            return Err(NativeError::Op { name: self.name.clone(), message: last_error() });
        }
        // SAFETY: the first `count` pointers are new tensors that nobody else owns.
        Ok(outputs[..count as usize].iter().map(|t| unsafe { Tensor::from_ptr(*t) }).collect())
    }
}

/// Lets operators of GPUs add in a fixed order, so that the same work gives the same bits; those that cannot fail.
pub fn use_deterministic_operators() {
    // SAFETY: it sets two flags of the process.
    unsafe { ffi::lf_deterministic() }
}

fn lower(arg: &Arg<'_>, list: &[*mut torch_sys::C_tensor]) -> RawArg {
    let none = RawArg { tag: 0, integer: 0, real: 0.0, pointer: std::ptr::null() };
    match *arg {
        Arg::None => none,
        Arg::Tensor(tensor) => RawArg { tag: 1, pointer: raw(tensor) as *const c_void, ..none },
        Arg::Int(value) => RawArg { tag: 2, integer: value, ..none },
        Arg::Double(value) => RawArg { tag: 3, real: value, ..none },
        Arg::Bool(value) => RawArg { tag: 4, integer: value.into(), ..none },
        Arg::Ints(values) => RawArg { tag: 5, integer: values.len() as i64, pointer: values.as_ptr().cast(), ..none },
        Arg::Tensors(_) => RawArg { tag: 6, integer: list.len() as i64, pointer: list.as_ptr().cast(), ..none },
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::{Arg, Op};

    #[test]
    fn fused_adamw_changes_its_parameters_in_place() {
        let cpu = (Kind::Float, tch::Device::Cpu);
        let op = Op::find("aten::_fused_adamw_", "").unwrap();
        let (p, g, m, v) =
            (Tensor::ones([4], cpu), Tensor::ones([4], cpu), Tensor::zeros([4], cpu), Tensor::zeros([4], cpu));
        let step = Tensor::from(1f32);
        op.call(&[
            Arg::Tensors(&[&p]),
            Arg::Tensors(&[&g]),
            Arg::Tensors(&[&m]),
            Arg::Tensors(&[&v]),
            Arg::Tensors(&[]),
            Arg::Tensors(&[&step]),
            Arg::Double(0.1),
            Arg::Double(0.9),
            Arg::Double(0.95),
            Arg::Double(0.0),
            Arg::Double(1e-8),
            Arg::Bool(false),
            Arg::Bool(false),
        ])
        .unwrap();
        assert!((p.double_value(&[0]) - 0.9).abs() < 1e-6, "the first step moves by the learning rate");
    }

    #[test]
    fn errors_name_the_operator() {
        assert!(Op::find("aten::no_such_op", "").err().unwrap().to_string().contains("no_such_op"));
        let error = Op::find("aten::relu", "").unwrap().call(&[]).unwrap_err();
        assert!(error.to_string().contains("aten::relu") && error.to_string().contains("self"), "{error}");
    }
}
