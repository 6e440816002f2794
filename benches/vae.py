"""Times how long diffusers' encoder of Wan 2.1's autoencoder takes for a picture or a clip, in float32: what `--bench vae` is beside.

    python benches/vae.py THREADS [SIDE | SIDExFRAMES]…
"""

from __future__ import annotations

import sys
import time

import torch
from diffusers import AutoencoderKLWan

ROUNDS = 5


@torch.no_grad()
def main() -> None:
    threads, *words = sys.argv[1:]
    torch.set_num_threads(int(threads))
    vae = AutoencoderKLWan().eval()
    print(f"frames x rows x columns: seconds, {ROUNDS} rounds")
    for word in words:
        side, frames = (int(part) for part in (word + "x1").split("x")[:2])
        pixels = torch.rand(1, 3, frames, side, side) * 2 - 1
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            vae.encode(pixels).latent_dist.mode()
            times.append(time.perf_counter() - start)
        times.sort()
        print(f"{frames} x {side} x {side}: {times[0]:.3f} to {times[-1]:.3f}, median {times[ROUNDS // 2]:.3f}")


if __name__ == "__main__":
    main()
