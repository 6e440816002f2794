"""The first steps of the recipes in configs/ on the CPU and on another device, side by side, in float32.

    PYTHON first_steps.py PROGRAM DEVICE [NAME…]

Needs no packages. Exit code 1 where a run failed or a loss or a gradient's norm is further off than TOLERANCE, relative: both sides
round sums in other orders, which training carries on from step to step.
"""

import concurrent.futures
import json
import shutil
import subprocess
import sys
from pathlib import Path

STEPS, TOLERANCE, WORK = 5, 1e-4, Path("work/first_steps")

# What makes the data; keys that differ from the recipe's.
RECIPES = {
    "quickstart": ("digits", ["model.load=DATA/model", "data.train=[{path: DATA/train.jsonl}]"]),
    "custom_vlm": ("digits", ["model.tokenizer=DATA/model", "data.train=[{path: DATA/train.jsonl}]"]),
    "florence2_digits": ("digits", ["data.train=[{path: DATA/train.jsonl}]"]),
    "sft_text": (None, []),
    "lora_text": (None, []),
    "spoken_digits": ("spoken-digits", ["model.load=DATA/model", "data.train=[{path: DATA/train.jsonl}]"]),
    "heard_and_seen": ("heard-and-seen", ["model.load=DATA/model", "data.train=[{path: DATA/train.jsonl}]"]),
    "diffusion_digits": ("diffusion-digits", ["model.load=DATA/model", "data.train=[{path: DATA/train.jsonl}]", "sample=null"]),
    "diffusion_motion": ("diffusion-motion", ["model.load=DATA/model", "data.train=[{path: DATA/train.jsonl}]", "sample=null"]),
    "pads_policy": ("pads", ["model.load=DATA/model", "data.train=[{path: DATA/train}]"]),
}


def call(program, name, *words):
    log = WORK / f"{name}.log"
    with log.open("w") as out:
        done = subprocess.run([program, *words], stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{name}: exit code {done.returncode}\n" + "\n".join(log.read_text().splitlines()[-12:]))


def steps(program, name, side, device):
    to = WORK / f"{name}-{side}"
    data, keys = RECIPES[name]
    keys = [key.replace("DATA", str(WORK / "data" / str(data))) for key in keys]
    call(program, to.name, "run", f"configs/{name}.yaml", f"run.dir={to}", f"device={device}", f"train.steps={STEPS}",
         "train.warmup_steps=2", "train.precision=float32", "checkpoint.every_steps=0", "eval=null", "log.tensorboard=false", *keys)
    return [json.loads(line) for line in (to / "metrics.jsonl").read_text().splitlines()]


def main():
    program, device, *names = sys.argv[1:]
    names = names or list(RECIPES)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for data in {RECIPES[name][0] for name in names} - {None}:
            pool.submit(call, program, f"data-{data}", "data", data, "--out", WORK / "data" / data)
    failed = False
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sides = {
            name: [pool.submit(steps, program, name, side, on) for side, on in (("cpu", "cpu"), ("here", device))]
            for name in names
        }
        for name, both in sides.items():
            try:
                ours, theirs = (side.result() for side in both)
            except SystemExit as error:
                failed = True
                print(f"FAILED {error}", flush=True)
                continue
            far = {key: [abs(a[key] - b[key]) / max(abs(a[key]), 1e-9) for a, b in zip(ours, theirs)] for key in ("loss", "grad_norm")}
            # NaN is not within the tolerance either.
            is_far = len(ours) != len(theirs) or not all(x <= TOLERANCE for found in far.values() for x in found)
            failed |= is_far
            print(f"{'FAILED ' if is_far else ''}{name}: {len(ours)} steps, loss {ours[0]['loss']:.5f} to {ours[-1]['loss']:.5f},",
                  f"{len(theirs)} here, furthest off:", *(f"{key} {max(found):.1e}" for key, found in far.items()), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
