"""What NVIDIA's processor of GR00T N1.6 makes of pictures and task: ids, sizes of pictures in patches, and the patches.

    loongforge data digits --out DIR
    python make_groot_n1_6_samples.py DIR/MODEL src/core/data/goldens/groot_n1_6.json

Written from Isaac-GR00T's source (`processing_gr00t_n1d6.py`, `image_augmentations.py`, Eagle's `processing_eagle3_vl.py`): OpenCV cuts
pictures, Pillow makes their sides multiples of 28, and each stands in the text behind its number. The folder's tokenizer takes the place of
Eagle's, with the token of pictures that it has. Numbers of states and actions are those of `make_groot_samples.py`. It needs
`opencv-python-headless`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import cv2
import jinja2
import numpy as np
from make_area import noise_picture
from PIL import Image
from transformers import AutoTokenizer

TEMPLATE = (
    "{% set count = namespace(value=0) %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{% set count.value = count.value + 1 %}<image-{{ count.value }}>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
PATCH, MERGE = 14, 2
CASES = [
    dict(task="Pick up the RED_cube, now!", cameras=[("wrist", 300, 200, 7), ("front", 640, 480, 3)], edge=256, fraction=0.95),
    dict(task="Go home.", cameras=[("wrist", 64, 90, 5)], edge=100, fraction=0.8),
]


def with_edge(picture: np.ndarray, edge: int) -> np.ndarray:
    """`SmallestMaxSize` of albumentations 1.4.18."""
    scale = edge / min(picture.shape[:2])
    if scale == 1:
        return picture
    rows, columns = (round(side * scale) for side in picture.shape[:2])
    return cv2.resize(picture, (columns, rows), interpolation=cv2.INTER_AREA)


def framed(picture: np.ndarray, edge: int, fraction: float) -> np.ndarray:
    """The transforms of an evaluation: `SmallestMaxSize`, `FractionalCenterCrop`, `SmallestMaxSize`."""
    picture = with_edge(picture, edge)
    rows, columns = picture.shape[:2]
    height, width = max(1, int(rows * fraction)), max(1, int(columns * fraction))
    top, left = (rows - height) // 2, (columns - width) // 2
    return with_edge(np.ascontiguousarray(picture[top:top + height, left:left + width]), edge)


def patches(picture: np.ndarray) -> tuple[list[int], np.ndarray]:
    """`fetch_image` for sizes within its limits, normalization, and `convert_images_to_patches`."""
    factor = PATCH * MERGE
    rows, columns = (max(factor, round(side / factor) * factor) for side in picture.shape[:2])
    values = np.asarray(Image.fromarray(picture).resize((columns, rows)), dtype=np.float32)
    values = (values / 255 - 0.5) / 0.5
    down, across = rows // PATCH, columns // PATCH
    cut = values.reshape(down, PATCH, across, PATCH, 3).transpose(0, 2, 1, 3, 4)
    return [1, down, across], cut.reshape(down * across, -1)


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    image_id = json.loads((folder / "config.json").read_text())["image_token_id"]
    pad = tokenizer.convert_ids_to_tokens(image_id)
    cases = []
    for case in CASES:
        pictures = [patches(framed(noise_picture(*size), case["edge"], case["fraction"])) for _, *size in sorted(case["cameras"])]
        task = re.sub(r"[^\w\s]", "", case["task"].lower())
        content = [dict(type="text", text=task), *[dict(type="image") for _ in pictures]]
        text = jinja2.Template(TEMPLATE).render(messages=[dict(role="user", content=content)])
        for number, ((_, down, across), _) in enumerate(pictures, 1):
            run = pad * (down * across // MERGE**2)
            text = text.replace(f"<image-{number}>", f"<image {number}><img>{run}</img>")
        pixels = np.concatenate([values.ravel() for _, values in pictures])
        cases.append(dict(
            case, input_ids=tokenizer(text)["input_ids"], grids=[grid for grid, _ in pictures],
            pixels=dict(sum=float(pixels.astype(np.float64).sum()), stride=1511, values=[round(float(it), 5) for it in pixels[::1511]]),
        ))
    out.write_text(json.dumps(dict(template=TEMPLATE, image_token_index=image_id, cases=cases), separators=(",", ":")))
    print(out, out.stat().st_size // 1024, "KiB")


if __name__ == "__main__":
    main()
