//! `loongforge data inspect`: shows the contents of data files.

use super::UsageError;
use super::episode::draw as draw_episode;
use super::input::{InputArgs, ModelArgs, print_notes};
use crate::cli::forecast::count;
use clap::Args;
use loongforge_core::data::DataError;
use loongforge_core::data::tools::{self, Shown, ShownMedia};
use loongforge_core::observe::{Style, bytes, render, safe};
use std::path::PathBuf;
use std::process::ExitCode;

/// Columns of a picture.
const COLUMNS: u32 = 40;

const EXAMPLES: &str = "\
Examples:
  loongforge data inspect train.jsonl                                       format, fields, the first samples
  loongforge data inspect shards --from 5000 --samples 5
  loongforge data inspect train.jsonl --model Qwen/Qwen3-VL-2B-Instruct     as the model sees it, with the loss mask
  loongforge data inspect train.jsonl --samples 50 --html samples.html      a page with pictures
  loongforge data inspect my-set --episode 3 --sheet episode.png            frames of an episode, with its actions";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// Number of samples to show
    #[arg(long, value_name = "N", default_value_t = 3)]
    samples: u64,
    /// Index of the first sample to show, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Write an HTML page instead of printing
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Draw an episode of a LeRobot data set as a PNG instead of printing: camera frames with actions and states below
    #[arg(long, value_name = "FILE", conflicts_with_all = ["html", "model", "samples", "from", "format", "columns", "media_dir", "episodes", "max_samples", "select", "system", "jobs"])]
    sheet: Option<PathBuf>,
    /// Number of the episode to draw
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sheet")]
    episode: usize,
}

/// Runs `loongforge data inspect`: prints samples, or draws them as a page or a sheet of an episode.
pub fn inspect(args: InspectArgs) -> anyhow::Result<ExitCode> {
    if let Some(sheet) = &args.sheet {
        let [folder] = args.input.paths() else {
            return Err(
                UsageError("--sheet draws an episode of one LeRobot set: name only its folder".to_owned()).into()
            );
        };
        args.input.fetch()?;
        let drawn = draw_episode(folder, args.episode, &*args.input.decoder(), sheet);
        println!("{}", drawn.map_err(UsageError::of_any)?);
        return Ok(ExitCode::SUCCESS);
    }
    let maker = args.model.open(&args.input)?;
    let inputs = args.input.open_for(maker.as_deref(), args.model.max_tokens())?;
    let files = tools::describe(&inputs);
    if args.from >= inputs.len() && !inputs.is_empty() {
        let (from, count) = (args.from, count(inputs.len() as usize, "sample"));
        return Err(UsageError(format!("--from {from}: there are only {count}, numbered from 0")).into());
    }
    let until = args.from.saturating_add(args.samples).min(inputs.len());
    let samples = (args.from..until).map(|index| tools::show(&inputs, index, maker.as_deref()));
    if let Some(path) = &args.html {
        let samples: Vec<_> = samples.collect();
        let write = |source| DataError::Write { path: path.clone(), source };
        std::fs::write(path, tools::page(&files, &samples)).map_err(write)?;
        println!("{}: {}", path.display(), count(samples.len(), "sample"));
        print_notes(maker.as_deref());
        return Ok(ExitCode::SUCCESS);
    }
    for file in &files {
        let bytes = file.bytes.map(|count| format!(", {}", bytes(count))).unwrap_or_default();
        let samples = count(file.samples as usize, "sample");
        println!("{}: {}, {samples}{bytes}", file.path.display(), file.format);
        for field in &file.fields {
            println!("  {:<24} {:<18} {}", safe(&field.name), field.types, field.count);
        }
        let is_text = |name: &str| file.fields.iter().any(|field| field.name == name && field.types == "string");
        if is_text("prompt") && is_text("completion") {
            println!(
                "  prompt and completion are a user's and an assistant's message: the chat template is applied to them"
            );
        }
    }
    let style = Style::of(&std::io::stdout());
    for sample in samples {
        match sample {
            Ok(sample) => print!("{}", draw(&sample, style)),
            Err(bad) => println!("\nbad sample: {}", safe(&bad.to_string())),
        }
    }
    print_notes(maker.as_deref());
    Ok(ExitCode::SUCCESS)
}

fn draw(sample: &Shown, style: Style) -> String {
    let tokens = sample.num_tokens.map(|num| format!(", {}", count(num as usize, "token"))).unwrap_or_default();
    let mut text = format!("\n── {}{tokens}\n", safe(&sample.place));
    for ShownMedia { name, pictures, kind, about } in &sample.media {
        for picture in pictures {
            let (width, height) = picture.dimensions();
            text += &format!("  {}, {width}×{height}\n", safe(name));
            for line in render(picture, COLUMNS, style) {
                text += &format!("  {line}\n");
            }
        }
        if pictures.is_empty() {
            let about = if about.is_empty() { kind.name() } else { about };
            text += &format!("  {} ({about})\n", safe(name));
        }
    }
    for (role, turn) in &sample.turns {
        text += &format!("  {}: {}\n", safe(role), safe(turn));
    }
    if let Some(rendered) = &sample.rendered {
        text += "  as the model reads it:\n";
        let (begin, end) = if style == Style::Blocks { ("\x1b[32m", "\x1b[0m") } else { ("⟦", "⟧") };
        for (part, learned) in rendered {
            let part = safe(part);
            text += &if *learned { format!("{begin}{part}{end}") } else { part };
        }
        text += "\n";
    }
    text
}
