//! Rules over what is evaluated, and when.

use std::path::Path;

use super::error::code;
use super::validate::Rules;
use super::{Data, EpisodeRange, Eval, Normalize, RunConfig, TrainFile};

impl Rules<'_> {
    /// Checks what is evaluated and when, and that held-out samples are evaluated.
    pub(super) fn evaluation(&mut self, config: &RunConfig) {
        let sets_aside = config.data.val_size > 0.0;
        let Some(eval) = &config.eval else {
            self.broken(sets_aside, code::COMBINATION, &["data.val_size"], || {
                let message =
                    "`data.val_size` sets samples aside, but there is no `eval` section to evaluate them".to_owned();
                (message, "add eval: { every_steps: 100 }")
            });
            return;
        };
        let names = eval.set_names(&config.data);
        self.broken(names.is_empty(), code::MISSING_KEY, &["eval"], || {
            let message = "missing required key `eval.path`, `eval.sets` or `data.val_size`".to_owned();
            (message, "set one of them to name the samples to evaluate")
        });
        let no_path = eval.episodes.is_some() && eval.path.is_none();
        self.broken(no_path, code::COMBINATION, &["eval.episodes"], || {
            let message = "`eval.episodes` requires `eval.path`, whose episodes it selects".to_owned();
            (message, "name the LeRobot data set in eval.path, or drop eval.episodes")
        });
        let no_files = eval.path.is_none() && eval.sets.is_empty() && !names.is_empty();
        let of_files = [("eval.columns", !eval.columns.is_empty()), ("eval.media_dir", eval.media_dir.is_some())];
        for (key, _) in of_files.into_iter().filter(|(_, is_set)| *is_set && no_files) {
            self.broken(true, code::COMBINATION, &[key], || {
                (format!("`{key}` requires `eval.path` or `eval.sets`, whose samples it is about"), "drop it")
            });
        }
        self.held_episodes(config, eval);
        self.every_epochs(config, "eval", (eval.every_steps, eval.every_epochs));
        if let Some(key) = config.cannot_act() {
            let asks = eval.actions.is_some_and(|count| count > 0);
            self.broken(asks, code::COMBINATION, &["eval.actions", key], || {
                let message = format!("`eval.actions`: a policy cannot act during a run with `{key}`");
                (message, "set it to 0, or drop that key; actions are compared after the run in any case")
            });
        }
        self.sets(eval, &names);
        self.limits_of_sets(eval, &names);
        self.expectations(eval, &names);
        if let Some(best) = eval.best.as_ref().filter(|best| !names.is_empty() && !names.contains(best)) {
            let help = format!("the sets are {}", names.join(", "));
            self.broken(true, code::OUT_OF_RANGE, &["eval.best"], || {
                (format!("`eval.best`: there is no set `{best}`"), help.as_str())
            });
        }
        let no_patience = eval.min_delta > 0.0 && eval.patience.is_none();
        self.broken(no_patience, code::COMBINATION, &["eval.min_delta"], || {
            let message = "`eval.min_delta` requires `eval.patience`, whose count it resets less often".to_owned();
            (message, "set eval.patience to a number of evaluations, or drop eval.min_delta")
        });
        let is_normalized = eval.scores.iter().any(|score| score.is_normalized())
            || eval.expect.values().any(|expect| expect.word.is_some());
        let is_idle = eval.normalize != Normalize::default() && !is_normalized;
        self.broken(is_idle, code::COMBINATION, &["eval.normalize", "eval.scores"], || {
            let message = "`eval.normalize` applies only to wer, cer and words of `eval.scores`".to_owned();
            (message, "add one of them to eval.scores, or drop eval.normalize")
        });
        let keys = [
            ("eval.generate", eval.generate.is_some()),
            ("eval.best", eval.best.is_some()),
            ("eval.patience", eval.patience.is_some()),
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set && !eval.is_during_run()) {
            self.broken(true, code::COMBINATION, &[key], || {
                (
                    format!("`{key}` applies only to evaluations during the run"),
                    "set eval.every_steps or eval.every_epochs",
                )
            });
        }
    }

    /// Checks that `eval.sets` have names of their own; `names` are those of all sets.
    fn sets(&mut self, eval: &Eval, names: &[String]) {
        for name in eval.sets.keys() {
            let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && !name.is_empty();
            let is_taken = name == Eval::POOLED || names.iter().filter(|other| *other == name).count() > 1;
            self.broken(!is_plain || is_taken, code::OUT_OF_RANGE, &["eval.sets"], || {
                let why = if is_taken { "is already in use" } else { "is not a valid set name" };
                (format!("`eval.sets`: `{name}` {why}"), "a name has letters, digits, `-`, `_` and `.`")
            });
        }
    }

    /// Checks that `eval.limits` is about sets in `names`, and leaves samples of each.
    fn limits_of_sets(&mut self, eval: &Eval, names: &[String]) {
        for (name, limit) in &eval.limits {
            let help = format!("the sets are {}", names.join(", "));
            self.broken(!names.is_empty() && !names.contains(name), code::OUT_OF_RANGE, &["eval.limits"], || {
                (format!("`eval.limits`: there is no set `{name}`"), help.as_str())
            });
            self.broken(*limit == 0, code::OUT_OF_RANGE, &["eval.limits"], || {
                (format!("`eval.limits.{name}`: must be above 0, found `0`"), "drop the set, or evaluate some of it")
            });
        }
    }

    /// Checks that `eval.expect` is about sets in `names`, and says one thing of each.
    fn expectations(&mut self, eval: &Eval, names: &[String]) {
        for (name, expect) in &eval.expect {
            let is_pooled = eval.pooled_statistics.is_some() && name == Eval::POOLED;
            let help = format!("the sets are {}", names.join(", "));
            self.broken(
                !names.is_empty() && !is_pooled && !names.contains(name),
                code::OUT_OF_RANGE,
                &["eval.expect"],
                || (format!("`eval.expect`: there is no set `{name}`"), help.as_str()),
            );
            let kinds = [expect.at_least, expect.at_most, expect.chance];
            for (key, part) in ["at_least", "at_most", "chance"].into_iter().zip(kinds) {
                self.broken(
                    part.is_some_and(|part| !(0.0..=1.0).contains(&part)),
                    code::OUT_OF_RANGE,
                    &["eval.expect"],
                    || {
                        (
                            format!("`eval.expect.{name}.{key}` is not a fraction"),
                            "it must be from 0 to 1, for example 0.95",
                        )
                    },
                );
            }
            self.broken(expect.word == Some(0), code::OUT_OF_RANGE, &["eval.expect"], || {
                (format!("`eval.expect.{name}.word` is 0"), "the first word is 1")
            });
            self.broken(kinds.iter().flatten().count() != 1, code::COMBINATION, &["eval.expect"], || {
                let message =
                    format!("`eval.expect.{name}` must have exactly one of `at_least`, `at_most` and `chance`");
                (message, "set one of them, for example { at_least: 0.9 }")
            });
        }
    }
}

