//! `loongforge doctor`: checks what a run needs on this machine, with advice.

use super::doctor_gpus;
use super::finding::{Finding, Verdict};
use super::serve::PORT;
use crate::estimate::memory::system_bytes;
use clap::Args;
use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use loongforge_core::config::Device;
use loongforge_core::observe::bytes;
use loongforge_core::robot::wire::Protocol;
use loongforge_torch::device::{gpus, library_folder, settle, stack};
use loongforge_torch::native::faster_products;
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge doctor            one line per requirement of a run; exit code 1 if one fails
  loongforge doctor --json     the same as JSON
`loongforge check CONFIG` checks what a config needs beyond that.";

/// Open files below which a run of some hundred shards and peers ends.
const FILES: u64 = 4096;
/// Shared memory below which edges between processes have little room.
const SHARED: u64 = 1 << 30;
/// Room on disk below which a checkpoint of a small model may not fit.
const DISK: u64 = 10 << 30;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `loongforge doctor`: prints one line per requirement of a run; the exit code is 1 if one fails.
pub fn doctor(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let findings = look();
    if args.json {
        let row = |it: &Finding| {
            let verdict = it.verdict.word();
            json!({"what": it.what, "verdict": verdict, "found": it.found, "advice": it.advice})
        };
        println!("{:#}", findings.iter().map(row).collect::<serde_json::Value>());
    } else {
        for Finding { what, verdict, found, advice } in &findings {
            println!("{:<4}  {what:<14}  {found}", verdict.word());
            if *verdict != Verdict::Good {
                println!("{:22}{advice}", "");
            }
        }
    }
    let fails = findings.iter().any(|finding| finding.verdict == Verdict::Failure);
    Ok(ExitCode::from(if fails { super::exit::FAILED } else { 0 }))
}

fn look() -> Vec<Finding> {
    // Whether CUDA is there must be asked before anything else of libtorch.
    let (device, said) = settle(Device::Auto);
    let said = said.trim_start_matches("device: ").to_owned();
    let gpus = match device {
        Device::Cuda(_) => doctor_gpus::of(&stack(), &gpus()),
        _ => Vec::new(),
    };
    let device = match (device, said.contains("no GPU was found")) {
        (Device::Cpu, false) => Finding::expect("device", false, said, "runs use the CPU until this is fixed"),
        _ => Finding::good("device", said),
    };
    let folder = library_folder().map_or_else(|| "not found".to_owned(), |folder| folder.display().to_string());
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let mut findings = vec![
        Finding::good("loongforge", env!("CARGO_PKG_VERSION")),
        Finding::good("libtorch", format!("2.11.0 in {folder}")),
        device,
        processor(),
        memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()),
        open_files(getrlimit(Resource::Nofile).current),
        shared_memory(Path::new("/dev/shm")),
        disk("disk here", &here),
        disk("temporary disk", &std::env::temp_dir()),
        Finding::good("tokenizers", "tokenizer.json, and tokenizer.model of SentencePiece, both built in"),
        hub(),
        sandbox(has_landlock(), Path::new("/proc/sys/kernel/seccomp").exists()),
    ];
    findings.splice(3..3, gpus);
    findings.push(match TcpListener::bind(("127.0.0.1", 0)) {
        Ok(_) => Finding::good("network", "loopback ports can be opened"),
        Err(error) => Finding {
            what: "network",
            verdict: Verdict::Failure,
            found: format!("no port of 127.0.0.1 can be opened: {error}"),
            advice: "the web page of a run and the processes of a job need one",
        },
    });
    let servers = [(PORT, "serve and serve-policy"), (Protocol::LoongForge.port(), "serve-policy for loongforge")];
    findings.push(ports(&servers));
    findings
}

/// Looks at the ports of servers that were not given another one.
fn ports(of_servers: &[(u16, &str)]) -> Finding {
    let taken = of_servers.iter().filter_map(|(port, server)| {
        let error = TcpListener::bind(("127.0.0.1", *port)).err()?;
        Some(format!("{port} of {server}: {error}"))
    });
    let taken: Vec<String> = taken.collect();
    if taken.is_empty() {
        let free: Vec<String> = of_servers.iter().map(|(port, server)| format!("{port} of {server}")).collect();
        return Finding::good("ports", format!("free: {}", free.join(", ")));
    }
    let advice = "end the program that listens there (ss -ltnp names it), or give the server another port with --port";
    Finding::expect("ports", false, taken.join(", "), advice)
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Finding::good(
        "processor",
        format!("{cores} cores; run.products=auto is {}", json!(faster_products()).as_str().unwrap_or("?")),
    )
}

