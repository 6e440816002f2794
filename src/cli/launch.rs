//! `loongforge launch`: prints a run as a job for Slurm, Kubernetes or plain ssh.

use super::{UsageError, exit};
use crate::model::folder::ModelFolder;
use clap::{Args, ValueEnum};
use loongforge_actors::launch::JOIN_PORT;
use loongforge_actors::launch::jobs::{JobSpec, Tls, jobset, slurm, ssh};
use loongforge_core::config::{self, Device, KeyOrigin, Loaded, Report, Size};
use loongforge_core::message::Tower;
use loongforge_core::schedule::PoolSizes;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge launch my.yaml --on slurm --gpus-per-node 8 --partition gpu --tls certs > job.sh && sbatch job.sh
  loongforge launch my.yaml --on k8s --image REGISTRY/loongforge:1 --tls my-tls --claim runs | kubectl apply -f -
  loongforge launch my.yaml --on ssh --hosts a,b --gpus-per-node 8 --tls certs > job.sh && bash job.sh
loongforge submits nothing: it prints the job for you to read and submit.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LaunchArgs {
    /// Config of the run
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Launcher that starts the processes
    #[arg(long)]
    on: System,
    /// Name of the job [default: the run's]
    #[arg(long)]
    name: Option<String>,
    /// GPUs per node; 0: run on CPUs
    #[arg(long, default_value_t = 0)]
    gpus_per_node: u32,
    /// Port of the scheduler
    #[arg(long, default_value_t = JOIN_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Folder with the run's certificates, as seen by the nodes; for Kubernetes the name of a secret
    #[arg(long, value_name = "DIR", required_unless_present = "insecure_allow_plaintext")]
    tls: Option<String>,
    /// Connect without authentication; only for isolated networks
    #[arg(long, conflicts_with = "tls")]
    insecure_allow_plaintext: bool,
    /// Slurm, Kubernetes: CPU cores per rank [default: 8]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// Slurm, Kubernetes: memory per rank, such as 64GiB [default: Kubernetes 32GiB; Slurm the partition's default]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Slurm: partition
    #[arg(long)]
    partition: Option<String>,
    /// Slurm: account
    #[arg(long)]
    account: Option<String>,
    /// Slurm: time limit
    #[arg(long)]
    time: Option<String>,
    /// Slurm: log file [default: %x-%j.log]
    #[arg(long, value_name = "FILE")]
    output: Option<String>,
    /// Slurm: option of srun for encoders and foundation, such as container-image=IMAGE (Pyxis); may be repeated
    #[arg(long, value_name = "OPTION[=VALUE]")]
    srun: Vec<String>,
    /// Kubernetes: namespace
    #[arg(long)]
    namespace: Option<String>,
    /// Kubernetes: image with the program
    #[arg(long)]
    image: Option<String>,
    /// Kubernetes: image pull secret
    #[arg(long, value_name = "SECRET")]
    image_pull_secret: Option<String>,
    /// Kubernetes: volume claim with the model and the data, mounted at /runs; paths in the config start there
    #[arg(long)]
    claim: Option<String>,
    /// Kubernetes: shared memory of a pod [default: 8GiB]
    #[arg(long, value_name = "SIZE")]
    shm: Option<Size>,
    /// Kubernetes: node selector of encoders and foundation; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    node_selector: Vec<(String, String)>,
    /// Kubernetes: environment variable of all pods, such as NCCL_DEBUG=INFO; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// ssh: hosts; the first one runs the scheduler
    #[arg(long, value_delimiter = ',')]
    hosts: Vec<String>,
    /// Path of the program on the nodes
    #[arg(long, default_value = "loongforge")]
    program: String,
}

/// Cores of a rank and shared memory of a pod, unless told otherwise.
const CPUS: u32 = 8;
const SHM: u64 = 8 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
    Slurm,
    K8s,
    Ssh,
}

