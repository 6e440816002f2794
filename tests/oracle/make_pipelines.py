"""Writes tiny whole pipelines of diffusers, and the latents that they make of given noise.

    python make_pipelines.py ../data/pipelines --only wan2.1_i2v --only wan2.2_t2v_a14b --only qwen_image_edit_plus    # those that are committed
    python make_pipelines.py FOLDER --seed 2                                                                           # all of them, another seed
    LOONGFORGE_PIPELINES=FOLDER cargo test -p loongforge --lib pipelines -- --nocapture

A folder has the pipeline as `save_pretrained` writes it (`model`), its pictures, `args.json` with the arguments of `loongforge
sample`, and `expected.safetensors`: the noise and the latents that the pipeline makes of it, a row for each token of the
transformer, values by channel and place in the patch; and the prompt's rows of text; those of the negative prompt too, where the text has no pictures in it.

Pictures of cases `…_resized` are resized, where a byte in some hundred differs by one.

The template of Qwen-Image-Edit has pictures among its tokens. The model was trained with positions on three axes there; the
pipeline does not hand transformers 5 what it needs for them (`mm_token_type_ids`), so that is done here.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from diffusers import (AutoencoderKLQwenImage, AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, QwenImageEditPipeline,
                       QwenImageEditPlusPipeline, QwenImagePipeline, QwenImageTransformer2DModel, UniPCMultistepScheduler,
                       WanImageToVideoPipeline, WanPipeline, WanTransformer3DModel)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from diffusers.pipelines.wan import pipeline_wan_i2v
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel, PreTrainedTokenizerFast, Qwen2_5_VLConfig,
                          Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer, Qwen2VLImageProcessorPil, Qwen2VLProcessor, UMT5Config,
                          UMT5EncoderModel)
from transformers.utils.logging import disable_progress_bar

from make_diffusion import randomize
from make_vae import randomize as randomize_vae

WORDS = [f"w{number}" for number in range(40)]
WAN = dict(patch_size=[1, 2, 2], num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
           freq_dim=16, ffn_dim=32, num_layers=2, rope_max_seq_len=64)
QWEN = dict(patch_size=2, in_channels=16, out_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=2,
            joint_attention_dim=16, axes_dims_rope=[2, 2, 4])
VAE = dict(base_dim=4, z_dim=4, num_res_blocks=1, dim_mult=[1, 1, 1, 1], temperal_downsample=[False, True, True])
VAE_SMALL = dict(VAE, base_dim=2)
VAE_5B = dict(VAE, decoder_base_dim=4, is_residual=True, in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16)
UNIPC = dict(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0)
EULER = dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, base_image_seq_len=256, max_image_seq_len=8192,
             shift_terminal=0.02, time_shift_type="exponential")
CLIP_SIDE = 28
AREA = 384


def vae(kind: type, config: dict, seed: int):
    rng = torch.Generator().manual_seed(seed + 1)
    mean, std = torch.randn(config["z_dim"], generator=rng) / 2, torch.rand(config["z_dim"], generator=rng) + 0.5
    made = kind(**config, latents_mean=mean.tolist(), latents_std=std.tolist()).eval()
    randomize_vae(made, seed)
    return made


def umt5(seed: int):
    ids = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    config = UMT5Config(vocab_size=len(ids), d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, pad_token_id=0, eos_token_id=1)
    model = UMT5EncoderModel(config).eval()
    randomize(model, seed)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"), model


def clip(seed: int):
    model = CLIPVisionModel(CLIPVisionConfig(hidden_size=12, intermediate_size=20, num_hidden_layers=3, num_attention_heads=2,
                                             image_size=CLIP_SIDE, patch_size=14, hidden_act="gelu")).eval()
    randomize(model, seed)
    return CLIPImageProcessor(size={"shortest_edge": CLIP_SIDE}, crop_size={"height": CLIP_SIDE, "width": CLIP_SIDE}), model


def qwen(seed: int):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
    tokenizer.add_tokens(special, special_tokens=True)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in special}
    text = dict(vocab_size=len(letters) + len(special), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096, bos_token_id=ids[special[0]],
                eos_token_id=ids[special[2]],
                rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4})
    vision = dict(depth=2, hidden_size=8, intermediate_size=16, num_heads=2, patch_size=14, spatial_merge_size=2, window_size=112,
                  temporal_patch_size=2, out_hidden_size=16, fullatt_block_indexes=[1], tokens_per_second=2)
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"],
                              video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"],
                              vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=False)
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    randomize(model, seed)
    forward, image_id = model.forward, ids["<|image_pad|>"]

    @functools.wraps(forward)
    def with_types(*args, input_ids=None, **kwargs):
        return forward(*args, input_ids=input_ids, mm_token_type_ids=(input_ids == image_id).int(), **kwargs)

    model.forward = with_types
    images = Qwen2VLImageProcessorPil(patch_size=14, min_pixels=56 * 56, max_pixels=28 * 28 * 16384)
    return tokenizer, model, images


def picture(path: Path, columns: int, rows: int, seed: int) -> Image.Image:
    """Squares of waves."""
    x, y = np.meshgrid(np.arange(columns) // 16 * 16 / columns, np.arange(rows) // 16 * 16 / rows)
    waves = [128 + 90 * np.sin(7 * x * (seed + c + 1) / 3 + 4 * y * (c + 1) + seed) for c in range(3)]
    made = Image.fromarray(np.stack(waves, -1).round().clip(0, 255).astype(np.uint8))
    made.save(path)
    return made


def rows_of_volume(volume: Tensor) -> Tensor:
    """`[1, C, T, H, W]` to a row a token: values by channel, row and column."""
    _, c, t, h, w = volume.shape
    split = volume[0].view(c, t, h // 2, 2, w // 2, 2).permute(1, 2, 4, 0, 3, 5)
    return split.reshape(t * h // 2 * w // 2, -1)


class Case:
    def __init__(self, out: Path, seed: int):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        torch.manual_seed(seed)  # of what classes draw themselves
        self.out, self.seed, self.texts = out, seed, []
        self.rng = torch.Generator().manual_seed(seed + 2)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng)

    def picture(self, name: str, columns: int, rows: int) -> Image.Image:
        return picture(self.out / name, columns, rows, self.seed + len(name))

    def watch(self, pipe) -> None:
        """Keeps the rows of text of each prompt."""
        encode = pipe.encode_prompt

        def kept(*args, **kwargs):
            made = encode(*args, **kwargs)
            texts = [text[0] for text in made if text is not None and text.dtype == torch.float32]
            self.texts += [text[text.abs().sum(1) > 0] for text in texts]  # Wan's are padded with zeros
            return made

        pipe.encode_prompt = kept

    def save(self, pipe, args: list[str], noise: Tensor, latents: Tensor) -> None:
        pipe.save_pretrained(self.out / "model")
        (self.out / "args.json").write_text(json.dumps(args) + "\n")
        kept = self.texts[:1] if len(self.texts[0]) > 100 else self.texts
        tensors = {"noise": noise, "latents": latents} | {f"text/{at}": text for at, text in enumerate(kept)}
        save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, self.out / "expected.safetensors")
        size = sum(file.stat().st_size for file in self.out.rglob("*") if file.is_file())
        print(f"{self.out.name:24} {latents.shape[0]:4} tokens, latents up to {latents.abs().max():.2f}, {size / 1e3:.0f} kB")


def wan(case: Case, kind: type, frames: int, size: tuple[int, int], more: dict = {}, images: int = 0, own: dict = {}, clips: bool = False,
        config: dict = VAE, steps: int = 4, boundary: float | None = None) -> None:
    seed, factor = case.seed, config.get("scale_factor_spatial", 8)
    tokenizer, text_encoder = umt5(seed)
    transformer = WanTransformer3DModel(**{**WAN, **more}).eval()
    randomize(transformer, seed + 3)
    parts = dict(tokenizer=tokenizer, text_encoder=text_encoder, transformer=transformer, vae=vae(AutoencoderKLWan, config, seed),
                 scheduler=UniPCMultistepScheduler(**UNIPC), **own)
    if kind is WanImageToVideoPipeline:
        processor, encoder = clip(seed) if clips else (None, None)
        parts |= dict(image_processor=processor, image_encoder=encoder)
    if boundary is not None:
        low_noise = WanTransformer3DModel(**{**WAN, **more}).eval()
        randomize(low_noise, seed + 4)
        parts |= dict(transformer_2=low_noise, boundary_ratio=boundary)
    pipe = kind(**parts)
    pipe.set_progress_bar_config(disable=True)
    case.watch(pipe)
    rows, columns = size
    shape = (1, config["z_dim"], (frames - 1) // 4 + 1, rows // factor, columns // factor)
    noise, prompt, negative = case.draw(*shape), "w3 w1  &amp; w4 w1", "w5 w9 w2"
    named = [f"{name}.png" for name in ["first", "last"][:images]]
    pictures = dict(zip(["image", "last_image"], [case.picture(name, columns, rows) for name in named]))
    both = {} if boundary is None else dict(guidance_scale_2=2.0)
    latents = pipe(prompt=prompt, negative_prompt=negative, height=rows, width=columns, num_frames=frames, num_inference_steps=steps,
                   guidance_scale=3.0, latents=noise, output_type="latent", **pictures, **both).frames
    args = ["--prompt", prompt, "--negative", negative, "--size", f"{rows}x{columns}", "--frames", str(frames), "--steps", str(steps),
            "--guidance", "3" if boundary is None else "3,2", *(word for name in named for word in ["--image", name])]
    case.save(pipe, args, rows_of_volume(noise), rows_of_volume(latents))


def qwen_image(case: Case, kind: type, size: tuple[int, int], images: list[tuple[int, int]] = [], more: dict = {}, steps: int = 4) -> None:
    seed = case.seed
    tokenizer, text_encoder, processor = qwen(seed)
    transformer = QwenImageTransformer2DModel(**{**QWEN, **more}).eval()
    randomize(transformer, seed + 3)
    parts = dict(tokenizer=tokenizer, text_encoder=text_encoder, transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(**EULER),
                 vae=vae(AutoencoderKLQwenImage, VAE_SMALL, seed))
    if kind is not QwenImagePipeline:
        from transformers import Qwen2VLVideoProcessor
        parts["processor"] = Qwen2VLProcessor(image_processor=processor, tokenizer=tokenizer, video_processor=Qwen2VLVideoProcessor())
    pipe = kind(**parts)
    pipe.set_progress_bar_config(disable=True)
    case.watch(pipe)
    rows, columns = size
    noise = case.draw(1, rows // 16 * (columns // 16), 16)
    prompt, negative = "A «red» house, 3 windows", "blurred"
    named = [f"{at}.png" for at in range(len(images))]
    pictures = [case.picture(name, *image) for name, image in zip(named, images)]
    given = {} if kind is QwenImagePipeline else dict(image=pictures if kind is QwenImageEditPlusPipeline else pictures[0])
    latents = pipe(prompt=prompt, negative_prompt=negative, height=rows, width=columns, num_inference_steps=steps, true_cfg_scale=3.0,
                   latents=noise, output_type="latent", **given).images
    args = ["--prompt", prompt, "--negative", negative, "--size", f"{rows}x{columns}", "--steps", str(steps), "--guidance", "3",
            *(word for name in named for word in ["--image", name])]
    args += [] if kind is QwenImagePipeline else ["--area", f"{AREA}x{AREA}"]
    case.save(pipe, args, noise[0], latents[0])


def smaller(area: int) -> None:
    """Pictures that are edited have this area for the autoencoder, not 1024². `loongforge sample --area` says so."""
    for module in [pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus]:
        calculate = module.calculate_dimensions
        module.calculate_dimensions = lambda target, ratio, calculate=calculate: calculate(area if target == 1024 ** 2 else target, ratio)
    pipeline_qwenimage_edit_plus.VAE_IMAGE_SIZE = 1024 ** 2


IMAGE = dict(in_channels=12, image_dim=12, added_kv_proj_dim=24)
I2V, PLUS = WanImageToVideoPipeline, QwenImageEditPlusPipeline
CASES = {
    "wan2.1_t2v": lambda case: wan(case, WanPipeline, 9, (32, 48)),
    "wan2.1_i2v": lambda case: wan(case, I2V, 9, (32, 48), IMAGE, 1, clips=True),
    "wan2.1_flf2v": lambda case: wan(case, I2V, 9, (48, 32), dict(IMAGE, pos_embed_seq_len=10), 2, clips=True),
    "wan2.2_i2v": lambda case: wan(case, I2V, 5, (32, 32), dict(in_channels=12), 1),
    # Two transformers: of the noise levels of 4 steps two are above the boundary.
    "wan2.2_t2v_a14b": lambda case: wan(case, WanPipeline, 5, (32, 32), boundary=0.875),
    "wan2.2_i2v_a14b": lambda case: wan(case, I2V, 5, (32, 32), dict(in_channels=12), 1, boundary=0.9),
    "wan2.2_ti2v": lambda case: wan(case, WanPipeline, 5, (64, 96), own=dict(expand_timesteps=True), config=VAE_5B),
    "wan2.2_ti2v_first": lambda case: wan(case, I2V, 9, (64, 96), images=1, own=dict(expand_timesteps=True), config=VAE_5B),
    "qwen_image": lambda case: qwen_image(case, QwenImagePipeline, (48, 32)),
    # Nobody resizes a picture of 672×224: it has 384² pixels of whole patches.
    "qwen_image_edit": lambda case: qwen_image(case, QwenImageEditPipeline, (48, 32), [(672, 224)]),
    "qwen_image_edit_plus": lambda case: qwen_image(case, PLUS, (48, 32), [(672, 224), (224, 672)]),
    "qwen_image_edit_2511": lambda case: qwen_image(case, PLUS, (32, 48), [(224, 672)], dict(zero_cond_t=True)),
    "qwen_image_edit_resized": lambda case: qwen_image(case, QwenImageEditPipeline, (48, 32), [(90, 60)]),
    "qwen_image_edit_plus_resized": lambda case: qwen_image(case, PLUS, (48, 32), [(70, 50), (400, 640)]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", choices=sorted(CASES))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the same bits every time
    disable_progress_bar()
    # What mends broken characters is a package of its own; the prompts here have none.
    pipeline_wan_i2v.ftfy = SimpleNamespace(fix_text=lambda text: text)
    smaller(AREA * AREA)
    with torch.no_grad():
        for name in args.only or CASES:
            CASES[name](Case(args.out / name, args.seed))


if __name__ == "__main__":
    main()
