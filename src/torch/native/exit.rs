//! The end of a process whose threads may be computing.

use std::io::Write;

/// Ends this process at once, without the handlers that `std::process::exit` runs before it, in which a thread that computes meanwhile
/// may panic or crash. (Libtorch's own do not run in either case: see `shim.cpp`.)
pub fn exit_at_once(code: u8) -> ! {
    let _ = std::io::stdout().flush();
    // SAFETY: It returns to nobody, and takes a number.
    unsafe { libc::_exit(code.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::mpsc::sync_channel;
    use tch::{Device, Kind, Tensor};

    /// Set for the process that ends.
    const ENDS: &str = "LOONGFORGE_TEST_ENDS";

    /// Ends while two threads compute; nothing when run as a test.
    #[test]
    fn child_that_ends() {
        if std::env::var_os(ENDS).is_none() {
            return;
        }
        let (begun, both) = sync_channel(1);
        for _ in 0..2 {
            let begun = begun.clone();
            std::thread::spawn(move || {
                loop {
                    let _ = Tensor::zeros([64], (Kind::Float, Device::Cpu)) + 1;
                    let _ = begun.try_send(());
                }
            });
        }
        both.iter().take(100).for_each(drop);
        match std::env::var(ENDS).as_deref() {
            Ok("at once") => exit_at_once(3),
            _ => std::process::exit(3),
        }
    }

    #[test]
    fn threads_that_compute_disturb_no_end() {
        for how in ["at once", "as usual"].repeat(5) {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "native::exit::tests::child_that_ends", "--nocapture"]).env(ENDS, how);
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(3) && !text.contains("panicked"), "{how}: {}: {text}", output.status);
        }
    }
}
