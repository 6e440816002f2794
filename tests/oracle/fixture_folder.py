"""What scripts that make one folder a fixture have in common: the folder's files, and the arguments."""

from __future__ import annotations

import argparse
import copy
import json
import shutil
from pathlib import Path
from typing import Callable

import torch
from safetensors.torch import save_file
from torch import Tensor


def empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_tensors(folder: Path, inputs: dict[str, Tensor], expected: dict[str, Tensor], *said) -> None:
    """Writes both, and prints how large the folder has become, the loss, and what else is `said`."""
    for name, tensors in [("inputs", inputs), ("expected", expected)]:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, str(folder / f"{name}.safetensors"))
    print(folder, sum(file.stat().st_size for file in folder.iterdir()) // 1024, "KiB, loss", float(expected["loss"]), *said)


def randomize(named, seed: int, tables: dict[str, float] | None = None, scale: float = 0.8) -> None:
    """Sets all parameters, so that none is neutral and no part of a port can be left out. Those with one of the words of `tables` in
    their names have this deviation; of others, vectors move a little, and maps have `scale` over the root of what they sum over."""
    tables = {"embed": 0.3} if tables is None else tables
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(named, key=lambda it: it[0]):
            noise = torch.randn(tensor.shape, generator=rng)
            own = [deviation for word, deviation in tables.items() if word in name]
            if tensor.dim() < 2:
                tensor.add_(0.2 * noise)
            elif own:
                tensor.copy_(own[0] * noise)
            else:
                tensor.copy_(scale * noise / tensor[0].numel() ** 0.5)


def change(config: dict, setting: str) -> None:
    """Sets a value, `KEY=VALUE`, whose key goes down into sections by dots."""
    key, value = setting.split("=", 1)
    *sections, last = key.split(".")
    for section in sections:
        config = config[section]
    config[last] = json.loads(value)


def arguments(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value in config.json, by dots")
    return parser


def changed(config: dict, settings: list[str]) -> dict:
    config = copy.deepcopy(config)
    for setting in settings:
        change(config, setting)
    return config


def main(doc: str, name: str, config: dict, write: Callable[[Path, dict, int], None]) -> None:
    """Writes the fixture that the arguments ask for into the folder `NAME-seedN`."""
    args = arguments(doc).parse_args()
    torch.set_num_threads(1)
    write(args.out / f"{name}-seed{args.seed}", changed(config, args.set), args.seed)
