//! `loongforge completions`: shell completions and man pages.

use super::UsageError;
use super::outputs::local_path;
use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge completions bash > ~/.local/share/bash-completion/completions/loongforge
  loongforge completions zsh > ~/.zfunc/_loongforge
  loongforge completions --man ~/.local/share/man/man1";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell whose completions are printed
    shell: Option<Shell>,
    /// Folder to write man pages into, one for each command
    #[arg(long, value_name = "DIR", value_parser = local_path(), conflicts_with = "shell")]
    man: Option<PathBuf>,
}

/// `command` is the whole command line.
pub fn completions(args: CompletionsArgs, mut command: Command) -> anyhow::Result<ExitCode> {
    match (args.shell, args.man) {
        (Some(shell), _) => {
            // Whoever reads it may have read enough, which `generate` does not expect.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, "loongforge", &mut text);
            print!("{}", String::from_utf8_lossy(&text));
        }
        (None, Some(folder)) => {
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            clap_mangen::generate_to(command, &folder).with_context(|| folder.display().to_string())?;
            println!("{}", folder.display());
        }
        (None, None) => {
            let message = "name a shell (bash, elvish, fish, powershell, zsh), or a folder with --man";
            return Err(UsageError(message.to_owned()).into());
        }
    }
    Ok(ExitCode::SUCCESS)
}
