//! The part of a distributed run that this process is, from options or the launcher's environment.

use super::UsageError;
use clap::Args;
use loongforge_actors::launch::net::{Party, Security};
use loongforge_actors::launch::{LaunchedPart, PoolError, WantedActor, beside, place};
use loongforge_core::config::Address;
use loongforge_core::message::{ActorId, PoolName, Role};
use loongforge_core::schedule::PoolSizes;
use std::path::PathBuf;
use std::process::{Child, Command};

/// Arguments of a process of a distributed run.
#[derive(Args, Clone)]
pub struct PartArgs {
    /// Run a single worker process: scheduler, data, encoder, foundation, or auto (from the launcher's environment)
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// Pool of this process, if the run has several of its role
    #[arg(long, requires = "role", value_name = "NAME")]
    pub pool: Option<PoolName>,
    /// Address of the run's scheduler: a Unix socket's path or HOST:PORT [default: from the launcher's environment]
    #[arg(long, requires = "role", value_name = "ADDRESS")]
    pub join: Option<String>,
    /// Folder with this run's certificates (see `loongforge certs new`); required if other machines can connect
    #[arg(long, requires = "role", value_name = "DIR")]
    pub tls: Option<PathBuf>,
    /// Let other machines connect without authentication; only for isolated networks
    #[arg(long, requires = "role", conflicts_with = "tls")]
    pub insecure_allow_plaintext: bool,
    /// Start N ranks of the role here, one process and GPU each, for launchers that start one process per node
    #[arg(long, requires = "role", value_name = "N")]
    pub ranks: Option<u32>,
    /// Send tensors over sockets even between processes on one machine; must be set on all processes of the run
    #[arg(long)]
    pub no_shared_memory: bool,
}

/// The scheduler and actors that this process runs, and the address of the run.
pub struct Part {
    pub scheduler: bool,
    pub actors: Vec<WantedActor>,
    pub join: Address,
}

impl PartArgs {
    /// `None`: the whole run.
    ///
    /// # Errors
    /// Fails if the role, the pool or the address is none of this run, or nothing says where the scheduler is.
    pub fn part(&self, pools: &PoolSizes) -> anyhow::Result<Option<Part>> {
        let Some(role) = &self.role else { return Ok(None) };
        let told = self.join.as_deref().map(str::parse::<Address>).transpose();
        let told = told.map_err(|error| UsageError(format!("--join: {error}")))?;
        // A role that is said here is what the launcher's ranks are of.
        let is_named = role != "auto";
        let variable = |name: &str| match name {
            "LOONGFORGE_ROLE" if is_named => Some(role.clone()),
            "LOONGFORGE_POOL" if self.pool.is_some() => self.pool.map(|pool| pool.to_string()),
            _ => std::env::var(name).ok(),
        };
        let found = place(variable, pools);
        let place = match role.as_str() {
            "auto" => found.map_err(UsageError::of)?,
            name => {
                let role: Role = name.parse().map_err(UsageError::of)?;
                let wanted = WantedActor::new(role, self.pool, pools).map_err(|error| match error {
                    PoolError::Ambiguous { .. } => UsageError(format!("--role {role}: {error} with --pool")),
                    error => UsageError(format!("--pool: {error}")),
                })?;
                // The launcher may know the place in the pool, where it starts processes of this role.
                let places = found.as_ref().ok().map(|place| place.actors.iter());
                let index = places.and_then(|mut places| places.find(|actor| actor.pool == wanted.pool)?.index);
                let join = found.as_ref().ok().and_then(|place| place.join.clone());
                let launcher = found.map_or(loongforge_actors::launch::Launcher::Nodes, |place| place.launcher);
                let is_scheduler = role == Role::Scheduler;
                let actors = if is_scheduler { Vec::new() } else { vec![WantedActor { index, ..wanted }] };
                LaunchedPart { launcher, scheduler: is_scheduler, actors, join }
            }
        };
        let Some(join) = told.or(place.join) else {
            let message = "say where the run's scheduler is: --join SOCKET or --join HOST:PORT";
            return Err(UsageError(message.to_owned()).into());
        };
        Ok(Some(Part { scheduler: place.scheduler, actors: place.actors, join }))
    }

    /// Returns how this process logs in as `party` of the run.
    ///
    /// # Errors
    /// Fails if the certificates of `--tls` cannot be used.
    pub fn security(&self, run: &str, party: Party) -> anyhow::Result<Security> {
        match &self.tls {
            Some(dir) => Ok(Security::with_certificates(run, party, dir).map_err(UsageError::of)?),
            None => Ok(Security::plain(run).on_any_network(self.insecure_allow_plaintext)),
        }
    }

    /// Returns the words that follow `run FILE KEY=VALUE` for an actor that joins at `join`.
    pub fn words(&self, actor: ActorId, join: &Address) -> Vec<String> {
        let mut words = vec!["--role".to_owned(), actor.role.name().to_owned()];
        if matches!(actor.role, Role::Encoder | Role::Foundation) {
            words.extend(["--pool".to_owned(), actor.pool.to_string()]);
        }
        words.extend(["--join".to_owned(), join.to_string()]);
        if let Some(dir) = &self.tls {
            words.extend(["--tls".to_owned(), dir.display().to_string()]);
        }
        words.extend(self.insecure_allow_plaintext.then(|| "--insecure-allow-plaintext".to_owned()));
        words.extend(self.no_shared_memory.then(|| "--no-shared-memory".to_owned()));
        words
    }
}

/// Processes of actors beside this one; they are killed when this is dropped.
#[derive(Default)]
pub struct Beside(pub Vec<Child>);

impl Beside {
    /// Starts `command` for the actor `index` of its pool.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub fn start(&mut self, mut command: Command, index: Option<u32>) -> anyhow::Result<()> {
        beside(&mut command, index);
        self.0.push(command.spawn()?);
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The run is over: whoever has not ended by itself has nothing to do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
