"""Writes parity fixtures of Pi0-FAST: tiny random weights in lerobot's layout, samples with a missing picture, prompts and action
tokens of several lengths, and what lerobot makes of them: loss, gradients, and the tokens that it writes.

    python make_pi0_fast.py src/torch/tests/policies                              # the one that is committed
    python make_pi0_fast.py OUT --seed 7 --set sizes.text.num_kv_heads=2

Inputs are as in `make_policies.py`, and `answers` are `[bos, action tokens, …]` of the lengths in `fixture.json`. Head and table are
one, as in PaliGemma. It needs lerobot 0.6.1; greedy choices have a margin of 1e-3.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import make_policies
import torch
from fixture_folder import arguments, changed, empty, write_json, write_tensors
from lerobot.policies.pi0_fast import configuration_pi0_fast as keys, modeling_pi0_fast as source
from safetensors.torch import save_model
from torch import Tensor

SIZES = {name: make_policies.SIZES[name] for name in ("vocab_size", "vision", "text")}
CONFIG = dict(type="pi0_fast", sizes=SIZES, chunk_size=5, max_action_dim=6, max_state_dim=4)
ANSWERS, BOS, BAR, WRITTEN = [6, 3, 5], 2, 39, 9
# Margins of two choices that other sums could turn.
MARGIN = 1e-3


def build(config: dict) -> torch.nn.Module:
    sizes = config["sizes"]
    paligemma = source.PaliGemmaForConditionalGenerationWithPiGemma

    def small(config):
        config.text_config.vocab_size = sizes["vocab_size"]
        config.image_token_index = config.image_token_id = sizes["vocab_size"] - 1
        for key, value in sizes["vision"].items():
            setattr(config.vision_config, key, value)
        config.vision_config.projection_dim = config.projection_dim = sizes["text"]["width"]
        config._attn_implementation = "eager"
        return paligemma(config=config)

    tokenizer = SimpleNamespace(bos_token_id=BOS, convert_tokens_to_ids=lambda token: BAR)
    side = sizes["vision"]["image_size"]
    known = {key: value for key, value in config.items() if key not in make_policies.OTHERS}
    with contextlib.ExitStack() as stack:
        for name, value in [("get_gemma_config", lambda name: source.GemmaConfig(**sizes["text"])),
                            ("PaliGemmaForConditionalGenerationWithPiGemma", small)]:
            stack.enter_context(mock.patch.object(source, name, value))
        known = keys.PI0FastConfig(dtype="float32", device="cpu", image_resolution=(side, side), **known)
        model = source.PI0FastPytorch(known, paligemma_tokenizer=tokenizer)
    return model.eval()


def written(model: torch.nn.Module, prefix: tuple) -> Tensor:
    """Greedy tokens, and the smallest gap between the best score and the next."""
    gaps = []
    head = model.paligemma_with_expert.paligemma.lm_head
    hook = head.register_forward_hook(lambda _, __, scores: gaps.append(scores.topk(2).values.diff().abs().min()))
    tokens = model.sample_actions_fast_kv_cache(*prefix, max_decoding_steps=WRITTEN)
    hook.remove()
    return tokens, float(min(gaps))


def write(folder: Path, config: dict, seed: int) -> None:
    torch.manual_seed(seed)
    model = build(config)
    make_policies.randomize(model, seed)
    data = make_policies.inputs(config, seed)
    data = {name: data[name] for name in ("images", "tokens")}
    rng = torch.Generator().manual_seed(seed + 3000)
    answers = torch.randint(3, config["sizes"]["vocab_size"] - 1, (len(ANSWERS), max(ANSWERS)), generator=rng)
    answers[:, 0] = BOS
    data["answers"] = answers
    has = torch.arange(answers.shape[1])[None] < torch.tensor(ANSWERS)[:, None]
    prefix = make_policies.masked(data)
    loss = model.forward(*prefix, torch.where(has, answers, 0), has)["loss"]
    loss.backward()
    found = {f"grad/model.{name}": it.grad.contiguous() for name, it in model.named_parameters() if it.grad is not None}
    # Samples alone: lerobot's positions of what is written behind padding are those without it, and sums differ less.
    tokens, gap = written(model, prefix)
    assert gap > MARGIN, f"two tokens differ by {gap}: take another seed"
    found |= dict(loss=loss.detach().double(), written=tokens)
    empty(folder)
    side = config["sizes"]["vision"]["image_size"]
    visual = {f"observation.images.camera_{camera}": dict(type="VISUAL", shape=[3, side, side])
              for camera in range(make_policies.NUM_CAMERAS)}
    features = dict(visual, **{"observation.state": dict(type="STATE", shape=[config["max_state_dim"]])})
    saved = dict(config, image_resolution=[side, side], input_features=features,
                 output_features=dict(action=dict(type="ACTION", shape=[make_policies.ACTION_DIM])))
    samples = [dict(sample, answer=answer) for sample, answer in zip(make_policies.SAMPLES, ANSWERS)]
    write_json(folder / "config.json", saved)
    (folder / "fixture.json").write_text(json.dumps(dict(samples=samples, seed=seed, bos=BOS, bar=BAR)) + "\n")
    save_model(make_policies.Policy(model), str(folder / "model.safetensors"))
    write_tensors(folder, data, found, "gap", gap)


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    config = changed(CONFIG, args.set)
    config.setdefault("n_action_steps", config["chunk_size"])
    write(args.out / f"fast-seed{args.seed}", config, args.seed)


if __name__ == "__main__":
    main()
