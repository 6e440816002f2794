//! The tensors that autograd saves for a backward, as a list from which they can be taken away and put back.

use std::ffi::c_void;
use std::marker::PhantomData;

use tch::Tensor;

use super::error::last_error;
use super::ffi::{self, raw};

/// The tensors that graphs which were made under one [`SavedTensors::of`] have saved. A graph whose tensors were taken away can run its
/// backward once they are back, with the same values in the same shapes.
pub struct SavedTensors {
    list: *mut c_void,
    not_send: PhantomData<*const ()>,
}

/// Closes the open list even where a body panics.
struct Open;

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: it drops a thread-local handle.
        unsafe { ffi::lf_saved_close() }
    }
}

impl SavedTensors {
    /// Runs `body`; what operations save in it on this thread goes to the list, without graphs of its own. Calls do not
    /// nest.
    pub fn of<T>(body: impl FnOnce() -> T) -> (T, SavedTensors) {
        // SAFETY: no arguments; null where a list is open, which is a bug of the caller.
        let list = unsafe { ffi::lf_saved_open() };
        assert!(!list.is_null(), "{}", last_error());
        let saved = SavedTensors { list, not_send: PhantomData };
        let open = Open;
        let result = body();
        drop(open);
        (result, saved)
    }

    /// Returns the number of saved tensors.
    pub fn len(&self) -> usize {
        // SAFETY: the list is alive until drop.
        unsafe { ffi::lf_saved_len(self.list) as usize }
    }

    /// Returns whether nothing was saved.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the saved tensor of this number, of any shape; `None` where it was taken away. Panics past the end.
    pub fn get(&self, index: usize) -> Option<Tensor> {
        assert!(index < self.len(), "saved tensor {index} of {}", self.len());
        // SAFETY: the list is alive and the index within it; the handle is new and nobody else's.
        unsafe {
            let tensor = ffi::lf_saved_get(self.list, index as i64);
            (!tensor.is_null()).then(|| Tensor::from_ptr(tensor))
        }
    }

    /// Puts a tensor in the place of the saved one of this number, or with `None` takes that one away. Panics past the end. Both may have
    /// any shape.
    pub fn set(&mut self, index: usize, tensor: Option<&Tensor>) {
        assert!(index < self.len(), "saved tensor {index} of {}", self.len());
        // SAFETY: the list is alive and the index within it; the handle is copied.
        unsafe { ffi::lf_saved_set(self.list, index as i64, tensor.map_or(std::ptr::null_mut(), raw)) }
    }
}

impl Drop for SavedTensors {
    fn drop(&mut self) {
        // SAFETY: freed once; graphs hold the list itself by counts of their own.
        unsafe { ffi::lf_saved_free(self.list) }
    }
}

/// The memory that a tensor lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    pub address: i64,
    /// The size of the whole memory, whatever part of it the tensor shows.
    pub bytes: i64,
    /// Tensors that lie in it.
    pub users: i64,
    /// The element of it at which the tensor begins.
    pub offset: i64,
}

/// Returns where `tensor` lies, which may have any shape and must be dense.
pub fn storage(tensor: &Tensor) -> Storage {
    let mut found = Storage { address: 0, bytes: 0, users: 0, offset: 0 };
    let Storage { address, bytes, users, offset } = &mut found;
    // SAFETY: the tensor is alive; the four numbers are written.
    unsafe { ffi::lf_storage(raw(tensor), address, bytes, users, offset) };
    found
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{SavedTensors, storage};
    use crate::native::grad;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    #[test]
    fn a_backward_needs_what_was_taken_away_and_works_when_it_is_back() {
        tch::manual_seed(3);
        let (x, w) = (random(&[4, 6]), random(&[5, 6]));
        let seed = Tensor::randn([4, 5], (Kind::Float, Device::Cpu));
        let run = || x.linear(&w, None::<Tensor>).tanh();
        let expected = grad(&[&run()], &[&seed], &[&x, &w]).unwrap();
        let (y, mut saved) = SavedTensors::of(run);
        assert_eq!(saved.len(), 3);
        let tensors: Vec<Tensor> = (0..3).map(|index| saved.get(index).unwrap()).collect();
        // The output, which tanh saves: it is not a circle of owners.
        assert!(tensors.iter().any(|tensor| tensor == &y.detach()));
        (0..3).for_each(|index| saved.set(index, None));
        let error = grad(&[&run()], &[&seed], &[&x]).and(grad(&[&y], &[&seed], &[&x])).unwrap_err();
        assert!(error.to_string().contains("not on the device"), "{error}");
        let (y, mut saved) = SavedTensors::of(run);
        for index in 0..3 {
            let copy = saved.get(index).unwrap().copy();
            saved.set(index, None);
            saved.set(index, Some(&copy));
        }
        let found = grad(&[&y], &[&seed], &[&x, &w]).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_others_save_is_not_in_the_list() {
        let x = random(&[3]);
        let (_, saved) = SavedTensors::of(|| {
            std::thread::spawn(|| random(&[3]).exp().size()).join().unwrap();
        });
        assert!(saved.is_empty() && x.exp().requires_grad());
    }

    #[test]
    fn storages_tell_who_shares_them() {
        let x = Tensor::zeros([10, 4], (Kind::Float, Device::Cpu));
        let part = x.narrow(0, 2, 3);
        let (all, part) = (storage(&x), storage(&part));
        assert_eq!((all.address, all.bytes, all.users, all.offset), (part.address, 160, 2, 0));
        assert_eq!((part.bytes, part.users, part.offset), (160, 2, 8));
    }
}
