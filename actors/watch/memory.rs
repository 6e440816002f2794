//! Memory used by a run on this host, as counted by the kernel.

use std::fs;

/// Processes that are looked at: a run's decoders are its children, and theirs.
const MAX_PROCESSES: usize = 4096;

/// Returns the resident bytes of this process and all of its descendants; shared pages count for each. `None` if the kernel does
/// not say.
pub fn resident_bytes() -> Option<u64> {
    let page = rustix::param::page_size() as u64;
    let mut processes = vec![std::process::id()];
    let mut at = 0;
    let mut total = resident_pages(processes[0])?;
    while let Some(&process) = processes.get(at) {
        let room = MAX_PROCESSES.saturating_sub(processes.len());
        let children: Vec<u32> = children(process).take(room).collect();
        // A child that ended meanwhile has none.
        total += children.iter().filter_map(|&child| resident_pages(child)).sum::<u64>();
        processes.extend(children);
        at += 1;
    }
    Some(total * page)
}

fn resident_pages(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn children(process: u32) -> impl Iterator<Item = u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn memory_is_that_of_this_process_and_of_its_children() {
        let alone = resident_pages(std::process::id()).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(resident_bytes().unwrap() > 0 && alone > 0);
        assert!(children(std::process::id()).any(|id| id == child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
