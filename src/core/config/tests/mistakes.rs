//! Tests of the messages that a user reads when something is wrong.

use super::*;

/// Each case is extra text, or overrides after `$ `, and what the error must say.
#[test]
fn one_mistake_at_a_time() {
    let cases: &[(&str, &[&str])] = &[
        // unknown keys
        (
            "trian: {}\n",
            &["LF0102", "`trian`", "vlm.yaml:9:1", "did you mean `train`?", "the keys of the top level are run"],
        ),
        ("lr: 1\n", &["LF0102", "`lr`", "vlm.yaml:9:1", "did you mean `train.lr`?"]),
        ("pools: { encoder: { replica: 2 } }\n", &["LF0102", "`pools.encoder.replica`", ":9:21", "`replicas`"]),
        (
            "pools: { encodr: { replicas: 2 } }\n",
            &["LF0102", "`pools.encodr`", "did you mean `encoder`?", "named as their tower"],
        ),
        ("pools: { audio: { replica: 2 } }\n", &["LF0102", "`pools.audio.replica`", "did you mean `replicas`?"]),
        ("pools: { Loud: { towers: [audio] } }\n", &["LF0102", "`pools.Loud`"]),
        (
            "pools: { loud: { towers: [sound] } }\n",
            &["LF0103", "`pools.loud.towers.0`", "`vision`, `audio`, `text`, `vae` or `reference`"],
        ),
        ("pools: { loud: { towers: [] } }\n", &["LF0104", "`pools.loud.towers` is empty"]),
        ("pools: { audio: {}, loud: { towers: [audio] } }\n", &["LF0111", "`audio` and `loud` hold the same tower"]),
        ("pools: { encoder: { towers: [audio] } }\n", &["LF0111", "holds all remaining towers"]),
        ("pools: { placement: colocated, audio: {} }\n", &["LF0111", "`pools.audio`", "colocated"]),
        ("$ data.train.0.file=x", &["LF0102", "`data.train.0.file`", "override #1"]),
        ("$ +train.zzz=1", &["LF0102", "unknown key `train.zzz`"]),
        // other trainers' names
        ("blocks_to_swap: 8\n", &["LF0102", "did you mean `memory.weight_budget.foundation`?"]),
        ("lora_rank: 8\n", &["LF0102", "`lora_rank`", "did you mean `model.foundation.lora.r`?"]),
        ("$ +model.foundation.lora={dora: true}", &["LF0102", "did you mean `model.foundation.lora.use_dora`?"]),
        ("$ pools.foundation.tp=2", &["LF0102", "did you mean `pools.foundation.tensor_parallel`?"]),
        ("$ pools.encoder.tp=2", &["LF0102", "did you mean `pools.encoder.tensor_parallel`?"]),
        (
            "$ +model.image_encoder.load_in_4bit=true",
            &["LF0102", "did you mean `model.image_encoder.frozen_precision`? (nf4"],
        ),
        ("dataset: x.jsonl\n", &["LF0102", "did you mean `data.train`?"]),
        ("$ +data.path=x.jsonl", &["LF0102", "`data.path`", "did you mean `train`?"]),
        ("$ +model.name=x", &["LF0102", "`model.name`", "did you mean `load`?"]),
        ("$ checkpoint.every=2", &["LF0102", "did you mean `every_steps`?"]),
        ("$ train.precision=bfloat16", &["LF0103", "did you mean `bf16`?"]),
        ("$ +train.num_train_epochs=3", &["did you mean `train.epochs`? (or train.steps"]),
        // wrong types
        ("device: gpu\n", &["LF0103", ":9:9", "`cpu`, `cuda` or `cuda:N`, found `gpu`"]),
        ("edges: { pixels: { credit: 64 } }\n", &["LF0103", ":9:28", "a bare number needs a unit", "such as `64MiB`"]),
        ("scheduler: { join_timeout: 60 }\n", &["LF0103", ":9:28", "a bare number needs a unit", "such as `60s`"]),
        ("scheduler: { join_timeout: 60 secs }\n", &["LF0103", "unknown unit `secs`"]),
        (
            "log: { jsonl: yes }\n",
            &["LF0103", ":9:15", "expected `true` or `false`, found `yes`", "did you mean `true`?"],
        ),
        (
            "log: { level: wran }\n",
            &["LF0103", "expected `error`, `warn`, `info`, `debug` or `trace`", "did you mean `warn`?"],
        ),
        ("log: 3\n", &["LF0103", "`log`: expected a map of keys, found `3`"]),
        ("$ train.steps=1.5", &["LF0103", "expected an integer, found `1.5`", "override #1"]),
        ("$ train.lr='1e-5'", &["LF0103", "a number without quotes"]),
        ("$ train.lr=null", &["LF0103", "`train.lr`: expected a number, found null"]),
        ("$ data.train={}", &["LF0103", "`data.train`: expected a list"]),
        ("$ pools.encoder.threads=many", &["LF0103", "`auto` or a number"]),
        ("$ train.optimizer.betas=[0.9]", &["LF0104", "expected 2 items, found 1"]),
        // ranges
        ("$ train.steps=0", &["LF0104", "`train.steps`: must be at least 1, found `0`"]),
        ("$ train.epochs=0", &["LF0104", "`train.epochs`: must be above 0, found `0`"]),
        ("$ train.lr=-1", &["LF0104", "must be above 0, found `-1`"]),
        ("$ train.global_batch_size=0", &["LF0104", "at least 1"]),
        ("$ data.pack.max_tokens=0", &["LF0104", "`data.pack.max_tokens`"]),
        ("$ data.train=[]", &["LF0104", "`data.train`: expected at least 1 item"]),
        ("$ run.name=", &["LF0104", "`run.name`: must not be empty"]),
        ("$ run.seed=-1", &["LF0104", "`run.seed`"]),
        ("$ train.optimizer.betas=[0.9, 1.0]", &["LF0104", "`train.optimizer.betas.1`", "below 1, found `1`"]),
        ("$ edges.tokens.credit=0B", &["LF0104", "`edges.tokens.credit`"]),
        // combinations
        ("$ train.min_lr=1", &["LF0111", "`train.min_lr` 1.0 is above `train.lr` 1e-05", "override #1"]),
        ("$ train.warmup_steps=11", &["LF0111", "`train.warmup_steps` 11 is more than `train.steps` 10"]),
        ("$ train.warmup_steps=12", &["never reach its peak: lower `train.warmup_steps` too (0: no warm-up), or set"]),
        (
            "pools: { placement: colocated, encoder: { replicas: 2 } }\n",
            &["LF0111", ":9:53", "colocated pools differ in size: 2"],
        ),
        ("run2: 1\n", &["LF0102", "did you mean `run`?"]),
        ("model.x: 1\n", &["LF0102", "`model.x`"]),
        ("$ pools.foundation.replicas=5", &["LF0111", "`train.global_batch_size` 4 is less"]),
        ("data2: 1\n", &["LF0102"]),
        // missing
        (
            "$ ~train.steps",
            &[
                "LF0105",
                "missing required key `train.steps` or `train.epochs`",
                "vlm.yaml:6:3",
                "`epochs` counts passes over the data",
            ],
        ),
        ("$ ~train.lr", &["LF0105", "missing required key `train.lr`", "vlm.yaml:6:3", "Peak learning rate"]),
        ("eval: {}\n", &["LF0105", "missing required key `eval.path`, `eval.sets` or `data.val_size`", "vlm.yaml:9:7"]),
        ("eval: { sets: { math: } }\n", &["LF0103", "`eval.sets.math`: expected text", "vlm.yaml:9"]),
        ("eval: { sets: { math: [a.jsonl] } }\n", &["LF0103", "`eval.sets.math`: expected text", "vlm.yaml:9"]),
        // data sets
        ("$ data.train.0.max_samples=0", &["LF0104", "`data.train.0.max_samples`: must be at least 1"]),
        (
            "$ data.train.0.select=random",
            &["LF0111", "`data.train.0.select` requires `data.train.0.max_samples`", "set that number"],
        ),
        ("$ data.system=''", &["LF0104", "`data.system`: must not be empty"]),
        // evaluations
        ("$ data.val_size=0.1", &["LF0111", "`data.val_size` sets samples aside", "eval: { every_steps"]),
        (
            "eval: { path: DATA, patience: 2 }\n",
            &["LF0111", "`eval.patience` applies only to evaluations", "set eval.every_steps"],
        ),
        (
            "eval: { path: DATA, every_steps: 2, min_delta: 0.01 }\n",
            &["LF0111", "`eval.min_delta` requires `eval.patience`", "set eval.patience to a number"],
        ),
        ("eval: { path: DATA, every_steps: 2, best: x }\n", &["LF0104", "no set `x`", "the sets are held_out"]),
        ("eval: { sets: { a: DATA }, episodes: [0-9] }\n", &["LF0111", "`eval.episodes` requires `eval.path`"]),
        ("eval: { path: DATA, media_dir: gone }\n", &["LF0112", "`eval.media_dir`: no such directory"]),
        ("eval: { path: DATA, sets: { a/b: DATA } }\n", &["LF0104", "`a/b` is not a valid set name"]),
        ("eval: { path: DATA, sets: { held_out: DATA } }\n", &["LF0104", "`held_out` is already in use"]),
        ("eval: { path: DATA, expect: { a: { chance: 0.1 } } }\n", &["LF0104", "no set `a`", "the sets are held_out"]),
        (
            "eval: { path: DATA, expect: { held_out: { word: 1 } } }\n",
            &["LF0111", "`eval.expect.held_out` must have exactly one of"],
        ),
        (
            "eval: { path: DATA, expect: { held_out: { at_least: 95 } } }\n",
            &["LF0104", "`eval.expect.held_out.at_least`"],
        ),
        (
            "eval: { path: DATA, every_steps: 2, limits: { a: 9 } }\n",
            &["LF0104", "`eval.limits`: there is no set `a`", "the sets are held_out"],
        ),
        (
            "eval: { path: DATA, every_steps: 2, limits: { held_out: 0 } }\n",
            &["LF0104", "`eval.limits.held_out`: must be above 0"],
        ),
        ("eval: { path: DATA, scores: [meteor] }\n", &["`eval.scores.0`", "wer"]),
        (
            "eval: { path: DATA, scores: [bleu, rouge], normalize: none }\n",
            &["LF0111", "`eval.normalize` applies only to wer, cer and words", "drop eval.normalize"],
        ),
        // the course of the learning rate
        ("$ +train.warmup_ratio=1.5", &["LF0104", "`train.warmup_ratio`: must be at most 1"]),
        (
            "$ train={steps: 10, global_batch_size: 4, lr: 1e-5, warmup_ratio: 0.1, warmup_steps: 1}",
            &["LF0111", "both `train.warmup_ratio` and"],
        ),
        ("$ +train.decay_steps=3", &["LF0111", "`train.decay_steps` requires `train.schedule: wsd`"]),
        (
            "$ train={steps: 10, global_batch_size: 4, lr: 1e-5, schedule: wsd, warmup_steps: 5, decay_steps: 6}",
            &["LF0111", "a warm-up of 5 and a decay of 6"],
        ),
        // the optimizer
        ("$ train.optimizer.type=adam_8bit", &["LF0103", "`train.optimizer.type`", "adamw_8bit"]),
        (
            "$ +train.optimizer.offload={to: disk}",
            &["LF0111", "`train.optimizer.offload.to: disk` requires", "offload.path"],
        ),
        (
            "$ +train.optimizer.offload={to: cpu, path: /tmp}",
            &["LF0111", "`train.optimizer.offload.path` requires `train.optimizer.offload.to: disk`"],
        ),
        (
            "$ +train.optimizer.offload={to: disk, path: /dev/null}",
            &["LF0112", "`train.optimizer.offload.path`: not a directory: `/dev/null`"],
        ),
        ("$ +train.optimizer.offload={to: nvme}", &["LF0103", "`train.optimizer.offload.to`", "`cpu` or `disk`"]),
        ("$ +train.optimizer.offload={fraction: 0}", &["`train.optimizer.offload.fraction`: must be above 0"]),
        ("optimizer_cpu_offload: true\n", &["LF0102", "did you mean `train.optimizer.offload`?"]),
        (
            "$ +train.optimizer.muon={momentum: 0.9}",
            &["LF0111", "`train.optimizer.muon` requires `train.optimizer.type: muon`"],
        ),
        (
            "$ train.optimizer={type: muon, muon: {momentum: 1.0}}",
            &["`train.optimizer.muon.momentum`: must be at most 0.9999"],
        ),
        (
            "$ train.optimizer={type: muon, muon: {adjust_lr: rms}}",
            &["`train.optimizer.muon.adjust_lr`", "match_rms_adamw"],
        ),
        ("$ +model.foundation.frozen_precision=nf3", &["`model.foundation.frozen_precision`", "nf4_double"]),
        // pairs of answers
        (
            "$ train={steps: 10, global_batch_size: 4, lr: 1e-5, preference: {loss: orpo}, label_smoothing: 0.1}",
            &["LF0111", "`train.label_smoothing` smooths the labels of tokens", "share of wrong pairs"],
        ),
        (
            "$ train={steps: 10, global_batch_size: 4, lr: 1e-5, preference: {loss: orpo}, loss_weighting: square}",
            &["LF0111", "`train.loss_weighting` weights samples", "learns from whole answers"],
        ),
        ("$ +train.loss_weighting=mean", &["train.loss_weighting", "square"]),
        ("$ +train.loss_reduction=square", &["train.loss_weighting"]),
        ("$ +train.label_smoothing=1.0", &["LF0104", "train.label_smoothing"]),
        ("$ +train.neftune_alpha=-1.0", &["LF0104", "train.neftune_alpha"]),
        ("$ +model.foundation.lr_ratios={\"*.mlp.*\": 0}", &["LF0104", "*.mlp.* is 0"]),
        ("$ +model.foundation.lora={loraplus_lr_ratio: 0}", &["LF0104", "loraplus_lr_ratio"]),
        ("$ +train.neftune_noise_alpha=5", &["train.neftune_alpha"]),
        ("$ +policy.statistics=merged", &["LF0111", "`policy.statistics` requires `policy.embodiments`"]),
        (
            "$ +policy={domain: 1, embodiments: {arm: {number: 1}}}",
            &["LF0111", "the `number` of each embodiment is its domain"],
        ),
        (
            "$ +policy.embodiments={arm: {sets: [gone]}}",
            &[
                "`policy.embodiments.arm.sets`: `gone` is not a data set of `data.train` or `eval`",
                "as it is written there",
            ],
        ),
        ("$ +train.preference={}", &["LF0111", "but there are no weights for it", "set `model.load`"]),
        (
            "$ +train.preference={loss: orpo, gamma: 1}",
            &["LF0111", "`train.preference.gamma` requires `train.preference.loss`: simpo"],
        ),
        (
            "$ +train.preference={loss: orpo, label_smoothing: 0.5}",
            &["LF0111", "`train.preference.label_smoothing` requires `train.preference.loss`: sigmoid or robust"],
        ),
        (
            "$ train={steps: 10, global_batch_size: 4, lr: 1e-5, preference: {loss: orpo}, phase: pretrain}",
            &["LF0111", "`train.preference` compares answers", "set `train.phase` to sft"],
        ),
        (
            "$ +train.preference={loss: orpo, group_size: 8}",
            &["LF0111", "`train.preference.group_size` requires `train.preference.loss`: kto"],
        ),
        ("$ +train.preference={loss: orpo, group_size: 1}", &["LF0104", "train.preference.group_size"]),
        ("$ +model.reference={frozen_precision: fp8_e4m3fn}", &["LF0111", "requires `train.preference`"]),
        // diffusion models
        (
            "$ pools.foundation_low={replicas: 5}",
            &["LF0111", "`train.global_batch_size` 4 is less than `pools.foundation_low.replicas` 5"],
        ),
        (
            "pools: { foundation_high: { virtual_stages: 2 } }\n",
            &["LF0111", ":9:45", "`virtual_stages` requires pipeline parallelism"],
        ),
        (
            "pools: { foundation: { zero: 1 }, foundation_high: {}, foundation_low: {} }\n",
            &["LF0111", "`pools.foundation` has no effect"],
        ),
        ("pools: { foundation_high: { replica: 2 } }\n", &["LF0102", "`pools.foundation_high.replica`"]),
        ("$ +train.sigma={density: normal}", &["LF0103", "`train.sigma.density`", "logit_normal"]),
        ("$ +train.sigma={shift: 0}", &["LF0103", "`train.sigma.shift`: expected `auto` or a number above 0"]),
        (
            "$ +train.sigma={density: uniform, mean: 1}",
            &["LF0111", "`train.sigma.mean` requires `train.sigma.density`: logit"],
        ),
        (
            "$ +train.sigma={min: 0.8, max: 0.2}",
            &["LF0111", "`train.sigma.min` 0.8 is not below `train.sigma.max` 0.2"],
        ),
        ("$ +train.sigma={squeeze: true}", &["LF0111", "`train.sigma.squeeze` has no effect"]),
        (
            "$ +train.loss={weight: bell, gamma: 5}",
            &["LF0111", "`train.loss.gamma` requires `train.loss.weight`: min_snr"],
        ),
        ("$ +train.ema=1", &["LF0104", "`train.ema`: must be at most 0.999999"]),
        ("$ +data.caption_dropout=1", &["LF0104", "`data.caption_dropout` is 1"]),
        ("$ +data.condition_dropout=1", &["LF0104", "`data.condition_dropout` is 1"]),
        ("$ +data.video.area=480by832", &["LF0103", "`data.video.area`: expected a number of pixels"]),
        ("$ +model.vae.freeze=false", &["LF0111", "`model.vae`: training the autoencoder is not supported"]),
        ("sample: { every_steps: 5 }\n", &["LF0105", "`sample.prompts`", "File or folder of the prompts"]),
        (
            "sample: { prompts: DATA, guidance: [1, 2, 3] }\n",
            &["LF0104", "`sample.guidance`: expected at most 2 items"],
        ),
        ("sample: { prompts: gone.jsonl, size: 8x24 }\n", &["LF0112", "`sample.prompts`: no such file"]),
        ("sample: { prompts: DATA, frames: 5 }\n", &["LF0111", "`sample.frames` requires `sample.size`"]),
        ("sample: { prompts: DATA, negative: x }\n", &["LF0111", "`sample.negative` without guidance"]),
        ("eval: { path: DATA, sigmas: [0, 0.5] }\n", &["LF0104", "`eval.sigmas`: must be above 0"]),
        ("eval: { path: DATA, reader: { load: MODEL } }\n", &["LF0111", "`eval.reader` has no samples"]),
        ("$ pools.encoder.cache_dir=s3://b/f", &["LF0104", "`pools.encoder.cache_dir` is the URL of an object store"]),
        ("$ pools.encoder.cache_store=s3://b/f", &["LF0111", "without `pools.encoder.cache_dir`"]),
        (
            "pools: { encoder: { cache_dir: f, cache_store: /mnt/f } }\n",
            &["LF0104", "`pools.encoder.cache_store` is not the URL"],
        ),
        ("$ pools.encoder.replicas=0", &["LF0111", "`pools.encoder.replicas` is 0 without `pools.encoder.cache_dir`"]),
        // files
        ("$ data.train.0.path=nowhere/x.json", &["LF0112", "no such file: `nowhere/x.json`", "no directory `nowhere`"]),
        ("$ model.load=~/nowhere", &["LF0112", "`~/nowhere`", "`~` is not expanded"]),
        ("$ model.load=nowhere", &["LF0112", "`model.load`: no such directory"]),
        ("$ model.weights=load", &["LF0112", "`model.load`: no `.safetensors` weights", "model.weights: random"]),
        ("$ ~model.load", &["LF0105", "no model: `model.load` is missing", "vlm.yaml:2", "`loongforge models`"]),
        ("$ model={load: null, config: {model_type: x}}", &["LF0105", "no tokenizer", "`model.tokenizer` is missing"]),
        ("$ +model.path=x", &["LF0102", "`model.path` is now `model.load`", "write `load`"]),
        ("$ model.foundation.load=./m/weights", &["LF0112", "`model.foundation.load`: no such directory"]),
        ("$ model.foundation.lora={adapter: gone}", &["LF0112", "`model.foundation.lora.adapter`: no such directory"]),
        ("$ model.foundation.lora={r: 0}", &["LF0104", "`model.foundation.lora.r`: must be at least 1"]),
        ("$ model.foundation.lora={target_module: x}", &["LF0102", "did you mean `target_modules`?"]),
        ("$ model.foundation.lora={rank: 8}", &["LF0102", "did you mean `r`?"]),
        ("$ model.foundation.lora={rank_pattern: {q_proj: 0}}", &["LF0104", "rank_pattern`: q_proj is 0"]),
        (
            "$ model.foundation.lora={use_dora: true, target_parameters: x}",
            &["LF0111", "both `model.foundation.lora.use_dora` and `target_parameters` are set"],
        ),
        (
            "$ model={foundation: {lora: {use_rslora: true}}, image_encoder: {lora: {}}}",
            &["LF0111", "`model.image_encoder.lora.use_rslora` and `model.foundation.lora.use_rslora` differ"],
        ),
        (
            "$ model={moe: {bias_update_rate: 0.001}, image_encoder: {lora: {}}}",
            &["LF0111", "`model.moe.bias_update_rate` moves biases", "set `checkpoint.merge_lora: true`"],
        ),
        ("checkpoint: { at_end: false, upload: s3://a/b }\n", &["LF0111", "`checkpoint.upload` needs a checkpoint"]),
        (
            "checkpoint: { at_end: false }\neval: { path: DATA }\n",
            &["LF0111", "reads the last checkpoint after the run", "without `checkpoint.every_steps`"],
        ),
        (
            "checkpoint: { at_end: false }\neval: { path: DATA, every_steps: 5 }\n",
            &["LF0111", "`eval.save_best` keeps the best checkpoint", "set eval.save_best: false"],
        ),
        (
            "checkpoint: { at_end: false, every_steps: 2 }\neval: { path: DATA, every_steps: 5, pooled_statistics: 9 }\n",
            &["LF0111", "`eval.pooled_statistics` is measured with the last checkpoint", "none is written at the end"],
        ),
        (
            "pools: { foundation_low: { zero: 3 } }\nmemory: { weight_budget: { foundation: 1GiB } }\n",
            &["LF0111", "`pools.foundation_low.zero` 3 is not supported with `memory.weight_budget.foundation`"],
        ),
        (
            "pools: { foundation: { chunk_tokens: 8 } }\nmemory: { activation_budget: { foundation: 1GiB } }\n",
            &["LF0111", "both `pools.foundation.chunk_tokens` and `memory.activation_budget.foundation` are set"],
        ),
        ("$ checkpoint.merge_lora=true", &["LF0111", "`checkpoint.merge_lora` requires adapters"]),
        ("$ model.mtp.loss_weight=-1", &["LF0104", "`model.mtp.loss_weight`"]),
        // the command line itself
        ("$ train.lr", &["LF0107", "has no `=`", "write `key=value`"]),
        ("$ train.lr.x=1", &["LF0107", "`train.lr` is a single value"]),
        ("$ ~train.min_lr", &["LF0107", "nothing to drop"]),
        // refusals
        ("log: { _target_: os.system }\n", &["LF0109", "`log._target_` is refused", ":9:8"]),
        ("$ run.name=${eval:1+1}", &["LF0109", "a config cannot run code"]),
        ("$ +model.overrides._target_=x", &["LF0109", "`model.overrides._target_`"]),
        // interpolation
        ("$ run.dir=${run.nmae}", &["LF0108", "no key `run.nmae`", "did you mean `${run.name}`?"]),
        ("$ run.name=${run.dir}", &["LF0108", "is circular"]),
        ("$ run.name=${oc.env:LOONGFORGE_TEST_UNSET}", &["LF0108", "is not set", "default"]),
        // YAML
        ("train: { lr: 1 }\n", &["LF0101", "duplicate key", "vlm.yaml:9:1"]),
        ("checkpoint: { keep-last: 1, keep_last: 2 }\n", &["LF0101", "duplicate key `checkpoint.keep_last`"]),
        ("log: [\n", &["LF0101", "not valid YAML: unclosed bracket", "vlm.yaml:9:6"]),
        ("log: { level: ${x.y} }\n", &["LF0101", "must be quoted"]),
    ];
    for (input, wanted) in cases {
        let text = match input.strip_prefix("$ ") {
            Some(text) => Bench::new(GOOD).errors(&[text]),
            None => Bench::new(&good_and(input)).errors(&[]),
        };
        for part in *wanted {
            assert!(text.contains(part), "{input}: no `{part}` in\n{text}");
        }
        assert!(text.ends_with("\n1 error in the config"), "{input}: more than one error\n{text}");
    }
}

