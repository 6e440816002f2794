//! Generates `docs/configuration.md` from the schema.

use serde_json::Value;

use super::node::float;
use super::shape::{self, SCHEMA};

const INTRODUCTION: &str = "\
# Configuration

A run is one YAML file: `loongforge run FILE [key=value ...]`. `loongforge check FILE` reports every mistake at once, with
file, line and suggestion; `--show-origin` says where each value comes from. A config is a regular file of at most 1 MiB.

Sources, lowest first: the defaults below, the `defaults` list, the file, `LOONGFORGE__TRAIN__LR=1e-4` environment variables,
command-line overrides. In keys, `-` and `_` are equivalent. Sizes and durations have units (`64MiB`, `60s`). Relative paths
are relative to the working directory.

| on the command line | |
| --- | --- |
| `train.lr=2e-5`, `--train.lr 2e-5` | sets a key; `data.train.0.path=x` sets a key in a list; values that start with `[`, `{` or a quote are YAML |
| `+a.b=1`, `++a.b=1`, `~a.b` | adds a key that no file sets; sets a key whether or not a file sets it; removes a key that files set |
| `group=option`, `group@package=option` | selects another option for an entry of the `defaults` list; `+` adds an entry, `~` removes one |

| in a file | |
| --- | --- |
| `defaults: [base, group@package: option, _self_]` | merges `base.yaml` and `group/option.yaml`, from the file's folder or built in, below the file's own keys; `optional`, `override`, lists of options and `# @package` headers work as in Hydra |
| `${a.b}`, `${.b}` | the value of another key; `.b` is a sibling |
| `${oc.env:NAME,default}` | an environment variable |

## Models

`model.load` names a Hugging Face directory or hub id. Without it, the model is defined by a built-in config;
`loongforge models` lists them. A file `models/GROUP/NAME.yaml` next to the run's config overrides the built-in one of that name.

```yaml
defaults: [models/qwen3: qwen3_0_6b, _self_]     # a whole model; weights: random, or its hub id in model.load
```

```yaml
defaults:                                        # any vision tower, projector and language model; one line changes a part
  - models/image_encoder: qwen2_5_vit
  - models/image_projector: mlp
  - models/llama3@model.foundation: llama3_8b
  - _self_
model:
  tokenizer: path/to/tokenizer
  config: { image_token_id: 128256 }             # the token that stands for pictures
  image_encoder: { load: path/to/tower }         # weights of one part; a projector without `load` starts random
  foundation: { load: path/to/llama3 }
```

