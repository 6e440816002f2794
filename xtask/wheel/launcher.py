"""Starts the program on the libtorch of this environment's torch package. Python ends here: the program takes its place."""

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

TORCH = "2.11.0"


def main():
    program = Path(__file__).with_name("bin") / "loongforge"
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        sys.exit(f"loongforge: there is no torch in {sys.prefix}: pip install torch=={TORCH}")
    try:
        version = importlib.metadata.version("torch").split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        version = TORCH
    if version != TORCH:
        sys.exit(f"loongforge: torch is {version} here, and the program needs the libtorch of {TORCH}")
    libraries = str(Path(list(found.submodule_search_locations)[0]) / "lib")
    given = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = f"{libraries}:{given}" if given else libraries
    os.environ.setdefault("LOONGFORGE_TORCH_LIB", libraries)
    os.execv(program, ["loongforge", *sys.argv[1:]])
