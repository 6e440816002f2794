//! One piece of work for each of many shards, by several threads.

use crate::threads::with_threads;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Shards counted at a time.
const MAX_THREADS: usize = 16;
/// Fewer are counted without a bar.
const MANY: usize = 32;

/// Returns the result of `work` for each item, in their order, by several threads; with a bar where there are many.
pub fn in_parallel<T: Sync, R: Send>(items: &[T], what: &'static str, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let bar = match items.len() >= MANY && std::io::stderr().is_terminal() {
        true => ProgressBar::new(items.len() as u64).with_message(what),
        false => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} shards, {eta} left") {
        bar.set_style(style);
    }
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(items.len());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let run = || {
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(at)
        {
            let result = work(item);
            bar.inc(1);
            done.lock().expect("no thread panics with the lock").push((at, result));
        }
    };
    match num_threads {
        0 => {}
        _ => with_threads(num_threads, run),
    }
    bar.finish_and_clear();
    let mut done = done.into_inner().expect("no thread panics with the lock");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