impl LaunchArgs {
    /// # Errors
    /// Options that the job's launcher has no use for, by name: a job without what was asked for would be queued.
    fn expect_options_of_the_launcher(&self) -> Result<(), UsageError> {
        use System::{K8s, Slurm, Ssh};
        let given: [(&str, bool, &[System]); 14] = [
            ("--cpus", self.cpus.is_some(), &[Slurm, K8s]),
            ("--memory", self.memory.is_some(), &[Slurm, K8s]),
            ("--partition", self.partition.is_some(), &[Slurm]),
            ("--account", self.account.is_some(), &[Slurm]),
            ("--time", self.time.is_some(), &[Slurm]),
            ("--output", self.output.is_some(), &[Slurm]),
            ("--srun", !self.srun.is_empty(), &[Slurm]),
            ("--namespace", self.namespace.is_some(), &[K8s]),
            ("--image", self.image.is_some(), &[K8s]),
            ("--image-pull-secret", self.image_pull_secret.is_some(), &[K8s]),
            ("--claim", self.claim.is_some(), &[K8s]),
            ("--shm", self.shm.is_some(), &[K8s]),
            ("--node-selector", !self.node_selector.is_empty(), &[K8s]),
            ("--env", !self.env.is_empty(), &[K8s]),
        ];
        let hosts = ("--hosts", !self.hosts.is_empty(), &[Ssh][..]);
        let of_others =
            given.into_iter().chain([hosts]).filter(|(_, is_given, of)| *is_given && !of.contains(&self.on));
        let names: Vec<&str> = of_others.map(|(name, ..)| name).collect();
        let on = self.on.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        match names.as_slice() {
            [] => Ok(()),
            names => Err(UsageError::new(format!("a job for {on} does not use {}: leave it out", names.join(", ")))),
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Processes whose image is fetched first start minutes apart.
const JOIN_TIMEOUT: &str = "scheduler.join_timeout=600s";

/// Returns whether the processes of a job fetch an image first. Options of srun may be written with their dashes.
fn fetches_image(on: System, srun: &[String]) -> bool {
    on == System::K8s || srun.iter().any(|option| option.trim_start_matches('-').starts_with("container-image"))
}

/// Loads the config of a job. If its processes fetch an image first, and the config does not say how long they wait for each other, an
/// override that does is added.
///
/// # Errors
/// The config is wrong.
fn load(file: &Path, overrides: &mut Vec<String>, fetches_image: bool) -> Result<Loaded, Report> {
    let loaded = config::load_elsewhere(file, overrides, super::environment())?;
    let is_unset = |it: &KeyOrigin| it.path == "scheduler.join_timeout" && it.from == "schema default";
    if !fetches_image || !loaded.origins.iter().any(is_unset) {
        return Ok(loaded);
    }
    overrides.push(JOIN_TIMEOUT.to_owned());
    config::load_elsewhere(file, overrides, super::environment())
}

/// Runs `loongforge launch`: prints a job for Slurm, Kubernetes or ssh.
pub fn launch(args: LaunchArgs) -> anyhow::Result<ExitCode> {
    args.expect_options_of_the_launcher()?;
    let mut overrides = args.overrides;
    let loaded = match load(&args.file, &mut overrides, fetches_image(args.on, &args.srun)) {
        Ok(loaded) => loaded,
        Err(report) => {
            eprintln!("{report}");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    super::tell_ignored(&loaded);
    let config = &loaded.config;
    match (config.device, args.gpus_per_node) {
        (Device::Cpu, 1..) => eprintln!("warning: the job asks for GPUs, but the run has device: cpu; add device=cuda"),
        (Device::Cuda(_), 0) => {
            eprintln!("warning: the run has device: cuda, but the job asks for no GPU; add --gpus-per-node")
        }
        _ => {}
    }
    // A model that is not here says nothing: then the pools are as the config has them.
    let described =
        || Tower::ALL.into_iter().filter(|tower| *tower == Tower::Vision || config.model.has_part_of(*tower));
    let mut settled = config.clone();
    let towers = ModelFolder::open_settled(&mut settled).map(|folder| folder.config.towers.set());
    let pools = PoolSizes::new(&settled, towers.unwrap_or_else(|_| described().collect()));
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name = args.name.unwrap_or_else(|| config.run.name.chars().map(plain).take(40).collect());
    let job = JobSpec {
        name,
        file: args.file.display().to_string(),
        overrides,
        pools,
        gpus_per_node: args.gpus_per_node,
        port: args.port,
        tls: args.tls.map_or(Tls::Insecure, Tls::Folder),
        cpus: args.cpus.unwrap_or(CPUS),
        memory: args.memory.map(Size::bytes),
        partition: args.partition,
        account: args.account,
        time: args.time,
        output: args.output,
        srun: args.srun,
        config: loaded.to_yaml(),
        namespace: args.namespace,
        image: args.image,
        image_pull_secret: args.image_pull_secret,
        claim: args.claim,
        shm: args.shm.map_or(SHM, Size::bytes),
        node_selector: args.node_selector,
        env: args.env,
        hosts: args.hosts,
        program: args.program,
    };
    let text = match args.on {
        System::Slurm => slurm(&job),
        System::K8s => jobset(&job),
        System::Ssh => ssh(&job),
    };
    print!("{}", text.map_err(UsageError::of)?);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_fetch_an_image_wait_longer_for_each_other_unless_told_how_long() {
        let timeout = |given: &[&str], fetches_image| {
            let mut overrides: Vec<String> = given.iter().map(|it| (*it).to_owned()).collect();
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/sft_text.yaml");
            let loaded = load(&file, &mut overrides, fetches_image).unwrap_or_else(|report| panic!("{report}"));
            loaded.config.scheduler.join_timeout.duration().as_secs()
        };
        assert_eq!([timeout(&[], false), timeout(&[], true)], [60, 600]);
        assert_eq!(timeout(&["scheduler.join_timeout=90s"], true), 90);
    }

    #[test]
    fn an_image_is_fetched_whether_or_not_the_option_of_srun_has_dashes() {
        let fetched = |on, option: &str| fetches_image(on, &[option.to_owned()]);
        for (on, option, is_fetched) in [
            (System::Slurm, "container-image=org/image", true),
            (System::Slurm, "--container-image=org/image", true),
            (System::Slurm, "container-mounts=/data:/data", false),
            (System::K8s, "", true),
        ] {
            assert_eq!(fetched(on, option), is_fetched, "{on:?} {option}");
        }
    }
}
