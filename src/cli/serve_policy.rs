//! `loongforge serve-policy`: serves a policy to robots and simulators.

use super::UsageError;
use super::exit::OutputError;
use crate::policy::{Purpose, Wanted, open};
use crate::serve::{Actor, Door, ReservedDoor, ServeError, Server, asked_to_stop};
use anyhow::{Context, ensure};
use clap::Args;
use loongforge_core::files;
use loongforge_core::observe::{print_line_within, safe};
use loongforge_core::robot::wire::{Names, Offer, Protocol};
use loongforge_torch::native::exit_at_once;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  loongforge serve-policy runs/pads_policy --protocol openpi
  loongforge serve-policy my-pi05 --protocol openpi --map observation/image=base_0_rgb --map observation/wrist_image=left_wrist_0_rgb
  loongforge serve-policy my-pi05 --protocol vla-eval --port 8001 --execute 10
  loongforge serve-policy --policy pads-expert --protocol openpi         no model: to test the robot's side

Fields of a client's observation are recognized by name: cameras, also by the last part of their name (`images/top` is
observation.images.top), `state`, `action_prefix`, and `prompt`, `task`, `task_description`, `instruction`, `instructions`,
`language_instruction`. Map other fields with --map; an unknown field is an error. Default port: 8000; 10093 for the protocol
loongforge.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ServePolicyArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// Protocol of the clients: openpi, vla-eval or loongforge
    #[arg(long, value_parser = protocol)]
    protocol: Protocol,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0: any free port, which is printed
    #[arg(long)]
    port: Option<u16>,
    /// Map a field of the client's observations to a camera, `state`, `prompt`, `action_prefix`, or `-` (ignored); may be repeated,
    /// and fields of the state are concatenated in this order
    #[arg(long, value_name = "FIELD=PART")]
    map: Vec<String>,
    /// Camera that clients do not send: it is masked; may be repeated
    #[arg(long, value_name = "CAMERA")]
    without: Vec<String>,
    /// Prompt for observations without one
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// File with the key that clients must send (`Authorization: Api-Key KEY`)
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen beyond this machine, in plain text
    #[arg(long)]
    insecure_allow_plaintext: bool,
}

/// Runs `loongforge serve-policy`: answers observations of robots with actions until the process is stopped.
pub fn serve_policy(args: ServePolicyArgs) -> anyhow::Result<ExitCode> {
    // Files and names that are not what they should be are for the user to change.
    let key = args.api_key_file.as_deref().map(read_key).transpose().map_err(UsageError::of_any)?;
    args.wanted.expect_effects(Purpose::Serving).map_err(UsageError::of_any)?;
    let door = Door {
        host: args.host,
        port: args.port.unwrap_or(args.protocol.port()),
        key,
        is_open: args.insecure_allow_plaintext,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(reading_threads())
        .build()
        .context("cannot start the server's thread")?;
    // Before the policy is loaded, which takes its time.
    let door = match runtime.block_on(door.reserve()) {
        Err(error @ ServeError::Open { .. }) => return Err(UsageError::of(error).into()),
        reserved => reserved?,
    };
    let wanted = args.wanted;
    let (actor, spec) = Actor::start(move || open(&wanted, Purpose::Serving)).map_err(UsageError::of_any)?;
    let names = Names::new(&spec, &args.map, &args.without, args.prompt).map_err(UsageError)?;
    let name = spec.name.clone();
    let offer = Offer { spec, names };
    let ended = runtime.block_on(serve(door, args.protocol, offer, actor, &name));
    if ended.is_ok() {
        // The policy may act meanwhile, which is not waited for.
        exit_at_once(0);
    }
    ended
}

async fn serve(
    door: ReservedDoor,
    protocol: Protocol,
    offer: Offer,
    actor: Actor,
    name: &str,
) -> anyhow::Result<ExitCode> {
    // The server goes on where nobody reads that, as after a terminal was closed, and waits for no reader.
    let tell = |line: &str| {
        print_line_within(&format!("a connection ended: {}", safe(line)), Duration::ZERO);
    };
    let server = Server::open(door, protocol, offer, actor, Box::new(tell))?;
    say(&format!("serving {} at ws://{}", safe(name), server.address()?))?;
    server.run(asked_to_stop()).await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns how many threads read what clients send.
pub(super) fn reading_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(4, 16)
}

/// Prints a line for who starts a server.
///
/// # Errors
/// Standard output does not take it.
pub(super) fn say(line: &str) -> Result<(), OutputError> {
    let mut out = stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(OutputError)
}

pub(super) fn read_key(path: &Path) -> anyhow::Result<String> {
    let text = files::read_text(path).with_context(|| path.display().to_string())?;
    let key = text.trim().to_owned();
    ensure!(!key.is_empty() && key.is_ascii(), "{}: the key must be one line of ASCII", path.display());
    Ok(key)
}

fn protocol(name: &str) -> Result<Protocol, String> {
    Protocol::parse(name).ok_or_else(|| format!("expected one of {}", Protocol::NAMES.join(", ")))
}
