"""Whether PEFT and we mean the same by a folder of adapters, both ways, for every family.

    python peft_roundtrip.py PROGRAM OUT [--fixtures DIR] [--family NAME]... [--kind KIND]... [--table FILE]

PROGRAM is loongforge, OUT a folder that is made. For each fixture `NAME-seed1` and kind of adapter:

* PEFT adapts the reference, every B drawn and no norm neutral, and saves the adapter; `parity --export --steps 0` reads it
  beside the same base and must compute PEFT's logits; the weights with the adapter merged are loaded into the reference.
* `parity --export --steps 3` trains the adapter and writes it; PEFT loads that folder and must compute our logits. Each
  tensor of it is then doubled: the logits must change.

Errors are the largest difference over the largest logit: at most 1e-5, or what PEFT's own logits move where every weight does by
its last bit (`last bit`). What PEFT refuses to adapt is printed as refused. Exits 1 where one is above, tensors are missing or left
over, a tensor has no effect, or nothing was compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, inject_adapter_in_model, set_peft_model_state_dict
from safetensors.torch import load_file

import minicpm
import references
import roundtrip

FIXTURES = Path(__file__).parent.parent.parent / "src/torch/tests/fixtures"
TOLERANCE = 1e-5
NUDGE = 1.2e-7  # a float32's last bit: what changes by more than this moves by itself
BASE = ("config.json", "model.safetensors", "inputs.safetensors", "expected.safetensors", "fixture.json")
# PEFT rewrites targets of such names into stacks of experts, for models of these types; parameters it leaves alone.
CONVERTED = {"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}


def converts(model) -> bool:
    from peft.utils.transformers_weight_conversion import _MODEL_TO_CONVERSION_PATTERN

    kind = getattr(getattr(model, "config", None), "model_type", None)
    return _MODEL_TO_CONVERSION_PATTERN.get(kind) in ("qwen2_moe", "mixtral")


def base(folder: Path):
    """The reference with the weights of a fixture, without what lies beside them."""
    with tempfile.TemporaryDirectory() as alone:
        for name in ("config.json", "model.safetensors"):
            (Path(alone) / name).symlink_to((folder / name).resolve())
        return roundtrip.load(Path(alone))[0].eval()


def language(name: str) -> bool:
    """Whether a module is of the language model."""
    return not re.search(r"visual|vision|audio|projector|merger|resampler|mlp1", name)


def is_grouped(module) -> bool:
    """Whether a linear map is several, one for each group of heads: PEFT does not know, and fails in the forward pass."""
    return type(module).__name__ == "DeepseekV4GroupedLinear"


def targets(model) -> tuple[list[str], list[str]]:
    """All linear maps but the head, and all stacks of experts; as modules and as parameters."""
    maps = [name for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and not name.endswith(("lm_head", "output")) and not is_grouped(module)]
    stacks = [name for name, p in model.named_parameters() if p.dim() == 3 and re.search(r"experts\.(gate_up|down)_proj$", name)]
    taken = {name for name in maps if converts(model) and name.rsplit(".", 1)[-1] in CONVERTED}
    return [name for name in maps if name not in taken], stacks + [f"{name}.weight" for name in sorted(taken)]


def settings(model, kind: str) -> dict:
    """Of PEFT's LoraConfig."""
    maps, parameters = targets(model)
    tower = [name for name in maps if not language(name)]
    other = {"rank_pattern": {re.escape(name): 2 for name in tower}, "alpha_pattern": {re.escape(name): 5 for name in tower}}
    plain = {"r": 3, "lora_alpha": 7, "target_modules": maps, "target_parameters": parameters}
    last = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and not language(name)][-1:]
    grouped = [name for name, module in model.named_modules() if is_grouped(module)]
    embedding = next(name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding) and language(name))
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    saved = last or [embedding]
    norm = [name for name, _ in model.named_modules() if name.endswith(("norm", "ln_f")) and language(name)][-1:]
    kinds = {
        "all": {**plain, **other},
        # PEFT leaves a head out of `all-linear` only where a class of transformers names it.
        "all-linear": {"r": 3, "lora_alpha": 7, "target_modules": "all-linear",
                       "exclude_modules": ["lm_head", "output"] if is_plain(model) else grouped or None},
        "attention": {"r": 2, "lora_alpha": 5, "target_modules": r".*(q_proj|v_proj|q_b_proj|kv_b_proj|c_attn|wqkv|qkv)"},
        "rslora": {**plain, **other, "use_rslora": True},
        "patterns": {"r": 3, "lora_alpha": 7, "target_modules": maps, "target_parameters": [],
                     "rank_pattern": {r"layers\.0\..*_proj": 2, "v_proj": 5}, "alpha_pattern": {"q_proj|v_proj": 11, "o_proj": 1.5}},
        "dora": {"r": 3, "lora_alpha": 7, "target_modules": maps, "use_dora": True, **other},
        "saved": {"r": 3, "lora_alpha": 7, "target_modules": [name for name in maps if language(name)],
                  "modules_to_save": saved + norm, "ensure_weight_tying": bool(tied and not last)},
    }
    return kinds[kind]


