//! `loongforge serve`: serves a model over OpenAI's API.

use super::UsageError;
use super::asking::AskedModel;
use super::decode_worker::decoder;
use super::serve_policy::{read_key, reading_threads, say};
use crate::serve::openai::{Engine, Limits, Server};
use crate::serve::{Door, ServeError, asked_to_stop};
use anyhow::Context;
use clap::Args;
use loongforge_core::config::{Level, Log, SandboxMode};
use loongforge_core::observe::{Console, init_logging, print_line, safe};
use loongforge_core::text::hex;
use loongforge_torch::native::exit_at_once;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge serve runs/my                                      the newest checkpoint, at http://127.0.0.1:8000/v1
  loongforge serve Qwen/Qwen3-0.6B --port 8001 --name qwen --batch 16
  loongforge serve runs/vlm --files data/images                  requests may name pictures in this folder
  curl http://127.0.0.1:8000/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

docs/serving.md lists the supported request fields.")]
pub struct ServeArgs {
    #[command(flatten)]
    model: AskedModel,
    /// Name of the model in the API [default: CHECKPOINT as given]
    #[arg(long)]
    name: Option<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0: any free port, which is printed
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// File with the key that clients must send (`Authorization: Bearer KEY`) [default beyond this machine: generated and printed]
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen beyond this machine, in plain text
    #[arg(long)]
    insecure_allow_plaintext: bool,
    /// Let requests name files below this folder
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Maximum number of new tokens in an answer
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_new_tokens: u32,
    /// Maximum number of tokens in a prompt and its answer, if the model allows more
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    max_context: u32,
    /// Number of answers made together: to waiting requests, of which one may ask for several (`n`)
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    /// Number of requests that may wait
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    queue: u32,
    /// Decode pictures and recordings in this process instead of sandboxed ones
    #[arg(long)]
    no_sandbox: bool,
}

/// The port unless told otherwise.
pub(super) const PORT: u16 = 8000;

/// Runs `loongforge serve`: answers requests of OpenAI's clients until the process is stopped.
pub fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    // What is said of requests, such as keys that the chat template does not render.
    init_logging(&Log { level: Level::Warn, ..Log::default() }, &Console::stderr())?;
    let mut key = args.api_key_file.as_deref().map(read_key).transpose().map_err(UsageError::of_any)?;
    if let Some(folder) = args.files.as_deref().filter(|folder| !folder.is_dir()) {
        return Err(UsageError::new(format!("--files {}: there is no such folder", folder.display())).into());
    }
    let is_local = args.host == "localhost" || args.host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let is_drawn = !is_local && key.is_none();
    if is_drawn {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).context("cannot get random numbers from the system")?;
        key = Some(hex(bytes));
    }
    let limits = Limits {
        max_new_tokens: args.max_new_tokens as usize,
        max_context: args.max_context as usize,
        batch: args.batch as usize,
        queue: args.queue as usize,
        files: args.files,
    };
    let name = args.name.unwrap_or_else(|| args.model.checkpoint.trim_end_matches('/').to_owned());
    let mode = if args.no_sandbox { SandboxMode::Off } else { SandboxMode::Auto };
    let decoder = decoder(mode, |warning| print_line(&format!("warning: {}", safe(warning))));
    let model = args.model;
    let door = Door { host: args.host, port: args.port, key: key.clone(), is_open: args.insecure_allow_plaintext };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Each of them may keep a process that decodes.
        .max_blocking_threads(reading_threads())
        .build()
        .context("cannot start the server's thread")?;
    let ended: anyhow::Result<ExitCode> = runtime.block_on(async {
        // Before the model is loaded, which takes its time.
        let server = match Server::open(door).await {
            Err(error @ ServeError::Open { .. }) => return Err(UsageError::of(error).into()),
            opened => opened?,
        };
        let max_tokens = limits.max_context;
        let open = move || model.open()?.with_decoder(decoder)?.with_max_tokens(max_tokens);
        let engine = Engine::start(open, limits.clone())?;
        say(&format!("serving {} at http://{}/v1", safe(&name), server.address()?))?;
        if let Some(key) = key.filter(|_| is_drawn) {
            say(&format!("API key {key}"))?;
        }
        server.run(engine, limits, name, asked_to_stop()).await?;
        Ok(ExitCode::SUCCESS)
    });
    if ended.is_ok() {
        // Requests may be read and answered meanwhile, which is not waited for.
        exit_at_once(0);
    }
    runtime.shutdown_background();
    ended
}
