//! The settings of a job.

use loongforge_core::message::{PoolName, Role};
use loongforge_core::schedule::{PoolSize, PoolSizes};
use loongforge_core::text::shell_word;

/// Waits in a script for the scheduler, which may have ended already, and keeps its exit code. Traps set `signaled`.
pub(super) const WAIT: &str = "
# `wait` ends early when a signal comes, with the signal's code: ask again, also if the scheduler has ended since.
signaled=1
while [ -n \"$signaled\" ]; do signaled=; wait $scheduler; code=$?; done
";

/// A run as a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// A name of messages, digits and dashes.
    pub name: String,
    /// The config, as the processes see it.
    pub file: String,
    pub overrides: Vec<String>,
    pub pools: PoolSizes,
    /// GPUs per node; 0: run on CPUs.
    pub gpus_per_node: u32,
    /// Port of the scheduler.
    pub port: u16,
    /// Certificates, as the processes see them.
    pub tls: Tls,
    /// CPU cores per rank, and bytes of memory if set.
    pub cpus: u32,
    pub memory: Option<u64>,
    /// Slurm: partition, account, time limit and the log file.
    pub partition: Option<String>,
    pub account: Option<String>,
    pub time: Option<String>,
    pub output: Option<String>,
    /// Slurm: further options of the `srun` of encoders and foundation, such as `container-image=IMAGE`.
    pub srun: Vec<String>,
    /// Kubernetes: the composed config, which a ConfigMap brings to the pods; namespace and image; a claim with the
    /// model, the data and the run's folder; bytes of shared memory of a pod; which nodes; environment variables.
    pub config: String,
    pub namespace: Option<String>,
    pub image: Option<String>,
    pub image_pull_secret: Option<String>,
    pub claim: Option<String>,
    pub shm: u64,
    pub node_selector: Vec<(String, String)>,
    pub env: Vec<(String, String)>,
    /// ssh: one process per line; the scheduler is on the first.
    pub hosts: Vec<String>,
    /// The program on the nodes.
    pub program: String,
}

/// The way in which processes authenticate each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// A folder with `ca.pem`, and `ROLE.pem` and `ROLE.key` for each role, as `loongforge certs new` makes it. On Kubernetes it is a
    /// secret of that name with these keys.
    Folder(String),
    /// Unencrypted, on an isolated network.
    Insecure,
}

/// The job cannot be written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    #[error("{pool}: {num_ranks} ranks do not fill nodes of {per_node} GPUs; change the pool or --gpus-per-node")]
    Uneven { pool: PoolName, num_ranks: u32, per_node: u32 },
    #[error("name the hosts: --hosts a,b,c")]
    NoHosts,
    #[error("`{text}` is not a valid name there: use lower-case letters, digits and dashes")]
    Name { text: String },
    #[error("name the image: --image REGISTRY/NAME:TAG")]
    NoImage,
    #[error(
        "name a claim: --claim NAME, a ReadWriteMany volume with the model and the data; without one \
         there is nothing to read, and checkpoints are lost with their pod"
    )]
    NoClaim,
    #[error("the composed config has {bytes} bytes, and a ConfigMap holds 1 MiB")]
    ConfigTooLarge { bytes: usize },
    #[error("the manifest cannot be written: {0}")]
    Yaml(String),
}

/// The processes of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub role: Role,
    pub name: PoolName,
    pub num_ranks: u32,
    /// Nodes that the pool fills, and processes on each.
    pub nodes: u32,
    pub per_node: u32,
}

impl JobSpec {
    /// Returns the encoder pools, if they have their own processes, then the foundation. Ranks of the roles that `fill` names share
    /// nodes; others are placed one by one.
    ///
    /// # Errors
    /// A pool that would leave GPUs of its last node idle: a gang that does not fit is found out now, not in a queue.
    pub(super) fn compute_pools(&self, fill: impl Fn(Role) -> bool) -> Result<Vec<Pool>, JobError> {
        let of = |(role, PoolSize { name, actors: num_ranks }): (Role, PoolSize)| {
            let per_node = match self.gpus_per_node {
                _ if !fill(role) => 1,
                0 => num_ranks,
                gpus => gpus.min(num_ranks),
            };
            if num_ranks % per_node != 0 {
                return Err(JobError::Uneven { pool: name, num_ranks, per_node });
            }
            Ok(Pool { role, name, num_ranks, nodes: num_ranks / per_node, per_node })
        };
        let compute = self.pools.pools().filter(|(role, pool)| *role != Role::Data && pool.actors > 0);
        compute.map(of).collect()
    }

    /// Returns the processes of every pool: `4 encoder, 2 audio`.
    pub(super) fn processes(&self) -> String {
        let of_pool = |(_, PoolSize { name, actors })| format!("{actors} {name}");
        self.pools.pools().map(of_pool).collect::<Vec<_>>().join(", ")
    }

    /// Returns the words of one process's command, quoted for a shell.
    pub(super) fn command(&self, role: Role, pool: PoolName, join: &str) -> String {
        let mut words = vec![shell_word(&self.program), "run".into(), shell_word(&self.file)];
        words.extend(self.overrides.iter().map(shell_word));
        words.extend(["--role".into(), role.name().into()]);
        words.extend(pool_words(role, pool));
        words.extend(["--join".into(), join.to_owned()]);
        if role == Role::Scheduler {
            words.push("--resume".into());
        }
        words.extend(match &self.tls {
            Tls::Folder(folder) => vec!["--tls".into(), shell_word(folder)],
            Tls::Insecure => vec!["--insecure-allow-plaintext".into()],
        });
        words.join(" ")
    }
}

/// Says of which pool a process is, where its role does not.
pub(super) fn pool_words(role: Role, pool: PoolName) -> Vec<String> {
    if role.name() == pool.as_str() { Vec::new() } else { vec!["--pool".into(), pool.to_string()] }
}
