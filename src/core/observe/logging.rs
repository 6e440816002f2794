//! Log messages on standard error, by `tracing`.

use tracing_subscriber::EnvFilter;

use super::console::Console;
use super::error::ObserveError;
use crate::config::Level;

/// Shows messages of `level` and above, or as `RUST_LOG` says, above the console's progress bar.
/// A second call changes nothing: the first one holds for the process.
pub fn init_logging(level: Level, console: &Console) -> Result<(), ObserveError> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.is_empty() => filter(&directives)?,
        _ => filter(level_name(level))?,
    };
    let _ = tracing_subscriber::fmt()
        .compact()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(console.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
        .with_writer(console.clone())
        .try_init();
    Ok(())
}

fn filter(directives: &str) -> Result<EnvFilter, ObserveError> {
    EnvFilter::try_new(directives).map_err(|error| ObserveError::Filter(format!("`{directives}`: {error}")))
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

    #[test]
    fn a_wrong_directive_is_named() {
        assert!(filter("loongforge_core=shout").unwrap_err().to_string().contains("shout"));
        init_logging(Level::Warn, &Console::stderr()).unwrap();
        init_logging(Level::Info, &Console::stderr()).unwrap();
        tracing::warn!("shown above the bar");
    }
}
