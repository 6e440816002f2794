"""Conversion of picture samples to WebDataset shards: this program against Python.

    PYTHON benches/convert.py [--samples 4000] [--program target/release/loongforge] [--original convert_to_webdataset.py]

Both read the same JSON lines and pictures and write shards with what Megatron-Energon needs. Python is webdataset's
ShardWriter and Energon's own preparation, as Energon's documentation converts data; `--original` times that script
instead (the arguments of LoongForge's converter). Times are the best of `--rounds`, which alternate; files are in the
page cache for both. Needs numpy, Pillow, webdataset and megatron-energon.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PYTHON = r"""
import json, os, sys
import webdataset as wds
from megatron.energon.epathlib import EPath
from megatron.energon.flavors import BaseWebdatasetFactory
source, out, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.makedirs(out)
base = os.path.dirname(source)
with wds.ShardWriter(os.path.join(out, "shard-%06d.tar"), maxcount=10000, maxsize=1e9, verbose=0) as writer:
    for index, line in enumerate(open(source, encoding="utf-8")):
        entry = json.loads(line)
        sample, names = {"__key__": f"{index:09}"}, []
        for number, name in enumerate(entry.get("images", [])):
            member = f"{number}_{os.path.basename(name)}"
            with open(os.path.join(base, name), "rb") as file:
                sample[member] = file.read()
            names.append(member)
        record = {"texts": entry["messages"], "media": "image" if names else "text", "name": names}
        sample["json"] = json.dumps(record).encode("utf-8")
        writer.write(sample)
os.makedirs(os.path.join(out, ".nv-meta"))
with open(os.path.join(out, ".nv-meta", "dataset.yaml"), "w") as file:
    file.write("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
shards = sorted(name for name in os.listdir(out) if name.endswith(".tar"))
ratio = [("train", 1.0), ("val", 0), ("test", 0)]
BaseWebdatasetFactory.prepare_dataset(EPath(out), shards, split_parts_ratio=ratio, tar_index_only=False, workers=workers)
"""


def make_source(folder: Path, samples: int) -> int:
    import numpy
    from PIL import Image

    rng = numpy.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    total = 0
    with open(folder / "train.jsonl", "w", encoding="utf-8") as lines:
        for index in range(samples):
            width, height = (int(side) for side in rng.integers(320, 960, 2))
            small = rng.integers(0, 256, (height // 16, width // 16, 3), dtype=numpy.uint8)
            name = f"images/{index:06}.jpg"
            Image.fromarray(small).resize((width, height)).save(folder / name, quality=88)
            total += (folder / name).stat().st_size
            messages = [
                {"role": "user", "content": f"<image>What is in picture {index}?"},
                {"role": "assistant", "content": "Blurred squares of many colors. " * int(rng.integers(1, 12))},
            ]
            lines.write(json.dumps({"messages": messages, "images": [name]}) + "\n")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--program", default="target/release/loongforge")
    parser.add_argument("--original", help="a convert_to_webdataset.py of LoongForge")
    parser.add_argument("--scratch", help="folder for data; a temporary one unless given")
    args = parser.parse_args()
    program = str(Path(args.program).resolve())
    scratch = Path(args.scratch or tempfile.mkdtemp())
    source = scratch / f"source-{args.samples}"
    if not (source / "train.jsonl").exists():
        make_source(source, args.samples)
    total = sum(path.stat().st_size for path in (source / "images").iterdir())
    print(f"{args.samples} samples, {total / 1e6:.0f} MB of JPEG, {args.jobs} jobs, {os.cpu_count()} cores")

    lines, out = str(source / "train.jsonl"), scratch / "out"
    if args.original:
        theirs = [sys.executable, args.original, "--output_dir", str(out), "--json_file", lines, "--image_dir", str(source)]
        theirs += ["--sample_type", "multi_mix_qa", "--media", "mix"]
    else:
        theirs = [sys.executable, "-c", PYTHON, lines, str(out), str(args.jobs)]
    convert = ["data", "convert", "--to", "webdataset", lines, "--out", str(out), "--jobs"]
    commands = {
        "loongforge": [program, *convert, str(args.jobs)],
        "loongforge, one thread": [program, *convert, "1"],
        "loongforge, decoding": [program, *convert, str(args.jobs), "--decode"],
        "python": theirs,
    }
    best = {}
    for _ in range(args.rounds):
        for name, command in commands.items():
            shutil.rmtree(out, ignore_errors=True)
            begin = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True)
            seconds = time.perf_counter() - begin
            if done.returncode != 0:
                sys.exit(f"{name} failed: {done.stderr[-2000:]}")
            best[name] = min(best.get(name, seconds), seconds)
    def start(command):
        """The best of three starts that do nothing."""
        seconds = []
        for _ in range(3):
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    imports = start([sys.executable, "-c", "import webdataset, megatron.energon.flavors"])
    loading = start([program, "--version"])
    for name, seconds in best.items():
        ratio = best["python"] / seconds
        own = imports if name == "python" else loading
        without = (best["python"] - imports) / (seconds - own)
        print(
            f"{name:<24} {seconds:7.2f} s  {args.samples / seconds:8.0f} samples/s  {total / seconds / 1e6:7.0f} MB/s  "
            f"{ratio:5.1f}x; without starting {seconds - own:6.2f} s {without:5.1f}x"
        )
    print(f"starting: python's imports {imports:.2f} s, ours {loading:.2f} s")
    if not args.scratch:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
