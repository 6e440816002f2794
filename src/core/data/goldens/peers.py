"""Writes `peers/`, small sets as the libraries write them that users write theirs with: python peers.py

datasets 4, pyarrow, webdataset 1.0 and megatron-energon 7.4 (whose `energon prepare` makes `.nv-meta`).
"""

import gzip
import io
import json
import subprocess
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import webdataset as wds
from PIL import Image

OUT = Path(__file__).parent / "peers"


def picture(shade):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def hugging_face():
    def row(i):
        turns = [("user", f"<image>What is {i}?"), ("assistant", str(i))]
        return {
            "messages": [{"role": role, "content": text} for role, text in turns],
            "images": [{"bytes": picture(i), "path": f"{i}.png"}],
        }

    turn = {"role": datasets.Value("string"), "content": datasets.Value("string")}
    features = datasets.Features({"messages": [turn], "images": datasets.Sequence(datasets.Image())})
    table = datasets.Dataset.from_list([row(i) for i in range(5)], features=features)
    table.to_parquet(OUT / "hf.parquet", batch_size=2)
    texts = pa.table({"text": [f"text {i}" for i in range(6)], "n": list(range(6))})
    pq.write_table(texts, OUT / "text.parquet", row_group_size=4, compression="zstd")


def web_dataset():
    with gzip.open(OUT / "wds.tar.gz", "wb") as file, wds.TarWriter(file, mtime=0) as sink:
        for i in range(3):
            turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": str(i)}]
            record = {"conversations": turns, "image": f"coco/{i}.png"}
            sink.write({"__key__": f"{i:04d}", "png": picture(i), "json": record})


def energon():
    folder, key = OUT / "energon", 0
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for shard, count in [("00", 2), ("01", 1), ("02", 1)]:
        with wds.TarWriter(str(folder / f"train/{shard}.tar"), mtime=0) as sink:
            for _ in range(count):
                record = {"q": {"text": f"What is {key}?"}, "a": str(key)}
                sink.write({"__key__": f"{key:04d}", "png": picture(key), "json": record})
                key += 1
    fields = json.dumps({"image": "png", "context": "json[q][text]", "answers": "json[a]"})
    parts = ["--split-parts", "train:train/{00..01}.tar", "--split-parts", "val:train/02.tar"]
    kind = ["--sample-type", "VQASample", "--field-map", fields]
    subprocess.run(["energon", "prepare", "--no-progress", "--non-interactive", *parts, *kind, folder], check=True)
    for extra in [*folder.glob(".nv-meta/index.*"), *folder.glob("train/*.idx")]:
        extra.unlink()


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    hugging_face()
    web_dataset()
    energon()
