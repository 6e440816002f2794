//! The last resort against hostile samples: a decoder, a tokenizer or a template that panics spoils its sample only.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::data::error::DataError;

/// Returns the result of `make`; its panic is an error of the sample. Nothing that `make` may leave half done is used again: a processor
/// is not changed by samples.
pub fn guarded<T>(make: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| {
        Err(DataError::Line(format!(
            "the program failed on it, which is a bug; please report it: {}",
            message(&*panic)
        )))
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_bad_sample() {
        let error = guarded::<()>(|| panic!("index {} out of range", 7)).unwrap_err().to_string();
        assert!(error.contains("index 7 out of range"), "{error}");
        assert_eq!(guarded(|| Ok(3)).unwrap(), 3);
    }
}
