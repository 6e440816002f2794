"""What OpenCV's `INTER_AREA` makes of pictures, by which GR00T N1.6 resizes: pictures that shrink by whole numbers and by others, grow,
and do one of each.

    python make_area.py src/core/data/goldens/area.json

It needs `opencv-python-headless`. Each case has the first bytes, and a sum in which each byte has a weight of its place.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np

# Columns and rows, a seed, and columns and rows to which it is resized.
CASES = [
    (12, 8, 3, 6, 4), (12, 9, 5, 4, 3), (13, 9, 7, 6, 4), (30, 20, 3, 29, 19), (23, 17, 5, 32, 24), (20, 30, 7, 10, 37),
    (243, 243, 5, 256, 256), (7, 7, 1, 7, 7), (1, 9, 2, 1, 4),
]


def noise_picture(width: int, height: int, seed: int) -> np.ndarray:
    """The same formula as in the Rust test: smooth waves and hard edges."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [(x * 7 + y * seed) % 256, (x * y + 31 * seed) % 256, ((x // 5 + y // 3) % 2) * 200 + 20]
    return np.stack(channels, axis=-1).astype(np.uint8)


def main() -> None:
    cases = []
    for width, height, seed, columns, rows in CASES:
        picture = noise_picture(width, height, seed)
        values = cv2.resize(picture, (columns, rows), interpolation=cv2.INTER_AREA).flatten().tolist()
        total = sum((at % 251 + 1) * value for at, value in enumerate(values))
        cases.append(dict(size=[width, height, seed, columns, rows], sum=total, first=values[:24]))
    Path(sys.argv[1]).write_text(json.dumps(cases, separators=(",", ":")))


if __name__ == "__main__":
    main()
