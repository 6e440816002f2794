"""Small packed weights of every scheme that is read, and what they unpack to.

    PYTHON tests/oracle/make_packed.py src/torch/tests/packed

MXFP4 is unpacked by transformers' own code; DeepSeek-V4 is published with FP8 and MXFP4 under other names, and scales in E8M0. FP8 follows DeepSeek-V3's `weight_dequant` (values times their block's
scale, in float32), INT4 follows compressed-tensors' `pack_to_int32`, both written out here.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors


def put(folder, config, tensors, expected):
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", {"format": "pt"})
    expected = {name: tensor.float().contiguous() for name, tensor in expected.items()}
    save_file(expected, folder / "expected.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=2) + "\n")


def fp8(folder):
    tensors, expected, block = {}, {}, 16
    for name, shape in {"a.weight": (37, 50), "stack.weight": (3, 16, 24), "whole.weight": (32, 32)}.items():
        weight = (torch.randn(shape) * 50).to(torch.float8_e4m3fn)
        scale = torch.rand(*shape[:-2], -(-shape[-2] // block), -(-shape[-1] // block)) + 0.01
        wide = scale.repeat_interleave(block, -2)[..., : shape[-2], :].repeat_interleave(block, -1)[..., : shape[-1]]
        tensors[name], tensors[name + "_scale_inv"], expected[name] = weight, scale, weight.float() * wide
    tensors["norm.weight"] = expected["norm.weight"] = torch.randn(9)
    put(folder, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block]}, tensors, expected)


def pack_to_int32(values, packed_dim):
    """Eight values a word, from the lowest bits on, plus 8."""
    if packed_dim == 0:
        values = values.t()
    nibbles = (values + 8).to(torch.uint8)
    nibbles = torch.nn.functional.pad(nibbles, (0, -nibbles.shape[1] % 8)).to(torch.int64)
    packed = torch.zeros(nibbles.shape[0], nibbles.shape[1] // 8, dtype=torch.int64)
    for index in range(8):
        packed |= nibbles[:, index::8] << (4 * index)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return packed.t() if packed_dim == 0 else packed


def int4(folder):
    tensors, expected = {}, {}
    shapes = {"a.weight": (24, 64, 32, False), "odd.weight": (11, 12, 4, False), "z.weight": (19, 32, 8, True)}
    for name, (rows, cols, group, asymmetric) in shapes.items():
        values = torch.randint(-8, 8, (rows, cols), dtype=torch.int8)
        scale = (torch.rand(rows, cols // group) + 0.01).bfloat16()
        zero = torch.zeros(scale.shape, dtype=torch.int8)
        tensors[name + "_packed"], tensors[name + "_scale"] = pack_to_int32(values, 1), scale
        shape_type = torch.int64 if name == "a.weight" else torch.int32
        tensors[name + "_shape"] = torch.tensor([rows, cols], dtype=shape_type)
        if asymmetric:
            zero = torch.randint(-8, 8, scale.shape, dtype=torch.int8)
            tensors[name + "_zero_point"] = pack_to_int32(zero, 0)
        wide = [part.float().repeat_interleave(group, 1) for part in (zero, scale)]
        expected[name] = (values.float() - wide[0]) * wide[1]
    put(folder, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, tensors, expected)


def mxfp4(folder):
    tensors, expected = {}, {}
    for name, shape in {"experts.down_proj": (2, 6, 3, 16), "experts.up_proj": (1, 4, 2, 16)}.items():
        blocks = torch.randint(0, 256, shape, dtype=torch.uint8)
        scales = torch.randint(110, 140, shape[:-1], dtype=torch.uint8)
        tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
        unpacked = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
        # transformers turns the last two dimensions round.
        expected[name] = unpacked.transpose(1, 2)
    put(folder, {"quant_method": "mxfp4"}, tensors, expected)


def deepseek_v4(folder):
    tensors, expected, block = {}, {}, 16
    for name, shape in {"a": (37, 50), "whole": (32, 32)}.items():
        weight = (torch.randn(shape) * 50).to(torch.float8_e4m3fn)
        scale = torch.randint(120, 130, [-(-size // block) for size in shape], dtype=torch.uint8).view(torch.float8_e8m0fnu)
        wide = scale.float().repeat_interleave(block, 0)[: shape[0]].repeat_interleave(block, 1)[:, : shape[1]]
        tensors[f"{name}.weight"], tensors[f"{name}.scale"], expected[f"{name}.weight"] = weight, scale, weight.float() * wide
    blocks = torch.randint(0, 256, (1, 6, 3, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (1, 6, 3), dtype=torch.uint8)
    tensors["experts.0.w1.weight"] = blocks.reshape(6, 48).view(torch.int8)
    tensors["experts.0.w1.scale"] = scales[0].view(torch.float8_e8m0fnu)
    unpacked = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
    expected["experts.0.w1.weight"] = unpacked[0].t()
    config = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [block, block]}
    put(folder, config, tensors, expected)


if __name__ == "__main__":
    torch.manual_seed(7)
    for make in (fp8, int4, mxfp4, deepseek_v4):
        make(Path(sys.argv[1]) / make.__name__)
