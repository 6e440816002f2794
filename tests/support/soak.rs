//! A soak is a matrix of cells, each a small check of its own. It is an ignored test named `soak_NAME` that calls
//! [`run`]; `cargo xtask soak NAME` runs it. CI runs a slice: `LOONGFORGE_SOAK_SLICE=SEED:COUNT` chooses `COUNT` cells
//! that can run here by `SEED`, the same for the same seed. `LOONGFORGE_SOAK_CELLS=PART,…` leaves those cells whose names have one of
//! the parts.
//!
//! Included by path: `#[path = "../support/soak.rs"] mod soak;`.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Says how a cell that did not fail ended.
pub enum Cell {
    /// Ran and holds; with a figure worth keeping, or empty.
    Passed(String),
    /// Could not run here, and why.
    NotRun(String),
}

/// Runs the chosen cells of soak `name`, prints a line each, and appends the lines to the file that
/// `LOONGFORGE_SOAK_TABLE` names. A cell that panics has failed.
///
/// # Panics
/// After the last cell, where one failed.
pub fn run<C>(name: &str, cells: &[(String, C)], mut check: impl FnMut(&C) -> Result<Cell, String>) {
    assert!(!cells.is_empty(), "soak {name} has no cells");
    let mut failed = Vec::new();
    let (order, mut left) = chosen(cells, std::env::var("LOONGFORGE_SOAK_SLICE").ok().as_deref());
    let parts = std::env::var("LOONGFORGE_SOAK_CELLS").ok();
    let is_wanted = |cell: &str| parts.as_ref().is_none_or(|parts| parts.split(',').any(|part| cell.contains(part)));
    for (cell, what) in order.into_iter().filter(|(cell, _)| is_wanted(cell)) {
        if left == 0 {
            break;
        }
        let begun = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| check(what))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or(panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default())
        });
        let (verdict, detail) = match &result {
            Ok(Cell::Passed(figure)) => ("ok", figure),
            Ok(Cell::NotRun(why)) => ("not run", why),
            Err(why) => ("FAILED", why),
        };
        let line =
            format!("| {name} | {cell} | {verdict} | {} | {:.1} s |", one_line(detail), begun.elapsed().as_secs_f64());
        println!("{line}");
        if let Some(path) = std::env::var_os("LOONGFORGE_SOAK_TABLE") {
            let mut table = OpenOptions::new().create(true).append(true).open(path).expect("the soak's table opens");
            writeln!(table, "{line}").expect("the soak's table is written");
        }
        left -= usize::from(!matches!(result, Ok(Cell::NotRun(_))));
        if result.is_err() {
            failed.push(cell.as_str());
        }
    }
    assert!(failed.is_empty(), "soak {name}: {} cells failed: {}", failed.len(), failed.join(", "));
}

/// Returns all cells in their order, or in the order that the seed of `slice` (`SEED:COUNT`, the seed in hexadecimal) gives them, and how
/// many are to run.
fn chosen<'a, C>(cells: &'a [(String, C)], slice: Option<&str>) -> (Vec<&'a (String, C)>, usize) {
    let Some(slice) = slice else { return (cells.iter().collect(), cells.len()) };
    let (seed, count) = slice.split_once(':').expect("LOONGFORGE_SOAK_SLICE is SEED:COUNT");
    let seed = u64::from_str_radix(seed, 16).expect("the slice's seed is hexadecimal");
    let count: usize = count.parse().expect("the slice's count is a number");
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by_key(|&index| mixed(seed ^ index as u64));
    (order.into_iter().map(|index| &cells[index]).collect(), count)
}

/// Computes SplitMix64's finalizer.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Returns the text as one line, for a cell of a table.
fn one_line(text: &str) -> String {
    text.replace('|', "/").split_whitespace().collect::<Vec<_>>().join(" ")
}
