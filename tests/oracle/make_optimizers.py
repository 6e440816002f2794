"""Steps of AdamW with moments in bytes as bitsandbytes takes them, and of Muon as torch.optim.Muon does, for the tests of
`src/torch/train/optimizer_tests.rs`.

    python make_optimizers.py OUT.safetensors

Needs bitsandbytes (0.50.2) and torch 2.11. The step is bitsandbytes' own for the CPU, but for the rounding of moments: its compiled
function takes another code near the middle between two, so the definition of its plain PyTorch and CUDA kernels stands in its
place."""

import sys

import bitsandbytes as bnb
import bitsandbytes.backends.cpu.ops as cpu
import torch
from safetensors.torch import save_file

STEPS = 3


def by_definition(values, code, absmax_out, codes_out, blocksize) -> None:
    flat = torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % blocksize)).view(-1, blocksize)
    absmax = flat.abs().max(dim=1).values
    scaled = torch.clamp(flat * (1.0 / absmax.clamp(min=1e-38)).view(-1, 1), -1, 1)
    codes = torch.bucketize(scaled, (code[:-1] + code[1:]) / 2).to(torch.uint8)
    codes_out.copy_(codes.view(-1)[: values.numel()].view(codes_out.shape))
    absmax_out.copy_(absmax)


def adamw(made: dict, rng: torch.Generator) -> None:
    weight = torch.nn.Parameter(torch.randn(50, 100, generator=rng))
    made["adamw.weight"] = weight.detach().clone()
    optimizer = bnb.optim.AdamW8bit([weight], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(STEPS):
        # Blocks of very different sizes.
        weight.grad = torch.randn(50, 100, generator=rng) * torch.logspace(-3, 1, 50).unsqueeze(1)
        made[f"adamw.grad.{step}"] = weight.grad.clone()
        optimizer.step()
        made[f"adamw.weight.{step}"] = weight.detach().clone()
    state = optimizer.state[weight]
    made |= {f"adamw.{name}": state[name].clone() for name in ("state1", "state2", "absmax1", "absmax2")}


def muon(made: dict, rng: torch.Generator) -> None:
    for name, shape in {"wide": (24, 40), "tall": (40, 24)}.items():
        first = torch.randn(shape, generator=rng)
        grads = [torch.randn(shape, generator=rng) for _ in range(STEPS)]
        made |= {f"muon.{name}": first} | {f"muon.{name}.grad.{step}": grad for step, grad in enumerate(grads)}
        for adjust in ("original", "match_rms_adamw"):
            weight = torch.nn.Parameter(first.clone())
            optimizer = torch.optim.Muon([weight], lr=2e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust)
            for grad in grads:
                weight.grad = grad.clone()
                optimizer.step()
            made[f"muon.{name}.{adjust}"] = weight.detach().clone()
            made[f"muon.{name}.momentum"] = optimizer.state[weight]["momentum_buffer"].clone()


cpu._quant_blockwise_fp32_direct = by_definition
torch.set_num_threads(1)
made: dict = {}
rng = torch.Generator().manual_seed(5)
adamw(made, rng)
muon(made, rng)
save_file({name: tensor.contiguous() for name, tensor in made.items()}, sys.argv[1])
