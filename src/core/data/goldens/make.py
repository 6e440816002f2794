"""Writes the files beside it, from transformers 5.17 and torchvision 0.26: python make.py MODEL_DIR DIGITS_DIR

MODEL_DIR and DIGITS_DIR are what `write_model` and `compose` write (the test `write_for_goldens`).
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoProcessor, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor, smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

here = Path(__file__).parent
model_dir, digits_dir = Path(sys.argv[1]), Path(sys.argv[2])


def noise_picture(width, height, seed):
    """The same formula as in the Rust test: smooth waves and hard edges."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack(
        [(x * 7 + y * seed) % 256, (x * y + 31 * seed) % 256, ((x // 5 + y // 3) % 2) * 200 + 20], axis=-1
    ).astype(np.uint8)


def positions():
    config = AutoConfig.from_pretrained(model_dir)
    image_token, merge = config.image_token_id, config.vision_config.spatial_merge_size
    start, end = config.vision_start_token_id, config.vision_end_token_id
    model = Qwen3VLModel(config)
    rng = random.Random(0)
    cases = []
    for num_images in [0, 1, 2, 3] * 3:
        ids, grids = [rng.randrange(256) for _ in range(rng.randrange(1, 9))], []
        for _ in range(num_images):
            grid = [1, merge * rng.randrange(1, 5), merge * rng.randrange(1, 6)]
            grids.append(grid)
            ids += [start] + [image_token] * (grid[1] * grid[2] // merge**2) + [end]
            ids += [rng.randrange(256) for _ in range(rng.randrange(0, 6))]
        input_ids = torch.tensor([ids])
        types = (input_ids == image_token).int()
        position_ids, _ = model.get_rope_index(
            input_ids, types, torch.tensor(grids) if grids else None, attention_mask=torch.ones_like(input_ids)
        )
        cases.append({"input_ids": ids, "grids": grids, "position_ids": position_ids[:, 0].tolist()})
    (here / "positions.json").write_text(
        json.dumps({"image_token": image_token, "merge_size": merge, "cases": cases}, separators=(",", ":"))
    )


def resizes():
    rng = random.Random(1)
    cases = []
    for _ in range(200):
        height, width = (int(2 ** rng.uniform(0, 12)) for _ in range(2))
        factor, low, high = rng.choice([(16, 256, 65536), (28, 3136, 1003520), (32, 65536, 16777216)])
        try:
            cases.append([height, width, factor, low, high, *map(int, smart_resize(height, width, factor, low, high))])
        except ValueError:
            cases.append([height, width, factor, low, high, 0, 0])
    (here / "smart_resize.json").write_text(json.dumps(cases, separators=(",", ":")))


def patches():
    processor = Qwen2VLImageProcessor(
        patch_size=8, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 256, "longest_edge": 4096}
    )
    cases = []
    for width, height, seed in [(48, 32, 1), (45, 27, 2), (100, 90, 3), (9, 13, 4), (37, 111, 5)]:
        out = processor(images=[Image.fromarray(noise_picture(width, height, seed))], return_tensors="pt")
        values = out["pixel_values"].flatten()
        # Whole patches would be large: a fixed stride through them, and their sum.
        cases.append({
            "width": width, "height": height, "seed": seed, "grid": out["image_grid_thw"][0].tolist(),
            "len": values.numel(), "sum": values.double().sum().item(), "stride": 37,
            "values": [round(v, 6) for v in values[::37].tolist()],
        })
    (here / "pixels.json").write_text(json.dumps(cases, separators=(",", ":")))


def processor():
    """The quick start's model: ids and pixels of the whole processor."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    processor = AutoProcessor.from_pretrained(model_dir)
    texts = ["Read the number.", "naïve 数字 <|im_end|>\n\t", "0123 a  b"]
    cases = []
    for line in (digits_dir / "train.jsonl").read_text().splitlines()[:4]:
        line = json.loads(line)
        content = [{"type": "image"}, {"type": "text", "text": line["messages"][0]["content"].removeprefix("<image>")}]
        messages = [{"role": "user", "content": content}, line["messages"][1]]
        picture = Image.open(digits_dir / line["images"][0])
        text = processor.apply_chat_template(messages, tokenize=False)
        out = processor(text=[text], images=[picture], return_tensors="pt")
        pixels = out["pixel_values"].flatten()
        cases.append({
            "input_ids": out["input_ids"][0].tolist(), "grid": out["image_grid_thw"][0].tolist(),
            "pixel_sum": pixels.double().sum().item(), "stride": 41,
            "pixels": [round(v, 6) for v in pixels[::41].tolist()],
        })
    (here / "processor.json").write_text(json.dumps(
        {"texts": [[text, tokenizer(text)["input_ids"]] for text in texts], "samples": cases},
        separators=(",", ":"),
    ))


resizes()
patches()
positions()
processor()
