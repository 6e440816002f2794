"""Times training steps of tiny diffusion transformers with diffusers: the cases of `src/torch/benches/dit.rs`, one thread,
float32, forward, backward and AdamW. Batches of several sizes are padded to the largest (Qwen-Image has no other way to
batch them), or computed one size after the other.

    PYTHON benches/dit.py [STEPS]

PYTHON has torch 2.11 and diffusers 0.42.
"""

import statistics
import sys
import time

import torch
from diffusers import QwenImageTransformer2DModel, WanTransformer3DModel

WARM_UP = 5
SIZES = [(4, 4), (4, 12), (8, 8), (6, 20), (12, 12)]


def timed(name, model, tokens, forward, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    times = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        forward().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    median = statistics.median(times[WARM_UP:])
    print(f"{name:44} {tokens / median / 1e3:6.1f}  ({1e3 * median:.1f} ms a step)", flush=True)


def qwen():
    return QwenImageTransformer2DModel(num_attention_heads=4, attention_head_dim=16, axes_dims_rope=(4, 6, 6), in_channels=4,
                                       out_channels=1, patch_size=2, joint_attention_dim=32, num_layers=4)


def pictures(model, count, size, text):
    """The mean square error of a batch of pictures of one size."""
    tokens = size[0] * size[1]
    x, noise = torch.randn(count, tokens, 4), torch.randn(count, tokens, 4)
    sigma, rows = torch.rand(count), torch.randn(count, text, 32)
    noised = (1 - sigma[:, None, None]) * x + sigma[:, None, None] * noise
    shapes = [[(1, *size)]] * count
    def loss():
        return (model(noised, rows, None, sigma, shapes, return_dict=False)[0] - (noise - x)).square().mean() * count / 32
    return loss


def clips(model):
    x, noise, condition = torch.randn(16, 1, 5, 12, 12), torch.randn(16, 1, 5, 12, 12), torch.randn(16, 2, 5, 12, 12)
    sigma, rows = torch.rand(16), torch.randn(16, 8, 32)
    s = sigma[:, None, None, None, None]
    noised = torch.cat([(1 - s) * x + s * noise, condition], 1)
    return lambda: (model(noised, 1000 * sigma, rows, return_dict=False)[0] - (noise - x)).square().mean()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(f"thousand tokens a second, medians of {steps} steps")
    model = qwen()
    timed("A: Qwen-Image, 32 pictures of 48 tokens", model, 32 * 48, pictures(model, 32, (4, 12), 8), steps)
    model = WanTransformer3DModel(patch_size=(1, 2, 2), num_attention_heads=3, attention_head_dim=24, ffn_dim=192, in_channels=3,
                                  out_channels=1, text_dim=32, freq_dim=64, num_layers=4)
    timed("B: Wan I2V, 16 clips of 180 tokens", model, 16 * 180, clips(model), steps)
    counts = [len(range(at, 32, len(SIZES))) for at in range(len(SIZES))]
    tokens = sum(count * h * w for count, (h, w) in zip(counts, SIZES))
    model = qwen()
    groups = [pictures(model, count, size, 10) for count, size in zip(counts, SIZES)]
    timed("A, 32 pictures of 16 to 144 tokens, by size", model, tokens, lambda: sum(group() for group in groups), steps)
    model = qwen()
    timed("A, the same padded to 144 tokens", model, tokens, pictures(model, 32, (12, 12), 10), steps)


if __name__ == "__main__":
    main()