The widths of the projector follow from the other two parts. Parts that do not fit each other are reported by name. A part with
neither `load` nor `model.load` is initialized randomly, and a message says so. Pictures are processed by the preprocessor config in
`image_encoder.load`, else the one next to the tokenizer. A tower's DeepStack is turned off, with a message, if the language
model has another width than the tower was built for. `image_encoder.overrides` changes single keys of a part.
CLIP, SigLIP and DINOv2 towers have two keys that their published configs lack: `vision_feature_layer` (the layer whose states are
the features: -1 is the last block; the default is the second-to-last block for CLIP, and the states after the final norm for SigLIP
and DINOv2) and `spatial_merge_size` (the side of the square of patches that becomes one feature). `export-hf` writes such models
[for transformers](checkpoints.md#models-of-parts).

## Pools

By default all towers share the pool `encoder`. A key of `pools` with another name defines an additional encoder pool, with the
keys of `pools.encoder`: it holds the tower with the pool's name, or those listed in `towers`. `encoder` holds the remaining towers.

```yaml
pools:
  encoder: { replicas: 4 }                       # the vision tower
  audio: { replicas: 2, tensor_parallel: 1, lr: 1e-5 }
  foundation: { replicas: 2, zero: 1 }
```

A diffusion model with two transformers has two foundation pools ([Wan 2.2 A14B](diffusion.md#two-transformers-wan-22-a14b)).
Actors are named after their pool, `audio/1`. `loongforge scale --pool audio 3` scales one pool of a running job, and
`--role encoder --pool audio` starts one of its processes. The number of actors changes no bit of the losses, and the division
into pools changes only the rounding of the gradient norm. A resumed run may have different pools.

## Before a run

Before they create a folder or an actor, `check` and `run` perform the same checks, and exit with code 2 if the run could not work:

- the layout against the model: heads, sizes, layers, experts, chunks, adapters, what checkpoints can hold;
- the headers of all weights: files, shapes, missing tensors (for hub ids that are not downloaded, `check` only says so);
- the first samples of each data set, with tokenizer and template: 100, or 4,096 if there are no pictures. A data set with no usable
  sample, or with only samples that are too long, is refused. So is a run that will read more bad samples than
  `data.on_bad_sample.max_fraction` allows, whatever the remaining samples are, or whose `edges` have too little credit for a sample.
  The fractions of bad and of too long samples are printed. If more are bad than allowed, the first 200 samples in the run's own
  order are also read, and a run that would end among them is refused;
- the device, and whether the weights of all actors can fit into this machine's memory (`check --no-device` skips both, for runs on
  other machines).

Nothing in a config runs code: `_target_` and `${eval:...}` are refused.

## Stages

A file may list `stages`: consecutive runs, such as alignment, pretraining and fine-tuning, or fine-tuning and preference learning.
The keys of a stage override those of the file. The first stage starts from the file's `model.load`. A later stage that does not set
`model.load` starts from the last checkpoint of the previous stage, and also takes `model.weights`, `model.config` and the `load` and
`config` of parts from it.

<!-- needs: yours -->
```yaml
run: { name: chat }
model: { load: Qwen/Qwen3-0.6B }
data: { pack: { max_tokens: 4096 } }
train: { epochs: 1, global_batch_size: 64, lr: 1e-5 }
stages:
  - name: sft
    data: { train: [{ path: chats.jsonl }] }
  - name: dpo
    data: { train: [{ path: pairs.jsonl }] }
    train: { lr: 5e-7, preference: { loss: sigmoid } }
```

`loongforge run chat.yaml` checks all stages before the first begins, then runs each in its own process; with `--resume` it
continues where it was stopped. The name of a stage is appended to the run's name (`chat-sft`, in `runs/chat-sft`); if `run.dir`,
`checkpoint.dir` or `checkpoint.upload` is set, the stage's folder is inside it. `loongforge check` checks all stages; if the previous
stage has no checkpoint yet, it checks with the model of the first stage. Every other command works on one stage, selected by
`stage=NAME`: `loongforge plan chat.yaml stage=dpo`. Command-line overrides apply to all stages; those of `model.load`,
`model.weights` and the parts' `load` apply to the first only. A stage may pack its samples before its first step:
`data.pack.mode: offline`. A stage with `lora` needs `checkpoint.merge_lora` if another stage follows, since adapters alone are not a
model to start from; `lora.adapter` must then be set in the stage itself, since later stages would add these adapters again.

## Keys
";

const CODES: &str = "
## Error codes

How to fix each: [error codes](errors.md).

| code | meaning |
| --- | --- |
| LF0101 | a config file is missing, unreadable, not YAML or another trainer's |
| LF0102 | unknown key |
| LF0103 | wrong type, or not one of the choices |
| LF0104 | value out of range |
| LF0105 | missing required key |
| LF0106 | the `defaults` list cannot be composed |
| LF0107 | an override or environment variable cannot be applied |
| LF0108 | an interpolation cannot be resolved |
| LF0109 | refused, because it would run code |
| LF0111 | values that contradict each other |
| LF0112 | no such file or directory |
| LF0113 | the parts of a model do not fit each other |
| LF0114 | a list of `stages` is wrong, or the stage is not selected or does not exist |
| LF0501 | an address that other machines can reach, without authentication |
";

/// Returns the whole page, in Markdown.
pub(super) fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    shape::walk(&SCHEMA, "", &mut |path, schema| {
        let description = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
        let is_section = !path.contains('.') && is_map(schema);
        if is_section {
            out += &format!("\n### `{path}`\n\n{description}\n\n| key | default | meaning |\n| --- | --- | --- |\n");
        } else if path == "device" {
            out += &format!("\n### `{path}`\n\n{description} Default: `auto`.\n");
        } else if !is_map(schema) || schema["additionalProperties"] == true {
            let default = match schema.get("default").or_else(|| section_default(path)) {
                Some(default) => format!("`{}`", inline(default)),
                None => "required".to_owned(),
            };
            let shown = path.replace(".0.", "[].");
            out += &format!("| `{shown}` | {default} | {}{} |\n", choices(schema), description.replace('|', "\\|"));
        }
    });
    out + CODES
}

/// Returns the default of a key that has none of its own, from the default of its section.
fn section_default(path: &str) -> Option<&'static Value> {
    let (section, rest) = path.split_once('.')?;
    SCHEMA["properties"][section].get("default")?.pointer(&format!("/{}", rest.replace('.', "/")))
}

fn is_map(schema: &Value) -> bool {
    let references = [&schema["$ref"], &schema["anyOf"][0]["$ref"]];
    references.iter().any(|reference| reference.is_string())
}

fn choices(schema: &Value) -> String {
    let names = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { String::new() } else { format!("{}. ", names.join(", ")) }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or_default()),
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
