//! The tools a first build needs, looked up on `PATH`; what is missing becomes one line that says what to install.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Returns the first 16 hexadecimal digits of the commit's id.
pub fn commit_seed(root: &Path) -> Result<String> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output().context("git")?;
    let id = String::from_utf8_lossy(&output.stdout);
    Ok(id.get(..16).context("no commit here: name a seed")?.to_owned())
}

/// Checks for the C and C++ compilers: rustc links with `cc`, torch-sys and our own shim need C++.
pub fn require_compilers() -> Result<()> {
    let cxx = std::env::var("CXX").ok().filter(|cxx| !cxx.trim().is_empty());
    let cxx = cxx.as_deref().unwrap_or("c++");
    // CXX may carry arguments or a wrapper ("ccache g++"): its first word is what is started.
    let program = cxx.split_whitespace().next().unwrap_or(cxx);
    if find(program).is_none() {
        bail!(
            "no C++ compiler: `{program}` is not on PATH; install one (Debian, Ubuntu: \
             `apt install g++`; Fedora: `dnf install gcc-c++`) or point CXX at it"
        );
    }
    if find("cc").is_none() {
        bail!(
            "no linker: `cc` is not on PATH; install gcc (Debian, Ubuntu: `apt install gcc`; \
             Fedora: `dnf install gcc`)"
        );
    }
    Ok(())
}

/// Returns the Python 3 interpreter that has pip: `PYTHON` if set, else `python3`.
pub fn require_python() -> Result<PathBuf> {
    let chosen = std::env::var("PYTHON").ok().filter(|python| !python.is_empty());
    let name = chosen.as_deref().unwrap_or("python3");
    let Some(python) = find(name) else {
        let where_from = if chosen.is_some() { " (from PYTHON)" } else { "" };
        bail!(
            "`{name}`{where_from} is not on PATH, and set-up fetches libtorch through pip; install Python 3 with \
             pip (Debian, Ubuntu: `apt install python3 python3-pip`; Fedora: `dnf install python3-pip`), \
             or set LIBTORCH to an unpacked libtorch"
        );
    };
    let pip = Command::new(&python)
        .args(["-m", "pip", "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !pip.is_ok_and(|status| status.success()) {
        bail!(
            "`{name}` has no pip, and set-up fetches libtorch through it; install pip (Debian, Ubuntu: \
             `apt install python3-pip`; Fedora: `dnf install python3-pip`; else `{name} -m ensurepip --user`)"
        );
    }
    Ok(python)
}

/// Returns the executable `name` names: a path as it is, a bare name looked up on `PATH`.
pub fn find(name: &str) -> Option<PathBuf> {
    find_in(name, &std::env::var_os("PATH")?)
}

fn find_in(name: &str, path: &OsStr) -> Option<PathBuf> {
    if name.contains('/') {
        return is_executable(Path::new(name)).then(|| PathBuf::from(name));
    }
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_only_executables() {
        assert_eq!(find_in("sh", OsStr::new("/nonexistent:/bin")), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_in("sh", OsStr::new("/nonexistent")), None);
        assert_eq!(find_in("passwd", OsStr::new("/etc")), None, "a plain file is no program");
        assert_eq!(find_in("/bin/sh", OsStr::new("")), Some(PathBuf::from("/bin/sh")));
    }
}