def draw(model, seed: int) -> None:
    """Adapters and saved modules that are not neutral."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_B" in name:
                tensor.copy_(0.1 * torch.randn(tensor.shape))
            elif "lora_magnitude" in name:
                tensor.mul_(1 + 0.3 * torch.randn(tensor.shape))
            elif "modules_to_save" in name:
                tensor.add_(0.1 * torch.randn(tensor.shape))


def is_plain(model) -> bool:
    return not isinstance(model, transformers.PreTrainedModel)


class Refused(Exception):
    """PEFT itself cannot adapt the reference in this way: there is nothing to compare."""


def make(folder: Path, kind: str, out: Path):
    """A fixture with an adapter of PEFT, and its logits."""
    model = base(folder)
    config = LoraConfig(task_type=None if is_plain(model) else "CAUSAL_LM", **settings(model, kind))
    torch.manual_seed(5)
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        raise Refused(str(error).splitlines()[0]) from error
    draw(adapted, 3)
    out.mkdir(parents=True)
    adapted.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    for name in BASE:
        (out / name).symlink_to((folder / name).resolve())
    return adapted.eval()


def logits(model, inputs: dict) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def load_adapter(folder: Path, adapter: Path):
    """PEFT's reading of an adapter's folder beside its base: the model, and names that are missing or left over."""
    model = base(folder)
    state = load_file(adapter / "adapter_model.safetensors")
    if is_plain(model):
        config = LoraConfig.from_pretrained(adapter)
        adapted = inject_adapter_in_model(config, model)
        result = set_peft_model_state_dict(adapted, {k.removeprefix("base_model.model."): v for k, v in state.items()})
        names = {f"base_model.model.{name}" for name in adapted.state_dict()}
        way = "inject_adapter_in_model"
        unexpected = set(result.unexpected_keys)
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapted = PeftModel.from_pretrained(model, adapter)
        unexpected = {str(warning.message)[:90] for warning in caught if "missing adapter keys" in str(warning.message)}
        names, way = set(adapted.state_dict()), "PeftModel"
    ours = {name for name in names if "lora_" in name or "modules_to_save" in name}
    plain = {re.sub(r"(\.modules_to_save)?\.default\b", "", name) for name in ours}
    plain = {re.sub(r"_magnitude_vector\.weight$", "_magnitude_vector", name) for name in plain}
    return adapted.eval(), way, (plain - set(state)) | unexpected | (set(state) - plain)


def unrest(model, inputs: dict, before: torch.Tensor, mask: torch.Tensor) -> float:
    """How far PEFT's own logits move where every weight does by its last bit: the larger of two tries."""
    found, kept = [], {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.manual_seed(7)
    with torch.no_grad():
        for _ in range(2):
            for name, p in model.named_parameters():
                p.copy_(kept[name] * (1 + NUDGE * torch.randn_like(p)))
            found.append(apart(logits(model, inputs), before, mask))
        for name, p in model.named_parameters():
            p.copy_(kept[name])
    return max(found)


def dead(model, inputs: dict, before: torch.Tensor) -> list[str]:
    """The tensors of adapters whose doubling changes nothing."""
    found = []
    for name, tensor in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            kept = tensor.detach().clone()
            with torch.no_grad():
                tensor.mul_(2)
                same = torch.equal(logits(model, inputs), before)
                tensor.copy_(kept)
            # An indexer chooses keys: what it says shows only where another one is chosen.
            if same and ".indexer." not in name:
                found.append(name)
    return found


def export(program: str, folder: Path, out: Path, steps: int) -> Path:
    done = subprocess.run([program, "parity", folder, "--export", out, "--steps", str(steps)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    return out / folder.name


def apart(left: torch.Tensor, right: torch.Tensor, mask: torch.Tensor) -> float:
    left, right = left[mask].float(), right[mask].float()
    return ((left - right).abs().max() / right.abs().max()).item()


def unused_blocks(config: dict) -> str:
    """A pattern of the tower's blocks behind the layer whose states are features: PEFT adapts them, without an effect."""
    vision = config.get("image_encoder") or config.get("vision_config") or {}
    usual = references.Composed.LAYERS.get(vision.get("model_type"))
    layer, depth = config.get("vision_feature_layer", vision.get("vision_feature_layer", usual)), vision.get("num_hidden_layers", 0)
    behind = range(depth + 1 + layer, depth) if isinstance(layer, int) and layer < 0 else ()
    return rf"(vision_tower|image_encoder)\..*layers?\.({'|'.join(map(str, behind))})\." if behind else ""


def check(program: str, folder: Path, kind: str, out: Path) -> dict:
    name = folder.name.removesuffix("-seed1")
    made = out / "peft" / f"{name}-{kind}"
    adapted = make(folder, kind, made)
    inputs = load_file(folder / "inputs.safetensors")
    mask = inputs["attention_mask"].bool()
    read = export(program, made, out / "read", 0)
    given, _ = roundtrip.tensors(read)
    of_base = logits(base(folder), given)
    theirs = logits(adapted, given)
    row = {"family": name, "kind": kind, "reference": type(base(folder)).__name__, "moved": apart(theirs, of_base, mask)}
    row["read"] = apart(roundtrip.tensors(read)[1], theirs, mask)
    row["merged"] = apart(logits(roundtrip.load(read)[0].eval(), given), theirs, mask)
    trained = export(program, made, out / "written", 3)
    model, row["way"], problems = load_adapter(folder, trained / "adapter")
    found = logits(model, given)
    row["written"] = apart(found, roundtrip.tensors(trained)[1], mask)
    row["unrest"] = max(unrest(model, given, found, mask), unrest(adapted, given, theirs, mask))
    row["tensors"] = len(load_file(trained / "adapter/adapter_model.safetensors"))
    unused = unused_blocks(json.loads((folder / "config.json").read_text()))
    without = [name for name in dead(model, given, found) if not (unused and re.search(unused, name))]
    row["problems"] = sorted(problems) + [f"no effect: {name}" for name in without]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("out", type=Path)
    parser.add_argument("--fixtures", type=Path, default=FIXTURES)
    parser.add_argument("--family", action="append")
    parser.add_argument("--kind", action="append", help="default: all, all-linear")
    parser.add_argument("--table", type=Path, help="a Markdown table of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    minicpm.encode_one_by_one()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    shutil.rmtree(args.out, ignore_errors=True)
    folders = [folder for folder in sorted(args.fixtures.glob("*-seed1"))
               if not (folder / "adapter_config.json").exists() and "_mtp" not in folder.name]
    rows, failed = [], 0
    for folder in folders:
        name = folder.name.removesuffix("-seed1")
        if args.family and name not in args.family:
            continue
        for kind in args.kind or ["all", "all-linear"]:
            try:
                row = check(args.program, folder, kind, args.out)
                near = all(row[way] <= max(TOLERANCE, row["unrest"]) for way in ("read", "written", "merged"))
                fine = near and not row["problems"] and row["moved"] > 1e-2
                print(f"{'ok' if fine else 'FAILED':7} {name:18} {kind:10} {row['way']:24} read {row['read']:.1e}, written "
                      f"{row['written']:.1e}, merged {row['merged']:.1e}, last bit {row['unrest']:.0e}, moved by {row['moved']:.2f}, {row['tensors']} tensors"
                      + "".join(f"\n        {problem}" for problem in row["problems"][:6]), flush=True)
                rows.append(row)
                failed += not fine
            except Refused as error:
                print(f"refused {name:18} {kind:10} by PEFT: {str(error)[:300]}", flush=True)
            except Exception as error:
                print(f"FAILED  {name:18} {kind:10} {type(error).__name__}: {str(error)[:900]}", flush=True)
                failed += 1
                if os.environ.get("TRACE"):
                    raise
    if args.table:
        lines = ["| family | reference | PEFT's way | adapters | tensors | PEFT → here | here → PEFT | merged → reference | last bit |",
                 "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
        lines += [f"| {r['family']} | {r['reference']} | {r['way']} | {r['kind']} | {r['tensors']} | {r['read']:.1e} | {r['written']:.1e} "
                  f"| {r['merged']:.1e} | {r['unrest']:.0e} |" for r in rows]
        args.table.write_text("\n".join(lines) + "\n")
    print(f"{len(rows)} compared, {failed} failed")
    return int(failed > 0 or not rows)


if __name__ == "__main__":
    sys.exit(main())
