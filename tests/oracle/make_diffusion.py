"""Writes parity fixtures of diffusion transformers: tiny random weights, samples of several sizes, and what diffusers makes
of each alone.

    python make_diffusion.py src/torch/tests/dit                       # those that are committed
    python make_diffusion.py OUT --seed 7 --set num_layers=3           # another seed, another config
    python make_diffusion.py OUT --family qwen_image --set 'axes_dims_rope=[4,8,8]'

A folder has `config.json` (the transformer's), its weights, and tensors in the layout of our micro-batches: rows of all
samples end to end, a latent's row for each patch, values by channel and then place in the patch.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from diffusers import QwenImageTransformer2DModel, WanTransformer3DModel
from safetensors.torch import save_file
from torch import Tensor

TEXT_ROWS = 512
WAN = dict(patch_size=[1, 2, 2], num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=10,
           freq_dim=16, ffn_dim=32, num_layers=2, rope_max_seq_len=64)
QWEN = dict(patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
            joint_attention_dim=10, axes_dims_rope=[2, 2, 4])
IMAGE = dict(image_dim=9, added_kv_proj_dim=24)

# Grids are frames, rows and columns in patches; `text` rows of a prompt; `images` pictures of so many tokens.
FAMILIES = {
    "wan2.1_t2v": dict(WAN, samples=[dict(grid=(3, 4, 3), text=9), dict(grid=(1, 2, 2), text=4), dict(grid=(2, 3, 5), text=12)]),
    "wan2.1_i2v": dict(WAN, **IMAGE, in_channels=12, samples=[dict(grid=(3, 2, 3), text=5, images=[7]),
                                                              dict(grid=(2, 3, 2), text=8, images=[7])]),
    "wan2.1_flf2v": dict(WAN, **IMAGE, in_channels=12, pos_embed_seq_len=14,
                         samples=[dict(grid=(3, 2, 3), text=5, images=[7, 7]), dict(grid=(2, 3, 2), text=8, images=[7, 7])]),
    "wan2.2_i2v": dict(WAN, in_channels=12, samples=[dict(grid=(3, 2, 3), text=5), dict(grid=(2, 3, 2), text=512)]),
    "wan2.2_ti2v": dict(WAN, samples=[dict(grid=(3, 2, 3), text=5, given=True), dict(grid=(2, 3, 2), text=8),
                                      dict(grid=(4, 1, 2), text=3, given=True)]),
    "qwen_image": dict(QWEN, samples=[dict(grid=(1, 4, 3), text=5), dict(grid=(1, 5, 7), text=9, padding=4),
                                      dict(grid=(1, 2, 2), text=1)]),
    "qwen_image_edit": dict(QWEN, samples=[dict(grid=(1, 4, 3), text=5, references=[(1, 3, 5)]), dict(grid=(1, 3, 3), text=9)]),
    "qwen_image_edit_2511": dict(QWEN, zero_cond_t=True, samples=[
        dict(grid=(1, 5, 3), text=5, references=[(1, 3, 5), (1, 2, 1)]),
        dict(grid=(1, 4, 4), text=7, references=[(1, 7, 3)])]),
}


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Nothing is neutral, so that no part of a port can be left out."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            noise = torch.randn(tensor.shape, generator=rng)
            if tensor.dim() < 2:
                tensor.add_(0.1 * noise)
            else:
                fan_in = tensor.shape[-1] if tensor.dim() == 3 else tensor[0].numel()
                tensor.copy_(0.8 * noise / fan_in ** 0.5)


class Wan:
    """The reference takes volumes `[1, channels, frames, rows, columns]`."""

    def __init__(self, config: dict):
        self.config, self.model = config, WanTransformer3DModel(**config)

    def volume(self, rows: Tensor, grid: tuple[int, int, int]) -> Tensor:
        (t, h, w), (_, ph, pw) = grid, self.config["patch_size"]
        split = rows.view(t, h, w, -1, ph, pw).permute(3, 0, 1, 4, 2, 5)
        return split.reshape(1, -1, t, h * ph, w * pw)

    def rows(self, volume: Tensor, grid: tuple[int, int, int]) -> Tensor:
        (t, h, w), (_, ph, pw) = grid, self.config["patch_size"]
        split = volume[0].view(-1, t, h, ph, w, pw).permute(1, 2, 4, 0, 3, 5)
        return split.reshape(t * h * w, -1)

    def mask(self, sample: dict, channels: int) -> Tensor:
        """As `WanImageToVideoPipeline.prepare_latents` makes it."""
        (t, h, w), (_, ph, pw) = sample["grid"], self.config["patch_size"]
        frames = 1 + (t - 1) * channels
        mask = torch.ones(1, 1, frames, h * ph, w * pw)
        mask[:, :, list(range(1, frames - (1 if len(sample.get("images", [])) > 1 else 0)))] = 0
        first = torch.repeat_interleave(mask[:, :, 0:1], dim=2, repeats=channels)
        mask = torch.concat([first, mask[:, :, 1:]], dim=2)
        return mask.view(1, -1, channels, h * ph, w * pw).transpose(1, 2)

    def velocity(self, sample: dict, noised: Tensor, tensors: dict[str, Tensor], sigma: Tensor) -> Tensor:
        grid, config = sample["grid"], self.config
        text = torch.zeros(1, TEXT_ROWS, config["text_dim"])
        text[0, :sample["text"]] = tensors["text"]
        time = 1000 * sigma.view(1)
        if "conditions" in tensors and config["in_channels"] == config["out_channels"]:
            frame = grid[1] * grid[2]
            noised = torch.cat([tensors["conditions"], noised[frame:]])
            time = torch.cat([torch.zeros(frame), time.expand(noised.shape[0] - frame)]).unsqueeze(0)
        volume = self.volume(noised, grid)
        if config["in_channels"] > config["out_channels"]:
            mask = self.mask(sample, config["in_channels"] - 2 * config["out_channels"])
            volume = torch.cat([volume, mask, self.volume(tensors["conditions"], grid)], 1)
        images = tensors["images"].view(len(sample["images"]), -1, config["image_dim"]) if "images" in tensors else None
        out = self.model(volume, time, text, encoder_hidden_states_image=images, return_dict=False)[0]
        return self.rows(out, grid)

    def condition(self, sample: dict) -> list[tuple[int, int, int]]:
        if self.config["in_channels"] > self.config["out_channels"]:
            return [sample["grid"]]
        return [(1, *sample["grid"][1:])] if sample.get("given") else []

    def patch_dim(self) -> int:
        return self.config["out_channels"] * self.config["patch_size"][1] * self.config["patch_size"][2]

    def counted(self, sample: dict) -> slice:
        return slice(sample["grid"][1] * sample["grid"][2] if sample.get("given") else 0, None)


class QwenImage:
    def __init__(self, config: dict):
        self.config, self.model = config, QwenImageTransformer2DModel(**config)

    def velocity(self, sample: dict, noised: Tensor, tensors: dict[str, Tensor], sigma: Tensor) -> Tensor:
        padding = sample.get("padding", 0)
        text = torch.cat([tensors["text"], torch.randn(padding, self.config["joint_attention_dim"])]).unsqueeze(0)
        mask = torch.cat([torch.ones(1, sample["text"]), torch.zeros(1, padding)], 1).bool() if padding else None
        hidden = torch.cat([noised, tensors["conditions"]]) if "conditions" in tensors else noised
        shapes = [[sample["grid"], *sample.get("references", [])]]
        out = self.model(hidden.unsqueeze(0), text, mask, sigma.view(1), shapes, return_dict=False)[0]
        return out[0, :noised.shape[0]]

    def condition(self, sample: dict) -> list[tuple[int, int, int]]:
        return sample.get("references", [])

    def patch_dim(self) -> int:
        return self.config["in_channels"]

    def counted(self, sample: dict) -> slice:
        return slice(None)


def tokens(grid: tuple[int, int, int]) -> int:
    return grid[0] * grid[1] * grid[2]


def make(name: str, seed: int, out: Path, changes: dict) -> None:
    config = {**FAMILIES[name], **changes}
    samples = config.pop("samples")
    if "added_kv_proj_dim" in config:
        config["added_kv_proj_dim"] = config["num_attention_heads"] * config["attention_head_dim"]
    torch.manual_seed(seed)
    kind = (Wan if name.startswith("wan") else QwenImage)(config)
    randomize(kind.model, seed)
    rng = torch.Generator().manual_seed(seed + 1)
    normal = lambda rows, width: torch.randn(rows, width, generator=rng)
    text_dim = config.get("text_dim") or config["joint_attention_dim"]
    gathered: dict[str, list[Tensor]] = {key: [] for key in ["latents", "noise", "sigma", "text", "conditions", "images"]}
    velocities, losses = [], []
    for sample in samples:
        size = tokens(sample["grid"])
        own = {"latents": normal(size, kind.patch_dim()), "noise": normal(size, kind.patch_dim()),
               "sigma": torch.rand(1, generator=rng), "text": normal(sample["text"], text_dim)}
        if grids := kind.condition(sample):
            own["conditions"] = normal(sum(tokens(grid) for grid in grids), kind.patch_dim())
        if "images" in sample:
            own["images"] = normal(sum(sample["images"]), config["image_dim"])
        for key, value in own.items():
            gathered[key].append(value)
        noised = (1 - own["sigma"]) * own["latents"] + own["sigma"] * own["noise"]
        velocity = kind.velocity(sample, noised, own, own["sigma"])
        counted = kind.counted(sample)
        losses.append((velocity - (own["noise"] - own["latents"]))[counted].square().mean())
        velocities.append(velocity.detach())
    loss = torch.stack(losses).mean()
    loss.backward()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    described = [{"grid": list(sample["grid"]), "text": sample["text"], "images": sample.get("images", []),
                  "conditions": [list(grid) for grid in kind.condition(sample)]} for sample in samples]
    of = {"_class_name": type(kind.model).__name__, **config}
    (out / "config.json").write_text(json.dumps({"transformer": of, "samples": described}) + "\n")
    weights = {key: value.detach().contiguous() for key, value in kind.model.named_parameters()}
    save_file(weights, out / "model.safetensors")
    save_file({key: torch.cat(values) for key, values in gathered.items() if values}, out / "inputs.safetensors")
    grads = {f"grad/{key}": value.grad for key, value in kind.model.named_parameters() if value.grad is not None}
    save_file({"velocity": torch.cat(velocities), "loss": loss.detach(), **grads}, out / "expected.safetensors")
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out.name:32} {sum(p.numel() for p in kind.model.parameters()):6} parameters, loss {loss:.4f}, {size / 1e3:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", dest="assignments")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the same bits every time
    changes = {key: json.loads(value) for key, _, value in (item.partition("=") for item in args.assignments)}
    for name in args.family or FAMILIES:
        make(name, args.seed, args.out / name, changes)


if __name__ == "__main__":
    main()
