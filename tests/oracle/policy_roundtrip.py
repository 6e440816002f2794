"""Asks lerobot's own policy and processors for the actions of a checkpoint of ours, and compares them with `loongforge act`.

    python policy_roundtrip.py CHECKPOINT --episodes SET --binary target/debug/loongforge [--frames 5]

It needs lerobot 0.6.1. Frames are spread over the set; both sides get the same picture, state, instruction and noise. A policy of
other widths than the published ones is built as `make_policies.py` builds it. Prints the largest error, as a share of the largest action.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

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
    policy, (before, after) = load(args.checkpoint, config), processors(args.checkpoint)
    data = LeRobotDataset("local", root=args.episodes)
    cameras = [key for key, value in config["input_features"].items() if value["type"] == "VISUAL"]
    width, horizon = config["output_features"]["action"]["shape"][0], config["chunk_size"]
    rng, errors = torch.Generator().manual_seed(1), policy_act.Errors()
    for frame in np.linspace(0, len(data) - 1, args.frames).astype(int):
        item = data[int(frame)]
        noise = torch.randn(1, horizon, config["max_action_dim"], generator=rng)
        seen = {key: item[key] for key in [*cameras, "observation.state"]} | {"task": item["task"]}
        with torch.no_grad():
            theirs = after(policy.predict_action_chunk(before(seen), noise=noise))[0, :, :width].numpy()
        pictures = {camera: (item[camera].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8) for camera in cameras}
        ours = policy_act.act(args, pictures, item["observation.state"].tolist(), item["task"], noise)
        errors.add(f"frame {frame}: {item['task']!r}", ours, theirs)
    errors.say()


if __name__ == "__main__":
    main()
