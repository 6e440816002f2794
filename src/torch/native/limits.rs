//! Sets how the system acts where a process reaches one of its limits.

/// Lets a write beyond the largest size of a file (`ulimit -f`) fail, as one to a full disk does: by default, the signal that comes with
/// it ends the process without a word. Processes that this one starts inherit it.
pub fn fail_writes_at_file_limit() {
    // SAFETY: No handler is installed: the signal is ignored.
    let _ = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set for the process that writes: the file.
    const FILE: &str = "LOONGFORGE_TEST_FILE";

    /// Writes more than it may; nothing when run as a test.
    #[test]
    fn child_that_writes() {
        if let Some(path) = std::env::var_os(FILE) {
            fail_writes_at_file_limit();
            let error = std::fs::write(path, vec![0u8; 1 << 20]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
        }
    }

    #[test]
    fn a_write_beyond_the_limit_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let script = "ulimit -f 64; exec \"$0\" --exact native::limits::tests::child_that_writes";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(program).env(FILE, folder.path().join("large"));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
    }
}
