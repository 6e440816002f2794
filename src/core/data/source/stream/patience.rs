//! Opens again what could not be opened for a moment: all samples of a block would be bad until it is opened the next time.

use rustix::io::Errno;
use std::thread::sleep;
use std::time::Duration;

/// How long to wait before each further try.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(2)];
/// The system reports these errors where the cause may pass: too many open files, too little memory, a disk or a server that does not
/// answer.
const MAY_PASS: [Errno; 7] =
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::AGAIN];

/// Calls `open` until it succeeds or fails for good.
///
/// # Errors
/// Why the last try failed.
pub(super) fn patiently<T>(mut open: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    for pause in PAUSES {
        match open() {
            Err(reason) if may_pass(&reason) => sleep(pause),
            opened => return opened,
        }
    }
    open()
}

/// Returns whether it is an error of the system that may pass: it is named with its number, whatever it has gone through.
fn may_pass(reason: &str) -> bool {
    MAY_PASS.iter().any(|errno| reason.contains(&format!("(os error {})", errno.raw_os_error())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[test]
    fn what_may_pass_is_tried_again_and_nothing_else() {
        let tries = |errno: Errno| {
            let mut num_tries = 0;
            let opened = patiently(|| {
                num_tries += 1;
                let error = Error::from_raw_os_error(errno.raw_os_error());
                if num_tries < 3 { Err(format!("cannot be opened: {error}")) } else { Ok(()) }
            });
            (num_tries, opened.is_ok())
        };
        assert_eq!([Errno::MFILE, Errno::STALE, Errno::NOENT].map(tries), [(3, true), (3, true), (1, false)]);
    }
}
