"""Whether transformers reads models that were put together from parts here, as LlavaForConditionalGeneration, with equal logits;
and whether we read the same folder back.

    python llava_roundtrip.py target/debug/loongforge OUT FIXTURE...

Each fixture of a model of parts is trained for three steps and written (`parity --export`), arranged as LLaVA
(`checkpoint export-hf`), loaded by transformers with the logits that we computed before, and loaded by us again: those logits
must be the same to the bit. Exits 1 where one is not, or where a tensor is missing or too much.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

from roundtrip import check

LOGITS = "logits.safetensors"


def round_trip(program: Path, fixture: Path, out: Path, tolerance: float) -> bool:
    name = fixture.name
    trained, arranged, again = (out / kind for kind in ("trained", "llava", "again"))
    run = lambda *args: subprocess.run([program, *map(str, args)], check=True, capture_output=True, text=True).stdout
    run("parity", fixture, "--export", trained)
    said = run("checkpoint", "export-hf", trained / name, arranged / name)
    if "LlavaForConditionalGeneration" not in said:
        print(f"FAILED  {name}: {said}")
        return False
    for file in ("inputs.safetensors", "expected.safetensors", "fixture.json"):
        shutil.copy(fixture / file, arranged / name / file)
    shutil.copy(trained / name / LOGITS, arranged / name / LOGITS)
    fine = check(arranged / name, tolerance)
    run("parity", arranged / name, "--export", again, "--steps", 0)
    before, after = (load_file(folder / name / LOGITS)["logits"] for folder in (trained, again))
    same = torch.equal(before, after)
    print(f"{'ok' if same else 'FAILED':7} {name:40} read back: {'the same bits' if same else 'other logits'}", flush=True)
    return fine and same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("fixtures", type=Path, nargs="+")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    results = [round_trip(args.program.resolve(), fixture, args.out, args.tolerance) for fixture in args.fixtures]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
