"""What `loongforge act` makes of one observation, for scripts that compare it with lerobot."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image


def arguments(parser) -> None:
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--binary", required=True)


def act(args, pictures: dict[str, np.ndarray], state: list[float], task: str, noise) -> np.ndarray:
    """Actions `[steps, width]` of pictures `[rows, columns, 3]` in bytes by camera, from this noise."""
    with tempfile.TemporaryDirectory() as scratch:
        flags = []
        for number, (camera, picture) in enumerate(pictures.items()):
            Image.fromarray(picture).save(f"{scratch}/{number}.png")
            flags += ["--image", f"{camera}={scratch}/{number}.png"]
        Path(scratch, "noise").write_text(" ".join(map(repr, noise.flatten().tolist())))
        command = [args.binary, "act", args.checkpoint, *flags, f"--state={','.join(map(repr, state))}", "--prompt", task,
                   "--noise", f"{scratch}/noise", "--device", "cpu"]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return np.array([[float(value) for value in line.split()] for line in printed.strip().splitlines()])


class Errors:
    """The largest error of all cases, as a share of the largest action of each."""

    def __init__(self):
        self.worst = 0.0

    def add(self, what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        assert ours.shape == theirs.shape, (what, ours.shape, theirs.shape)
        assert np.isfinite(ours).all() and np.isfinite(theirs).all(), f"{what}: not all actions are finite"
        error = np.abs(ours - theirs).max() / np.abs(theirs).max()
        self.worst = max(self.worst, error)
        print(f"{what}, error {error:.1e}")

    def say(self) -> None:
        print(f"largest error {self.worst:.1e}")
