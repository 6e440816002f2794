"""What lerobot's processor for GR00T N1.7 makes of relative actions: groups of numbers, their statistics for each step of a chunk,
normalized chunks, and the actions that come of what a policy predicts.

    python make_groot_relative.py src/core/data/goldens/groot_relative.json

It needs lerobot 0.6.1. The frames and statistics are in the file, so that the test writes the same set.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from lerobot.policies.groot import processor_groot as groot
from lerobot.processor import TransitionKey

HORIZON, NUM_FRAMES, MAX_STATE, MAX_ACTION = 3, 8, 5, 6
NAMES = ["shoulder.pos", "elbow.pos", "left gripper.pos", "wrist.pos"]
EXCLUDE = ["gripper"]


def frames() -> tuple[torch.Tensor, torch.Tensor]:
    """States and actions [frames, 4]: no two steps have the same range of differences."""
    generator = torch.Generator().manual_seed(5)
    states = torch.randn(NUM_FRAMES, 4, generator=generator).cumsum(0)
    return states, states + torch.randn(NUM_FRAMES, 4, generator=generator) * torch.tensor([0.1, 1.0, 2.0, 0.5])


def flat_stats(values: torch.Tensor, quantiles: bool) -> dict[str, torch.Tensor]:
    stats = dict(min=values.amin(0), max=values.amax(0), mean=values.mean(0), std=values.std(0, correction=0))
    if quantiles:
        stats |= {name: values.quantile(part, 0) for name, part in [("q01", 0.01), ("q99", 0.99)]}
    return stats


def case(quantiles: bool) -> dict:
    states, actions = frames()
    windows = [min(at, NUM_FRAMES - 1) for at in range(NUM_FRAMES + HORIZON)]
    items = [
        {"action": actions[windows[at:at + HORIZON]], "observation.state": states[at],
         "action_is_pad": torch.arange(at, at + HORIZON) >= NUM_FRAMES}
        for at in range(NUM_FRAMES)
    ]
    meta = SimpleNamespace(
        stats={"observation.state": flat_stats(states, quantiles), "action": flat_stats(actions, quantiles)},
        features={"action": {"dtype": "float32", "shape": (4,), "names": NAMES},
                  "observation.state": {"dtype": "float32", "shape": (4,), "names": NAMES}},
    )

    class Items(list):
        pass

    dataset = Items(items)
    dataset.meta = meta
    stats = groot._make_relative_action_training_stats(dataset, exclude_joints=EXCLUDE, action_names=NAMES)
    config = SimpleNamespace(
        use_relative_actions=True, relative_exclude_joints=EXCLUDE, chunk_size=HORIZON,
        output_features={"action": SimpleNamespace(shape=(4,))})
    assets = groot._build_n1_7_relative_action_processor_assets(config, stats, meta)
    pack = groot.GrootN17PackInputsStep(
        action_horizon=HORIZON, valid_action_horizon=HORIZON, max_state_dim=MAX_STATE, max_action_dim=MAX_ACTION,
        stats=assets.stats, raw_stats=assets.raw_stats, modality_config=assets.modality_config,
        use_percentiles=assets.use_percentiles)
    decode = groot.GrootN17ActionDecodeStep(
        env_action_dim=4, raw_stats=assets.raw_stats, modality_config=assets.modality_config,
        use_percentiles=assets.use_percentiles, use_relative_action=True, pack_step=pack)
    predicted = torch.linspace(-1.3, 1.2, HORIZON * MAX_ACTION).view(1, HORIZON, MAX_ACTION)
    made = []
    for item in items:
        packed = pack({
            TransitionKey.OBSERVATION: {"observation.state": item["observation.state"][None]},
            TransitionKey.ACTION: item["action"][None],
            TransitionKey.COMPLEMENTARY_DATA: {"task": ["go"], "action_is_pad": item["action_is_pad"][None]},
        })
        restored = decode({TransitionKey.ACTION: predicted.clone()})[TransitionKey.ACTION]
        made.append(dict(
            normalized=packed[TransitionKey.ACTION][0].tolist(), state=packed[TransitionKey.OBSERVATION]["state"][0, 0].tolist(),
            restored=restored.flatten().tolist()))
    lists = {key: {name: value.tolist() for name, value in own.items()} for key, own in meta.stats.items()}
    config = {key: getattr(assets, key) for key in ("raw_stats", "modality_config", "use_percentiles")}
    tensors = {f"{key}.{name}": value for key, own in assets.stats.items() for name, value in own.items()}
    return dict(stats=lists, states=states.tolist(), actions=actions.tolist(), predicted=predicted.flatten().tolist(),
                frames=made, pack=config, tensors=tensors)


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    golden = dict(horizon=HORIZON, max_state_dim=MAX_STATE, max_action_dim=MAX_ACTION, names=NAMES, exclude=EXCLUDE,
                  cases=[case(False), case(True)])
    out.write_text(json.dumps(golden, separators=(",", ":")))
    print(out, out.stat().st_size // 1024, "KiB")


if __name__ == "__main__":
    main()