impl Rules<'_> {
    /// Checks that no episode is both trained on and evaluated where `episodes` selects some. A set that is used as a whole on both
    /// sides is evaluated like any other data that are trained on.
    fn held_episodes(&mut self, config: &RunConfig, eval: &Eval) {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let own = if eval.episodes.is_some() { "eval.episodes" } else { "eval.path" };
        let first = eval.path.iter().map(|path| (own.to_owned(), path, eval.episodes.as_deref()));
        let others = eval.sets.iter().map(|(name, path)| (format!("eval.sets.{name}"), path, None));
        for (key, path, held) in first.chain(others) {
            for (at, file) in config.data.train.iter().enumerate() {
                let trained = file.episodes.as_deref();
                let is_same = || file.path.0.iter().any(|one| real(Path::new(one)) == real(path));
                if held.is_none() && trained.is_none() || !is_same() {
                    continue;
                }
                let all = [EpisodeRange::ALL];
                let (held, trained) = (held.unwrap_or(&all), trained.unwrap_or(&all));
                let common = held.iter().flat_map(|one| trained.iter().filter_map(move |other| one.common(*other)));
                let Some(episode) = common.min() else { continue };
                let by = format!("data.train.{at}");
                let help = match key.starts_with("eval.sets") {
                    true => "evaluate other episodes of this set by `eval.path` with `eval.episodes`".to_owned(),
                    false => format!("leave it out of `{by}.episodes` or of `eval.episodes`"),
                };
                self.broken(true, code::COMBINATION, &[&key, &by], || {
                    (format!("`{key}`: episode {episode} is also trained on, by `{by}`"), help.as_str())
                });
            }
        }
    }
}