#[test]
fn a_run_is_as_long_as_its_steps_or_its_epochs() {
    let bench = Bench::new(&GOOD.replace("steps: 10", "epochs: 2.5"));
    let train = bench.load(&[]).config.train;
    assert_eq!((train.steps, train.epochs), (None, Some(2.5)));
    // What a file says is dropped by hand.
    assert_eq!(bench.load(&["~train.epochs", "train.steps=3"]).config.train.num_steps(), 3);
    assert_eq!(bench.load(&["train.epochs=null", "train.steps=3"]).config.train.num_steps(), 3);
    // The smaller number counts, and is known when the samples are counted.
    let both = bench.load(&["train.steps=3"]).config.train;
    assert_eq!((both.steps, both.epochs), (Some(3), Some(2.5)));
    // Whether the warm-up is too long is seen when the samples are counted.
    bench.load(&["train.warmup_steps=1000"]);
    let text = bench.errors(&["data.pack.mode=stream"]);
    assert!(
        text.contains("LF0111") && text.contains("`train.epochs` is not supported with `data.pack.mode: stream`"),
        "{text}"
    );
    assert!(text.contains("set `train.steps`") && text.ends_with("\n1 error in the config"), "{text}");
    // A misspelled key is told once, and none is missing beside it.
    for other in ["num_train_epochs: 3", "epoch: 3", "step: 3", "max_steps: 3"] {
        let text = Bench::new(&GOOD.replace("steps: 10", other)).errors(&[]);
        assert!(text.contains("LF0102") && text.ends_with("\n1 error in the config"), "{other}: {text}");
    }
}

