"""Writes parity fixtures: a tiny randomly weighted model, one batch, and what the reference makes of it.

    python make_fixture.py --family qwen3 --seed 1 --out qwen3-seed1 --set hidden_size=64
    python make_fixture.py --all fixtures            # of every family two seeds and its changes of the config
    python make_fixture.py --all fixtures --seeds 1 --family glm5
    python make_fixture.py --list

The README beside this file tells what to install; that of the committed fixtures tells what the files hold.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import json
import os
import platform
import re
import shutil
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import minicpm
import references
from batches import Batch, make_batch
from families import FAMILIES, IMAGE, Family
from losses import MTP_LOSS_WEIGHT, Mtp, indexer_losses
from watching import catch_position_ids, catch_routers, router_outputs, watch_top_k

GRADIENT_LIMIT = 4096  # gradients of at most this many elements are stored whole
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
STEPS, CLIP_NORM = 5, 1.0
NEW_TOKENS = 12
MARGIN, TRAINED_MARGIN = 1e-4, 2e-6  # of top-k choices, before and during the steps: below, `--all` takes another seed
# What weights that differ by `NUDGE` may change of the losses during the steps, where layers carry rounding far.
NUDGE, UNREST = 1e-6, 2e-4


# ------------------------------------------------------------------------------------------ the model


class Reference:
    """The model of a family, with what it computes beyond logits."""

    def __init__(self, family: Family, config: dict, seed: int, dtype: torch.dtype):
        self.family = family
        if family.plain:
            self.model = getattr(references, family.model)(config)
        else:
            model_class = getattr(transformers, family.model)
            made = model_class.config_class(**config)
            made._attn_implementation = "eager"
            if dtype == torch.float64:  # torch groups products of matrices in float32 and below
                for part in (made, made.get_text_config()):
                    part._experts_implementation = "eager"
            self.model = model_class(made)
        self.mtp = Mtp.of(self.model, family.mtp) if family.mtp else None
        randomize(self.model, seed)
        self.model.to(dtype).eval()  # no dropout; routers and losses are as in training

    def adapt(self, changes: dict, seed: int, out: Path) -> None:
        """Puts PEFT's adapters in, no longer neutral, and saves them beside the base."""
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(seed)
        lora = {**self.family.lora, **{k.removeprefix("lora."): v for k, v in changes.items() if k.startswith("lora.")}}
        adapted = get_peft_model(self.model, LoraConfig(task_type="CAUSAL_LM", **lora))
        with torch.no_grad():
            for name, tensor in adapted.named_parameters():
                if "lora_B" in name:
                    tensor.copy_(0.3 * torch.randn(tensor.shape))
                elif "lora_magnitude" in name:
                    tensor.mul_(1 + 0.3 * torch.randn(tensor.shape))
                elif "modules_to_save" in name:
                    tensor.add_(0.1 * torch.randn(tensor.shape))
        adapted.save_pretrained(out)
        (out / "README.md").unlink(missing_ok=True)

    def quantize(self, precision: str) -> None:
        """Rounds the weights of all linear maps but the head as bitsandbytes does, in place: what QLoRA computes with."""
        import bitsandbytes.functional as F

        assert precision == "nf4", precision
        with torch.no_grad():
            for name, module in self.model.named_modules():
                if isinstance(module, nn.Linear) and not name.endswith("lm_head"):
                    packed, state = F.quantize_4bit(module.weight.data, blocksize=64, quant_type="nf4")
                    module.weight.copy_(F.dequantize_4bit(packed, state))

    def run(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with self.mtp.listening() if self.mtp else contextlib.nullcontext({}) as caught:
            out = self.model(**inputs)
        result = {"loss": out.loss, "logits": out.logits}
        if getattr(out, "aux_loss", None) is not None:
            result["aux_loss"] = out.aux_loss
        if self.mtp:
            result["mtp_loss"] = self.mtp.loss(caught, inputs["input_ids"], inputs["labels"])
            result["loss"] = out.loss + MTP_LOSS_WEIGHT * result["mtp_loss"]
        return result

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by parameter name, under the names and in the pieces that model.safetensors has."""
        if self.family.lora:
            trained = {name: tensor for name, tensor in tensors.items() if ".lora_" in name or ".modules_to_save." in name}
            # Names of the file of adapters; of modules that are saved themselves, those of the model's file.
            named = lambda name: re.sub(r"(\.modules_to_save)?\.default\b", "", name).replace("vector.weight", "vector")
            return {named(name): tensor for name, tensor in trained.items()}
        if not self.family.plain:
            from transformers.core_model_loading import revert_weight_conversion

            tensors = revert_weight_conversion(self.model, tensors)
        for pattern, name in self.family.renames.items():
            tensors = {re.sub(pattern, name, key): value for key, value in tensors.items()}
        return tensors

    def save(self, out: Path, config: dict) -> None:
        weights = out / "model.safetensors"
        if self.family.plain:
            saved = {name: p for name, p in self.model.named_parameters()}  # a tied matrix once
        else:
            self.model.save_pretrained(out)
            config = json.loads((out / "config.json").read_text())
            (out / "generation_config.json").unlink(missing_ok=True)
            saved = load_file(weights)
            for pattern, name in self.family.renames.items():
                saved = {re.sub(pattern, name, key): value for key, value in saved.items()}
            for copied, original in (self.mtp.copies() if self.mtp else {}).items():
                saved[copied] = saved[original].clone()
        save_file(tidy(saved), weights, metadata={"format": "pt"})
        config = {**config, **self.family.published}
        (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    def reloaded_gap(self, out: Path, inputs: dict[str, Tensor], logits: Tensor) -> float:
        """Largest difference of the logits when the folder is read back."""
        if self.family.plain:
            model = getattr(references, self.family.model)(json.loads((out / "config.json").read_text()))
            missing = model.load_state_dict(load_file(out / "model.safetensors"), strict=False)
            assert not missing.unexpected_keys, missing
            model = model.to(logits.dtype)
        else:
            model_class = getattr(transformers, self.family.model)
            own = {}
            if "model_type" in self.family.published:  # a name that transformers does not know
                config, known = json.loads((out / "config.json").read_text()), model_class.config_class
                own["config"] = known.from_dict({**config, "model_type": known.model_type})
            # With the adapter that lies beside the weights.
            model = model_class.from_pretrained(out, dtype=logits.dtype, attn_implementation="eager", **own)
        with torch.no_grad():
            return (model.eval()(**inputs).logits - logits).abs().max().item()

    def generate(self, single: dict[str, Tensor]) -> list[int]:
        """The greedy continuation, with no end of text."""
        inputs = {key: value for key, value in single.items() if key != "labels"}
        ids, length = inputs.pop("input_ids"), single["input_ids"].shape[1]
        if self.family.kind == "paligemma":
            inputs["token_type_ids"] = torch.zeros_like(ids)  # all of it is what was asked
        # transformers 5.17 keeps keys of other frequencies in the cache where a text grows beyond the context, and drops Phi-3's.
        config = self.model.config.to_dict() if hasattr(self.model, "config") else {}
        lengths_matter = any(f'"rope_type": "{kind}"' in json.dumps(config, default=str) for kind in ("longrope", "dynamic"))
        inputs["attention_mask"] = torch.ones_like(ids)  # else a token of the padding's id would be left out
        if not self.family.plain and not lengths_matter:
            self.model.generation_config.eos_token_id = None
            made = self.model.generate(input_ids=ids, **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=True)
            return made[0, length:].tolist()
        with torch.no_grad():
            for _ in range(NEW_TOKENS):
                inputs["attention_mask"] = torch.ones_like(ids)
                ids = torch.cat([ids, self.model(input_ids=ids, **inputs).logits[:, -1:].argmax(-1)], 1)
        return ids[0, length:].tolist()


def randomize(model: nn.Module, seed: int) -> None:
    """Nothing is neutral: in a fresh model norms are one, biases zero and attention nearly uniform, so that a port that
    forgot a bias or swapped two norms would still agree."""
    rng = torch.Generator().manual_seed(seed)
    tensors = [*sorted(model.named_parameters()), *sorted(b for b in model.named_buffers() if "correction_bias" in b[0])]
    with torch.no_grad():
        for name, tensor in tensors:
            noise = torch.randn(tensor.shape, generator=rng)
            if tensor.dim() < 2 or "correction_bias" in name:
                tensor.add_(0.1 * noise)
            else:
                tensor.copy_(0.8 * noise / (tensor.shape[-1] if tensor.dim() == 3 else tensor[0].numel()) ** 0.5)
        for name, table in model.named_buffers():
            if name.endswith("tid2eid"):  # the experts of every token, all different
                experts = model.config.n_routed_experts
                table.copy_(torch.rand(len(table), experts, generator=rng).argsort(-1)[:, : table.shape[1]])


# ------------------------------------------------------------------------------------------ measuring


def first_pass(reference: Reference, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    margins, caught, routers = [], {}, {}
    model = reference.model
    model.zero_grad()
    with watch_top_k(margins), catch_position_ids(model, caught), catch_routers(model, routers):
        result = reference.run(inputs)
    result["loss"].backward()
    expected = {**{key: value.detach().clone() for key, value in result.items()}, **caught}
    if margins:
        expected["top_k_margin"] = torch.tensor(min(margins))
    gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
    for name, gradient in reference.stored(gradients).items():
        expected[f"grad_norm/{name}"] = gradient.norm()
        if gradient.numel() <= GRADIENT_LIMIT:
            expected[f"grad/{name}"] = gradient
    expected.update(router_outputs(routers, inputs))
    # DeepSeek-V4's chooses entries and does not learn here.
    if any(name.endswith(".indexer") and hasattr(module, "wq_b") for name, module in model.named_modules()):
        for stage in ("sparse", "dense"):
            losses, gradients = indexer_losses(model, {k: v for k, v in inputs.items() if k != "labels"}, stage == "dense")
            expected[f"indexer_loss/{stage}"] = losses
            expected.update({f"indexer_grad/{stage}/{key}": value for key, value in gradients.items()})
    return expected


def packed_pass(reference: Reference, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The sequences end to end in one row must give what the reference gives for each on its own."""
    logits, positions, total, count = [], [], 0.0, 0
    for single in batch.singles:
        caught: dict[str, Tensor] = {}
        with torch.no_grad(), catch_position_ids(reference.model, caught):
            out = reference.model(**single).logits[0]
        logits.append(out)
        if caught and caught["position_ids"].dim() == 3:
            positions.append(caught["position_ids"][-3:, 0])
        targets = single["labels"][0, 1:]
        total = total + nn.functional.cross_entropy(out[:-1].float(), targets, ignore_index=-100, reduction="sum")
        count += int((targets != -100).sum())
    lengths = [single["input_ids"].shape[1] for single in batch.singles]
    inputs = {
        "packed.input_ids": torch.cat([single["input_ids"][0] for single in batch.singles]),
        "packed.labels": torch.cat([single["labels"][0] for single in batch.singles]),
        "packed.cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).int(),
        "packed.position_ids": torch.cat([torch.arange(length) for length in lengths]),
    }
    if positions:
        inputs["packed.mrope_position_ids"] = torch.cat(positions, 1)
    return inputs, {"packed.logits": torch.cat(logits), "packed.loss": total / count}


def adamw_pass(reference: Reference, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Steps on the one batch: decay on matrices only, the norm of the gradients clipped."""
    parameters, margins = [p for p in reference.model.parameters() if p.requires_grad], []
    groups = [{"params": [p for p in parameters if p.dim() >= 2]},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, **{**ADAMW, "eps": reference.family.adam_eps})
    losses, norms = [], []
    with watch_top_k(margins):
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = reference.run(inputs)["loss"]
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(parameters, CLIP_NORM))
            optimizer.step()
            losses.append(loss.detach())
        with torch.no_grad():
            losses.append(reference.run(inputs)["loss"])
    after = reference.stored({name: p.detach().clone() for name, p in reference.model.named_parameters()})
    expected = {"adamw.loss": torch.stack(losses), "adamw.grad_norm": torch.stack(norms)}
    if margins:
        expected["adamw.top_k_margin"] = torch.tensor(min(margins))
    return {**expected, **{f"adamw.weight_norm/{name}": tensor.norm() for name, tensor in after.items()}}


def unrest(reference: Reference, inputs: dict[str, Tensor]) -> float:
    """The largest relative change of the losses during the steps, of two nudges of the weights."""
    def losses(nudge: float) -> Tensor:
        nudged = copy.deepcopy(reference)
        with torch.no_grad():
            for p in nudged.model.parameters():
                p.mul_(1 + nudge * torch.randn_like(p))
        return adamw_pass(nudged, inputs)["adamw.loss"]

    still = losses(0.0)
    return max(((losses(NUDGE) - still).abs() / still).max().item() for _ in range(2))


# -------------------------------------------------------------------------------------------- writing


def tidy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().clone().contiguous() for key, value in tensors.items()}


def changed(config: dict, changes: dict) -> dict:
    config = copy.deepcopy(config)
    for path, value in changes.items():
        if not path.startswith(("fixture.", "lora.")):
            *parents, last = path.split(".")
            functools.reduce(lambda inner, key: inner[key], parents, config)[last] = value
    return config


def make(family: Family, seed: int, out: Path, changes: dict, dtype=torch.float32, generate=False) -> dict:
    torch.manual_seed(seed)
    config = changed(family.config, changes)
    reference = Reference(family, config, seed, dtype)
    asked = [changes.get(f"fixture.{key}", False) for key in ("equal_lengths", "video_sound")]
    batch = make_batch(family.kind, config, seed + 1, *asked)
    to = lambda tensors: {k: v.to(dtype) if v.is_floating_point() else v for k, v in tensors.items()}
    batch = Batch(to(batch.padded), [to(single) for single in batch.singles], to(batch.ours))

    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    reference.save(out, config)
    # The folder has the weights before they are rounded.
    precision = changes.get("fixture.frozen_precision")
    if precision:
        reference.quantize(precision)
    if family.lora:
        reference.adapt(changes, seed, out)
    expected = first_pass(reference, batch.padded)
    packed_inputs, packed_expected = packed_pass(reference, batch)
    inputs = {**batch.padded, **packed_inputs, **batch.ours}
    expected.update(packed_expected)
    if "position_ids" in expected:
        inputs["position_ids"] = expected.pop("position_ids")
    reload_gap = 0.0 if precision else reference.reloaded_gap(out, batch.padded, expected["logits"])
    if generate:
        tokens = [reference.generate(single) for single in batch.singles]
        # A placeholder that was generated has no picture: what models make of it is nobody's contract.
        if family.kind == "text" or max(map(max, tokens)) < IMAGE:
            (out / "generated.json").write_text(json.dumps({"max_new_tokens": NEW_TOKENS, "tokens": tokens}))
    carries_far = "linear_num_value_heads" in json.dumps(config)
    adamw_unrest = unrest(reference, batch.padded) if carries_far else None
    expected.update(adamw_pass(reference, batch.padded))
    save_file(tidy(inputs), out / "inputs.safetensors")
    save_file(tidy(expected), out / "expected.safetensors")
    margin = lambda key: expected[key].item() if key in expected else None
    summary = {
        "family": family.name,
        "covers": family.covers,
        "reference": ("" if family.plain else "transformers.") + family.model + (f" + {family.mtp} MTP" if family.mtp else ""),
        "seed": seed,
        "overrides": [f"{path}={json.dumps(value)}" for path, value in changes.items()],
        "dtype": str(dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in reference.model.parameters()),
        "loss": expected["loss"].item(),
        "losses_while_training": [round(x, 6) for x in expected["adamw.loss"].tolist()],
        "adamw": {**ADAMW, "eps": family.adam_eps, "steps": STEPS, "clip_norm": CLIP_NORM, "decay": "tensors of two or more dimensions"},
        "top_k_margin": margin("top_k_margin"),
        "adamw_top_k_margin": margin("adamw.top_k_margin"),
        "adamw_unrest": adamw_unrest,
        "packed_gap": (expected["logits"][inputs["attention_mask"].bool()] - expected["packed.logits"]).abs().max().item(),
        "reload_gap": reload_gap,
        "versions": {"python": platform.python_version(), "safetensors": safetensors.__version__,
                     "torch": torch.__version__, "transformers": transformers.__version__},
    }
    if family.mtp:
        summary["mtp_loss_weight"] = MTP_LOSS_WEIGHT
    if precision:
        import bitsandbytes

        summary["frozen_precision"] = precision
        summary["versions"]["bitsandbytes"] = bitsandbytes.__version__
    (out / "fixture.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def decided(summary: dict) -> bool:
    """Whether no choice of a router or an indexer hangs on rounding."""
    least = {"top_k_margin": MARGIN, "adamw_top_k_margin": TRAINED_MARGIN}
    return all(summary[key] is None or summary[key] > limit for key, limit in least.items()) and (
        summary["adamw_unrest"] is None or summary["adamw_unrest"] < UNREST)


def report(name: str, summary: dict, out: Path) -> str:
    size = sum(f.stat().st_size for f in out.iterdir())
    margin = "-" if summary["top_k_margin"] is None else f"{summary['top_k_margin']:.0e}/{summary['adamw_top_k_margin']:.0e}"
    return (f"{name:40} {summary['parameters']:7} parameters, loss {summary['loss']:.4f} → {summary['losses_while_training'][-1]:.4f}, "
            f"margin {margin}, unrest {summary['adamw_unrest'] or 0:.0e}, packed gap {summary['packed_gap']:.0e}, reload gap {summary['reload_gap']:.0e}, {size / 1e3:.0f} KB")


def make_all(folder: Path, names: list[str], num_seeds: int, redo: bool) -> int:
    """Of each family `num_seeds` seeds and one of each change; other seeds are tried where a margin is too small."""
    failed = 0
    for name in names:
        family = FAMILIES[name]
        plans = [(f"seed{seed}", seed, {}) for seed in range(1, num_seeds + 1)]
        plans += [(label, 11 + index, changes) for index, (label, changes) in enumerate(family.variants.items())]
        for label, seed, changes in plans:
            out = folder / f"{name}-{label}"
            if not redo and (out / "fixture.json").is_file():
                continue
            try:
                for attempt in range(40):
                    summary = make(family, seed + 100 * attempt, out, changes, generate=label == "seed1")
                    if decided(summary):
                        break
                is_decided = decided(summary)
                print(report(out.name, summary, out) + ("" if is_decided else "  MARGIN TOO SMALL"), flush=True)
                failed += not is_decided
            except Exception as error:
                shutil.rmtree(out, ignore_errors=True)
                print(f"{out.name}: FAILED: {type(error).__name__}: {error}", flush=True)
                failed += 1
                if os.environ.get("TRACE"):
                    raise
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=sorted(FAMILIES), metavar="NAME", action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=JSON", dest="assignments")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--all", type=Path, metavar="DIR", help="every family, or those of --family")
    parser.add_argument("--seeds", type=int, default=2, help="with --all: seeds of each family (default 2)")
    parser.add_argument("--redo", action="store_true", help="with --all: also those that exist")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the same bits every time
    minicpm.encode_one_by_one()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.list:
        for family in FAMILIES.values():
            print(f"{family.name:18} {family.model:40} {family.covers}\n{'':18} changes: {', '.join(family.variants)}")
        return 0
    if args.all:
        return min(make_all(args.all, args.family or list(FAMILIES), args.seeds, args.redo), 1)
    if not args.out or not args.family or len(args.family) != 1:
        parser.error("--family and --out, or --all, or --list")
    changes = {path: json.loads(value) for path, _, value in (item.partition("=") for item in args.assignments)}
    summary = make(FAMILIES[args.family[0]], args.seed, args.out, changes, getattr(torch, args.dtype), generate=True)
    print(report(args.out.name, summary, args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
