//! The variables that a config may name.

use loongforge_core::config::Loaded;
use loongforge_core::observe::safe;

/// Returns the environment variables that are text.
pub(super) fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Prints which variables may have been meant for a key of this config, and are not.
pub(super) fn tell_ignored(loaded: &Loaded) {
    loaded.ignored.iter().for_each(|line| eprintln!("warning: {}", safe(line)));
}
