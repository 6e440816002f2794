//! Reads from a launcher's environment variables which process this is, its role, and the scheduler's address.
//!
//! A pure function of variables, so that each launcher is a row of a table. A process asks the scheduler for everything else.
//! Sources, first to last: torchrun, `LOONGFORGE_*` with an index of Kubernetes, Slurm, SkyPilot, MPI.

use super::{PoolError, WantedActor};
use loongforge_core::config::Address;
use loongforge_core::message::{PoolName, Role};
use loongforge_core::schedule::{PoolSize, PoolSizes};

/// The port of the scheduler when a launcher names its host alone.
pub const JOIN_PORT: u16 = 6001;

/// The part of a run that the environment assigns to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchedPart {
    pub launcher: Launcher,
    /// True if this process hosts the scheduler, in addition to its actors.
    pub scheduler: bool,
    /// The actors that it runs, with their index in the pool if known.
    pub actors: Vec<WantedActor>,
    /// Address of the scheduler; `None`: the launcher does not say.
    pub join: Option<Address>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    Torchrun,
    /// The ranks of a job with one process a node, as Kubeflow's PyTorchJob: `RANK` and `WORLD_SIZE` without
    /// `LOCAL_RANK`.
    Nodes,
    Kubernetes,
    Slurm,
    SkyPilot,
    Mpi,
}

/// The environment does not determine a part.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    #[error(
        "no launcher's environment variables are set (torchrun's RANK, Slurm's SLURM_PROCID, Kubernetes' JOB_COMPLETION_INDEX, \
         SKYPILOT_NODE_RANK, OMPI_COMM_WORLD_RANK); say --role scheduler, data, encoder or foundation"
    )]
    NoLauncher,
    #[error(
        "this process was started by the batch script of a Slurm job and is none of its tasks: start it with `srun`, \
         or say --role scheduler, data, encoder or foundation"
    )]
    BatchScript,
    #[error("{name}={value}: not {wanted}")]
    Wrong { name: String, value: String, wanted: &'static str },
    #[error(
        "{world} processes, but the run has {pools} actors: start \
         {all} processes, or {compute} to have process 0 start the data actors, or name roles (`torchrun --role`, \
         LOONGFORGE_ROLE)"
    )]
    WorldSize { world: u32, pools: String, all: usize, compute: usize },
    #[error("{index} is beyond the {len} {pool} actors of the run")]
    Beyond { pool: PoolName, index: u32, len: u32 },
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Launchers' variables that hold a process's rank on its own host, which is the GPU that it takes.
pub const LOCAL_RANKS: [&str; 4] = ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"];

/// Variables of the steps of a Slurm job, which `srun` starts.
const SLURM_STEP: [&str; 3] = ["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST"];

/// Returns the rank of this process on its host, if `variable` has one of [`LOCAL_RANKS`].
///
/// # Errors
/// Fails if it is not a number.
pub fn local_rank(variable: impl Fn(&str) -> Option<String>) -> Result<Option<u32>, PlaceError> {
    let env = Environment { variable: &variable };
    LOCAL_RANKS.into_iter().find_map(|name| env.number(name).transpose()).transpose()
}

