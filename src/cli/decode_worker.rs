//! `loongforge decode-worker`, and who is given one: the commands that decode other people's pictures.

use crate::sandbox::{Sandbox, serve};
use clap::Args;
use loongforge_core::config::SandboxMode;
use loongforge_core::data::{InProcess, MediaDecoder};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Args)]
pub struct DecodeWorkerArgs {
    /// Obey files that begin with `drill: `
    #[arg(long)]
    drill: bool,
}

/// Decodes other people's files for the process that started this one.
pub fn decode_worker(args: DecodeWorkerArgs) -> ExitCode {
    serve(args.drill)
}

/// Returns the decoder of this mode; `warn` is told where it is less safe than it should be.
pub fn decoder(mode: SandboxMode, warn: impl Fn(&str) + Send + Sync + 'static) -> Arc<dyn MediaDecoder> {
    match mode {
        // This program, also after another one was put in its place.
        SandboxMode::Auto if cfg!(target_os = "linux") => Arc::new(Sandbox::new("/proc/self/exe", warn)),
        SandboxMode::Auto | SandboxMode::Off => Arc::new(InProcess),
    }
}
