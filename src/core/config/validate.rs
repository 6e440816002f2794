//! Rules over several keys of a typed config, and over the files that it names.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Component, Path};

use super::error::{Problem, code};
use super::node::{Node, float};
use super::source::hub_data_set;
use super::suggest;
use super::{Balance, EncoderPool, FoundationPool, OptimizerType, PackMode, Placement, RunConfig, Schedule};
use crate::files;
use crate::message::PoolName;

/// Shortest lease; with less, a busy machine would kill healthy processes.
const MIN_LEASE: std::time::Duration = std::time::Duration::from_millis(100);

/// Reports broken rules. A rule over a key in `failed` is skipped, since the key's value is not the user's.
pub(super) fn validate(config: &RunConfig, tree: &Node, failed: &BTreeSet<String>, problems: &mut Vec<Problem>) {
    let mut rules = Rules { tree, failed, problems };
    rules.name(config);
    rules.train(config);
    rules.model(config);
    rules.pools(config);
    rules.limits(config);
    rules.data_sets(config);
    rules.flow(config);
    rules.policy(config);
    rules.preference(config);
    rules.pack(config);
    rules.memory(config);
    rules.tracking(config);
    rules.files(config);
}

pub(super) struct Rules<'a> {
    tree: &'a Node,
    failed: &'a BTreeSet<String>,
    problems: &'a mut Vec<Problem>,
}

