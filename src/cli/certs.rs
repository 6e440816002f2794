//! `loongforge certs`: certificates for a run whose processes connect over a network.

use super::UsageError;
use super::outputs::local_path;
use clap::{Args, Subcommand};
use loongforge_actors::launch::net::{Party, issue, new_authority, renew};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  loongforge certs new --run vlm-sft --out certs         an authority and a certificate for every role
  loongforge certs add --run vlm-sft --out certs encoder data      again, before they expire
  mv certs/ca.key ca.key && kubectl create secret generic vlm-tls --from-file=certs       keep ca.key private";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CertsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a certificate authority and a certificate for every role
    New(Made),
    /// Create certificates from an existing authority
    Add(Made),
}

#[derive(Args)]
struct Made {
    /// Name of the run (`run.name`)
    #[arg(long)]
    run: String,
    /// Folder to write into
    #[arg(long, default_value = "certs", value_name = "DIR", value_parser = local_path())]
    out: PathBuf,
    /// Number of days the certificates are valid
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3650))]
    days: u64,
    /// Roles: scheduler, data, encoder, foundation, operator [default: all]
    #[arg(value_name = "ROLE")]
    roles: Vec<String>,
}

/// Runs `loongforge certs`: writes an authority and certificates, or only certificates of an existing authority.
pub fn certs(args: CertsArgs) -> anyhow::Result<ExitCode> {
    let (made, new) = match &args.command {
        Command::New(made) => (made, true),
        Command::Add(made) => (made, false),
    };
    let valid = Duration::from_secs(made.days * 24 * 3600);
    let party = |name: &String| {
        let found = Party::ALL.into_iter().find(|party| party.name() == name);
        let names = Party::ALL.map(Party::name).join(", ");
        found.ok_or_else(|| UsageError(format!("unknown role `{name}`; a role is one of {names}")))
    };
    let parties = made.roles.iter().map(party).collect::<Result<Vec<_>, _>>()?;
    let parties = if parties.is_empty() { Party::ALL.to_vec() } else { parties };
    if new && made.out.join("ca.key").exists() {
        let (out, run) = (made.out.display(), &made.run);
        let what =
            format!("{out} already has an authority: `certs add --run {run} --out {out}` renews its certificates");
        return Err(UsageError(what).into());
    }
    if !new && !made.out.join("ca.key").exists() {
        let (out, run) = (made.out.display(), &made.run);
        let what =
            format!("{out} has no authority's key (ca.key): put it there, or make one with `certs new --run {run}`");
        return Err(UsageError(what).into());
    }
    if new {
        new_authority(&made.out, &made.run, valid).map_err(UsageError::of)?;
    }
    for party in parties {
        let written = match new {
            true => issue(&made.out, &made.run, party, valid),
            false => renew(&made.out, &made.run, party, valid),
        };
        written.map_err(UsageError::of)?;
    }
    let out = made.out.display();
    println!("{out}: valid for {} days, for run `{}` only", made.days, made.run);
    println!(
        "give every process its own three files (ca.pem, ROLE.pem, ROLE.key) and --tls {out}; keep ca.key private"
    );
    if !new {
        println!("a process reads them when it starts: restart the run (--resume) before its former ones expire");
    }
    Ok(ExitCode::SUCCESS)
}
