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
