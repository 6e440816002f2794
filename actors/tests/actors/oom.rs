//! An item for which encoders need more memory than their groups have: the system kills two of them, and the item is left out.

use crate::fake::{self, Script, engine, rules, spec};
use crate::must;
use crate::recording_observer::recording_observer;
use crate::test_endpoint::test_endpoint;
use loongforge_actors::{Assignment, EngineFactory, RunSpec, Start, run_in_process, serve_role, serve_scheduler};
use loongforge_core::config::Address;
use loongforge_core::message::*;
use loongforge_core::schedule::*;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

const ROLE: &str = "LOONGFORGE_TEST_ROLE";
const ADDRESS: &str = "LOONGFORGE_TEST_ADDRESS";
static POOLS: LazyLock<PoolSizes> = LazyLock::new(|| PoolSizes::of_roles(2, 3, 1));
const STEPS: u64 = 8;
/// The limit of each encoder; the item needs four times as much.
const LIMIT: u64 = 64 << 20;

/// Returns the third item of the run.
fn item() -> ItemId {
    let good = (0..).filter(|&position| !fake::is_bad(position)).map(|position| fake::sample(position, POOLS.data));
    let sample = good.filter(|sample| !sample.items.is_empty()).nth(2).expect("there is no end of them");
    ItemId { sample: sample.id, index: 0 }
}

fn make(script: Script) -> impl Fn(Assignment) -> EngineFactory {
    move |it| {
        let script = script.clone();
        Box::new(move || Ok(engine(it.me, it.pools.data, &script)))
    }
}

/// Runs the process of one actor; nothing when run as a test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address = PathBuf::from(std::env::var(ADDRESS).unwrap());
    let script = Script { hungry: Some(item()), ..Script::default() };
    let (role, endpoint) = (role.parse::<Role>().unwrap(), test_endpoint(Address::Unix(address.clone())));
    if let Err(error) = serve_role(role, endpoint, make(script)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run_spec(dir: &Path, state: SchedulerState) -> RunSpec {
    fake::run_spec(dir, CoordinatorSpec { encoders: rules(&POOLS, true, true), state, ..spec(&POOLS, STEPS) })
}

/// A group of processes with a limit of its own for each; gone with this.
struct Groups {
    dir: PathBuf,
    limit: &'static str,
    kills: &'static str,
}

impl Groups {
    /// Makes a group of the unified hierarchy, or of the one for memory.
    fn new() -> io::Result<Self> {
        let name = format!("loongforge-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        if root.join("memory/memory.limit_in_bytes").exists() {
            let dir = root.join("memory").join(name);
            fs::create_dir(&dir)?;
            return Ok(Self { dir, limit: "memory.limit_in_bytes", kills: "memory.oom_control" });
        }
        let share = |dir: &Path| fs::write(dir.join("cgroup.subtree_control"), "+memory");
        share(root)?;
        let groups = Self { dir: root.join(name), limit: "memory.max", kills: "memory.events" };
        fs::create_dir(&groups.dir)?;
        share(&groups.dir)?;
        Ok(groups)
    }

    fn group(&self, actor: ActorId) -> PathBuf {
        let dir = self.dir.join(actor.to_string().replace('/', "-"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(self.limit), LIMIT.to_string()).unwrap();
        // Where it can be had: nothing goes to a disk instead.
        let _ = fs::write(dir.join("memory.swap.max"), "0");
        dir
    }

    fn all(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    }

    /// Returns the number of processes that the system has killed in them.
    fn num_killed(&self) -> u64 {
        let count = |dir: PathBuf| {
            let text = fs::read_to_string(dir.join(self.kills)).unwrap();
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse::<u64>().unwrap()
        };
        self.all().into_iter().map(count).sum()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.all().iter().chain([&self.dir]).for_each(|dir| drop(fs::remove_dir(dir)));
    }
}

#[test]
fn an_item_that_takes_all_memory_kills_two_encoders_and_no_third_one() {
    let groups = match Groups::new() {
        Ok(groups) => Arc::new(groups),
        Err(error) => return must::skip("cgroups", format!("no memory groups can be made here: {error}")),
    };
    let dir = tempfile::tempdir().unwrap();
    let of = groups.clone();
    let start: Start = Box::new(move |actor, address| {
        let mut command = Command::new("sh");
        match actor.role {
            Role::Encoder => command.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]).arg(of.group(actor)),
            _ => command.args(["-c", r#"exec "$@""#, "sh"]),
        };
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "oom::child", "--nocapture"]);
        command.env(ROLE, actor.role.name()).env(ADDRESS, address.to_string());
        command
    });
    let (seen, observer) = recording_observer();
    let run = run_spec(dir.path(), SchedulerState::default());
    let result = serve_scheduler(run, test_endpoint(Address::Unix(dir.path().join("join"))), Some(start), observer);
    assert_eq!(result.unwrap(), Outcome::Completed);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let left: Vec<&str> = seen.changes.iter().flat_map(|change| &change.left).map(|(_, why)| why.as_str()).collect();
    assert!(left.len() == 2 && left.iter().all(|why| why.contains("SIGKILL")), "{left:?}");
    assert_eq!(groups.num_killed(), 2);

    // As where it is known from the beginning.
    let known = SchedulerState {
        poison_items: vec![PoisonItem { item: item(), deaths: MAX_CRASHES }],
        ..SchedulerState::default()
    };
    let (twin, observer) = recording_observer();
    run_in_process(run_spec(dir.path(), known), make(Script::default()), observer).unwrap();
    let twin = twin.lock().unwrap();
    assert_eq!((&seen.losses, seen.num_bad), (&twin.losses, twin.num_bad));
    assert_eq!(seen.losses.len() as u64, STEPS);
}
