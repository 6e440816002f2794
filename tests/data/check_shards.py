"""Shards of `loongforge data convert` and `data pack`, read by the packages that others read them with.

    PYTHON tests/data/check_shards.py [--program target/debug/loongforge]

Needs webdataset and megatron-energon; what is not installed is skipped, and said. Pictures are made here.
"""

import argparse
import json
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

SAMPLES = 50


def png(width: int, height: int, shade: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((shade + x * 3 + y) % 256 for x in range(width)) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make_source(folder: Path) -> list[dict]:
    """JSON lines and pictures; what a reader must find of each sample: messages and the bytes of files, in order."""
    rng = random.Random(1)
    expected, lines = [], []
    for index in range(SAMPLES):
        names = []
        for number in range(index % 3):
            name = f"Bild {index}.{number}.PNG" if index % 2 else f"img/{index}_{number}.png"
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(rng.randint(8, 40), rng.randint(8, 40), index))
            names.append(name)
        question = "<image>" * len(names) + f"Frage {index}: 多少? “ü”"
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": f"{index}"}]
        line = {"messages": messages}
        if names:
            line["images"] = names
        files = [(folder / name).read_bytes() for name in names]
        if index == 7:
            frames = folder / "clip"
            frames.mkdir()
            files = []
            for frame in (1, 2, 10):
                (frames / f"{frame}.png").write_bytes(png(16, 16, frame))
                files.append((frames / f"{frame}.png").read_bytes())
            messages = [{"role": "user", "content": "<video>?"}, {"role": "assistant", "content": "x"}]
            line = {"messages": messages, "videos": [{"video": "clip", "fps": 2.0}]}
        lines.append(json.dumps(line, ensure_ascii=False))
        expected.append({"texts": messages, "files": files})
    (folder / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return expected


def names_of(record: dict) -> list[str]:
    flat: list[str] = []

    def add(value) -> None:
        if isinstance(value, str):
            flat.append(value)
        elif isinstance(value, dict):
            add(value["video"])
        else:
            for one in value:
                add(one)

    add(record.get("name", []))
    return flat


def compare(what: str, found: list[dict], expected: list[dict]) -> None:
    assert len(found) == len(expected), f"{what}: {len(found)} samples of {len(expected)}"
    for index, (sample, wanted) in enumerate(zip(found, expected)):
        record = sample["json"]
        record = record if isinstance(record, dict) else json.loads(record)
        assert record["texts"] == wanted["texts"], f"{what}: texts of sample {index}: {record}"
        files = [bytes(sample[name]) for name in names_of(record)]
        assert files == wanted["files"], f"{what}: files of sample {index}"
    print(f"ok: {what} reads {len(found)} samples with the same texts and bytes")


def check_webdataset(shards: Path, expected: list[dict]) -> None:
    try:
        import webdataset
    except ImportError:
        print("skipped: webdataset is not installed")
        return
    urls = [str(path) for path in sorted(shards.glob("*.tar"))]
    compare("webdataset", list(webdataset.WebDataset(urls, shardshuffle=False)), expected)


def check_energon(shards: Path, expected: list[dict], scratch: Path) -> None:
    try:
        from megatron.energon import (
            Cooker,
            DefaultTaskEncoder,
            Sample,
            WorkerConfig,
            edataclass,
            get_loader,
            get_train_dataset,
            stateless,
        )
        from megatron.energon.epathlib import EPath
        from megatron.energon.flavors import BaseWebdatasetFactory
        from megatron.energon.task_encoder.cooking import basic_sample_keys
    except ImportError as error:
        print(f"skipped: megatron-energon is not installed ({error})")
        return

    # Its own preparation of the same shards must come to the same index.
    own = scratch / "own"
    own.mkdir()
    for path in shards.glob("*.tar"):
        shutil.copy(path, own)
    names = sorted(path.name for path in own.glob("*.tar"))
    ratio = [("train", 1.0), ("val", 0.0), ("test", 0.0)]
    (own / ".nv-meta").mkdir()
    BaseWebdatasetFactory.prepare_dataset(EPath(own), names, split_parts_ratio=ratio, tar_index_only=False, workers=2)
    info = [json.loads((folder / ".nv-meta/.info.json").read_text())["shard_counts"] for folder in (shards, own)]
    assert info[0] == info[1], info
    for name in names:
        ours, theirs = (shards / f"{name}.idx").read_bytes(), (own / f"{name}.idx").read_bytes()
        assert ours == theirs, f"index of {name}"
    print(f"ok: counts and offsets of {len(names)} shards equal those of megatron-energon's own preparation")

    @edataclass
    class Raw(Sample):
        raw: dict

    @stateless
    def cook(sample):
        return Raw(**basic_sample_keys(sample), raw=dict(sample))

    class Encoder(DefaultTaskEncoder):
        decoder = None
        cookers = [Cooker(cook, has_subflavors={"sample_type": "multi_mix_qa"})]

        def batch(self, samples):
            return samples

        def encode_batch(self, batch):
            return batch

    dataset = get_train_dataset(
        str(shards),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        shuffle_over_epochs_multiplier=None,
        parallel_shard_iters=1,
        repeat=False,
        task_encoder=Encoder(),
    )
    found = [batch[0].raw for batch in get_loader(dataset)]
    found.sort(key=lambda sample: sample["__key__"])
    compare("megatron-energon", found, expected)


def check_packs(program: str, scratch: Path) -> None:
    try:
        import numpy
        import webdataset
    except ImportError as error:
        print(f"skipped: arrays of packs ({error})")
        return
    run = lambda *args: subprocess.run([program, "data", *args], check=True, stdout=subprocess.DEVNULL)
    run("digits", "--out", str(scratch / "digits"))
    config = scratch / "run.yaml"
    config.write_text(
        f"run: {{ name: packs, dir: {scratch}/run }}\n"
        f"model: {{ load: {scratch}/digits/model, weights: random }}\n"
        f"data: {{ train: [{{ path: {scratch}/digits/train.jsonl }}], pack: {{ max_tokens: 512 }} }}\n"
        "train: { steps: 2, global_batch_size: 8, lr: 1e-3 }\n"
    )
    run("pack", str(config), "--out", str(scratch / "packs"), "--samples", "500", "--packs", "20")
    urls = [str(path) for path in sorted((scratch / "packs").glob("*.tar"))]
    packs = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    ids = []
    for pack in packs:
        record, tokens, targets = pack["json"], pack["input_ids.npy"], pack["targets.npy"]
        assert sum(record["lens"]) == len(tokens) == len(targets) <= 512
        learned = numpy.flatnonzero(targets != -100)
        assert len(learned) and (targets[learned] == tokens[learned + 1]).all()
        ids += record["ids"]
    assert sorted(ids) == list(range(500)), "every sample in one pack"
    print(f"ok: {len(packs)} packs of 500 samples, arrays as numpy reads them")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="target/debug/loongforge")
    program = str(Path(parser.parse_args().program).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        (scratch / "source").mkdir()
        expected = make_source(scratch / "source")
        shards = scratch / "shards"
        command = [program, "data", "convert", "--to", "webdataset", str(scratch / "source/train.jsonl")]
        subprocess.run([*command, "--out", str(shards), "--samples", "16", "--bytes", "20kB"], check=True)
        check_webdataset(shards, expected)
        check_energon(shards, expected, scratch)
        check_packs(program, scratch)


if __name__ == "__main__":
    sys.exit(main())
