"""Whether Diffusers and we mean the same by the files of a diffusion model, both ways.

    python diffusers_roundtrip.py PROGRAM OUT [--checkpoint FOLDER]...

PROGRAM is loongforge, OUT a folder that is made. Tiny models of Wan (with and without tokens of pictures) and Qwen-Image are saved by
Diffusers, and `checkpoint export` writes them in each form:

* `diffusers`: `from_pretrained` gives the output of the folder that Diffusers saved, bit for bit;
* `original`, `comfyui` (Wan): Diffusers' own converter of single files gives its `state_dict`, bit for bit;
* a file of ComfyUI is exported once more, as `diffusers`, and is the first one.

Adapters of PEFT on the same models, of two ranks, become files of `diffusers`, `comfyui` and `kohya`; `load_lora_weights` of a
pipeline takes each without a warning and the output is PEFT's. Every CHECKPOINT of a run is loaded by `DiffusionPipeline` or,
where it has no autoencoder, by its transformer's class, and its weights are those that our export of it has. Exits 1 where
something differs.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from pathlib import Path

import diffusers
import torch
from diffusers import (AutoencoderKLQwenImage, AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, QwenImagePipeline,
                       QwenImageTransformer2DModel, WanImageToVideoPipeline, WanPipeline, WanTransformer3DModel)
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

# Heads of 128, as in everything that was published: a single file does not say how wide they are.
WAN = dict(num_attention_heads=1, attention_head_dim=128, in_channels=4, out_channels=4, text_dim=16, freq_dim=32, ffn_dim=48, num_layers=2)
QWEN = dict(patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=128, num_attention_heads=1, joint_attention_dim=16,
            axes_dims_rope=(16, 56, 56))
TOLERANCE = 2e-6


class Loud(logging.Handler):
    """Whatever Diffusers warns of: keys that are left over, above all."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        if " keys" in record.getMessage() or "not expected" in record.getMessage():
            self.messages.append(record.getMessage())


def models() -> dict:
    torch.manual_seed(0)
    found = {
        "wan": (WanTransformer3DModel(**WAN), WanPipeline),
        "wan-i2v": (WanTransformer3DModel(**WAN | {"in_channels": 12}, image_dim=20, added_kv_proj_dim=128), WanImageToVideoPipeline),
        "qwen-image": (QwenImageTransformer2DModel(**QWEN), QwenImagePipeline),
    }
    for model, _ in found.values():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
    return found


