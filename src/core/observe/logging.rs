//! Log messages of `tracing`, as lines of the console.

use serde_json::{Map, Value};
use std::fmt::Debug;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use super::console::Console;
use super::error::ObserveError;
use super::log_line::LogLine;
use crate::config::{Level, Log};

/// The target of lines that a child process has printed: they are shown as they are, whatever `log.level` is.
pub const CHILD: &str = "child";

/// Keeps out what decoders of sound tell of every file; what is wrong with one is told of its sample.
const QUIET: &str = "symphonia=error";

/// Shows messages of `log.level` and above, or as `RUST_LOG` says, above the console's progress bar.
/// A second call changes nothing but the form of lines: the first one holds for the process.
///
/// # Errors
/// `RUST_LOG` is no filter.
pub fn init_logging(log: &Log, console: &Console) -> Result<(), ObserveError> {
    console.set_format(log.format);
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.is_empty() => filter(&directives)?,
        _ => filter(&usual(log.level))?,
    };
    let filter = filter.add_directive(format!("{CHILD}=info").parse().expect("a target and a level"));
    let _ = Registry::default().with(Lines(console.clone()).with_filter(filter)).try_init();
    Ok(())
}

/// Events as lines.
struct Lines(Console);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        let metadata = event.metadata();
        match metadata.target() {
            CHILD => self.0.line(&said.message),
            _ => self.0.told(&LogLine::new(*metadata.level(), &said.message).with_fields(said.fields)),
        }
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct Said {
    message: String,
    fields: Map<String, Value>,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            name => {
                self.fields.insert(name.to_owned(), text.into());
            }
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => {
                self.fields.insert(name.to_owned(), value.into());
            }
        }
    }
}

fn filter(directives: &str) -> Result<EnvFilter, ObserveError> {
    EnvFilter::try_new(directives).map_err(|error| ObserveError::Filter(format!("`{directives}`: {error}")))
}

/// Returns the directives of a level, where `RUST_LOG` has none.
fn usual(level: Level) -> String {
    format!("{},{QUIET}", level_name(level))
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogFormat;
    use std::fs;

    #[test]
    fn a_wrong_directive_is_named() {
        assert!(filter("loongforge_core=shout").unwrap_err().to_string().contains("shout"));
    }

    #[test]
    fn decoders_of_sound_are_not_heard_of() {
        let dir = tempfile::tempdir().unwrap();
        let console = Console::stderr();
        console.set_format(LogFormat::Text);
        console.keep_log(&dir.path().join("log"));
        let lines = Lines(console.clone()).with_filter(filter(&usual(Level::Info)).unwrap());
        tracing::subscriber::with_default(Registry::default().with(lines), || {
            tracing::info!(target: "symphonia_format_ogg::demuxer", "starting new physical stream");
            tracing::info!("step 1");
        });
        let text = fs::read_to_string(dir.path().join("log.txt")).unwrap();
        assert!(text.lines().count() == 1 && text.trim_end().ends_with("INFO  step 1"), "{text}");
    }

    #[test]
    fn messages_are_lines_of_the_log_as_text_or_json() {
        let dir = tempfile::tempdir().unwrap();
        for (format, ending) in [(LogFormat::Text, "txt"), (LogFormat::Json, "jsonl")] {
            let console = Console::stderr();
            console.set_format(format);
            console.keep_log(&dir.path().join("log"));
            let filter = filter("warn").unwrap().add_directive(format!("{CHILD}=info").parse().unwrap());
            let lines = Registry::default().with(Lines(console.clone()).with_filter(filter));
            tracing::subscriber::with_default(lines, || {
                tracing::warn!(port = 3, "refused");
                tracing::info!("not asked for");
                tracing::info!(target: CHILD, "encoder/0 | error: out of memory");
            });
            console.line_kept_as("http://a/?token=secret", "http://a/");
            console.note("only kept");
            let text = fs::read_to_string(dir.path().join(format!("log.{ending}"))).unwrap();
            let ends: Vec<&str> = match format {
                LogFormat::Text => vec![
                    "WARN  refused port=\"3\"",
                    "INFO  encoder/0 | error: out of memory",
                    "INFO  http://a/",
                    "INFO  only kept",
                ],
                LogFormat::Json => vec![
                    r#""level":"warn","message":"refused","port":"3"}"#,
                    r#""level":"info","message":"encoder/0 | error: out of memory"}"#,
                    r#""level":"info","message":"http://a/"}"#,
                    r#""level":"info","message":"only kept"}"#,
                ],
            };
            assert_eq!(text.lines().count(), ends.len(), "{text}");
            text.lines().zip(&ends).for_each(|(line, end)| assert!(line.ends_with(end), "{line}: {end}"));
        }
    }
}