impl Rules<'_> {
    /// The run's name is a part of paths.
    fn name(&mut self, config: &RunConfig) {
        let name = &config.run.name;
        let is_part = |part: Component<'_>| matches!(part, Component::Normal(_));
        let leads_out = !Path::new(name).components().all(is_part) || name.contains(|c: char| c.is_control());
        self.broken(leads_out, code::OUT_OF_RANGE, &["run.name"], || {
            (
                format!("`run.name`: {name:?} is not a valid name: it would lead out of the runs folder"),
                "use letters, digits, `-` and `_`; `run.dir` may be any directory",
            )
        });
    }

    fn train(&mut self, config: &RunConfig) {
        let train = &config.train;
        self.broken(train.min_lr > train.lr, code::COMBINATION, &["train.min_lr", "train.lr"], || {
            (
                format!("`train.min_lr` {} is above `train.lr` {}", float(train.min_lr), float(train.lr)),
                "the schedule decays from `lr` to `min_lr`",
            )
        });
        self.duration(config);
        let is_muon = train.optimizer.kind == OptimizerType::Muon;
        let (key, kind) = ("train.optimizer.muon", "train.optimizer.type");
        self.broken(train.optimizer.muon.is_some() && !is_muon, code::COMBINATION, &[key, kind], || {
            (format!("`{key}` requires `{kind}: muon`"), "set the type, or leave the section out")
        });
        for (i, beta) in train.optimizer.betas.into_iter().enumerate() {
            let key = format!("train.optimizer.betas.{i}");
            self.broken(!(0.0..1.0).contains(&beta), code::OUT_OF_RANGE, &[&key], || {
                (format!("`{key}`: must be at least 0 and below 1, found `{beta}`"), "the usual values are [0.9, 0.95]")
            });
        }
    }

    /// Checks the length of the run.
    fn duration(&mut self, config: &RunConfig) {
        let train = &config.train;
        // Neither was written: the section is where one belongs.
        let keys = ["train.steps", "train.epochs", "train"];
        self.broken(train.steps.is_none() && train.epochs.is_none(), code::MISSING_KEY, &keys, || {
            let message = "missing required key `train.steps` or `train.epochs`".to_owned();
            (message, "`steps` counts optimizer steps, `epochs` counts passes over the data")
        });
        let is_stream = config.data.pack.mode == PackMode::Stream;
        self.broken(
            train.epochs.is_some() && is_stream,
            code::COMBINATION,
            &["train.epochs", "data.pack.mode"],
            || {
                let message =
                    "`train.epochs` is not supported with `data.pack.mode: stream`, whose batches are counted in packs".to_owned();
                (
                    message,
                    "the number of packs is not known in advance: set `train.steps`, or `data.pack.mode: step` or `offline`; \
                 `step` also for packs that `loongforge data pack` made",
                )
            },
        );
        let (warmup, steps) = (train.warmup_steps, train.steps.unwrap_or(u64::MAX));
        self.broken(warmup > steps, code::COMBINATION, &["train.warmup_steps", "train.steps"], || {
            let message = format!("`train.warmup_steps` {warmup} is more than `train.steps` {steps}");
            (
                message,
                "the learning rate would never reach its peak: lower `train.warmup_steps` too (0: no warm-up), or set \
                `train.warmup_ratio` in its place, which follows the number of steps",
            )
        });
        let both = train.warmup_ratio.is_some() && train.warmup_steps > 0;
        self.broken(both, code::COMBINATION, &["train.warmup_ratio", "train.warmup_steps"], || {
            ("both `train.warmup_ratio` and `train.warmup_steps` are set".to_owned(), "set only one of them")
        });
        let is_wsd = train.schedule == Schedule::Wsd;
        let keys = ["train.decay_steps", "train.schedule"];
        self.broken(train.decay_steps.is_some() && !is_wsd, code::COMBINATION, &keys, || {
            ("`train.decay_steps` requires `train.schedule: wsd`".to_owned(), "other schedules decay over all steps")
        });
        let (decay, warmup) = (train.decay_steps.unwrap_or(0), train.num_warmup_steps(steps));
        let overlaps = is_wsd && train.steps.is_some() && warmup.saturating_add(decay) > steps;
        self.broken(overlaps, code::COMBINATION, &["train.decay_steps", "train.steps"], || {
            let message = format!("a warm-up of {warmup} and a decay of {decay} steps exceed `train.steps` {steps}");
            (message, "the learning rate would decay before it has reached its peak")
        });
    }

    fn pools(&mut self, config: &RunConfig) {
        let (of_encoder, of_foundation) = (config.pools.encoder.layout(), config.pools.foundation.layout());
        let keys = ["pools.encoder.replicas", "pools.foundation.replicas", "pools.placement"];
        let colocated = config.pools.placement == Placement::Colocated;
        self.broken(colocated && of_encoder.ranks() != of_foundation.ranks(), code::COMBINATION, &keys, || {
            let (encoder, foundation) = (of_encoder.ranks(), of_foundation.ranks());
            let message =
                format!("colocated pools differ in size: {encoder} encoder and {foundation} foundation actors");
            (message, "when colocated, each foundation actor also encodes a share: give both pools the same size")
        });
        let keys = ["pools.encoder.tensor_parallel", "pools.placement"];
        self.broken(colocated && of_encoder.tp > 1, code::COMBINATION, &keys, || {
            let message = format!("colocated encoders are sharded over {} actors each", of_encoder.tp);
            (message, "when colocated, every actor has a whole encoder: set `tensor_parallel` to 1")
        });
        self.towers(config);
        for (key, pool) in config.pools.written_foundations() {
            self.layouts(key, &pool);
            let (key, batch) = (format!("{key}.replicas"), config.train.global_batch_size);
            self.broken(batch < pool.replicas, code::COMBINATION, &["train.global_batch_size", &key], || {
                let message = format!("`train.global_batch_size` {batch} is less than `{key}` {}", pool.replicas);
                (message, "each foundation replica needs at least one sample a step")
            });
        }
        let [high, low] = [config.pools.foundation_high, config.pools.foundation_low];
        let is_unused = high.is_some() && low.is_some() && config.pools.foundation != FoundationPool::default();
        let keys = ["pools.foundation", "pools.foundation_high", "pools.foundation_low"];
        self.broken(is_unused, code::COMBINATION, &keys, || {
            let message = "`pools.foundation` has no effect: both transformers have pools of their own";
            (message.to_owned(), "drop it or one of the others, which then follows `pools.foundation`")
        });
        let pools = config.pools.named.iter().chain([(&PoolName::ENCODER, &config.pools.encoder)]);
        for (name, pool) in pools {
            self.encoder_pool(config, *name, pool);
        }
    }

    /// Checks that each tower is in one pool, and that named pools are valid.
    fn towers(&mut self, config: &RunConfig) {
        let colocated = config.pools.placement == Placement::Colocated;
        for (name, pool) in &config.pools.named {
            let (key, held) = (format!("pools.{name}"), pool.held(*name));
            self.broken(colocated, code::COMBINATION, &[&key, "pools.placement"], || {
                let message = format!("`{key}`: encoders colocated with the foundation cannot have a separate pool");
                (message, "drop the pool, or set `pools.placement: separate`")
            });
            let key = format!("{key}.towers");
            self.broken(held.is_empty(), code::OUT_OF_RANGE, &[&key], || {
                (format!("`{key}` is empty: the pool has nothing to do"), "name a tower, or drop the pool")
            });
            let before = config.pools.named.iter().take_while(|(other, _)| *other != name);
            let other = before.into_iter().find(|(other, pool)| {
                let theirs = pool.held(**other);
                held.iter().any(|tower| theirs.contains(tower))
            });
            self.broken(other.is_some(), code::COMBINATION, &[&key], || {
                let other = other.map(|(other, _)| other.to_string()).unwrap_or_default();
                (format!("`{key}`: the pools `{other}` and `{name}` hold the same tower"), "drop it from one of them")
            });
        }
        let names = config.pools.encoder.towers.is_some();
        self.broken(names, code::COMBINATION, &["pools.encoder.towers"], || {
            let message = "`pools.encoder.towers` cannot be set: this pool holds all remaining towers".to_owned();
            (message, "drop it, and give the other towers pools of their own")
        });
    }

    fn encoder_pool(&mut self, config: &RunConfig, name: PoolName, pool: &EncoderPool) {
        let key = |key: &str| format!("pools.{name}.{key}");
        let (replicas, zero) = (key("replicas"), key("zero"));
        let too_few = config.run.deterministic && config.run.lanes < pool.replicas;
        self.broken(too_few, code::COMBINATION, &["run.lanes", &replicas, "run.deterministic"], || {
            let message = format!("`run.lanes` {} is less than `{replicas}` {}", config.run.lanes, pool.replicas);
            (
                message,
                "with `run.deterministic` each encoder needs its own lane; more lanes change the order of summation",
            )
        });
        let (dir, parallel) = (key("cache_dir"), key("tensor_parallel"));
        self.broken(pool.reads() && pool.cache_dir.is_none(), code::COMBINATION, &[&replicas, &dir], || {
            let message = format!("`{replicas}` is 0 without `{dir}`: there is no folder to read features from");
            (message, "set `cache_dir` to the folder that `loongforge data encode` has filled")
        });
        self.feature_folders(name, pool);
        let is_split = pool.tensor_parallel > 1;
        self.broken(pool.reads() && is_split, code::COMBINATION, &[&replicas, &parallel], || {
            (format!("`{parallel}` is {} without encoders", pool.tensor_parallel), "drop `tensor_parallel`")
        });
        let (rate, lr) = (key("lr"), config.train.lr);
        self.broken(pool.lr.is_some() && lr == 0.0, code::COMBINATION, &[&rate, "train.lr"], || {
            (format!("`{rate}` is a multiple of `train.lr`, which is 0"), "set `train.lr` above 0")
        });
        self.broken(pool.zero > 1, code::COMBINATION, &[&zero], || {
            let message = format!("`{zero}` {}: encoders do not synchronize within a step", pool.zero);
            (message, "use 1, which shards the largest parts: moments and master weights")
        });
    }

    /// Checks the layout of the foundation pool that `key` names.
    fn layouts(&mut self, key: &str, pool: &FoundationPool) {
        let layout = pool.layout();
        let keys = ["expert_parallel", "replicas", "context_parallel"];
        let spread = layout.dp * layout.cp;
        self.broken_in(key, !spread.is_multiple_of(layout.ep), &keys, || {
            let message =
                format!("`expert_parallel` {} does not divide {spread} (replicas x context_parallel)", layout.ep);
            (message, "change one of them so that `expert_parallel` divides the product")
        });
        let keys = ["sequence_parallel", "tensor_parallel"];
        self.broken_in(key, pool.sequence_parallel && layout.tp == 1, &keys, || {
            ("`sequence_parallel` requires tensor parallelism".into(), "set `tensor_parallel` above 1")
        });
        let keys = ["virtual_stages", "pipeline_parallel"];
        self.broken_in(key, pool.virtual_stages > 1 && layout.pp == 1, &keys, || {
            ("`virtual_stages` requires pipeline parallelism".into(), "set `pipeline_parallel` above 1")
        });
        let meets = (pool.zero > 1 && layout.dp * layout.cp > 1) || layout.ep > 1;
        let keys = ["chunk_tokens", "zero", "expert_parallel"];
        self.broken_in(key, pool.chunk_tokens > 0 && meets, &keys, || {
            let message =
                "`chunk_tokens` is not supported where replicas synchronize within a micro-batch: their rows have \
                 different numbers of chunks";
            (message.into(), "set `zero` to 0 or 1 and `expert_parallel` to 1, or `chunk_tokens` to 0")
        });
        let keys = ["chunk_tokens", "virtual_stages"];
        self.broken_in(key, pool.virtual_stages > 1 && pool.chunk_tokens > 0, &keys, || {
            (
                "`chunk_tokens` is not supported in an interleaved pipeline".into(),
                "set `virtual_stages` to 1, or `chunk_tokens` to 0",
            )
        });
    }

    fn limits(&mut self, config: &RunConfig) {
        let image = &config.data.image;
        if let (Some(min), Some(max)) = (image.min_pixels, image.max_pixels) {
            self.broken(min > max, code::COMBINATION, &["data.image.min_pixels", "data.image.max_pixels"], || {
                (format!("`data.image.min_pixels` {min} is above `data.image.max_pixels` {max}"), "swap them")
            });
        }
        let audio = &config.data.audio;
        let keys = ["data.audio.min_seconds", "data.audio.max_seconds"];
        self.broken(audio.min_seconds > audio.max_seconds, code::COMBINATION, &keys, || {
            let (min, max) = (audio.min_seconds, audio.max_seconds);
            (format!("`data.audio.min_seconds` {min} is above `data.audio.max_seconds` {max}"), "swap them")
        });
        if let Some(noise) = audio.augment.as_ref().and_then(|augment| augment.noise.as_ref()) {
            let (key, [least, most]) = ("data.audio.augment.noise.snr", noise.snr);
            self.broken(
                !(-100.0..=100.0).contains(&least) || !(least..=100.0).contains(&most),
                code::OUT_OF_RANGE,
                &[key],
                || {
                    let message = format!(
                        "`{key}`: must be a minimum and a maximum from -100 to 100 dB, found [{least}, {most}]"
                    );
                    (message, "5 to 20 dB are usual: `[5, 20]`")
                },
            );
        }
        let edges =
            [("pixels", config.edges.pixels), ("tokens", config.edges.tokens), ("features", config.edges.features)];
        for (name, edge) in edges {
            let key = format!("edges.{name}.credit");
            self.broken(edge.credit.bytes() == 0, code::OUT_OF_RANGE, &[&key], || {
                (format!("`{key}`: must be above 0, found `{}`", edge.credit), "with no credit nothing is ever sent")
            });
        }
        let fitted = config.scheduler.balance == Balance::Fitted && config.run.deterministic;
        self.broken(fitted, code::COMBINATION, &["scheduler.balance", "run.deterministic"], || {
            let message =
                "`scheduler.balance: fitted` depends on measured times and is not supported with `run.deterministic`"
                    .to_owned();
            (message, "set `scheduler.balance` to static")
        });
        let listen = config.watch.listen.as_ref();
        self.broken(listen.is_some_and(|at| !at.is_local()), code::NOT_LOCAL, &["watch.listen"], || {
            let message =
                format!("`watch.listen`: `{}` can be reached from other machines", listen.expect("asked above"));
            (
                message,
                "the page is plain HTTP: serve it at 127.0.0.1:PORT or a Unix socket, and tunnel to it (`ssh -L`)",
            )
        });
        let timeout = config.scheduler.join_timeout;
        self.broken(timeout.duration().is_zero(), code::OUT_OF_RANGE, &["scheduler.join_timeout"], || {
            (format!("`scheduler.join_timeout`: must be above 0, found `{timeout}`"), "actors need time to start")
        });
        let lease = config.scheduler.lease;
        self.broken(lease.duration() < MIN_LEASE, code::OUT_OF_RANGE, &["scheduler.lease"], || {
            (
                format!("`scheduler.lease`: must be at least 100ms, found `{lease}`"),
                "processes need time to send heartbeats",
            )
        });
    }

    fn files(&mut self, config: &RunConfig) {
        for (i, file) in config.data.train.iter().enumerate() {
            let key = format!("data.train.{i}.path");
            file.path.0.iter().for_each(|path| self.sample_files(&key, Path::new(path)));
            let media = file.media_dir.as_deref().filter(|dir| !dir.contains("://")).map(Path::new);
            if let Some(dir) = media.filter(|dir| !dir.is_dir()) {
                self.missing(&format!("data.train.{i}.media_dir"), dir, "no such directory");
            }
        }
        if let Some(eval) = &config.eval {
            eval.path.iter().for_each(|path| self.sample_files("eval.path", path));
            eval.sets.iter().for_each(|(name, path)| self.sample_files(&format!("eval.sets.{name}"), path));
            let media = eval.media_dir.as_deref().filter(|dir| !dir.contains("://")).map(Path::new);
            if let Some(dir) = media.filter(|dir| !dir.is_dir()) {
                self.missing("eval.media_dir", dir, "no such directory");
            }
        }
        let noise = config.data.audio.augment.as_ref().and_then(|augment| augment.noise.as_ref());
        if let Some(path) = noise.map(|noise| noise.path.as_path()).filter(|path| !path.is_dir()) {
            self.regular("data.audio.augment.noise.path", path);
        }
        self.evaluation(config);
        self.checkpoint(config);
        self.output_folders(config);
    }

    /// Checks the files of samples in a path. Those that a pattern or an address names are looked for when they are opened; of
    /// Megatron's two files it may be their common prefix.
    pub(super) fn sample_files(&mut self, key: &str, path: &Path) {
        let text = path.to_string_lossy();
        self.broken(text.starts_with("file://"), code::OUT_OF_RANGE, &[key], || {
            (format!("`{key}`: `{text}` is the URL of a file on this machine"), "write its path, without `file://`")
        });
        let is_index = Path::new(&format!("{text}.idx")).is_file();
        let is_pattern = text.contains(['*', '?', '[', '{']) || text.contains("://") || is_index;
        if !is_pattern || path.exists() {
            self.file_or_folder(key, path);
        }
    }

    /// Checks that a path is a file of samples, a folder of such files, or a folder with files in folders: shards with an index, or
    /// a LeRobot data set.
    fn file_or_folder(&mut self, key: &str, path: &Path) {
        let holds_files =
            |path: &Path| path.read_dir().is_ok_and(|mut dir| dir.any(|file| file.is_ok_and(|f| f.path().is_file())));
        if !path.is_dir() {
            self.regular(key, path);
        } else if !holds_files(path) && !path.join(".nv-meta").is_dir() && !path.join("meta/info.json").is_file() {
            let what = "is a directory without files";
            match suggest::folders_within(path, holds_files) {
                Some(help) => self.broken(true, code::NO_SUCH_FILE, &[key], || {
                    (format!("`{key}`: {what}: `{}`", path.display()), &help)
                }),
                None => self.missing(key, path, what),
            }
        }
    }

    /// Checks that a file exists and is not a pipe or device.
    fn regular(&mut self, key: &str, path: &Path) {
        match files::metadata(path) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => match hub_data_set(path) {
                Some(help) => self.broken(true, code::NO_SUCH_FILE, &[key], || {
                    (format!("`{key}`: no such file: `{}`", path.display()), &help)
                }),
                None => self.missing(key, path, "no such file"),
            },
            Err(error) => self.missing(key, path, &error.to_string()),
        }
    }

    /// Adds the problem of a path that does not exist, with the nearest path that does.
    pub(super) fn missing(&mut self, key: &str, path: &Path, what: &str) {
        let help = if path.exists() { None } else { suggest::path(path) };
        let help = help.unwrap_or_else(|| {
            let here = "relative paths start at the directory the program runs in";
            match key.ends_with("load") || key.ends_with("tokenizer") || key.ends_with("adapter") {
                true => format!("{here}; a hub id has the form org/name"),
                false => here.to_owned(),
            }
        });
        self.broken(true, code::NO_SUCH_FILE, &[key], || (format!("`{key}`: {what}: `{}`", path.display()), &help));
    }

    /// Works like `broken`, for keys of one section that contradict each other.
    fn broken_in<'h>(&mut self, section: &str, is: bool, keys: &[&str], say: impl FnOnce() -> (String, &'h str)) {
        let keys: Vec<String> = keys.iter().map(|key| format!("{section}.{key}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.broken(is, code::COMBINATION, &keys, say);
    }

    /// Adds a problem at the first of `keys` that was set anywhere.
    pub(super) fn broken<'h>(
        &mut self,
        is: bool,
        code: &'static str,
        keys: &[&str],
        say: impl FnOnce() -> (String, &'h str),
    ) {
        let covers = |key: &str| {
            let ends = key.match_indices('.').map(|(end, _)| end).chain([key.len()]);
            ends.map(|end| &key[..end]).any(|ancestor| self.failed.contains(ancestor))
        };
        if !is || keys.iter().any(|key| covers(key)) {
            return;
        }
        let pos = keys.iter().find_map(|key| self.tree.get(key).and_then(|node| node.pos));
        let (message, help) = say();
        self.problems.push(Problem::new(code, pos, message).help(help));
    }
}
