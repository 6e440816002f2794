"""JPEG files to Qwen-VL patches, one core: transformers' fast image processor against ours, on the same files.

    PYTHON benches/preprocess.py [--binary PATH] [FILE.jpg …]    (without files: a photograph-like picture of 640×480 is made)

Needs transformers 5.17, torchvision and Pillow. PATH is the binary that `cargo bench -p loongforge-core --bench preprocess
--no-run` prints; without it the benchmark is built. LOONGFORGE_QUICK=1 measures next to nothing, to see that it runs.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from transformers import Qwen2VLImageProcessor  # noqa: E402

torch.set_num_threads(1)
SPELL = 0.02 if os.environ.get("LOONGFORGE_QUICK") else 2


def picture(path):
    """Waves, edges and noise: compresses about as a photograph does (4:2:0, quality 90)."""
    y, x = np.mgrid[0:480, 0:640].astype(np.float32)
    noise = np.random.default_rng(1).normal(0, 6, (480, 640, 3))
    wave = [110 + 90 * np.sin(x / a) * np.cos(y / b) for a, b in [(37, 23), (61, 41), (19, 53)]]
    edge = 30 * ((x // 61 + y // 47) % 3 == 0)
    pixels = np.stack([wave[0] + edge, wave[1], wave[2] - edge], -1) + noise
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def rate(name, call):
    best = 0.0
    for _ in range(3):
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < SPELL:
            call()
            calls += 1
        best = max(best, calls / (time.perf_counter() - start))
    print(f"{name:24} {best:8.0f} a second", flush=True)
    return best


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--binary", type=Path)
parser.add_argument("files", nargs="*", type=Path)
args = parser.parse_args()
with tempfile.TemporaryDirectory() as folder:
    files = [file.resolve() for file in args.files]
    if not files:
        files = [Path(folder) / "photo.jpg"]
        picture(files[0])
    for file in files:
        decode = lambda: Image.open(file).convert("RGB")  # noqa: E731
        image = decode()
        print(f"transformers: {file} {image.width}×{image.height}, {file.stat().st_size} bytes")
        rate("decode", decode)
        for family, patch in [("qwen2_5_vl", 14), ("qwen3_vl", 16)]:
            processor = Qwen2VLImageProcessor(patch_size=patch)
            patches = lambda image: processor(images=[image], return_tensors="pt")["pixel_values"]  # noqa: E731
            rate(f"{family} preprocess", lambda: patches(image))
            rate(f"{family} both", lambda: patches(decode()))
    print("ours:", flush=True)
    root = Path(__file__).resolve().parent.parent
    built = ["cargo", "bench", "-q", "-p", "loongforge-core", "--bench", "preprocess", "--"]
    subprocess.run([*([args.binary] if args.binary else built), *map(str, files)], cwd=root, check=True)