/// Finds how much memory there is, and how much is available, from `/proc/meminfo`.
fn memory(info: &str) -> Finding {
    let [total, free] = ["MemTotal", "MemAvailable"].map(|name| system_bytes(info, name).unwrap_or(0));
    let found = format!("{} of {} are available", bytes(free), bytes(total));
    Finding::expect("memory", free >= 4 << 30, found, "stop other programs, or see docs/memory.md for what to set")
}

fn open_files(limit: Option<u64>) -> Finding {
    let found = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {limit} at once"));
    Finding::expect("open files", limit.is_none_or(|limit| limit >= FILES), found, "raise it: ulimit -n 65536")
}

fn shared_memory(path: &Path) -> Finding {
    match statvfs(path) {
        Ok(stat) => {
            let free = stat.f_bavail * stat.f_frsize;
            let found = format!("{} are free in {}", bytes(free), path.display());
            let advice =
                "checkpoint.snapshot_every and NCCL keep data there: use docker run --shm-size 8g, or a memory volume";
            Finding::expect("shared memory", free >= SHARED, found, advice)
        }
        Err(error) => {
            let found = format!("{}: {error}", path.display());
            Finding::expect("shared memory", false, found, "checkpoint.snapshot_every and NCCL need it")
        }
    }
}

fn disk(what: &'static str, path: &Path) -> Finding {
    match statvfs(path) {
        Ok(stat) => {
            let free = stat.f_bavail * stat.f_frsize;
            let found = format!("{} are free in {}", bytes(free), path.display());
            Finding::expect(
                what,
                free >= DISK,
                found,
                "checkpoints take 16 bytes per trained parameter and 2 to 4 per frozen one",
            )
        }
        Err(error) => Finding::expect(what, false, format!("{}: {error}", path.display()), "name another folder"),
    }
}

fn hub() -> Finding {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let token =
        if is_set("HF_TOKEN") { "HF_TOKEN is set" } else { "HF_TOKEN is not set: gated models cannot be fetched" };
    let offline = if is_set("HF_HUB_OFFLINE") { "; HF_HUB_OFFLINE forbids the network" } else { "" };
    Finding::good("hub", format!("{token}{offline}"))
}

/// Returns whether the kernel would keep a process from files: a set of rules is made, and not applied.
fn has_landlock() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.handle_access(AccessFs::from_all(ABI::V1)).and_then(|rules| rules.create()).is_ok()
}

fn sandbox(has_landlock: bool, has_seccomp: bool) -> Finding {
    let found = match (has_landlock, has_seccomp) {
        (true, true) => "landlock and seccomp",
        (false, true) => "seccomp, no landlock",
        (true, false) => "landlock, no seccomp",
        (false, false) => "neither landlock nor seccomp",
    };
    let advice = "the processes that decode untrusted files are less isolated (docs/security.md)";
    Finding::expect("sandbox", has_landlock && has_seccomp, found.to_owned(), advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_little_comes_with_advice() {
        assert_eq!(open_files(Some(FILES)).verdict, Verdict::Good);
        let few = open_files(Some(1024));
        assert!(few.verdict == Verdict::Warning && few.found.contains("1024") && few.advice.contains("ulimit"));
        assert_eq!(open_files(None).verdict, Verdict::Good);
        let full = memory("MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    1000000 kB\n");
        assert!(full.verdict == Verdict::Warning && full.found.contains("of"), "{}", full.found);
        assert_eq!(memory("MemTotal: 16000000 kB\nMemAvailable: 15000000 kB\n").verdict, Verdict::Good);
        assert_eq!((sandbox(true, true).verdict, sandbox(false, true).verdict), (Verdict::Good, Verdict::Warning));
        assert_eq!(shared_memory(Path::new("/no/such/folder")).verdict, Verdict::Warning);
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let taken = ports(&[(0, "any"), (port, "serve")]);
        assert!(taken.verdict == Verdict::Warning && taken.advice.contains("--port"), "{taken:?}");
        assert!(taken.found.starts_with(&format!("{port} of serve: ")), "{}", taken.found);
        assert_eq!(ports(&[(0, "any")]).verdict, Verdict::Good);
    }

    #[test]
    fn a_machine_that_runs_tests_can_run() {
        let findings = look();
        assert!(findings.iter().all(|finding| finding.verdict != Verdict::Failure), "{findings:?}");
        assert!(
            findings.iter().all(|it| !it.found.is_empty() && (it.verdict == Verdict::Good) == it.advice.is_empty())
        );
    }
}
