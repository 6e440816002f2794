"""Whether transformers reads an exported folder and computes the logits that we computed.

    python roundtrip.py FOLDER... [--tolerance 1e-4]

A folder is a checkpoint in Hugging Face format with `logits.safetensors` beside the weights: `input_ids` [B, S] int64,
`logits` [B, S, V] of ours, and where the model takes them `attention_mask` [B, S], `pixel_values`, `image_grid_thw`, or
any other argument of the model under its name. Without `logits.safetensors` a parity fixture's own
`inputs.safetensors` and `expected.safetensors` are taken. Families that only references.py has are loaded with it.
A folder with `adapter/` is the adapter's base with the adapter added: the base with that adapter of PEFT beside it must
give the same logits. The tolerance is of the largest logit. Exits 1 where a folder is outside it or does not load whole.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file

import minicpm
import references
from families import FAMILIES

PLAIN = {family.config["model_type"]: family.model for family in FAMILIES.values() if family.plain}
# What fixtures hold for us alone, where a model takes its pictures in another form.
OURS = ("vision_patches", "vision_sizes")
ALIASES = {"mimo": "Qwen2ForCausalLM"}  # its trunk
# transformers and PEFT put experts together by the type's name, and know these models by another one.
TYPES = {"kimi_k2": "deepseek_v3"}


def of_prediction_head(name: str, config: dict) -> bool:
    """What transformers has no class for and leaves out."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    return "mtp" in name or layer is not None and int(layer[1]) >= config["num_hidden_layers"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for part in sorted(folder.glob("model*.safetensors")):
        found.update(load_file(part))
    return found


def load(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    if kind in PLAIN:
        model = getattr(references, PLAIN[kind])(config)
        left = model.load_state_dict(weights(folder), strict=False)
        tied = {"lm_head.weight", "output.weight"} if config.get("tie_word_embeddings") else set()
        return model, set(left.missing_keys) - tied, set(left.unexpected_keys)
    name = ALIASES.get(kind) or config["architectures"][0]
    cls = getattr(transformers, name)
    settings = cls.config_class.from_pretrained(folder)
    settings.model_type = TYPES.get(kind, settings.model_type)
    model, info = cls.from_pretrained(
        folder, config=settings, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    unexpected = {key for key in info["unexpected_keys"] if not of_prediction_head(key, config)}
    return model, set(info["missing_keys"]) | {str(key) for key in info["mismatched_keys"]}, unexpected


def tensors(folder: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    if (folder / "logits.safetensors").is_file():
        inputs = load_file(folder / "logits.safetensors")
        return {key: value for key, value in inputs.items() if key not in ("logits", *OURS)}, inputs["logits"]
    inputs = load_file(folder / "inputs.safetensors")
    unused = [key for key in inputs if key.startswith("packed.") or key in ("labels", "position_ids", *OURS)]
    return {key: value for key, value in inputs.items() if key not in unused}, load_file(folder / "expected.safetensors")["logits"]


def with_adapter(folder: Path):
    """The adapter of a folder beside its base."""
    from peft import PeftModel

    adapter = folder / "adapter"
    base = Path(json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"])
    with tempfile.TemporaryDirectory() as alone:
        # A fixture has an adapter of its own beside its weights, which transformers would add.
        for file in (base / "config.json", *base.glob("model*.safetensors*")):
            (Path(alone) / file.name).symlink_to(file.resolve())
        model, missing, unexpected = load(Path(alone))
    adapted = PeftModel.from_pretrained(model, adapter)
    trained = load_file(adapter / "adapter_model.safetensors")
    names = {name.replace(".default.", ".") for name in adapted.state_dict() if ".lora_" in name}
    return adapted, missing | (names - set(trained)), unexpected | (set(trained) - names)


def check(folder: Path, tolerance: float) -> bool:
    fine = compare(folder, folder.name, load(folder), tolerance)
    if (folder / "adapter").is_dir():
        fine &= compare(folder, f"{folder.name}/adapter", with_adapter(folder), tolerance)
    return fine


def compare(folder: Path, name: str, loaded: tuple, tolerance: float) -> bool:
    model, missing, unexpected = loaded
    inputs, ours = tensors(folder)
    inputs = {key: value.float() if value.is_floating_point() else value for key, value in inputs.items()}
    with torch.no_grad():
        theirs = model.eval()(**inputs).logits
    if "attention_mask" in inputs:
        real = inputs["attention_mask"].bool()
        ours, theirs = ours[real], theirs[real]
    error = ((ours.float() - theirs).abs().max() / theirs.abs().max()).item()
    fine = error <= tolerance and not missing and not unexpected
    print(f"{'ok' if fine else 'FAILED':7} {name:40} {type(model).__name__}: logits within {error:.1e} of the largest"
          + (f"; missing {sorted(missing)[:5]}" if missing else "") + (f"; unexpected {sorted(unexpected)[:5]}" if unexpected else ""),
          flush=True)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    minicpm.encode_one_by_one()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    results = [check(folder, args.tolerance) for folder in args.folders]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
