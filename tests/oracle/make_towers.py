"""Writes what vision towers and projectors make of videos and of pictures of other sizes than their own: features, and
gradients of all their parameters. The fixtures of whole models have pictures of one frame only.

    python make_towers.py ../../src/torch/tests/towers
    python make_towers.py --more FOLDER [NAME…]   # two more seeds of each tower, and two changes of CLIP's config
    LOONGFORGE_TOWERS=FOLDER cargo test -p loongforge-torch --test towers

A folder holds the config of a model put together from parts, the weights under its names, inputs and what is expected.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from families import FAMILIES
from make_fixture import GRADIENT_LIMIT, Reference, changed, randomize, tidy

VIDEOS = [(2, 4, 6), (1, 4, 4), (4, 2, 8)]  # frames, rows and columns of patches

# Prefixes of tower and projector, changes of the config, sizes.
TOWERS = {
    "qwen2.5_vl": (("visual.", "visual.merger."), {"vision_config.window_size": 24}, VIDEOS),
    "qwen3_vl": (("model.visual.", "model.visual.merger."), {}, VIDEOS),
    "kimi_k2.5": (("vision_tower.", "mm_projector."), {"vision_config.pos_emb_time": 4}, [(3, 4, 6), (1, 8, 4), (2, 6, 6)]),
    "ernie4.5_vl": (("model.vision_model.", "model.resampler_model."), {"text_config.rms_norm_eps": 1e-6}, VIDEOS),
    "llava_onevision1.5": (("visual.", "visual.merger."), {}, VIDEOS),
    "internvl2.5": (("vision_tower.", "multi_modal_projector."), {}, [(1, 6, 6), (1, 6, 6)]),
    "internvl3.5_moe": (("vision_tower.", "multi_modal_projector."), {}, [(1, 2, 2)]),
}
CLIP = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3, image_size=16, patch_size=4, hidden_act="gelu")
CLIP_STATES = "clip_states"
CLIP_CHANGES = {
    "layers": dict(num_hidden_layers=5, num_attention_heads=2, intermediate_size=56),
    "few-patches": dict(image_size=12, patch_size=6, hidden_act="quick_gelu", layer_norm_eps=1e-3),
}


def features(name: str, model, pixels: Tensor, sizes: Tensor) -> list[Tensor]:
    if name == "llava_onevision1.5":
        # Every frame is a picture of its own there.
        frames = torch.tensor([[1, h, w] for t, h, w in sizes.tolist() for _ in range(t)])
        return [model.visual(pixels, frames)]
    base = model.model
    if name == "qwen2.5_vl":
        return [base.visual(pixels, grid_thw=sizes).pooler_output]
    if name == "qwen3_vl":
        out = base.visual(pixels, grid_thw=sizes)
        return [out.pooler_output, *out.deepstack_features]
    if name == "kimi_k2.5":
        # One item at a time: the reference takes items of equally many frames only.
        items = zip(pixels.split(sizes.prod(1).tolist()), sizes.split(1))
        pooled = [base.vision_tower(item, grid_thw=size).pooler_output for item, size in items]
        return [base.mm_projector(torch.cat(pooled)).squeeze(1)]
    if name == "ernie4.5_vl":
        return [base.resampler_model(base.vision_tower(pixels, sizes).last_hidden_state, sizes)]
    out = base.get_image_features(pixels, vision_feature_layer=-1, vision_feature_select_strategy="default")
    return [out.pooler_output.flatten(0, 1)]


def make(name: str, out: Path, seed: int) -> None:
    prefixes, changes, sizes = TOWERS[name]
    family = FAMILIES[name]
    config = changed(family.config, changes)
    reference = Reference(family, config, seed=seed, dtype=torch.float32)
    model, vision = reference.model, config["vision_config"]
    rng = torch.Generator().manual_seed(seed + 1)
    side = vision["patch_size"] if isinstance(vision["patch_size"], int) else vision["patch_size"][0]
    depth = 3 * vision.get("temporal_patch_size", 1)
    if name.startswith("internvl"):
        _, rows, columns = sizes[0]
        pixels = torch.randn(len(sizes), 3, rows * side, columns * side, generator=rng)
        # Patches row by row.
        patches = pixels.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)
    else:
        pixels = torch.randn(sum(t * h * w for t, h, w in sizes), depth * side * side, generator=rng)
        patches = pixels
        if name == "kimi_k2.5":
            pixels = pixels.view(-1, 3, side, side)
    found = features(name, model, pixels, torch.tensor(sizes))
    seeds = [torch.randn(f.shape, generator=rng) for f in found]
    sum((f * s).sum() for f, s in zip(found, seeds)).backward()

    def ours(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        renamed = {}
        for key, tensor in reference.stored(tensors).items():
            for prefix, new in zip(reversed(prefixes), ("image_projector.", "image_encoder.")):
                if key.startswith(prefix):
                    renamed[new + key.removeprefix(prefix)] = tensor
                    break
        return renamed

    weights = ours({key: p.detach() for key, p in model.named_parameters()})
    gradients = ours({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert weights.keys() == gradients.keys(), weights.keys() ^ gradients.keys()
    expected = {f"features/{number}": f for number, f in enumerate(found)}
    expected |= {f"grad/{key}": g for key, g in gradients.items() if g.numel() <= GRADIENT_LIMIT}
    expected |= {f"grad_norm/{key}": g.norm() for key, g in gradients.items()}
    inputs = {"patches": patches, "sizes": torch.tensor(sizes)} | {f"seeds/{n}": s for n, s in enumerate(seeds)}
    types = {"kimi_k2.5": "kimi_k25_vision", "ernie4.5_vl": "ernie4_5_vl_moe_vision", "qwen2.5_vl": "qwen2_5_vl_vision",
             "qwen3_vl": "qwen3_vl_vision", "llava_onevision1.5": "rice_vit"}
    foundation = dict(model_type="llama", vocab_size=64, hidden_size=config["text_config"]["hidden_size"],
                      intermediate_size=32, num_hidden_layers=3, num_attention_heads=4)
    whole = dict(model_type="loongforge_vlm", foundation=foundation, image_token_id=1, image_projector={},
                 image_encoder={**vision, "model_type": types.get(name, "internvl_vision")})
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")
    for file, tensors in (("model", weights), ("inputs", inputs), ("expected", expected)):
        save_file(tidy(tensors), out / f"{file}.safetensors")


def make_clip_states(out: Path, seed: int, changes: dict) -> None:
    """CLIP as diffusion models read it: all states of the last layer but one, the class token's first."""
    vision = {**CLIP, **changes}
    torch.manual_seed(seed)
    model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**vision)).eval()
    model.set_attn_implementation("eager")
    randomize(model, seed)
    rng = torch.Generator().manual_seed(seed + 1)
    side, patch = vision["image_size"], vision["patch_size"]
    pixels = torch.randn(2, 3, side, side, generator=rng)
    found = model(pixels, output_hidden_states=True).hidden_states[-2].flatten(0, 1)
    seeds = torch.randn(found.shape, generator=rng)
    (found * seeds).sum().backward()
    weights = {f"image_encoder.vision_model.{key.removeprefix('vision_model.')}": p for key, p in model.named_parameters()}
    expected = {"features/0": found}
    expected |= {f"grad/{key}": p.grad for key, p in weights.items() if p.grad is not None}
    expected |= {f"grad_norm/{key}": p.grad.norm() for key, p in weights.items() if p.grad is not None}
    patches = pixels.unfold(2, patch, patch).unfold(3, patch, patch).permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)
    inputs = {"patches": patches, "sizes": torch.tensor([[1, side // patch, side // patch]] * 2), "seeds/0": seeds}
    transformer = dict(_class_name="WanTransformer3DModel", num_attention_heads=2, attention_head_dim=12, in_channels=3,
                       out_channels=3, text_dim=16, ffn_dim=32, num_layers=1, image_dim=vision["hidden_size"], added_kv_proj_dim=24)
    text = dict(model_type="umt5", vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    whole = dict(model_type="loongforge_diffusion", transformer=transformer, text_encoder=text,
                 vae={"_class_name": "PixelLatents", "channels": 3},
                 image_encoder={**vision, "model_type": "clip_vision_model"})
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")
    for file, tensors in (("model", {key: p.detach() for key, p in weights.items()}), ("inputs", inputs), ("expected", expected)):
        save_file(tidy(tensors), out / f"{file}.safetensors")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*TOWERS, CLIP_STATES])}; all of them without one")
    parser.add_argument("--more", action="store_true", help="more seeds and changes of the config, not those that are committed")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in TOWERS and name != CLIP_STATES]:
        parser.error(f"no tower {unknown[0]}")
    torch.set_num_threads(1)
    for name in args.names or [*TOWERS, CLIP_STATES]:
        for seed in (5, 7) if args.more else (3,):
            out = args.out / (f"{name}-seed{seed}" if args.more else name)
            make(name, out, seed) if name in TOWERS else make_clip_states(out, seed, {})
        for label, changes in CLIP_CHANGES.items() if args.more and name == CLIP_STATES else ():
            make_clip_states(args.out / f"{name}-{label}", 11, changes)
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