impl Eval {
    /// Returns the names of the sets, with the one that `data` sets aside; the first determines the best step unless `best` names
    /// another.
    pub fn set_names(&self, data: &Data) -> Vec<String> {
        let own = [(self.path.is_some(), Self::HELD_OUT), (data.val_size > 0.0, Self::VAL)];
        let own = own.into_iter().filter(|(is, _)| *is).map(|(_, name)| name.to_owned());
        own.chain(self.sets.keys().cloned()).collect()
    }

    /// Returns the sets that have samples of their own, with their names: all but the one of `data.val_size`.
    pub fn files(&self) -> impl Iterator<Item = (String, TrainFile)> {
        let held_out = self.path.iter().map(|_| Self::HELD_OUT.to_owned());
        held_out.chain(self.sets.keys().cloned()).filter_map(move |name| {
            let file = self.file(&name)?;
            Some((name, file))
        })
    }

    /// Returns the samples of a set by its name; `None`: those that `data.val_size` holds out.
    pub fn file(&self, name: &str) -> Option<TrainFile> {
        let is_first = name == Self::HELD_OUT;
        let path = if is_first { self.path.as_ref() } else { self.sets.get(name) };
        let episodes = self.episodes.clone().filter(|_| is_first);
        let (columns, media_dir) = (self.columns.clone(), self.media_dir.clone());
        Some(TrainFile { columns, media_dir, episodes, ..TrainFile::new(path?.as_path()) })
    }

    /// Returns how many samples of a set an evaluation during the run uses, at most.
    pub fn most_of(&self, name: &str) -> u64 {
        self.limits.get(name).copied().or(self.max_samples).unwrap_or(u64::MAX)
    }

    /// Returns whether the length of answers differs from the default.
    pub fn names_length(&self) -> bool {
        self.max_new_tokens != Self::MAX_NEW_TOKENS
    }

    /// Tokens of an answer unless the config says how many.
    pub(super) const MAX_NEW_TOKENS: usize = 32;
    /// The set of `eval.path`.
    pub const HELD_OUT: &str = "held_out";
    /// The set of `data.val_size`.
    pub const VAL: &str = "val";
    /// The results of `pooled_statistics`.
    pub const POOLED: &str = "pooled_statistics";
    /// Questions that are answered at an evaluation unless the config says how many.
    const NUM_ANSWERS: u64 = 16;
    /// Frames at which a policy acts at an evaluation unless the config says how many.
    const NUM_ACTED: u64 = 64;
}

impl RunConfig {
    /// Returns the number of questions per set to answer at each evaluation during the run.
    pub fn num_answers(&self) -> u64 {
        let asked = self.eval.as_ref().and_then(|eval| eval.generate);
        asked.unwrap_or(Eval::NUM_ANSWERS)
    }

    /// Returns the number of frames per set at which a robot policy acts at each evaluation during the run.
    pub fn num_acted(&self) -> u64 {
        let asked = self.eval.as_ref().map(|eval| eval.actions.unwrap_or(Eval::NUM_ACTED));
        asked.filter(|_| self.cannot_act().is_none()).unwrap_or(0)
    }

    /// Returns the key that prevents a policy from acting during the run, because weights are sharded there or come layer by layer.
    pub fn cannot_act(&self) -> Option<&'static str> {
        [
            ("pools.foundation.zero", self.pools.foundation.zero == 3),
            ("model.foundation.frozen_precision", self.model.foundation.frozen_precision.is_some()),
            ("memory.weight_budget.foundation", self.memory.weight_budget.foundation.is_some()),
        ]
        .into_iter()
        .find(|(_, is_set)| *is_set)
        .map(|(key, _)| key)
    }
}
