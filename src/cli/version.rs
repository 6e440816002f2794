//! `loongforge --version --verbose`: what a report of a bug should say of the program.

use loongforge_core::config::Device;
use loongforge_torch::device::{library_folder, settle};
use loongforge_torch::native::faster_products;
use serde_json::json;
use std::ffi::OsString;

/// Returns whether the words ask for the version with all that belongs to it.
pub(super) fn is_asked(words: &[OsString]) -> bool {
    let is = |word: Option<&OsString>, names: [&str; 2]| word.is_some_and(|word| names.iter().any(|name| word == name));
    words.len() == 2
        && (is(words.first(), ["--version", "-V"]) && is(words.last(), ["--verbose", "-v"])
            || is(words.first(), ["--verbose", "-v"]) && is(words.last(), ["--version", "-V"]))
}

/// Returns one line per component.
pub(super) fn verbose() -> String {
    let folder = library_folder().map_or_else(|| "not found".to_owned(), |folder| folder.display().to_string());
    let profile = if cfg!(debug_assertions) { "development" } else { "release" };
    let products = json!(faster_products());
    [
        format!("loongforge {}", env!("CARGO_PKG_VERSION")),
        format!("build: {profile}, {}-{}", std::env::consts::ARCH, std::env::consts::OS),
        format!("libtorch: 2.11.0 in {folder}"),
        settle(Device::Auto).1,
        format!("products: auto is {}", products.as_str().unwrap_or("?")),
        format!("cores: {}", std::thread::available_parallelism().map_or(1, usize::from)),
    ]
    .map(|line| line + "\n")
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_words_in_any_order_and_nothing_else() {
        let asked = |line: &str| is_asked(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(asked("--version --verbose") && asked("-v -V") && asked("-V --verbose"));
        assert!(!asked("--version") && !asked("--version --version") && !asked("run --verbose --version"));
        let told = verbose();
        assert!(told.lines().count() == 6 && told.contains("libtorch: 2.11.0") && told.contains("device: "), "{told}");
    }
}