/// Returns the part that `variable` assigns to this process. `pools` give roles to ranks without a name.
///
/// # Errors
/// Fails if there is no launcher, its variables are invalid, or the number of processes differs from the run's actors.
pub fn place(variable: impl Fn(&str) -> Option<String>, pools: &PoolSizes) -> Result<LaunchedPart, PlaceError> {
    let env = Environment { variable: &variable };
    let named = env.role("LOONGFORGE_ROLE", pools)?;
    let told = env.address("LOONGFORGE_JOIN")?;
    let of_master = env.master()?;
    if let (Some(rank), Some(world)) = (env.number("RANK")?, env.number("WORLD_SIZE")?) {
        let launcher = if env.number("LOCAL_RANK")?.is_some() { Launcher::Torchrun } else { Launcher::Nodes };
        // `default` and `trainer` are the names that torchrun and others give when nothing is said.
        let role = match env.get("ROLE_NAME").filter(|name| !["default", "trainer", "worker"].contains(&name.as_str()))
        {
            Some(_) => env.role("ROLE_NAME", pools)?,
            None => named,
        };
        let index = match env.get("ROLE_NAME") {
            Some(_) => env.number("ROLE_RANK")?,
            None => role.and_then(|role| index_of_rank(role.pool, rank, world, pools)),
        };
        return of_rank(
            launcher,
            rank,
            world,
            role.map(|role| WantedActor { index, ..role }),
            told.or(of_master),
            pools,
        );
    }
    if let (Some(role), Some(index)) = (named, env.number("JOB_COMPLETION_INDEX")?) {
        return one(Launcher::Kubernetes, WantedActor { index: Some(index), ..role }, told, pools);
    }
    let others = [
        (Launcher::Slurm, "SLURM_PROCID", "SLURM_NTASKS"),
        (Launcher::SkyPilot, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
        (Launcher::Mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        (Launcher::Mpi, "PMI_RANK", "PMI_SIZE"),
    ];
    for (launcher, rank, world) in others {
        if let (Some(rank), Some(world)) = (env.number(rank)?, env.number(world)?) {
            let host = match launcher {
                Launcher::Slurm => env.get("SLURM_STEP_NODELIST").or_else(|| env.get("SLURM_JOB_NODELIST")),
                Launcher::SkyPilot => env.get("SKYPILOT_NODE_IPS"),
                _ => None,
            };
            let first = host.as_deref().and_then(first_host);
            let of_host = first.map(|host| Address::Tcp { host, port: JOIN_PORT });
            let join = told.or(of_master).or(of_host);
            let named = named.map(|role| WantedActor { index: index_of_rank(role.pool, rank, world, pools), ..role });
            return of_rank(launcher, rank, world, named, join, pools);
        }
    }
    if env.is_of_batch_script() {
        let first = env.get("SLURM_JOB_NODELIST").as_deref().and_then(first_host);
        let of_host = first.map(|host| Address::Tcp { host, port: JOIN_PORT });
        let named = named.ok_or(PlaceError::BatchScript)?;
        return one(Launcher::Slurm, named, told.or(of_master).or(of_host), pools);
    }
    Err(PlaceError::NoLauncher)
}

/// Returns the place in its pool of a rank with a name: its number, where as many processes were started as the pool has actors.
fn index_of_rank(pool: PoolName, rank: u32, world: u32, pools: &PoolSizes) -> Option<u32> {
    (world == pools.of(pool)).then_some(rank)
}

/// Ranks with a name are of that role, ranks without get theirs in the order data, encoder, foundation. Process 0 hosts
/// the scheduler too, and the data actors where there are processes for the others only.
fn of_rank(
    launcher: Launcher,
    rank: u32,
    world: u32,
    named: Option<WantedActor>,
    join: Option<Address>,
    pools: &PoolSizes,
) -> Result<LaunchedPart, PlaceError> {
    if let Some(named) = named {
        return one(launcher, named, join, pools);
    }
    let scheduler = rank == 0;
    let (all, compute) = (pools.num_actors(), pools.num_compute());
    let actors = match world as usize {
        world if world == all => pools.actors().skip(rank as usize).take(1).map(WantedActor::from).collect(),
        world if world == compute => {
            let data = pools.data_actors().filter(|_| scheduler);
            data.chain(pools.compute_actors().skip(rank as usize).take(1)).map(WantedActor::from).collect()
        }
        _ => {
            let of_pool = |(_, PoolSize { name, actors })| format!("{actors} {name}");
            let pools = pools.pools().map(of_pool).collect::<Vec<_>>().join(", ");
            return Err(PlaceError::WorldSize { world, pools, all, compute });
        }
    };
    Ok(LaunchedPart { launcher, scheduler, actors, join })
}

fn one(
    launcher: Launcher,
    wanted: WantedActor,
    join: Option<Address>,
    pools: &PoolSizes,
) -> Result<LaunchedPart, PlaceError> {
    let WantedActor { role, pool, index } = wanted;
    if role == Role::Scheduler {
        return Ok(LaunchedPart { launcher, scheduler: true, actors: Vec::new(), join });
    }
    let len = pools.of(pool);
    // An encoder may be one more than the config says: which place it gets is the scheduler's to say.
    let index = index.filter(|_| role != Role::Encoder);
    match index {
        Some(index) if index >= len => Err(PlaceError::Beyond { pool, index, len }),
        _ => Ok(LaunchedPart { launcher, scheduler: false, actors: vec![WantedActor { role, pool, index }], join }),
    }
}

struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    /// Returns a variable, unless it numbers this process among others and is not its own.
    fn get(&self, name: &str) -> Option<String> {
        let is_anothers = match name {
            "SLURM_LOCALID" => self.is_of_batch_script(),
            // A job of one task needs no `srun`.
            "SLURM_PROCID" => self.is_of_batch_script() && self.value("SLURM_NTASKS").as_deref() != Some("1"),
            _ => false,
        };
        if is_anothers { None } else { self.value(name) }
    }

    /// Returns whether this is the batch script of a Slurm job, or was started by it without `srun`: all these processes have the
    /// numbers of the first task, however many there are.
    fn is_of_batch_script(&self) -> bool {
        let is_first = self.value("SLURM_PROCID").as_deref() == Some("0");
        is_first && SLURM_STEP.iter().all(|name| self.value(name).is_none())
    }

    fn value(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn parse<T: std::str::FromStr>(&self, name: &str, wanted: &'static str) -> Result<Option<T>, PlaceError> {
        let wrong = |value: String| PlaceError::Wrong { name: name.to_owned(), value, wanted };
        self.get(name).map(|value| value.parse().map_err(|_| wrong(value))).transpose()
    }

    fn number(&self, name: &str) -> Result<Option<u32>, PlaceError> {
        self.parse(name, "a number")
    }

    /// Returns a role, or the name of one of the run's encoder pools. `LOONGFORGE_POOL` says of which pool an encoder is.
    fn role(&self, name: &str, pools: &PoolSizes) -> Result<Option<WantedActor>, PlaceError> {
        let pool = self.get(name).and_then(|text| text.parse::<PoolName>().ok());
        if let Some(pool) = pool.filter(|pool| pools.encoders.iter().any(|known| known.name == *pool)) {
            return Ok(Some(WantedActor::new(Role::Encoder, Some(pool), pools)?));
        }
        let named = self.parse::<PoolName>("LOONGFORGE_POOL", "the name of a pool")?;
        let role = self.parse(name, "one of scheduler, data, encoder, foundation, or an encoder pool of the run")?;
        let wanted = role.map(|role| WantedActor::new(role, named.filter(|_| role == Role::Encoder), pools));
        Ok(wanted.transpose()?)
    }

    fn address(&self, name: &str) -> Result<Option<Address>, PlaceError> {
        self.parse(name, "a path or HOST:PORT")
    }

    /// Returns the address of the scheduler beside that of torch's own store.
    fn master(&self) -> Result<Option<Address>, PlaceError> {
        let port = self.parse::<u16>("MASTER_PORT", "a port")?;
        let above = |port: u16| port.checked_add(1).unwrap_or(JOIN_PORT);
        Ok(self.get("MASTER_ADDR").map(|host| Address::Tcp { host, port: port.map_or(JOIN_PORT, above) }))
    }
}

/// Returns the first host of `a1,a2`, `a[1-3,7],b2`, or one host a line.
fn first_host(list: &str) -> Option<String> {
    let first = list.lines().next()?;
    let (name, rest) = match (first.find('['), first.find(',')) {
        (Some(open), comma) if comma.is_none_or(|comma| open < comma) => first.split_at(open),
        (_, Some(comma)) => (&first[..comma], ""),
        _ => (first, ""),
    };
    let inside = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (numbers, suffix) = inside.unwrap_or_default();
    let number = numbers.split([',', '-']).next()?;
    let suffix = suffix.split(',').next()?;
    Some(format!("{name}{number}{suffix}")).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools() -> PoolSizes {
        PoolSizes::of_roles(1, 2, 2)
    }

    /// `A=1 B=2`
    fn of(text: &str) -> Result<LaunchedPart, PlaceError> {
        let pairs: Vec<(&str, &str)> = text.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        place(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()), &pools())
    }

    fn shown(place: &LaunchedPart) -> String {
        let actors = place.actors.iter().map(WantedActor::to_string);
        let scheduler = place.scheduler.then(|| "scheduler".to_owned());
        let all: Vec<String> = scheduler.into_iter().chain(actors).collect();
        format!("{} @ {}", all.join(" "), place.join.as_ref().map_or("?".into(), Address::to_string))
    }

    #[test]
    fn launchers_and_what_they_mean() {
        let torchrun = "MASTER_ADDR=h MASTER_PORT=29500 LOCAL_RANK=0 WORLD_SIZE";
        for (env, launcher, wanted) in [
            (&*format!("{torchrun}=4 RANK=0"), Launcher::Torchrun, "scheduler data/0 encoder/0 @ h:29501"),
            (&*format!("{torchrun}=4 RANK=1"), Launcher::Torchrun, "encoder/1 @ h:29501"),
            (
                &*format!("{torchrun}=4 RANK=3 ROLE_NAME=default ROLE_RANK=3"),
                Launcher::Torchrun,
                "foundation/1 @ h:29501",
            ),
            (&*format!("{torchrun}=5 RANK=0"), Launcher::Torchrun, "scheduler data/0 @ h:29501"),
            (&*format!("{torchrun}=5 RANK=4"), Launcher::Torchrun, "foundation/1 @ h:29501"),
            (&*format!("{torchrun}=9 RANK=0 ROLE_NAME=encoder ROLE_RANK=7"), Launcher::Torchrun, "encoder @ h:29501"),
            (
                &*format!("{torchrun}=9 RANK=3 ROLE_NAME=foundation ROLE_RANK=1"),
                Launcher::Torchrun,
                "foundation/1 @ h:29501",
            ),
            (
                &*format!("{torchrun}=9 RANK=3 LOONGFORGE_ROLE=foundation LOONGFORGE_JOIN=s:1"),
                Launcher::Torchrun,
                "foundation @ s:1",
            ),
            ("RANK=2 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=23456", Launcher::Nodes, "foundation/0 @ h:23457"),
            (
                "LOONGFORGE_ROLE=foundation JOB_COMPLETION_INDEX=1 LOONGFORGE_JOIN=s-0-0.s:6001",
                Launcher::Kubernetes,
                "foundation/1 @ s-0-0.s:6001",
            ),
            (
                "LOONGFORGE_ROLE=encoder JOB_COMPLETION_INDEX=9 LOONGFORGE_JOIN=s:1",
                Launcher::Kubernetes,
                "encoder @ s:1",
            ),
            ("LOONGFORGE_ROLE=scheduler JOB_COMPLETION_INDEX=0", Launcher::Kubernetes, "scheduler @ ?"),
            (
                "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NODELIST=gpu[07-09,12]",
                Launcher::Slurm,
                "scheduler data/0 encoder/0 @ gpu07:6001",
            ),
            ("SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NODELIST=a1,a2", Launcher::Slurm, "foundation/0 @ a1:6001"),
            (
                "SLURM_PROCID=2 SLURM_NTASKS=9 LOONGFORGE_ROLE=data LOONGFORGE_JOIN=h:7 SLURM_JOB_NODELIST=a",
                Launcher::Slurm,
                "data @ h:7",
            ),
            (
                "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=4 SKYPILOT_NODE_IPS=10.0.0.1",
                Launcher::SkyPilot,
                "encoder/1 @ 10.0.0.1:6001",
            ),
            ("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 MASTER_ADDR=h", Launcher::Mpi, "foundation/1 @ h:6001"),
            ("PMI_RANK=3 PMI_SIZE=4", Launcher::Mpi, "foundation/1 @ ?"),
            // A step of a job for each pool: its ranks are the pool's, whoever arrives first.
            (
                "SLURM_PROCID=1 SLURM_NTASKS=2 LOONGFORGE_ROLE=foundation LOONGFORGE_JOIN=h:7",
                Launcher::Slurm,
                "foundation/1 @ h:7",
            ),
            (
                "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOONGFORGE_ROLE=foundation LOONGFORGE_JOIN=h:7",
                Launcher::Torchrun,
                "foundation/1 @ h:7",
            ),
            // Without `srun` all have the numbers of the first task.
            (
                "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a,b LOONGFORGE_ROLE=foundation",
                Launcher::Slurm,
                "foundation @ a:6001",
            ),
            (
                "SLURM_PROCID=0 SLURM_NTASKS=4 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 MASTER_ADDR=h",
                Launcher::Mpi,
                "foundation/1 @ h:6001",
            ),
            // torchrun under Slurm.
            (&*format!("{torchrun}=4 RANK=1 SLURM_PROCID=0 SLURM_NTASKS=1"), Launcher::Torchrun, "encoder/1 @ h:29501"),
        ] {
            let place = of(env).unwrap_or_else(|error| panic!("{env}: {error}"));
            assert_eq!((place.launcher, &*shown(&place)), (launcher, wanted), "{env}");
        }
    }

    #[test]
    fn what_makes_no_place_is_named() {
        for (env, wanted) in [
            ("", "no launcher's environment variables"),
            ("JOB_COMPLETION_INDEX=1", "no launcher's environment variables"),
            ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_NODELIST=a", "start it with `srun`"),
            ("RANK=x WORLD_SIZE=4", "RANK=x: not a number"),
            ("RANK=0 WORLD_SIZE=3 LOCAL_RANK=0", "start 5 processes, or 4"),
            ("RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 ROLE_NAME=vit", "ROLE_NAME=vit: not one of"),
            ("LOONGFORGE_ROLE=data JOB_COMPLETION_INDEX=1", "1 is beyond the 1 data actors"),
            ("RANK=0 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=70000", "MASTER_PORT=70000: not a port"),
        ] {
            let error = of(env).unwrap_err().to_string();
            assert!(error.contains(wanted), "{env}: {error}");
        }
    }

    #[test]
    fn the_local_rank_is_the_launchers() {
        let of = |name: &'static str| local_rank(move |asked| (asked == name).then(|| "3".to_owned()));
        assert!(LOCAL_RANKS.iter().all(|name| of(name) == Ok(Some(3))));
        assert_eq!(of("RANK"), Ok(None));
        let in_slurm = |step: &'static str| {
            local_rank(move |asked| ["SLURM_PROCID", "SLURM_LOCALID", step].contains(&asked).then(|| "0".to_owned()))
        };
        assert_eq!([in_slurm("SLURM_STEP_ID"), in_slurm("SLURM_JOB_ID")], [Ok(Some(0)), Ok(None)]);
        assert!(local_rank(|_| Some("x".into())).unwrap_err().to_string().contains("LOCAL_RANK=x"));
    }

    #[test]
    fn the_first_host_of_a_list() {
        for (list, wanted) in [
            ("a", Some("a")),
            ("a1,b[2-3]", Some("a1")),
            ("n[001-004]", Some("n001")),
            ("n[5,7-9]x,m", Some("n5x")),
            ("10.0.0.1\n10.0.0.2", Some("10.0.0.1")),
            ("", None),
        ] {
            assert_eq!(first_host(list).as_deref(), wanted, "{list}");
        }
    }
}
