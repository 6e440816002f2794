"""Asks lerobot's own FastWAM and processors for the actions of a checkpoint of ours, and compares them with `loongforge act`.

    python fastwam_roundtrip.py CHECKPOINT --exported OUT --binary target/debug/loongforge [--cases 5]

It needs lerobot 0.6.1 and diffusers. OUT is what `loongforge checkpoint export-hf` made of the checkpoint; the frozen networks, which
lerobot takes from the hub, are those of the checkpoint. Both sides get the same random pictures, states, instructions and noise. Prints
the largest error, as a share of the largest action.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from unittest import mock

import torch
from diffusers import AutoencoderKLWan
from lerobot.policies.fastwam.configuration_fastwam import FastWAMConfig
from lerobot.policies.fastwam.modeling_fastwam import FastWAMPolicy
from lerobot.policies.fastwam.wan.adapters import WanVideoVAE38
from lerobot.policies.fastwam.wan.components import WanTextEncoder
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import UMT5Config, UMT5EncoderModel

import make_fastwam
import policy_act


class Texts:
    """The checkpoint's tokenizer with the padding of lerobot's."""

    def __init__(self, folder: Path, length: int):
        files = [folder / "text_tokenizer.json", folder / "tokenizer.json"]
        self.tokenizer, self.length = Tokenizer.from_file(str(next(file for file in files if file.is_file()))), length

    def __call__(self, texts, return_mask: bool, add_special_tokens: bool):
        ids = [self.tokenizer.encode(text).ids for text in ([texts] if isinstance(texts, str) else texts)]
        padded = torch.tensor([own + [0] * (self.length - len(own)) for own in ids])
        return padded, torch.tensor([[at < len(own) for at in range(self.length)] for own in ids])


def load(exported: Path, checkpoint: Path) -> FastWAMPolicy:
    """lerobot's policy with the exported weights, every one of which must have its place."""
    config = json.loads((exported / "config.json").read_text())
    sizes = config.pop("sizes")
    known = {field.name for field in dataclasses.fields(FastWAMConfig)}
    assert not set(config) - known - {"type"}, set(config) - known
    model = make_fastwam.build(config)
    policy = FastWAMPolicy.__new__(FastWAMPolicy)
    torch.nn.Module.__init__(policy)
    policy.model, policy.config = model, FastWAMConfig(**{key: config[key] for key in config if key != "type"})
    policy.config.device = "cpu"
    missing, unexpected = policy.load_state_dict(load_file(exported / "model.safetensors"), strict=False)
    assert not missing and not unexpected, (missing[:9], unexpected[:9])

    vae = AutoencoderKLWan(**{key: value for key, value in sizes["vae"].items() if not key.startswith("_")}).eval()
    vae.load_state_dict(load_file(checkpoint / "vae/diffusion_pytorch_model.safetensors"), strict=False)
    given = {name for name, _ in vae.named_parameters() if name.startswith(("encoder.", "quant_conv."))}
    assert given <= load_file(checkpoint / "vae/diffusion_pytorch_model.safetensors").keys()
    adapter = type("Vae", (WanVideoVAE38,), dict(z_dim=sizes["vae"]["z_dim"]))
    encoder = UMT5EncoderModel(UMT5Config(**sizes["text_encoder"])).eval()
    left = encoder.load_state_dict(load_file(checkpoint / "text_encoder/model.safetensors"), strict=False)
    assert not left.unexpected_keys and set(left.missing_keys) <= {"encoder.embed_tokens.weight"}, left
    object.__setattr__(model, "vae", adapter(device="cpu", pretrained=vae))
    object.__setattr__(model, "text_encoder", WanTextEncoder(dtype=torch.float32, device="cpu", pretrained=encoder))
    model.tokenizer = Texts(checkpoint, config["tokenizer_max_len"])
    policy.reset()
    return policy.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    policy_act.arguments(parser)
    parser.add_argument("--exported", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=5)
    args = parser.parse_args()
    policy = load(args.exported, args.checkpoint)
    before = PolicyProcessorPipeline.from_pretrained(args.exported, config_filename="policy_preprocessor.json")
    after = PolicyProcessorPipeline.from_pretrained(
        args.exported, config_filename="policy_postprocessor.json", to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action)
    cameras = sorted(key for key in policy.config.input_features if "image" in key)
    rng, errors = torch.Generator().manual_seed(1), policy_act.Errors()
    for case in range(args.cases):
        pictures = {camera: torch.randint(0, 256, (40, 56, 3), generator=rng, dtype=torch.uint8) for camera in cameras}
        state, task = torch.rand(policy.config.proprio_dim, generator=rng), ["go to the red pad", "go to the blue pad"][case % 2]
        noise = torch.randn(1, policy.config.action_horizon, policy.config.action_dim, generator=rng)
        seen = {camera: picture.permute(2, 0, 1).float() / 255 for camera, picture in pictures.items()}
        seen |= {"observation.state": state, "task": task}
        with torch.no_grad(), mock.patch.object(policy.model, "_make_action_latents", lambda *sizes: noise.clone()):
            theirs = after(policy.predict_action_chunk(before(seen)))[0].numpy()
        own = {camera: picture.numpy() for camera, picture in pictures.items()}
        errors.add(f"case {case}: {task!r}", policy_act.act(args, own, state.tolist(), task, noise), theirs)
    errors.say()


if __name__ == "__main__":
    main()
