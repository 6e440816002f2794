//! `loongforge scale`: scales an encoder pool of a running job.

use super::UsageError;
use clap::Args;
use loongforge_actors::RunError;
use loongforge_actors::launch::net::{Party, Security};
use loongforge_actors::launch::scale_run;
use loongforge_core::config::Address;
use loongforge_core::message::PoolName;
use loongforge_core::text::counted;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Name of the scheduler's socket, or of the link to it, in a run's folder.
pub const SOCKET: &str = "scheduler.sock";
/// Name of the file with its address, where that is none of a file.
pub const ADDRESS: &str = "scheduler.address";

const EXAMPLES: &str = "\
Examples:
  loongforge scale --run runs/my 4
  loongforge scale --run runs/my --pool audio 3
  loongforge scale --join head:6001 --tls certs 8     certs has ca.pem, operator.pem and operator.key";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ScaleArgs {
    /// New number of encoders; 0: read features from `cache_dir`
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=1024), required_unless_present = "encoders")]
    count: Option<u32>,
    /// Same as COUNT
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=1024), conflicts_with = "count")]
    encoders: Option<u32>,
    /// Encoder pool to change (default: the run's only one, or `encoder`)
    #[arg(long, value_name = "NAME")]
    pool: Option<PoolName>,
    /// Folder of the run (`run.dir`)
    #[arg(long, value_name = "DIR", required_unless_present = "join")]
    run: Option<PathBuf>,
    /// Address of the run's scheduler: a Unix socket's path or HOST:PORT
    #[arg(long, value_name = "ADDRESS", conflicts_with = "run")]
    join: Option<String>,
    /// Start as many encoders as asked for, also more than 4 for each core of the scheduler's machine
    #[arg(long)]
    force: bool,
    /// Folder with the operator's certificate of the run
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// Connect without authentication, if the run allows it; only for isolated networks
    #[arg(long, conflicts_with = "tls")]
    insecure_allow_plaintext: bool,
}

/// Runs `loongforge scale`: tells a running job how many encoders a pool is to have.
pub fn scale(args: ScaleArgs) -> anyhow::Result<ExitCode> {
    let dir = args.run.clone();
    let address = match (args.join, args.run) {
        (Some(address), _) => address.parse().map_err(|error| UsageError(format!("--join: {error}")))?,
        (None, Some(dir)) => find(&dir)?,
        (None, None) => unreachable!("clap requires one of the two"),
    };
    let security = match &args.tls {
        Some(dir) => Security::of_party(Party::Operator, dir).map_err(UsageError::of)?,
        None => Security::plain("").on_any_network(args.insecure_allow_plaintext),
    };
    let encoders = args.count.or(args.encoders).expect("clap requires one of the two");
    let scaled = scale_run(&address, &security, args.pool, encoders, args.force);
    let (pool, from) = scaled.map_err(|error| match (error, dir) {
        (RunError::Join(error), Some(dir)) if error.is_absence() => {
            let dir = dir.display();
            let what = format!("no run is active in {dir}: its scheduler was killed, and nothing listens at {address}");
            anyhow::Error::from(UsageError(what))
        }
        (error, _) => error.into(),
    })?;
    let of_pool = if pool == PoolName::ENCODER { String::new() } else { format!(" of the pool {pool}") };
    println!("{from} → {}{of_pool}", counted(u64::from(encoders), "encoder"));
    Ok(ExitCode::SUCCESS)
}

/// Returns where the scheduler of the run that goes on in `dir` listens.
fn find(dir: &Path) -> anyhow::Result<Address> {
    if let Ok(path) = std::fs::read_link(dir.join(SOCKET)) {
        return Ok(Address::Unix(path));
    }
    let written = std::fs::read_to_string(dir.join(ADDRESS)).ok().and_then(|text| text.parse().ok());
    written.ok_or_else(|| {
        UsageError(format!("no multi-process run is active in {}: it has no {SOCKET}", dir.display())).into()
    })
}
