"""Writes what text towers make of texts of unequal length: hidden states of chosen layers, and gradients of all parameters.
The reference computes the texts as one padded batch.

    python make_text_towers.py ../../src/torch/tests/towers
    python make_text_towers.py --more FOLDER      # two more seeds and two changes of the config of each tower
    LOONGFORGE_TOWERS=FOLDER cargo test -p loongforge-torch --test towers

A folder holds the config of a tower, the weights under its names, inputs and what is expected.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from make_fixture import randomize, tidy

WIDTH = 24  # of the features
LENGTHS = [5, 40, 1, 12, 5, 150]
T5 = dict(vocab_size=80, d_model=24, d_kv=10, d_ff=40, num_layers=3, num_heads=3, dropout_rate=0.1)
LLAMA = dict(vocab_size=80, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, tie_word_embeddings=False)
QWEN2_5_VL = {**LLAMA, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
CLIP = dict(vocab_size=80, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3,
            max_position_embeddings=160)
MOE = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True)

# Class of the tower, its config, what is taken of it, changes of both.
TOWERS = {
    "umt5": ("UMT5EncoderModel", "UMT5Config", T5, {},
             {"few-buckets": ({"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "num_heads": 2}, {}),
              "silu-layers": ({"feed_forward_proj": "gated-silu"}, {"layers": [0, 2, -2], "drop_tokens": 1})}),
    "t5": ("T5EncoderModel", "T5Config", {**T5, "feed_forward_proj": "gated-gelu"}, {},
           {"relu": ({"feed_forward_proj": "relu", "d_kv": 8}, {}),
            "few-buckets": ({"relative_attention_num_buckets": 12, "relative_attention_max_distance": 30},
                            {"layers": [1, -1]})}),
    "clip_text": ("CLIPTextModel", "CLIPTextConfig", CLIP, {},
                  {"gelu-layers": ({"hidden_act": "gelu", "num_attention_heads": 2}, {"layers": [0, 1, -1], "drop_tokens": 2}),
                   "last-but-one": ({"intermediate_size": 56, "layer_norm_eps": 1e-3}, {"layers": [-2]})}),
    "qwen2.5_vl_text": ("Qwen2_5_VLTextModel", "Qwen2_5_VLTextConfig", QWEN2_5_VL, {"drop_tokens": 3},
                        {"layers": ({}, {"layers": [0, 1, -1], "drop_tokens": 1}), "last-but-one": ({"num_key_value_heads": 4}, {"layers": [-2]})}),
    "gemma3_text": ("Gemma3TextModel", "Gemma3TextConfig", {**LLAMA, "head_dim": 8, "sliding_window": 8,
                                                           "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
                    {"layers": [0, 1, 2, 3]},
                    {"last": ({"num_key_value_heads": 4}, {}), "second": ({"num_key_value_heads": 1}, {"layers": [2], "drop_tokens": 1})}),
    "qwen3_moe": ("Qwen3MoeModel", "Qwen3MoeConfig", {**LLAMA, **MOE, "head_dim": 8}, {},
                  {"one-expert": ({"num_experts_per_tok": 1}, {}), "layers": ({}, {"layers": [1, 3]})}),
}


def name_of(key: str, model: nn.Module) -> str:
    is_t5, is_clip = hasattr(model, "shared"), hasattr(model, "embeddings")
    # CLIP's names are those of published files and of `CLIPTextModelWithProjection`.
    inner = "" if is_t5 else "text_model." if is_clip else "model."
    return f"text_encoder.{inner}{key}"


def make(name: str, out: Path, seed: int, changes: dict, taken: dict) -> None:
    model_class, config_class, config, own, _ = TOWERS[name]
    config, taken = {**config, **changes}, {**own, **taken}
    torch.manual_seed(seed)
    made = getattr(transformers, config_class)(**config)
    made._attn_implementation = "eager"
    model = getattr(sys.modules["transformers"], model_class, None) or reference(model_class)
    model = model(made).eval()
    randomize(model, seed)
    rng = torch.Generator().manual_seed(seed + 1)
    layers, drop = taken.get("layers", [-1]), taken.get("drop_tokens", 0)
    lengths = [max(length, drop + 1) for length in LENGTHS]
    texts = [torch.randint(2, made.vocab_size, (length,), generator=rng) for length in lengths]

    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    # CLIP's last one is not behind the last norm there.
    states = [*output.hidden_states[:-1], output.last_hidden_state]
    wide = torch.cat([states[layer] for layer in layers], -1)
    rows = torch.cat([wide[number, drop:length] for number, length in enumerate(lengths)])
    projector = nn.Linear(wide.shape[-1], WIDTH)
    randomize(projector, seed + 2)
    found = projector(rows)
    seeds = torch.randn(found.shape, generator=rng)
    (found * seeds).sum().backward()

    named = {name_of(key, model): p for key, p in model.named_parameters() if not key.startswith("encoder.embed_tokens")}
    # A layer behind the last that is taken is not a part of the tower.
    named = {key: p for key, p in named.items() if p.grad is not None}
    named |= {f"text_projector.linear.{key}": p for key, p in projector.named_parameters()}
    expected = {"features/0": found}
    expected |= {f"grad/{key}": p.grad for key, p in named.items()}
    expected |= {f"grad_norm/{key}": p.grad.norm() for key, p in named.items()}
    inputs = {"patches": torch.cat(texts).float()[:, None], "sizes": torch.tensor([[length, 1, 1] for length in lengths]), "seeds/0": seeds}
    foundation = dict(model_type="llama", vocab_size=64, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1,
                      num_attention_heads=4)
    whole = dict(model_type="loongforge_vlm", foundation=foundation, text_token_id=1, text_projector={}, text=taken,
                 text_encoder={**config, "model_type": made.model_type})
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")
    for file, tensors in (("model", stored(named)), ("inputs", inputs), ("expected", expected)):
        save_file(tidy(tensors), out / f"{file}.safetensors")
    print(f"{out.name}: {sum(f.stat().st_size for f in out.iterdir()) / 1e3:.0f} KB")


def reference(model_class: str) -> type:
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

    return getattr(modeling_qwen2_5_vl, model_class)


def stored(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: p.detach() for key, p in named.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--more", action="store_true", help="more seeds and changes of the config, not those that are committed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names or TOWERS:
        if not args.more:
            make(name, args.out / name, 3, {}, {})
            continue
        for seed in (5, 7):
            make(name, args.out / f"{name}-seed{seed}", seed, {}, {})
        for label, (changes, taken) in TOWERS[name][4].items():
            make(name, args.out / f"{name}-{label}", 11, changes, taken)
    return 0


if __name__ == "__main__":
    sys.exit(main())
