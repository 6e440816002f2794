//! Rules over `policy`.

use super::RunConfig;
use super::error::code;
use super::validate::Rules;
use std::path::Path;

impl Rules<'_> {
    /// Checks the keys of `policy` against each other.
    pub(super) fn policy(&mut self, config: &RunConfig) {
        let policy = &config.policy;
        let key = "policy.embodiments";
        let has = !policy.embodiments.is_empty();
        self.broken(policy.statistics.is_some() && !has, code::COMBINATION, &["policy.statistics", key], || {
            (format!("`policy.statistics` requires `{key}`"), "name the robots of the data, or drop the key")
        });
        self.broken(policy.domain.is_some() && has, code::COMBINATION, &["policy.domain", key], || {
            (
                format!("both `policy.domain` and `{key}` are set"),
                "drop `policy.domain`: the `number` of each embodiment is its domain",
            )
        });
        let nameless = policy.embodiments.keys().any(|name| name.is_empty() || name.chars().any(char::is_control));
        self.broken(nameless, code::OUT_OF_RANGE, &[key], || {
            (format!("`{key}`: an embodiment has no name"), "a set's `robot_type` is the usual name")
        });
        let of_train = config.data.train.iter().flat_map(|file| &file.path.0).map(Path::new);
        let of_eval = config.eval.iter().flat_map(|eval| eval.path.iter().chain(eval.sets.values()));
        let known: Vec<&Path> = of_train.chain(of_eval.map(|path| path.as_path())).collect();
        let all = || policy.embodiments.iter().flat_map(|(name, own)| own.sets.iter().map(move |set| (name, set)));
        for (at, (name, set)) in all().enumerate() {
            let place = format!("{key}.{name}.sets");
            self.broken(!known.contains(&set.as_path()), code::NO_SUCH_FILE, &[&place], || {
                let message = format!("`{place}`: `{}` is not a data set of `data.train` or `eval`", set.display());
                (message, "write the path as it is written there")
            });
            let before = all().take(at).find(|(_, other)| *other == set);
            self.broken(before.is_some(), code::COMBINATION, &[&place], || {
                let other = before.map_or("", |(name, _)| name);
                (
                    format!("`{place}`: `{}` is also a set of {other}", set.display()),
                    "a set must be recorded with one robot",
                )
            });
        }
    }
}
