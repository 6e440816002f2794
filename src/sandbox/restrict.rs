//! The restrictions that a decode worker puts on itself before it reads the first byte: it can only compute, and speak with the process
//! that started it.

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};
use std::io;
use std::os::fd::RawFd;

/// Memory that decoding may take, beyond what the program itself maps.
pub const MAX_MEMORY: u64 = 1 << 30;

/// Restricts this process for good; `stream` is the file descriptor that it goes on reading and writing. Returns what this
/// system cannot do.
///
/// # Errors
/// A limit that every Linux has cannot be set: nothing is to be decoded here.
pub fn restrict(stream: RawFd) -> io::Result<Vec<String>> {
    let mut missing = Vec::new();
    let memory = mapped()? + MAX_MEMORY;
    set_no_new_privs(true)?;
    match landlock() {
        Ok(RulesetStatus::NotEnforced) => missing.push("Landlock".to_owned()),
        Ok(_) => {}
        Err(error) => missing.push(format!("Landlock ({error})")),
    }
    for (resource, limit) in [(Resource::As, memory), (Resource::Nofile, 0), (Resource::Fsize, 0), (Resource::Core, 0)]
    {
        // Whoever started the program may have set a lower one.
        let limit = Some(getrlimit(resource).maximum.map_or(limit, |hard| hard.min(limit)));
        setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
    }
    if let Err(error) = seccomp(stream) {
        missing.push(format!("seccomp ({error})"));
    }
    Ok(missing)
}

/// Bytes that this process maps: libraries, most of them.
fn mapped() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB")?.parse().ok());
    size.map(|kibibytes: u64| kibibytes << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmSize"))
}

/// Forbids files, ports and signals to others.
fn landlock() -> Result<RulesetStatus, landlock::RulesetError> {
    let abi = ABI::V7;
    let rules = Ruleset::default().handle_access(AccessFs::from_all(abi))?.handle_access(AccessNet::from_all(abi))?;
    Ok(rules.scope(Scope::from_all(abi))?.create()?.restrict_self()?.ruleset)
}

/// Allows the system calls that computing takes, and reading and writing of `stream` alone; others fail with EPERM.
fn seccomp(stream: RawFd) -> Result<(), Box<dyn std::error::Error>> {
    const FREE: [i64; 19] = [
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_gettid,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_sigaltstack,
    ];
    let is = |argument: u8, value: u64| {
        SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?])
    };
    // Memory that is not to be run, and no file's.
    let is_data =
        || SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    let is_no_file = SeccompCondition::new(4, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(u32::MAX))?;
    let stream = stream as u64;
    let stderr = libc::STDERR_FILENO as u64;
    let mut rules: std::collections::BTreeMap<i64, Vec<SeccompRule>> =
        FREE.into_iter().map(|call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_read, vec![is(0, stream)?]);
    rules.insert(libc::SYS_write, vec![is(0, stream)?, is(0, stderr)?]);
    rules.insert(libc::SYS_mmap, vec![SeccompRule::new(vec![is_data()?, is_no_file])?]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![is_data()?])?]);
    // As `abort` does to itself.
    rules.insert(libc::SYS_tgkill, vec![is(0, u64::from(std::process::id()))?]);
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow, arch)?;
    apply_filter_all_threads(&BpfProgram::try_from(filter)?)?;
    Ok(())
}
