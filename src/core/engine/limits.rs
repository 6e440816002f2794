//! Limits of this process (`ulimit`), which errors of the system do not name.

use crate::observe::bytes;
use rustix::process::{Resource, getrlimit};

/// Says how much memory this process may map, if that is limited: beyond it, libraries abort the process.
pub fn memory_limit() -> Option<String> {
    getrlimit(Resource::As).current.map(said_of_memory)
}

/// Says which limit of this process an error comes from whose text is `text`, if it reads like one.
pub(super) fn limit_reached(text: &str) -> Option<String> {
    named(text, [Resource::Fsize, Resource::As].map(|resource| getrlimit(resource).current))
}

/// Works like [`limit_reached`] with the largest size of a file and of memory.
fn named(text: &str, [file, memory]: [Option<u64>; 2]) -> Option<String> {
    let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let of_file = file.filter(|_| says(&["File too large (os error 27)"]));
    let of_memory = memory.filter(|_| says(&["(os error 12)", "allocate memory", "memory allocation failed"]));
    let said = |limit| format!("may write files of at most {} (`ulimit -f`)", bytes(limit));
    let limit = of_file.map(said).or_else(|| of_memory.map(said_of_memory))?;
    Some(format!("this process {limit}"))
}

fn said_of_memory(limit: u64) -> String {
    format!("may map at most {} of memory (`ulimit -v`)", bytes(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_limit_that_an_error_comes_from_is_named() {
        let full = io::Error::from_raw_os_error(27).to_string();
        let memory =
            "can't allocate memory: you tried to allocate 8000000 bytes. Error code 12 (Cannot allocate memory)";
        let limits = [Some(32_000), Some(1_500_000_000)];
        assert_eq!(named(&full, limits).unwrap(), "this process may write files of at most 32.0 kB (`ulimit -f`)");
        let said = "this process may map at most 1.50 GB of memory (`ulimit -v`)";
        assert_eq!(named(memory, limits).unwrap(), said);
        assert_eq!(named(&io::Error::from_raw_os_error(12).to_string(), limits).unwrap(), said);
        // Without a limit it has another cause.
        assert_eq!((named(&full, [None; 2]), named(memory, [None; 2])), (None, None));
        assert_eq!(named("No such file or directory (os error 2)", limits), None);
    }
}
