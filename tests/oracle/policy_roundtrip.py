"""Asks lerobot's own policy and processors for the actions of a checkpoint of ours, and compares them with `loongforge act`.

    python policy_roundtrip.py CHECKPOINT --episodes SET --binary target/debug/loongforge [--frames 5]

It needs lerobot 0.6.1. Frames are spread over the set; both sides get the same picture, state, instruction and noise. A policy of
other widths than the published ones is built as `make_policies.py` builds it, and GR00T N1.7 as `make_groot.py` does: in lerobot's layout
(`"type": "groot"`), with a tokenizer and a chat template in the folder, which take the place of Cosmos-Reason2's. Prints the largest
error, as a share of the largest action.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.factory import get_policy_class
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from safetensors.torch import load_file

import make_policies
import policy_act


def load(folder: Path, config: dict) -> torch.nn.Module:
    """lerobot's policy with the checkpoint's weights, every one of which must have its place."""
    policy_class = get_policy_class(config["type"])
    given = make_policies.FAMILIES[config["type"]].keys() | {"n_action_steps", "normalization_mapping"}
    model = make_policies.build({key: value for key, value in config.items() if key in given})
    policy = policy_class.__new__(policy_class)
    torch.nn.Module.__init__(policy)
    policy.model, policy.config = model, model.config
    if config["type"] == "smolvla":
        policy.rtc_processor = None
        policy.reset()
    for holder in ("input_features", "output_features"):
        features = {key: PolicyFeature(FeatureType[it["type"]], tuple(it["shape"])) for key, it in config[holder].items()}
        setattr(policy.config, holder, features)
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        if not file.name.startswith(("policy_", "optimizer-")):
            weights |= load_file(file)
    missing, unexpected = policy.load_state_dict(weights, strict=False)
    # lerobot stores the table under both names, and its expert has a head that nothing reads.
    missing = [name for name in missing if "lm_head" not in name]
    assert not missing and not unexpected, (missing[:9], unexpected[:9])
    return policy.eval()


def load_groot(folder: Path, config: dict) -> torch.nn.Module:
    """lerobot's GR00T N1.7 with the checkpoint's weights, every one of which must have its place."""
    import make_groot
    from lerobot.policies.groot.configuration_groot import GrootConfig
    from lerobot.policies.groot.modeling_groot import GrootPolicy

    sizes = dict(config["sizes"])
    if config.get("num_inference_timesteps") is not None:
        sizes["num_inference_timesteps"] = config["num_inference_timesteps"]
    own = {key: value for key, value in config.items() if key not in ("type", "sizes")}
    unknown = own.keys() - {field.name for field in dataclasses.fields(GrootConfig)}
    assert not unknown, f"lerobot's config has no {unknown}"
    for holder in ("input_features", "output_features"):
        own[holder] = {key: PolicyFeature(FeatureType[it["type"]], tuple(it["shape"])) for key, it in own[holder].items()}
    policy = GrootPolicy.__new__(GrootPolicy)
    torch.nn.Module.__init__(policy)
    policy._groot_model = make_groot.build(sizes)
    # It computes in float32 and returns the whole chunk, as `loongforge act` does: lerobot cuts it to the actions that are executed.
    policy.config = GrootConfig(**dict(own, n_action_steps=config["chunk_size"], use_bf16=False, device="cpu"))
    weights = load_file(folder / "model.safetensors")
    # The table of tokens is the head, and stored under one of the two names.
    tied = ("lm_head", "embed_tokens")
    assert any(part in name for name in weights for part in tied)
    missing, unexpected = policy.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not any(part in name for part in tied)]
    assert not missing and not unexpected, (missing[:9], unexpected[:9])
    return policy.eval()


def groot_processors(folder: Path, policy: torch.nn.Module):
    """lerobot's pipelines, whose encoder reads the folder's own tokenizer, chat template and picture processor."""
    import make_groot_samples
    from lerobot.policies.groot.processor_groot import GrootN17VLMEncodeStep, make_groot_pre_post_processors_from_pretrained

    before, after = make_groot_pre_post_processors_from_pretrained(policy.config, str(folder))
    (encode,) = [step for step in before.steps if isinstance(step, GrootN17VLMEncodeStep)]
    encode._proc = make_groot_samples.processor(folder)
    return before, after


def predicted(policy: torch.nn.Module, seen: dict, noise: torch.Tensor) -> torch.Tensor:
    """The policy's actions, normalized, of this noise."""
    with torch.no_grad():
        if policy.name != "groot":
            return policy.predict_action_chunk(seen, noise=noise)
        # It draws its noise itself, and nothing else.
        with mock.patch.object(torch, "randn", lambda *_, **__: noise.clone()):
            return policy.predict_action_chunk(seen)


def processors(folder: Path):
    before = PolicyProcessorPipeline.from_pretrained(
        folder, config_filename="policy_preprocessor.json", overrides={"tokenizer_processor": {"tokenizer_name": str(folder)}})
    after = PolicyProcessorPipeline.from_pretrained(
        folder, config_filename="policy_postprocessor.json", to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action)
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    policy_act.arguments(parser)
    parser.add_argument("--episodes", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=5)
    args = parser.parse_args()
    config = json.loads((args.checkpoint / "config.json").read_text())
    if config["type"] == "groot":
        policy = load_groot(args.checkpoint, config)
        before, after = groot_processors(args.checkpoint, policy)
    else:
        policy, (before, after) = load(args.checkpoint, config), processors(args.checkpoint)
    data = LeRobotDataset("local", root=args.episodes)
    cameras = [key for key, value in config["input_features"].items() if value["type"] == "VISUAL"]
    width, horizon = config["output_features"]["action"]["shape"][0], config["chunk_size"]
    rng, errors = torch.Generator().manual_seed(1), policy_act.Errors()
    for frame in np.linspace(0, len(data) - 1, args.frames).astype(int):
        item = data[int(frame)]
        noise = torch.randn(1, horizon, config["max_action_dim"], generator=rng)
        seen = {key: item[key] for key in [*cameras, "observation.state"]} | {"task": item["task"]}
        theirs = after(predicted(policy, before(seen), noise))[0, :, :width].numpy()
        pictures = {camera: (item[camera].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8) for camera in cameras}
        ours = policy_act.act(args, pictures, item["observation.state"].tolist(), item["task"], noise)
        errors.add(f"frame {frame}: {item['task']!r}", ours, theirs)
    errors.say()


if __name__ == "__main__":
    main()
