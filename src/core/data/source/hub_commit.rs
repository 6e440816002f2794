//! The cache that Hugging Face's own tools and this one share: where it is, and which commit a revision is in it.

use std::path::{Path, PathBuf};

/// Returns the folder of the cache: `HF_HUB_CACHE`, or `hub` in `HF_HOME` or in `~/.cache/huggingface`.
pub fn hub_cache() -> PathBuf {
    let given = |path: &PathBuf| !path.as_os_str().is_empty();
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(given);
    let home = || var("HF_HOME").or_else(|| Some(std::env::home_dir().filter(given)?.join(".cache/huggingface")));
    var("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub"))).unwrap_or_else(|| PathBuf::from(".cache/huggingface/hub"))
}

/// Returns the commit that a branch, tag or commit is in a repository's folder of the cache, and the folder of that commit; `None`: the
/// cache lacks it.
pub fn hub_snapshot(repository: &Path, revision: &str) -> Option<(String, PathBuf)> {
    let commit = match std::fs::read_to_string(repository.join("refs").join(revision)) {
        Ok(commit) => commit.trim().to_owned(),
        // The revision may be the commit itself.
        Err(_) => revision.to_owned(),
    };
    let snapshot = repository.join("snapshots").join(&commit);
    (is_plain_hub_name(&commit) && snapshot.is_dir()).then_some((commit, snapshot))
}

/// Returns whether this is one harmless component of a path.
pub fn is_plain_hub_name(name: &str) -> bool {
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+=".contains(&byte);
    !name.is_empty() && name.len() <= 200 && !name.starts_with('.') && name.bytes().all(harmless)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_a_branch_or_a_commit_and_leads_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("snapshots/c0ffee")).unwrap();
        std::fs::create_dir_all(at("refs/fix")).unwrap();
        let found = Some(("c0ffee".to_owned(), at("snapshots/c0ffee")));
        assert_eq!(hub_snapshot(folder.path(), "c0ffee"), found);
        for (revision, commit) in [("main", "c0ffee\n"), ("fix/one", "c0ffee")] {
            assert_eq!(hub_snapshot(folder.path(), revision), None);
            std::fs::write(at("refs").join(revision), commit).unwrap();
            assert_eq!(hub_snapshot(folder.path(), revision), found);
        }
        for commit in ["", "..", "../refs", "0ff"] {
            std::fs::write(at("refs/main"), commit).unwrap();
            assert_eq!(hub_snapshot(folder.path(), "main"), None, "{commit}");
        }
    }
}