def pipeline(model, kind):
    scheduler = FlowMatchEulerDiscreteScheduler()
    vae = AutoencoderKLQwenImage if kind is QwenImagePipeline else AutoencoderKLWan
    vae = vae(base_dim=4, z_dim=4, dim_mult=[1, 2, 4, 4], latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
    parts = dict(tokenizer=None, text_encoder=None, vae=vae, scheduler=scheduler, transformer=model)
    if kind is WanImageToVideoPipeline:
        parts |= dict(image_processor=None, image_encoder=None)
    return kind(**parts)


@torch.no_grad()
def output(model) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    inner = model.base_model.model if isinstance(model, PeftModel) else model
    if isinstance(inner, QwenImageTransformer2DModel):
        return model(hidden_states=draw(1, 6, 16), encoder_hidden_states=draw(1, 5, 16), encoder_hidden_states_mask=torch.ones(1, 5),
                     timestep=torch.tensor([0.4]), img_shapes=[[(1, 2, 3)]], return_dict=False)[0]
    image = draw(1, 7, inner.config.image_dim) if inner.config.image_dim else None
    return model(hidden_states=draw(1, inner.config.in_channels, 2, 4, 6), timestep=torch.tensor([400.0]), encoder_hidden_states=draw(1, 512, 16),
                 encoder_hidden_states_image=image, return_dict=False)[0]


class Report:
    def __init__(self):
        self.failed = 0

    def __call__(self, name: str, good: bool, what: str = "") -> None:
        self.failed += not good
        print(f"{'ok  ' if good else 'BAD '} {name}{'  ' + what if what else ''}", flush=True)


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint", type=Path, action="append", default=[])
    args = parser.parse_args()
    report, loud = Report(), Loud()
    diffusers.utils.logging.get_logger("diffusers").addHandler(loud)

    def export(source: Path, form: str, name: str) -> Path:
        to = args.out / name
        done = subprocess.run([args.program, "checkpoint", "export", source, to, "--format", form], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"export of {source} as {form}: {done.stderr}")
        return to

    for name, (model, kind) in models().items():
        model.eval()
        state, saved = model.state_dict(), args.out / name
        pipeline(model, kind).save_pretrained(saved)
        # Where weights lie in memory moves the last bit: both are read from files.
        want = output(type(model).from_pretrained(saved / "transformer"))
        back = export(saved, "diffusers", f"{name}-diffusers")
        loaded = type(model).from_pretrained(back / "transformer")
        report(f"{name}: diffusers", torch.equal(output(loaded), want) and same(loaded.state_dict(), state))
        whole = kind.from_pretrained(back, tokenizer=None, text_encoder=None)
        report(f"{name}: pipeline", same(whole.vae.state_dict(), pipeline_vae(saved, whole)))
        comfy = export(saved, "comfyui", f"{name}-comfyui") / "transformer.safetensors"
        again = export(comfy, "diffusers", f"{name}-again")
        report(f"{name}: comfyui and back", same(load_file(again / "transformer/diffusion_pytorch_model.safetensors"), state))
        if name.startswith("wan"):
            report(f"{name}: comfyui", same(convert_wan_transformer_to_diffusers(load_file(comfy)), state))
            original = export(saved, "original", f"{name}-original") / "diffusion_pytorch_model.safetensors"
            report(f"{name}: original", same(convert_wan_transformer_to_diffusers(load_file(original)), state))
        adapters(report, loud, export, args.out, name, model, kind, state)

    for number, folder in enumerate(args.checkpoint):
        checkpoint(report, export, folder, f"checkpoint-{number}")
    for message in loud.messages:
        report("warning", False, message)
    sys.exit(1 if report.failed else 0)


def pipeline_vae(saved: Path, whole) -> dict:
    return type(whole.vae).from_pretrained(saved / "vae").state_dict()


def adapters(report, loud, export, out: Path, name: str, model, kind, state: dict) -> None:
    maps = [path for path, module in model.named_modules() if isinstance(module, torch.nn.Linear) and "blocks." in path and "_mod." not in path]
    for form in ["diffusers", "comfyui", "kohya"]:
        # Of other ranks than the most common one Diffusers guesses the alpha, where a file does not say it.
        ranks = {maps[-1]: 3} if form == "diffusers" else {}
        config = LoraConfig(r=4, lora_alpha=10, target_modules=maps, rank_pattern=ranks, init_lora_weights=False)
        adapted = get_peft_model(type(model)(**model.config), config).eval()
        adapted.base_model.model.load_state_dict({wrapped(key, maps): value for key, value in state.items()}, strict=False)
        want, folder = output(adapted), out / f"{name}-peft-{form}"
        adapted.save_pretrained(folder)
        to = export(folder, form, f"{name}-lora-{form}")
        fresh = type(model)(**model.config).eval()
        fresh.load_state_dict(state)
        whole, before = pipeline(fresh, kind), len(loud.messages)
        whole.load_lora_weights(to, weight_name=next(to.glob("*.safetensors")).name)
        found = output(whole.transformer)
        error = ((found - want).abs().max() / want.abs().max()).item()
        moved = (found - output(model)).abs().max().item()
        report(f"{name}: adapters, {form}", error < TOLERANCE and moved > 1e-3 and len(loud.messages) == before, f"error {error:.1e}")


def wrapped(key: str, maps: list[str]) -> str:
    path, last = key.rsplit(".", 1) if "." in key else ("", key)
    return f"{path}.base_layer.{last}" if path in maps else key


def checkpoint(report, export, folder: Path, name: str) -> None:
    back = export(folder, "diffusers", name)
    index = diffusers.DiffusionPipeline.load_config(folder)
    of = getattr(diffusers, index["transformer"][1])
    loaded = of.from_pretrained(folder / "transformer")
    again = of.from_pretrained(back / "transformer")
    report(f"{folder}: transformer", same(loaded.state_dict(), again.state_dict()))
    if index["vae"][0]:
        whole = diffusers.DiffusionPipeline.from_pretrained(folder)
        report(f"{folder}: pipeline", same(whole.transformer.state_dict(), loaded.state_dict()))


if __name__ == "__main__":
    main()
