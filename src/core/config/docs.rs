//! The text of `docs/configuration.md`, made from the schema.

use serde_json::Value;

use super::node::float;
use super::shape::{self, SCHEMA};

const INTRODUCTION: &str = "\
# Configuration

A run is one YAML file: `loongforge run FILE [key=value ...]`. `loongforge check FILE` reports every mistake at once, with
file, line and suggestion; `--show-origin` says where each value comes from. A config is a regular file of at most 1 MiB.

Sources, lowest first: the defaults below, the `defaults` list, the file, `LOONGFORGE__TRAIN__LR=1e-4` environment variables,
command-line overrides. In keys `-` and `_` are the same. Sizes and time spans have units (`64MiB`, `60s`). Relative paths
start at the directory the program runs in.

| on the command line | |
| --- | --- |
| `train.lr=2e-5`, `--train.lr 2e-5` | sets a key; `data.train.0.path=x` one in a list; values that start with `[`, `{` or a quote are YAML |
| `+a.b=1`, `++a.b=1`, `~a.b` | adds a key no file sets, sets in any case, drops what files say |
| `group=option`, `group@package=option` | another option of an entry of the `defaults` list; `+` adds an entry, `~` drops one |

| in a file | |
| --- | --- |
| `defaults: [base, group@package: option, _self_]` | lays `base.yaml` and `group/option.yaml`, beside the file or built in, under the file's own keys; `optional`, `override`, lists of options and `# @package` headers as in Hydra |
| `${a.b}`, `${.b}` | the value of another key; `.b` is a sibling |
| `${oc.env:NAME,default}` | an environment variable |

## Models

`model.load` names a Hugging Face directory or hub id. Without it the program's own configs say what a model is, and
`loongforge models` lists them; a file `models/GROUP/NAME.yaml` beside the run's goes before a built-in one of that name.

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

The widths of the projector follow from the two other parts. Parts that do not fit are reported by name. A part with
neither `load` nor `model.load` starts random, and a line says so. Pictures are processed as the preprocessor config in
`image_encoder.load` says, else the one beside the tokenizer. DeepStack of a tower is off, with a line, where the width of
the language model is not the one that the tower was made for. `image_encoder.overrides` changes single keys of a part.
Towers of CLIP, SigLIP and DINOv2 have two keys that their published configs lack: `vision_feature_layer` (whose states are the
features: -1 of the last block; without it CLIP's are those of the block before, SigLIP's and DINOv2's those behind the last norm)
and `spatial_merge_size` (the side of the square of patches that becomes one feature). `export-hf` writes such models
[for transformers](checkpoints.md#models-of-parts).

## Pools

By default all towers share the pool `encoder`. A key of `pools` with another name is one more encoder pool, with the keys of
`pools.encoder`: it holds the tower that is called as the pool, or those that `towers` names. `encoder` has what is left.

```yaml
pools:
  encoder: { replicas: 4 }                       # the vision tower
  audio: { replicas: 2, tensor_parallel: 1, lr: 1e-5 }
  foundation: { replicas: 2, zero: 1 }
```

A diffusion model with two transformers has two foundation pools ([Wan 2.2 A14B](diffusion.md#two-transformers-wan-22-a14b)).
Actors are named by their pool, `audio/1`. `loongforge scale --pool audio 3` changes one pool of a running job, and
`--role encoder --pool audio` starts a process of it. The number of actors changes no bit of the losses, and how pools are
made up only the rounding of the gradient norm. A resumed run may have other pools than the run before.

## Before a run

`check` and `run` ask the same before there is a folder or an actor, and end with exit code 2 where the run could not go:

- the layout against the model: heads, sizes, layers, experts, chunks, adapters, what checkpoints can hold;
- the headers of all weights: files, shapes, missing tensors (of hub ids that were not fetched `check` only says so);
- the first samples of each data set with tokenizer and template: 100, or 4,096 where there are no pictures. A set of which
  none can be used, or all are too long, is refused, and so is a run that will read more bad ones than
  `data.on_bad_sample.max_fraction` allows, whatever the others are, or one whose `edges` have too little credit for a sample; the
  share of the bad and of the long is printed. Where more are bad than allowed, the first 200 samples in the run's own order are read
  as well, and a run that would end among them is refused;
- the device, and whether the weights of all actors fit into the memory of this machine at all (`check --no-device` where others
  compute: it asks neither).

Nothing in a config runs code: `_target_` and `${eval:...}` are refused.

## Stages

A file may list `stages`: runs that follow one another, such as alignment, pretraining and fine-tuning, or fine-tuning and preferences.
Each lays its own keys over those of the file. The first starts from the file's `model.load`, each later one from the last checkpoint of
the stage before it, unless it has a `model.load` of its own; then `model.weights`, `model.config` and the `load` and `config` of parts
are those of that checkpoint, too.

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

`loongforge run chat.yaml` checks all stages before the first begins, then runs each in a process of its own; with `--resume` it
continues where it was stopped. A stage's run has the stage's name behind its own (`chat-sft`, in `runs/chat-sft`); where `run.dir`,
`checkpoint.dir` or `checkpoint.upload` is set, the stage's folder is in it. `loongforge check` checks all stages, those whose predecessor has no checkpoint
yet with the model of the first. Every other command works on one stage, which the word `stage=NAME` chooses: `loongforge plan chat.yaml
stage=dpo`. Overrides on the command line hold for all stages; those of `model.load`, `model.weights` and of the parts' `load` for the
first. A stage may pack its samples before its first step: `data.pack.mode: offline`. A stage with `lora` needs `checkpoint.merge_lora` where another follows, as adapters are no model to start from.

## Keys
";

const CODES: &str = "
## Error codes

What to do about each: [error codes](errors.md).

| code | meaning |
| --- | --- |
| LF0101 | a config file is missing, unreadable or not YAML |
| LF0102 | unknown key |
| LF0103 | wrong type, or not one of the choices |
| LF0104 | value out of range |
| LF0105 | missing required key |
| LF0106 | the `defaults` list cannot be composed |
| LF0107 | an override or environment variable cannot be applied |
| LF0108 | an interpolation cannot be resolved |
| LF0109 | refused, because it would run code |
| LF0111 | values that do not go together |
| LF0112 | no such file or directory |
| LF0113 | the parts of a model do not fit each other |
| LF0114 | a list of `stages` is wrong, or the stage is not chosen or not there |
| LF0501 | an address that other machines can reach, without a login |
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
            out += &format!("\n### `{path}`\n\n{description} Default: `cpu`.\n");
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

/// The default of a key that only its section's default gives.
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
