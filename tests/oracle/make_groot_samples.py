"""What lerobot's processor makes of samples for GR00T N1.7: ids, patches, normalized state and actions with their mask, and the actions
that come of what a policy predicts.

    loongforge data digits --out DIR
    python make_groot_samples.py DIR/MODEL src/core/data/goldens/groot.json

The folder has the quick start's Qwen3-VL, whose tokenizer, chat template and processor take the place of Cosmos-Reason2's. It needs
lerobot 0.6.1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from lerobot.policies.groot.processor_groot import (
    GrootActionUnpackUnnormalizeStep, GrootN17PackInputsStep, GrootN17VLMEncodeStep,
)
from lerobot.processor import TransitionKey
from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

STATS = {
    "observation.state": dict(min=[-1.0, 0.0, 2.0], max=[1.0, 4.0, 2.0]),
    "action": dict(min=[-2.0, 0.5], max=[2.0, 0.5]),
}
CASES = [
    dict(task="Pick up the RED_cube, now!", cameras=[("wrist", 300, 200, 7), ("front", 300, 200, 3)], state=[0.5, 5.0, 2.0],
         actions=[[1.0, 0.5], [-3.0, 0.5], [0.25, 0.7]], is_pad=[False, False, False]),
    dict(task="", cameras=[("wrist", 40, 90, 5)], state=[-2.0, 1.0, 3.0], actions=[[0.5, 0.5], [1.0, 0.5], [1.0, 0.5]],
         is_pad=[False, True, True]),
]
HORIZON, MAX_STATE, MAX_ACTION = 3, 5, 4


def noise_picture(width, height, seed):
    """The same formula as in the Rust test: smooth waves and hard edges."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack(
        [(x * 7 + y * seed) % 256, (x * y + 31 * seed) % 256, ((x // 5 + y // 3) % 2) * 200 + 20], axis=-1
    ).astype(np.uint8)


def processor(folder: Path) -> Qwen3VLProcessor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = (folder / "chat_template.jinja").read_text()
    images, videos = Qwen2VLImageProcessor.from_pretrained(folder), Qwen3VLVideoProcessor.from_pretrained(folder)
    return Qwen3VLProcessor(image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=template)


def main() -> None:
    torch.set_num_threads(1)
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    stats = {key: {name: torch.tensor(value) for name, value in own.items()} for key, own in STATS.items()}
    pack = GrootN17PackInputsStep(
        action_horizon=HORIZON, valid_action_horizon=HORIZON, max_state_dim=MAX_STATE, max_action_dim=MAX_ACTION, stats=stats)
    encode = GrootN17VLMEncodeStep(image_crop_size=[230, 230], image_target_size=[256, 256])
    encode._proc = processor(folder)
    unpack = GrootActionUnpackUnnormalizeStep(env_action_dim=2, stats=stats, clip_normalized_action=True)
    cases = []
    for case in CASES:
        pictures = {f"observation.images.{name}": torch.from_numpy(noise_picture(*size)).permute(2, 0, 1)[None]
                    for name, *size in case["cameras"]}
        made = encode(pack({
            TransitionKey.OBSERVATION: dict(pictures, **{"observation.state": torch.tensor([case["state"]])}),
            TransitionKey.ACTION: torch.tensor([case["actions"]]),
            TransitionKey.COMPLEMENTARY_DATA: dict(task=[case["task"]], action_is_pad=torch.tensor([case["is_pad"]])),
        }))
        data, pixels = made[TransitionKey.COMPLEMENTARY_DATA], made[TransitionKey.COMPLEMENTARY_DATA]["pixel_values"].flatten()
        predicted = torch.linspace(-1.5, 1.5, HORIZON * MAX_ACTION).view(1, HORIZON, MAX_ACTION)
        restored = unpack({TransitionKey.ACTION: predicted.clone()})[TransitionKey.ACTION]
        cases.append(dict(
            case, input_ids=data["input_ids"][0].tolist(), grids=data["image_grid_thw"].tolist(),
            embodiment=data["embodiment_id"].tolist(), mask=data["action_mask"][0].tolist(),
            normalized=made[TransitionKey.ACTION][0].tolist(), normalized_state=made[TransitionKey.OBSERVATION]["state"][0, 0].tolist(),
            predicted=predicted.flatten().tolist(), restored=restored.flatten().tolist(),
            pixels=dict(sum=pixels.double().sum().item(), stride=1511, values=[round(value, 5) for value in pixels[::1511].tolist()]),
        ))
    out.write_text(json.dumps(dict(stats=STATS, horizon=HORIZON, max_state_dim=MAX_STATE, max_action_dim=MAX_ACTION, cases=cases),
                              separators=(",", ":")))
    print(out, out.stat().st_size // 1024, "KiB")


if __name__ == "__main__":
    main()
