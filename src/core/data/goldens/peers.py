"""Writes `peers/`, small sets as the libraries write them that users write theirs with: python peers.py [PART…]

datasets 4, pyarrow, webdataset 1.0 and megatron-energon 7.4 (whose `energon prepare` makes `.nv-meta`). Parts are the functions
below; a part imports what it alone needs. Megatron's index of tokens is written by the description of its format.
"""

import gzip
import io
import json
import struct
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

OUT = Path(__file__).parent / "peers"


def picture(shade):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def dialogues():
    def row(i):
        turns = [("user", f"<image>What is {i}?"), ("assistant", str(i))]
        return {
            "messages": [{"role": role, "content": text} for role, text in turns],
            "images": [{"bytes": picture(i), "path": f"{i}.png"}],
        }

    turn = {"role": datasets.Value("string"), "content": datasets.Value("string")}
    features = datasets.Features({"messages": [turn], "images": datasets.Sequence(datasets.Image())})
    return datasets.Dataset.from_list([row(i) for i in range(5)], features=features)


def hugging_face():
    table = dialogues()
    table.to_parquet(OUT / "hf.parquet", batch_size=2)
    texts = pa.table({"text": [f"text {i}" for i in range(6)], "n": list(range(6))})
    pq.write_table(texts, OUT / "text.parquet", row_group_size=4, compression="zstd")


def arrow():
    """A folder of `save_to_disk`, and a file with every kind of column beside its rows as JSON."""
    datasets.config.DEFAULT_MAX_BATCH_SIZE = 2
    dialogues().save_to_disk(OUT / "saved", num_shards=2)
    columns = {
        "flag": pa.array([True, None, False]),
        "tiny": pa.array([-1, 2, 3], pa.int8()),
        "wide": pa.array([2**63, None, 5], pa.uint64()),
        "half": pa.array([0.5, 1.5, -2.0], pa.float16()),
        "double": pa.array([0.1, float("nan"), None], pa.float64()),
        "text": pa.array(["a", None, "é数"], pa.string()),
        "large": pa.array(["long", "", None], pa.large_string()),
        "view": pa.array(["a view of more than twelve bytes", "short", None], pa.string_view()),
        "word": pa.array(["red", "blue", "red"]).dictionary_encode(),
        "bytes": pa.array([b"plain", None, b"text"], pa.binary()),
        "list": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
        "lists": pa.array([[["x"], []], None, [["y", None]]], pa.large_list(pa.list_(pa.string()))),
        "fixed": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "turn": pa.array([{"role": "user", "content": None}, None, {"role": "a", "content": "b"}]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "nothing": pa.nulls(3),
    }
    table = pa.table(columns)
    with pa.ipc.new_file(OUT / "kinds.arrow", table.schema) as sink:
        sink.write_table(table, max_chunksize=2)
    with pa.ipc.new_stream(OUT / "stream.arrow", table.schema) as sink:
        sink.write_table(table, max_chunksize=2)
    rows = [{name: None if value != value else dict(value) if name == "map" and value is not None
             else value.decode() if isinstance(value, bytes) else value for name, value in row.items()} for row in table.to_pylist()]
    (OUT / "kinds.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
    with pa.ipc.new_file(OUT / "compressed.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as sink:
        sink.write_table(table)


def megatron():
    """Documents of one and of two sequences, in two types."""
    documents = [[[5, 6, 7]], [[8], [9, 10]], [[11, 12, 13, 14, 15]], [[300]]]
    for name, code, letter, width in [("tokens", 8, "H", 2), ("tokens32", 4, "i", 4)]:
        sequences = [sequence for document in documents for sequence in document]
        ids = [token for sequence in sequences for token in sequence]
        (OUT / f"{name}.bin").write_bytes(struct.pack(f"<{len(ids)}{letter}", *ids))
        lengths, places, boundaries = [len(it) for it in sequences], [], [0]
        for length in lengths:
            places.append(places[-1] + width * before if places else 0)
            before = length
        for document in documents:
            boundaries.append(boundaries[-1] + len(document))
        count = len(sequences)
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, count, len(boundaries))
        index += struct.pack(f"<{count}i{count}q{len(boundaries)}q", *lengths, *places, *boundaries)
        (OUT / f"{name}.idx").write_bytes(index)


def web_dataset():
    import webdataset as wds

    with gzip.open(OUT / "wds.tar.gz", "wb") as file, wds.TarWriter(file, mtime=0) as sink:
        for i in range(3):
            turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": str(i)}]
            record = {"conversations": turns, "image": f"coco/{i}.png"}
            sink.write({"__key__": f"{i:04d}", "png": picture(i), "json": record})


def energon():
    import webdataset as wds

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
    parts = {part.__name__: part for part in (hugging_face, arrow, megatron, web_dataset, energon)}
    for name in sys.argv[1:] or parts:
        parts[name]()
