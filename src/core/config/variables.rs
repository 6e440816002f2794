//! Environment variables that begin as the program's own do: which there are, and what others may mean.

use super::shape::{SCHEMA, walk};
use super::suggest;

/// Begins the program's variables.
const PREFIX: &str = "LOONGFORGE_";
/// Begins variables of tests alone.
const OF_TESTS: &str = "LOONGFORGE_TEST_";

/// Variables that users and launchers set, besides `LOONGFORGE__A__B`, which are keys.
const SET: &[&str] = &[
    "LOONGFORGE_FAULTS",
    "LOONGFORGE_JOIN",
    "LOONGFORGE_POOL",
    "LOONGFORGE_PROXY",
    "LOONGFORGE_ROLE",
    "LOONGFORGE_TORCH_LIB",
];

/// All others but those of tests alone.
const OTHERS: &[&str] = &[
    // A process sets them for those that it starts.
    "LOONGFORGE_AGAIN",
    "LOONGFORGE_INDEX",
    "LOONGFORGE_KEEPER",
    "LOONGFORGE_PARENT",
    "LOONGFORGE_PLACE",
    // The build, tests and benchmarks read them.
    "LOONGFORGE_ARENA_TEST",
    "LOONGFORGE_AUDIO",
    "LOONGFORGE_BENCH_EDGE",
    "LOONGFORGE_CLIENT_PYTHON",
    "LOONGFORGE_DIT",
    "LOONGFORGE_FAST",
    "LOONGFORGE_FIXTURES",
    "LOONGFORGE_FLORENCE",
    "LOONGFORGE_FUZZ",
    "LOONGFORGE_MUST_RUN",
    "LOONGFORGE_NATIVE_LIB_DIR",
    "LOONGFORGE_OLDER",
    "LOONGFORGE_PEERS_PYTHON",
    "LOONGFORGE_PIPELINES",
    "LOONGFORGE_POLICIES",
    "LOONGFORGE_QUICK",
    "LOONGFORGE_SOAK_CELLS",
    "LOONGFORGE_SOAK_SLICE",
    "LOONGFORGE_SOAK_TABLE",
    "LOONGFORGE_TEMPLATES",
    "LOONGFORGE_TOWERS",
    "LOONGFORGE_VAES",
];

/// Returns a line for each variable that begins as the program's own do and is none, unless the config reads it.
pub(super) fn ignored<'a>(names: impl Iterator<Item = &'a String>, is_read: impl Fn(&str) -> bool) -> Vec<String> {
    let is_other = |name: &&String| {
        name.starts_with(PREFIX)
            && !name.starts_with("LOONGFORGE__")
            && !name.starts_with(OF_TESTS)
            && ![SET, OTHERS].iter().any(|known| known.contains(&name.as_str()))
            && !is_read(name)
    };
    names.filter(is_other).filter_map(|name| line(name)).collect()
}

/// Returns the warning about a variable; `None`: Kubernetes has set it, for a service with the program's name.
fn line(name: &str) -> Option<String> {
    let meant = match (key_of(name), name.contains("_SERVICE_") || name.ends_with("_PORT") || name.contains("_PORT_")) {
        (Some(key), _) => format!("did you mean `{key}`?"),
        (None, true) => return None,
        (None, false) => {
            match suggest::nearest(&name[PREFIX.len()..], SET.iter().map(|known| &known[PREFIX.len()..])) {
                Some(known) => format!("did you mean `{PREFIX}{known}`?"),
                None => "a key of the config is set as in `LOONGFORGE__TRAIN__LR=1e-4`".to_owned(),
            }
        }
    };
    Some(format!("the environment variable {name} is not known and has no effect: {meant}"))
}

/// Returns the variable of the key whose names this one has, with single underscores between them.
fn key_of(name: &str) -> Option<String> {
    let wanted = name.strip_prefix(PREFIX)?.to_lowercase();
    let mut found = None;
    walk(&SCHEMA, "", &mut |path, _| {
        if path.replace('.', "_") == wanted {
            found.get_or_insert_with(|| format!("LOONGFORGE__{}", path.replace('.', "__").to_uppercase()));
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(names: &[&str], read: &str) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        ignored(names.iter(), |name| name == read)
    }

    #[test]
    fn unknown_variables_are_named_with_what_they_may_mean() {
        let names = ["LOONGFORGE_TRAIN_LR", "LOONGFORGE_POOLS_ENCODER_REPLICAS", "LOONGFORGE_TORCHLIB", "LOONGFORGE_X"];
        let found = lines(&names, "");
        let meant = [
            "did you mean `LOONGFORGE__TRAIN__LR`?",
            "did you mean `LOONGFORGE__POOLS__ENCODER__REPLICAS`?",
            "did you mean `LOONGFORGE_TORCH_LIB`?",
            "is set as in `LOONGFORGE__TRAIN__LR=1e-4`",
        ];
        assert_eq!(found.len(), names.len(), "{found:?}");
        for ((line, name), meant) in found.iter().zip(names).zip(meant) {
            assert!(line.contains(&format!("variable {name} is not known")) && line.ends_with(meant), "{line}");
        }
    }

    #[test]
    fn variables_that_are_known_or_read_or_set_by_kubernetes_are_not_named() {
        let names = [
            "HOME",
            "LOONGFORGE__TRAIN__LR",
            "LOONGFORGE_ROLE",
            "LOONGFORGE_TEST_ROLE",
            "LOONGFORGE_DATA_FOLDER",
            "LOONGFORGE_HEAD_SERVICE_HOST",
            "LOONGFORGE_HEAD_PORT_6001_TCP_ADDR",
        ];
        assert_eq!(lines(&names, "LOONGFORGE_DATA_FOLDER"), [""; 0]);
    }
}
