//! Rules over memory limits.

use super::error::code;
use super::validate::Rules;
use super::{OffloadTo, Recompute, RunConfig};

impl Rules<'_> {
    /// Checks the budgets of activations against what parts recompute, and what is offloaded.
    pub(super) fn memory(&mut self, config: &RunConfig) {
        let (memory, model) = (&config.memory, &config.model);
        let pools = [
            ("foundation", memory.activation_budget.foundation, "model.foundation", model.foundation.recompute),
            ("encoder", memory.activation_budget.encoder, "model.image_encoder", model.image_encoder.recompute),
            ("encoder", memory.activation_budget.encoder, "model.audio_encoder", model.audio_encoder.recompute),
            ("encoder", memory.activation_budget.encoder, "model.text_encoder", model.text_encoder.recompute),
            ("encoder", memory.activation_budget.encoder, "model.vae", model.vae.recompute),
        ];
        for (pool, budget, part, recompute) in pools {
            let key = format!("memory.activation_budget.{pool}");
            self.broken(budget.is_some_and(|budget| budget.bytes() == 0), code::OUT_OF_RANGE, &[&key], || {
                (format!("`{key}`: must be above 0, found `0B`"), "null means no budget: all activations are kept")
            });
            let other = format!("{part}.recompute");
            let both = budget.is_some() && recompute != Recompute::None;
            self.broken(both, code::COMBINATION, &[&other, &key], || {
                (format!("both `{other}: all` and `{key}` are set"), "a budget decides what is recomputed: drop one")
            });
        }
        let key = "memory.activation_budget.foundation";
        for (pool, _) in config.pools.written_foundations().filter(|(_, pool)| pool.chunk_tokens > 0) {
            let chunks = format!("{pool}.chunk_tokens");
            self.broken(memory.activation_budget.foundation.is_some(), code::COMBINATION, &[key, &chunks], || {
                (format!("both `{chunks}` and `{key}` are set"), "chunks are always computed again: drop one")
            });
        }
        self.broken(
            memory.throttle.is_some_and(|rate| rate.bytes() == 0),
            code::OUT_OF_RANGE,
            &["memory.throttle"],
            || ("`memory.throttle`: must be above 0, found `0B`".to_owned(), "null means no throttle"),
        );
        self.weights(config);
        self.optimizer_offload(config);
    }

    /// Checks that state on a disk has a directory.
    fn optimizer_offload(&mut self, config: &RunConfig) {
        let Some(offload) = &config.train.optimizer.offload else { return };
        let (to, path) = ("train.optimizer.offload.to", "train.optimizer.offload.path");
        self.broken(offload.to == OffloadTo::Disk && offload.path.is_none(), code::COMBINATION, &[to], || {
            (format!("`{to}: disk` requires `{path}`"), "name a directory on a fast disk of each host")
        });
        self.broken(offload.to == OffloadTo::Cpu && offload.path.is_some(), code::COMBINATION, &[path, to], || {
            (format!("`{path}` requires `{to}: disk`"), "set it, or leave the path out")
        });
        if let Some(dir) = offload.path.as_ref().filter(|dir| dir.exists() && !dir.is_dir()) {
            self.missing(path, dir, "not a directory");
        }
    }

    /// Checks that frozen weights that are held as float8 or on the host are whole on every replica.
    fn weights(&mut self, config: &RunConfig) {
        let (memory, foundation) = (&config.memory, &config.model.foundation);
        let budgets = [("foundation", memory.weight_budget.foundation), ("encoder", memory.weight_budget.encoder)];
        for (pool, budget) in budgets {
            let key = format!("memory.weight_budget.{pool}");
            self.broken(budget.is_some_and(|budget| budget.bytes() == 0), code::OUT_OF_RANGE, &[&key], || {
                (format!("`{key}`: must be above 0, found `0B`"), "null means no budget: all weights are on the device")
            });
            let stays = budget.is_some() && !memory.offload;
            self.broken(stays, code::COMBINATION, &["memory.offload", &key], || {
                (
                    format!("both `memory.offload: false` and `{key}` are set"),
                    "weights beyond a budget are kept on the host: drop one",
                )
            });
        }
        let precision = foundation.frozen_precision.map(|_| "model.foundation.frozen_precision");
        let budget = memory.weight_budget.foundation.map(|_| "memory.weight_budget.foundation");
        // Whether there are two transformers is not known here.
        for (pool, _) in config.pools.written_foundations().filter(|(_, pool)| pool.zero > 2) {
            let zero = format!("{pool}.zero");
            for key in precision.into_iter().chain(budget) {
                self.broken(true, code::COMBINATION, &[&zero, key], || {
                    let help = "level 3 shards frozen weights among the replicas: use a lower level, or leave the other key out";
                    (format!("`{zero}` 3 is not supported with `{key}`"), help)
                });
            }
        }
    }
}
