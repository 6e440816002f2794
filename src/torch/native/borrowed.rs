//! Tensors on memory that is somebody else's, which has it back when the tensor is gone or has memory of its own.

use std::ffi::c_void;

use tch::{Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};

/// The alignment at which libtorch allocates tensors: the same computation has the same bits on borrowed memory.
const ALIGN: usize = 64;

/// Returns a tensor of the given `shape` and `kind` on the bytes of `owner`, which is dropped, on any thread, with the last tensor that
/// shares them or in [`own`]. Nobody may write to the tensor in place.
///
/// # Errors
/// Returns the owner, which cannot lend its bytes, where these are empty or do not begin at a multiple of 64.
///
/// # Panics
/// The bytes are not those of a contiguous tensor of this shape and kind.
pub fn borrow<T: AsRef<[u8]> + Send + 'static>(owner: T, shape: &[i64], kind: Kind) -> Result<Tensor, T> {
    let owner = Box::new(owner);
    let bytes = (*owner).as_ref();
    let len = shape.iter().product::<i64>() as usize * kind.elt_size_in_bytes();
    assert_eq!(bytes.len(), len, "bytes of a tensor of shape {shape:?} and {kind:?}");
    if bytes.is_empty() || bytes.as_ptr().addr() % ALIGN != 0 {
        return Err(*owner);
    }
    let data = bytes.as_ptr().cast();
    // SAFETY: the owner does not move and nobody else reaches it until it is dropped, so its bytes stay where they are.
    Ok(unsafe { lend(data, owner, shape, kind) })
}

/// Returns a tensor on the bytes from `data` on, which is dropped with `owner` when its last view is gone.
///
/// # Safety
/// The bytes are `owner`'s, as many as the shape needs, aligned, and stay where they are until it is dropped.
pub(super) unsafe fn lend<T: Send + 'static>(data: *const c_void, owner: Box<T>, shape: &[i64], kind: Kind) -> Tensor {
    let owner = Box::into_raw(owner).cast();
    // SAFETY: the caller vouches for the bytes; `release` gets the owner back once.
    let tensor =
        unsafe { ffi::lf_borrow(data, shape.as_ptr(), shape.len() as i32, scalar_type(kind), owner, release::<T>) };
    assert!(!tensor.is_null(), "a tensor on borrowed memory: {}", last_error());
    // SAFETY: a new handle, which the shim gave away.
    unsafe { Tensor::from_ptr(tensor) }
}

extern "C" fn release<T>(owner: *mut c_void) {
    // SAFETY: from `Box::into_raw` of a `Box<T>` in `borrow`; libtorch calls this once.
    drop(unsafe { Box::from_raw(owner.cast::<T>()) });
}

/// Gives a tensor of any shape whose memory is borrowed its own memory with the same contents, under its views and under graphs that
/// saved them. Returns the number of bytes that were copied: 0 for a tensor that owns its memory.
pub fn own(tensor: &Tensor) -> u64 {
    // SAFETY: the tensor is alive; nobody reads the storage at the same time, since a `Tensor` is not `Sync`.
    let bytes = unsafe { ffi::lf_own(raw(tensor)) };
    u64::try_from(bytes).unwrap_or_else(|_| panic!("memory of a borrowed tensor: {}", last_error()))
}

/// Returns the number by which libtorch knows a kind.
fn scalar_type(kind: Kind) -> i8 {
    match kind {
        Kind::Uint8 => 0,
        Kind::Int64 => 4,
        Kind::Float => 6,
        Kind::BFloat16 => 15,
        other => panic!("nobody lends tensors of {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::native::grad;

    #[repr(align(64))]
    struct Values([u8; 16]);

    /// Counts how often its values were given back.
    struct Lender(Box<Values>, usize, Arc<AtomicUsize>);

    impl AsRef<[u8]> for Lender {
        fn as_ref(&self) -> &[u8] {
            &self.0.0[self.1..]
        }
    }

    impl Drop for Lender {
        fn drop(&mut self) {
            self.2.fetch_add(1, SeqCst);
        }
    }

    fn lender(skip: usize) -> (Lender, Arc<AtomicUsize>) {
        let returned = Arc::new(AtomicUsize::new(0));
        let mut values = Values([0; 16]);
        for (bytes, value) in values.0.chunks_mut(4).zip([1f32, 2.0, 3.0, 4.0]) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
        (Lender(Box::new(values), skip, returned.clone()), returned)
    }

    #[test]
    fn memory_comes_back_with_the_last_view() {
        let (lender, returned) = lender(0);
        let tensor = borrow(lender, &[2, 2], Kind::Float).ok().unwrap();
        let view = tensor.get(1);
        drop(tensor);
        assert_eq!(returned.load(SeqCst), 0);
        assert_eq!(Vec::<f32>::try_from(&view).unwrap(), [3.0, 4.0]);
        drop(view);
        assert_eq!(returned.load(SeqCst), 1);
        let (lender, returned) = self::lender(4);
        assert!(borrow(lender, &[3], Kind::Float).is_err(), "not aligned");
        assert_eq!(returned.load(SeqCst), 1);
    }

    #[test]
    fn a_graph_reads_what_has_become_its_own() {
        let (lender, returned) = lender(0);
        let x = borrow(lender, &[2, 2], Kind::Float).ok().unwrap();
        let w = Tensor::from_slice(&[1f32, 1.0]).set_requires_grad(true);
        let y = x.matmul(&w);
        assert_eq!(own(&x), 16);
        assert_eq!((returned.load(SeqCst), own(&x), own(&x.get(0))), (1, 0, 0));
        let found = grad(&[&y], &[&Tensor::from_slice(&[1f32, 10.0])], &[&w]).unwrap().remove(0).unwrap();
        assert_eq!(Vec::<f32>::try_from(found).unwrap(), [31.0, 42.0]);
    }
}
