"""Lists of the tensors of tiny diffusion models: their original name and Diffusers' name, as Diffusers itself converts them.

    python diffusion_names.py OUT

Writes `wan.txt`, `wan_vae.txt`, `wan_vae_2_2.txt` (lines `ORIGINAL DIFFUSERS`) and `qwen_image.txt` (Diffusers' names only). The
original names are made here by plain replacement. Diffusers' converters of single files must turn them into the names of a fresh
model's `state_dict`, or the script ends with an error; for the VAE of Wan 2.2 and `pos_embed` Diffusers has no such converter.
"""

import re
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, QwenImageTransformer2DModel, WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers, convert_wan_vae_to_diffusers

SMALL = dict(num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=8, freq_dim=16, ffn_dim=8, num_layers=1)


def wan(name: str) -> str:
    for pattern, to in [
        (r"^condition_embedder\.(time|text)_embedder\.linear_1", r"\1_embedding.0"), (r"^condition_embedder\.(time|text)_embedder\.linear_2", r"\1_embedding.2"),
        (r"^condition_embedder\.time_proj", "time_projection.1"), (r"^condition_embedder\.image_embedder\.pos_embed", "img_emb.emb_pos"),
        (r"^condition_embedder\.image_embedder\.norm1", "img_emb.proj.0"), (r"^condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
        (r"^condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"), (r"^condition_embedder\.image_embedder\.norm2", "img_emb.proj.4"),
        (r"^proj_out", "head.head"), (r"^scale_shift_table", "head.modulation"), (r"(blocks\.\d+)\.scale_shift_table", r"\1.modulation"),
        (r"attn1", "self_attn"), (r"attn2", "cross_attn"), (r"to_out\.0", "o"), (r"\.to_([qkv])", r".\1"), (r"add_([kv])_proj", r"\1_img"),
        (r"norm_added_k", "norm_k_img"), (r"ffn\.net\.0\.proj", "ffn.0"), (r"ffn\.net\.2", "ffn.2"), (r"(blocks\.\d+)\.norm2", r"\1.norm3"),
    ]:
        name = re.sub(pattern, to, name)
    return name


def vae(name: str) -> str:
    name = re.sub(r"^quant_conv", "conv1", re.sub(r"^post_quant_conv", "conv2", name))
    name = name.replace("conv_in", "conv1").replace("norm_out", "head.0").replace("conv_out", "head.2")
    name = name.replace("mid_block.attentions.0", "middle.1").replace("mid_block.resnets.0", "middle.0").replace("mid_block.resnets.1", "middle.2")
    name = re.sub(r"up_blocks\.(\d+)\.resnets\.(\d+)", lambda m: f"upsamples.{4 * int(m[1]) + int(m[2])}", name)
    name = re.sub(r"up_blocks\.(\d+)\.upsamplers\.0", lambda m: f"upsamples.{4 * int(m[1]) + 3}", name)
    return residual(name.replace("down_blocks", "downsamples"))


def vae_2_2(name: str) -> str:
    name = name if name.startswith(("encoder.down_blocks", "decoder.up_blocks")) else vae(name)
    name = re.sub(r"down_blocks\.(\d+)\.resnets\.(\d+)", r"downsamples.\1.downsamples.\2", name).replace("norm_out", "head.0")
    name = re.sub(r"up_blocks\.(\d+)\.resnets\.(\d+)", r"upsamples.\1.upsamples.\2", name)
    name = re.sub(r"down_blocks\.(\d+)\.downsampler", r"downsamples.\1.downsamples.2", name)
    return residual(re.sub(r"up_blocks\.(\d+)\.upsampler", r"upsamples.\1.upsamples.3", name))


def residual(name: str) -> str:
    parts = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6", "conv_shortcut": "shortcut"}
    block = r"((?:middle|(?:down|up)samples)\.\d+(?:\.(?:down|up)samples\.\d+)?)"
    return re.sub(block + r"\.(norm1|conv1|norm2|conv2|conv_shortcut)\.", lambda m: f"{m[1]}.{parts[m[2]]}.", name)


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    dit = WanTransformer3DModel(**SMALL, image_dim=8, added_kv_proj_dim=24, pos_embed_seq_len=4)
    of_vae = AutoencoderKLWan(base_dim=4, z_dim=4, dim_mult=[1, 2, 4, 4])
    residual_vae = AutoencoderKLWan(base_dim=4, decoder_base_dim=4, z_dim=4, dim_mult=[1, 2, 4, 4], is_residual=True, patch_size=2, in_channels=12,
                                    out_channels=12, scale_factor_spatial=16)
    known = {"wan": (dit, wan, convert_wan_transformer_to_diffusers), "wan_vae": (of_vae, vae, convert_wan_vae_to_diffusers),
             "wan_vae_2_2": (residual_vae, vae_2_2, None)}
    for file, (model, original, convert) in known.items():
        names = list(model.state_dict())
        pairs = {name: original(name) for name in names}
        assert len(set(pairs.values())) == len(pairs), file
        if convert:
            ours = {theirs: torch.tensor(number) for number, (name, theirs) in enumerate(pairs.items()) if "pos_embed" not in name}
            converted = convert(ours)
            wanted = {name: number for number, name in enumerate(pairs) if "pos_embed" not in name}
            assert {name: int(value) for name, value in converted.items()} == wanted, file
        (out / f"{file}.txt").write_text("".join(f"{pairs[name]} {name}\n" for name in names))
    qwen = QwenImageTransformer2DModel(patch_size=2, in_channels=16, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
                                       joint_attention_dim=16, axes_dims_rope=(4, 6, 6))
    (out / "qwen_image.txt").write_text("".join(f"{name}\n" for name in qwen.state_dict()))


if __name__ == "__main__":
    main()
