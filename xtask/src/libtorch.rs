//! Describes which libtorch a build uses: the one `LIBTORCH` names, or ours in `.libtorch/`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The only version that the pinned tch speaks to.
pub const VERSION: &str = "2.11.0";

/// Says where libtorch comes from.
#[derive(Debug, PartialEq, Eq)]
pub enum Libtorch {
    /// `.libtorch/` of this clone, filled by set-up.
    Ours,
    /// The folder that the user's `LIBTORCH` names; it is never written to.
    Given(PathBuf),
}

impl Libtorch {
    pub fn from_env(root: &Path) -> Self {
        Self::choose(root, std::env::var_os("LIBTORCH").as_deref())
    }

    /// Cargo itself sets `LIBTORCH` to our folder (see `.cargo/config.toml`) where the user has not.
    fn choose(root: &Path, libtorch: Option<&OsStr>) -> Self {
        match libtorch.filter(|path| !path.is_empty()).map(PathBuf::from) {
            Some(path) if !is_ours(root, &path) => Self::Given(path),
            _ => Self::Ours,
        }
    }
}

fn is_ours(root: &Path, path: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    path.ends_with(".libtorch/torch") && path.ancestors().nth(2).is_some_and(|holder| real(holder) == real(root))
}

/// Checks a libtorch that the user brings: complete, and the version that we need.
pub fn check_given(path: &Path) -> Result<()> {
    let shown = path.display();
    let advice = "unset LIBTORCH to have set-up fetch one";
    if path.is_relative() {
        bail!(
            "LIBTORCH={shown} is a relative path, and the build runs in other folders: make it absolute, or {advice}"
        );
    }
    for part in ["lib/libtorch_cpu.so", "lib/libc10.so", "include/torch"] {
        if !path.join(part).exists() {
            bail!("LIBTORCH={shown} has no {part}: point it at an unpacked libtorch {VERSION}, or {advice}");
        }
    }
    match version(path) {
        Some(found) if found != VERSION => {
            bail!("LIBTORCH={shown} is libtorch {found}, and {VERSION} is needed: point it at that one, or {advice}")
        }
        _ => Ok(()),
    }
}

/// Returns the version a libtorch folder says it has, without its build tag ("+cpu").
fn version(path: &Path) -> Option<String> {
    if let Ok(text) = std::fs::read_to_string(path.join("build-version")) {
        return text.trim().split('+').next().map(String::from);
    }
    ["include/torch/headeronly/version.h", "include/torch/version.h"]
        .iter()
        .filter_map(|header| std::fs::read_to_string(path.join(header)).ok())
        .find_map(|header| version_in_header(&header))
}

fn version_in_header(header: &str) -> Option<String> {
    let number = |name: &str| {
        let line = header.lines().find(|line| line.starts_with(&format!("#define {name} ")))?;
        line.split_whitespace().nth(2)?.parse::<u32>().ok()
    };
    let (major, minor) = (number("TORCH_VERSION_MAJOR")?, number("TORCH_VERSION_MINOR")?);
    Some(format!("{major}.{minor}.{}", number("TORCH_VERSION_PATCH")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_folder_is_not_taken_for_the_users() {
        let root = Path::new("/somewhere/loongforge");
        let choose = |path: &str| Libtorch::choose(root, Some(OsStr::new(path)));
        assert_eq!(Libtorch::choose(root, None), Libtorch::Ours);
        assert_eq!(choose(""), Libtorch::Ours);
        assert_eq!(choose("/somewhere/loongforge/.libtorch/torch"), Libtorch::Ours);
        let other = "/elsewhere/.libtorch/torch";
        assert_eq!(choose(other), Libtorch::Given(other.into()));
    }

    #[test]
    fn header_gives_the_version() {
        let header = "#pragma once\n#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 10\n\
                      #define TORCH_VERSION_PATCH 1\n#define TORCH_VERSION \\\n";
        assert_eq!(version_in_header(header).as_deref(), Some("2.10.1"));
        assert_eq!(version_in_header("#define TORCH_VERSION_MAJOR 2\n"), None);
    }

    #[test]
    fn a_bogus_libtorch_is_one_clear_line() {
        let error = check_given(Path::new("/nonexistent/libtorch")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/libtorch has no lib/libtorch_cpu.so"), "{error}");
        assert!(!error.contains('\n'));
        let error = check_given(Path::new("libtorch")).unwrap_err().to_string();
        assert!(error.contains("relative"), "{error}");
    }
}
