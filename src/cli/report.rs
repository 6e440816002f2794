//! `loongforge report`: a one-file page of a finished run.

use super::top::ended;
use anyhow::Context;
use clap::Args;
use loongforge_actors::watch::still_page;
use loongforge_core::files::steps_of;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge report runs/my -o my.html       curves, figures and samples of the run
Open the page in a browser; it needs no server and loads no other files. It is made from metrics.jsonl, eval.jsonl and samples/.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// Folder of the run
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
}

/// Runs `loongforge report`: writes a page on a run, made from the files in its folder.
pub fn report(args: ReportArgs) -> anyhow::Result<ExitCode> {
    let board = ended(&args.run, "as of its files")?;
    let (mut status, sheet) = (board.status(), newest_sheet(&args.run));
    status["run"]["version"] = env!("CARGO_PKG_VERSION").into();
    let png = match &sheet {
        Some((step, path)) => {
            status["samples_step"] = (*step).into();
            Some(fs::read(path).with_context(|| path.display().to_string())?)
        }
        None => None,
    };
    let page = still_page(&status, &board.history(), png.as_deref());
    fs::write(&args.out, page).with_context(|| args.out.display().to_string())?;
    println!("{}: open it in a browser", args.out.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the sheet of the samples that were made last, and after how many steps.
fn newest_sheet(run: &Path) -> Option<(u64, PathBuf)> {
    let folders = fs::read_dir(run.join("samples")).into_iter().flatten().flatten();
    let sheets = folders.filter_map(|folder| {
        let sheet = folder.path().join("sheet.png");
        sheet.is_file().then_some((steps_of(&folder.file_name().to_string_lossy())?, sheet))
    });
    sheets.max()
}
