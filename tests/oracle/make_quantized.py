"""Weights of 4 and 8 bits as bitsandbytes makes them, for the tests of `src/torch/params/quantized_tests.rs`.

    python make_quantized.py OUT.safetensors

Needs bitsandbytes (0.50.2). NF4, its largest magnitudes, int8 and all dequantized values are what its own functions return on the
CPU. Its compiled `quantize_blockwise` for the CPU takes another code near the middle between two; double quantization is
therefore by the definition that its plain PyTorch kernel and its CUDA kernel have, `by_definition` below. The script prints how
many codes of the compiled one differ."""

import sys

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file


def by_definition(values: torch.Tensor, code: torch.Tensor, blocksize: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of bounds in the middle of two codes that a value, divided by its block's largest magnitude, is above."""
    flat = torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % blocksize)).view(-1, blocksize)
    absmax = flat.abs().max(dim=1).values
    scaled = torch.clamp(flat * (1.0 / absmax.clamp(min=1e-38)).view(-1, 1), -1, 1)
    codes = torch.bucketize(scaled, (code[:-1] + code[1:]) / 2).to(torch.uint8)
    return codes.view(-1)[: values.numel()], absmax


def main(out: str) -> None:
    rng = torch.Generator().manual_seed(3)
    weight = torch.randn(144, 128, generator=rng) * torch.logspace(-4, 1, 144).unsqueeze(1)
    weight[7, 3], weight[20, :64], weight[31], weight[40, 5] = 400.0, 0.0, 0.0, -77.0
    made = {"weight": weight, "map.signed": F.create_dynamic_map(True), "map.unsigned": F.create_dynamic_map(False)}

    packed, state = F.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    made |= {"nf4.packed": packed, "nf4.absmax": state.absmax}
    for kind in (torch.float32, torch.bfloat16):
        state.dtype = kind
        whole = F.dequantize_4bit(packed, state)
        made[f"nf4.{str(kind)[6:]}"] = whole[:16] if kind == torch.float32 else whole

    mean = state.absmax.mean()
    codes, groups = by_definition(state.absmax - mean, F.create_dynamic_map(True), 256)
    maxima = F.create_dynamic_map(True)[codes.long()] * groups.repeat_interleave(256)[: codes.numel()] + mean
    state.absmax, state.dtype = maxima, torch.bfloat16
    made |= {"double.codes": codes, "double.groups": groups, "double.mean": mean.view(1)}
    made["double.bfloat16"] = F.dequantize_4bit(packed, state)
    _, theirs = F.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    print(f"bitsandbytes {bnb.__version__}: {(theirs.absmax != codes).sum().item()} of {codes.numel()} codes of maxima differ "
          f"in its compiled function; groups equal: {torch.equal(theirs.state2.absmax, groups)}, "
          f"means equal: {torch.equal(theirs.offset, mean)}")

    rows = weight.clone()
    values, maxima, _ = F.int8_vectorwise_quant(rows)
    # A row of zeros is 0 times infinity there.
    values[maxima == 0] = 0
    whole = F.int8_vectorwise_dequant(values, maxima)
    made |= {"int8.values": values, "int8.maxima": maxima, "int8.float32": whole[:16], "int8.bfloat16": whole.bfloat16()}
    save_file({name: tensor.contiguous() for name, tensor in made.items()}, out)


main(sys.argv[1])
