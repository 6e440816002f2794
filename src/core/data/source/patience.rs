//! Reads again what could not be read for a moment: a sample would be bad for it, and with a block that could not be opened, or of
//! which a part is missing, all of its samples until it is opened the next time.

use rustix::io::Errno;
use std::thread::sleep;
use std::time::Duration;

/// The pauses before each further try.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(2)];
/// The system reports these errors where the cause may pass: too many open files, too little memory, a disk or a server that does not
/// answer.
const MAY_PASS: [Errno; 7] =
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::AGAIN];

/// Begins the reason why a store does not give an object, or a part of it.
pub(super) const OF_STORE: &str = "cannot be read over the network";

/// Calls `read` until it succeeds or fails for good. `lost` tells why a part is missing of what was read: after the last try that is
/// returned as it is.
///
/// # Errors
/// Returns the reason why the last try failed.
pub(super) fn patiently<T>(
    mut read: impl FnMut() -> Result<T, String>,
    lost: impl Fn(&T) -> Option<&str>,
) -> Result<T, String> {
    for pause in PAUSES {
        let found = read();
        let reason = match &found {
            Ok(found) => lost(found),
            Err(reason) => Some(reason.as_str()),
        };
        if !reason.is_some_and(may_pass) {
            return found;
        }
        sleep(pause);
    }
    read()
}

/// Returns whether the system or a store, and not what a file holds, is the reason why it cannot be read.
pub(super) fn is_of_system(reason: &str) -> bool {
    reason.contains("(os error ") || reason.contains(OF_STORE)
}

/// Returns whether it is an error of the system that may pass: it is named with its number, whatever it has gone through.
fn may_pass(reason: &str) -> bool {
    MAY_PASS.iter().any(|errno| reason.contains(&format!("(os error {})", errno.raw_os_error())))
}

#[cfg(test)]
mod tests {
    use super::super::archive::Archive;
    use super::super::archive::tests::tar;
    use super::super::arrow::Batches;
    use super::super::blob::Blob;
    use super::super::block::Block;
    use super::*;
    use std::io::Error;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn what_may_pass_is_tried_again_and_nothing_else() {
        let tries = |errno: Errno| {
            let mut num_tries = 0;
            let read = || {
                num_tries += 1;
                let error = Error::from_raw_os_error(errno.raw_os_error());
                if num_tries < 3 { Err(format!("cannot be opened: {error}")) } else { Ok(()) }
            };
            let opened = patiently(read, |()| None);
            (num_tries, opened.is_ok())
        };
        assert_eq!([Errno::MFILE, Errno::STALE, Errno::NOENT].map(tries), [(3, true), (3, true), (1, false)]);
    }

    /// Bytes from `from` on cannot be read the first `left` times.
    fn faulty(bytes: &[u8], from: usize, left: u32) -> Blob {
        Blob::Faulty { bytes: bytes.into(), from: from as u64, errno: Errno::IO, left: AtomicU32::new(left) }
    }

    #[test]
    fn a_block_of_which_a_part_could_not_be_read_is_opened_again() {
        let archive = tar(&[("a.txt", b"a"), ("b.txt", b"b"), ("c.txt", b"c")]);
        let blob = Arc::new(faulty(&archive, 1024, 2));
        let open = || Archive::open(blob.clone());
        let torn = open().unwrap();
        assert!(torn.len() == 2 && torn.lost().unwrap().contains("os error 5"), "{:?}", torn.lost());
        let whole = patiently(open, |archive| archive.lost()).unwrap();
        assert!(whole.len() == 3 && whole.lost().is_none() && whole.read(2).is_ok());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/peers/stream.arrow");
        let bytes = std::fs::read(path).unwrap();
        // At the end, and within the second batch as well.
        for left in [1, 2] {
            let blob = faulty(&bytes, bytes.len() - 200, left);
            let torn = Batches::open(&blob, 0).unwrap();
            assert!(torn.lost().unwrap().contains("os error 5"), "{:?}", torn.lost());
            let blob = faulty(&bytes, bytes.len() - 200, left);
            let whole = patiently(|| Batches::open(&blob, 0), |batches| batches.lost()).unwrap();
            assert!(whole.len() == 3 && (0..3).all(|row| whole.read(row).is_ok()));
        }
        // What is counted is remembered, also where the error does not pass.
        for errno in [Errno::IO, Errno::ACCESS] {
            let (from, left) = (bytes.len() as u64 - 200, AtomicU32::new(1));
            let counted = Batches::lens(&Blob::Faulty { bytes: bytes.as_slice().into(), from, errno, left });
            assert!(counted.unwrap_err().contains(&format!("(os error {})", errno.raw_os_error())));
        }
    }
}
