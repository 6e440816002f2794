//! The actions that a hostile file could make a decoder take, done on request, so that tests see that they have no effect.

use std::fs::File;
use std::net::UdpSocket;
use std::process::Command;

/// Returns the deed that a file asks for which begins as no picture does: `drill: WORD`. The deed returns what came of it, if it returns.
pub fn of(bytes: &[u8]) -> Option<fn() -> String> {
    let word = std::str::from_utf8(bytes.strip_prefix(b"drill: ")?).ok()?;
    Some(match word {
        "abort" => || std::process::abort(),
        "loop" => || {
            loop {
                std::hint::black_box(0);
            }
        },
        "memory" => || {
            let mut hoard = Vec::new();
            loop {
                hoard.push(std::hint::black_box(Vec::<u8>::with_capacity(64 << 20)));
            }
        },
        "panic" => || panic!("on request"),
        "read a file" => || outcome(File::open("/proc/self/maps")),
        "write a file" => || outcome(File::create("/tmp/loongforge-drill")),
        "socket" => || outcome(UdpSocket::bind("127.0.0.1:0")),
        "program" => || outcome(Command::new("/bin/true").spawn()),
        "thread" => || outcome(std::thread::Builder::new().spawn(|| ())),
        _ => return None,
    })
}

fn outcome<T>(done: std::io::Result<T>) -> String {
    done.map_or_else(|error| error.to_string(), |_| "done".to_owned())
}