#[test]
fn answers_that_are_compared_are_evaluated_during_the_run() {
    let bench = Bench::new(&good_and("eval: { path: DATA }\n"));
    let preference = "+train.preference={loss: orpo}";
    let text = bench.errors(&[preference]);
    assert!(text.contains("LF0111") && text.contains("set `eval.every_steps` to a number of steps"), "{text}");
    assert!(text.ends_with("\n1 error in the config"), "{text}");
    bench.load(&[preference, "eval.every_steps=5"]);
}

#[test]
fn all_mistakes_at_once_in_the_order_of_the_file() {
    let yaml = "\
run: { nmae: t, lanes: 1, deterministic: true }
pools: { encoder: { replicas: 2 } }
model: { load: nowhere, image_encoder: { freeze: true }, image_projector: { freeze: true }, foundation: { freeze: true } }
data: { train: [{ path: gone.json, weight: -1 }] }
train: { steps: 0, lr: 1e-5, min_lr: 1, precision: bf-16 }
";
    let report =
        Bench::new(yaml).load_with(&["train.warmup_steps=-1"], &[("LOONGFORGE__LOG__LEVL", "info")]).unwrap_err();
    let found: Vec<(&str, usize)> =
        report.errors.iter().map(|e| (e.code, e.snippet.as_ref().map_or(0, |s| s.line))).collect();
    let wanted = [
        (code::UNKNOWN_KEY, 1),  // run.nmae
        (code::COMBINATION, 1),  // lanes < encoder replicas
        (code::NO_SUCH_FILE, 3), // model.load
        (code::COMBINATION, 3),  // both frozen
        (code::NO_SUCH_FILE, 4), // data file
        (code::OUT_OF_RANGE, 4), // weight
        (code::MISSING_KEY, 5),  // global_batch_size
        (code::OUT_OF_RANGE, 5), // steps
        (code::COMBINATION, 5),  // min_lr
        (code::WRONG_TYPE, 5),   // precision
        (code::OUT_OF_RANGE, 1), // override
        (code::UNKNOWN_KEY, 1),  // environment
    ];
    assert_eq!(found, wanted, "{report}");
}

#[test]
fn a_file_of_another_trainer_is_told_how_it_is_translated() {
    let factory = "model_name_or_path: a/b\nstage: sft\nlora_rank: 8\n";
    let swift = "model: a/b\ndataset: x.jsonl\ntuner_type: lora\n";
    let titan = "[job]\ndump_folder = \"out\"\n\n[model]\nname = \"llama3\"\n\n[training]\nsteps = 10\n";
    let script = "#!/bin/bash\nswift sft --model a/b --dataset x.jsonl\n";
    let files = [(factory, "LLaMA-Factory"), (swift, "ms-swift"), (titan, "torchtitan"), (script, "ms-swift")];
    for (text, trainer) in files {
        let text = Bench::new(text).errors(&[]);
        let named = format!("`vlm.yaml` was written for {trainer}");
        for part in ["LF0101", named.as_str(), "`loongforge import ", "1 error"] {
            assert!(text.contains(part), "{trainer}: no `{part}` in\n{text}");
        }
    }
    // Where keys of ours are, somebody is translating it by hand.
    let text = Bench::new(&format!("{GOOD}model_name_or_path: a/b\nstage: sft\n")).errors(&[]);
    assert!(text.contains("did you mean `model.load`?") && text.contains("2 errors"), "{text}");
}
