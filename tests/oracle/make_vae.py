"""Writes what the causal autoencoders of diffusers make of pictures and clips: normalized latents of pixels, and pixels of
latents.

    python make_vae.py ../../src/torch/tests/vae
    python make_vae.py --more FOLDER      # other seeds and other configs
    LOONGFORGE_VAES=FOLDER cargo test -p loongforge-torch --lib vae

The reference computes in float64: a norm over few channels makes much of the rounding of float32. A folder holds a config, the
weights under their names, and per clip of F frames `pixels/F` `[F, H, W, C]`, `latents/F`
`[T, H', W', Z]` (normalized) and `frames/F` `[F, H, W, C]`, decoded from them; `tiled` is the picture decoded in tiles.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan
from diffusers.models.autoencoders import autoencoder_kl_qwenimage, autoencoder_kl_wan
from safetensors.torch import save_file
from torch import Tensor

SIZES = {1: (2, 3), 5: (1, 2), 9: (1, 1)}  # rows and columns of latents, by frames
WAN_2_1 = dict(base_dim=2, z_dim=4, num_res_blocks=2, dim_mult=[1, 2, 4, 2], temperal_downsample=[False, True, True])
WAN_2_2 = dict(base_dim=2, decoder_base_dim=3, z_dim=6, num_res_blocks=1, dim_mult=[1, 2, 2, 2], is_residual=True,
               temperal_downsample=[False, True, True], in_channels=12, out_channels=12, patch_size=2,
               scale_factor_spatial=16)
QWEN = {**WAN_2_1, "num_res_blocks": 1, "dim_mult": [1, 2, 3, 4]}
# These round to float32 on the way.
for upsample in (autoencoder_kl_wan.WanUpsample, autoencoder_kl_qwenimage.QwenImageUpsample):
    upsample.forward = torch.nn.Upsample.forward
WAN, QWEN_IMAGE = AutoencoderKLWan, AutoencoderKLQwenImage

# Class and config.
VAES = {"wan_2_1": (WAN, WAN_2_1), "wan_2_2": (WAN, WAN_2_2), "qwen_image": (QWEN_IMAGE, QWEN)}
MORE = {
    "wan_2_1-wide": (WAN, {**WAN_2_1, "base_dim": 16, "dim_mult": [1, 2, 4, 4]}),
    "wan_2_1-gray": (WAN, {**WAN_2_1, "base_dim": 4, "in_channels": 1, "out_channels": 1}),
    "wan_2_1-decoder-width": (WAN, {**WAN_2_1, "decoder_base_dim": 6}),
    "wan_2_1-time-first": (WAN, {**WAN_2_1, "temperal_downsample": [True, True, False]}),
    "wan_2_1-time-once": (WAN, {**WAN_2_1, "temperal_downsample": [False, True, False], "scale_factor_temporal": 2}),
    "wan_2_2-wide": (WAN, {**WAN_2_2, "base_dim": 10, "decoder_base_dim": 16, "num_res_blocks": 2,
                           "dim_mult": [1, 2, 4, 4]}),
    "wan_2_2-other-levels": (WAN, {**WAN_2_2, "dim_mult": [1, 1, 2, 2], "temperal_downsample": [True, False, True]}),
    "wan_2_2-three-levels": (WAN, {**WAN_2_2, "dim_mult": [1, 2, 2], "temperal_downsample": [True, True],
                                   "scale_factor_spatial": 8}),
    "qwen_image-gray": (QWEN_IMAGE, {**QWEN, "input_channels": 1}),
    "qwen_image-wide": (QWEN_IMAGE, {**QWEN, "base_dim": 12, "num_res_blocks": 2}),
}


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights that keep the size of what goes through, and neither norms of ones nor biases of zeros."""
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        draw = torch.randn(parameter.shape, generator=rng)
        if name.endswith("gamma"):
            parameter.data = 1 + 0.2 * draw
        elif name.endswith("bias"):
            parameter.data = 0.1 * draw
        else:
            parameter.data = draw / parameter[0].numel() ** 0.5
    # Few pixels at the limits, where an error would not be seen.
    model.decoder.conv_out.weight.data *= 0.3


@torch.no_grad()
def make(out: Path, kind: type, config: dict, seed: int) -> None:
    z = config["z_dim"]
    rng = torch.Generator().manual_seed(seed + 1)
    mean, std = (draw(z, generator=rng, dtype=torch.float64) for draw in (torch.randn, torch.rand))
    mean, std = mean / 2, std + 0.5
    config = {**config, "latents_mean": mean.tolist(), "latents_std": std.tolist()}
    vae = kind(**config).eval()
    randomize(vae, seed)
    vae.double()
    space = 2 ** (len(config["dim_mult"]) - 1) * config.get("patch_size", 1)
    channels = config.get("in_channels", config.get("input_channels", 3)) // config.get("patch_size", 1) ** 2
    mean, std = mean.view(1, -1, 1, 1, 1), std.view(1, -1, 1, 1, 1)

    def places(x: Tensor) -> Tensor:
        return x[0].permute(1, 2, 3, 0)

    tensors = {}
    picture = None
    for frames, (rows, columns) in SIZES.items():
        pixels = torch.rand(1, channels, frames, rows * space, columns * space, generator=rng) * 2 - 1
        latents = (vae.encode(pixels.double()).latent_dist.mode() - mean) / std
        latents = latents.float().double()
        decoded = vae.decode(latents * std + mean).sample
        picture = latents if picture is None else picture
        assert decoded.abs().lt(1).float().mean() > 0.5, decoded.abs().lt(1).float().mean()
        tensors |= {f"pixels/{frames}": places(pixels), f"latents/{frames}": places(latents), f"frames/{frames}": places(decoded)}
    vae.enable_tiling(*[2 * space] * 2, *[space] * 2)
    vae.spatial_compression_ratio = space
    tensors["tiled"] = places(vae.decode(picture * std + mean).sample)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps({"_class_name": kind.__name__, **config}, indent=2, sort_keys=True) + "\n")
    weights = {name: p.detach() for name, p in vae.state_dict().items()}
    for file, content in (("diffusion_pytorch_model", weights), ("expected", tensors)):
        save_file({name: t.float().contiguous() for name, t in content.items()}, out / f"{file}.safetensors")
    print(f"{out.name}: {sum(f.stat().st_size for f in out.iterdir()) / 1e3:.0f} KB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--more", action="store_true", help="other seeds and other configs, not those that are committed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.more:
        for name, (kind, config) in VAES.items():
            make(args.out / name, kind, config, 1)
        return 0
    for name, (kind, config) in {**VAES, **MORE}.items():
        for seed in (5, 7):
            make(args.out / f"{name}-seed{seed}", kind, config, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
