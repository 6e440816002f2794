//! Tests that need what a machine may lack: root, network namespaces, a browser, a GPU.
//!
//! Such a test calls [`skip`] and returns. `LOONGFORGE_MUST_RUN` lists the needs that are met on this machine, separated
//! by commas (`.ci/run` sets it for root): a test that skips for one of these fails.

use std::fmt::Display;

/// Says that a test is skipped for want of `need`, and why.
///
/// # Panics
/// Panics where `LOONGFORGE_MUST_RUN` lists `need`.
pub fn skip(need: &str, why: impl Display) {
    println!("skipped, needs {need}: {why}");
    let met = std::env::var("LOONGFORGE_MUST_RUN").unwrap_or_default();
    assert!(!met.split(',').any(|met| met == need), "LOONGFORGE_MUST_RUN says that {need} is here, but: {why}");
}
