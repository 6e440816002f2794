"""Times how long diffusers' encoder of Wan 2.1's autoencoder takes for a picture, in float32: what `--bench vae` is beside.

    python benches/vae.py [THREADS] [SIDE…]
"""

from __future__ import annotations

import sys
import time

import torch
from diffusers import AutoencoderKLWan

ROUNDS = 5


@torch.no_grad()
def main() -> None:
    numbers = [int(word) for word in sys.argv[1:]]
    torch.set_num_threads(numbers[0] if numbers else 1)
    vae = AutoencoderKLWan().eval()
    print(f"side  seconds a picture, {ROUNDS} rounds")
    for side in numbers[1:] or [256, 512]:
        pixels = torch.rand(1, 3, 1, side, side) * 2 - 1
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            vae.encode(pixels).latent_dist.mode()
            times.append(time.perf_counter() - start)
        times.sort()
        print(f"{side:4}  {times[0]:.3f} to {times[-1]:.3f}, median {times[ROUNDS // 2]:.3f}")


if __name__ == "__main__":
    main()
