"""Simulated against measured step times of the quick start at 1 to 4 encoders.

Costs are calibrated from runs with one encoder: batches of several sizes, so that the fit tells a token from a batch. Runs
with 1, 2, 3 and 4 encoders are measured in turns with them, since a machine is not as fast at all times, and compared with
`loongforge plan --simulate`.

    python3 benches/simulate_agreement.py [--binary target/release/loongforge] [--steps 60] [--rounds 2]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.yaml"
# Global batch and pack size of the runs that calibrate.
CALIBRATION = [(32, 384), (16, 384), (64, 384), (32, 192), (32, 768)]


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def overrides(args, batch=32, pack=384, encoders=1):
    return [
        f"model.load={args.data / 'model'}",
        f"data.train.0.path={args.data / 'train.jsonl'}",
        "eval=null",
        f"train.steps={args.steps}",
        f"train.warmup_steps={args.steps // 3}",
        f"train.global_batch_size={batch}",
        f"data.pack.max_tokens={pack}",
        f"pools.encoder.replicas={encoders}",
        "checkpoint.every_steps=0",
        "log.tensorboard=false",
        "log.level=warn",
    ]


def train(args, name, **settings):
    """The run's folder, and the mean of its step times without first steps, slowest and fastest, in milliseconds."""
    folder = args.folder / name
    words = [*overrides(args, **settings), f"run.dir={folder}", f"run.name={name}"]
    run([args.binary, "run", CONFIG, *words, "--overwrite"])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = sorted(row["step_ms"] for row in rows[5:])
    tenth = len(times) // 10
    return folder, statistics.mean(times[tenth : len(times) - tenth])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("target/release/loongforge"))
    parser.add_argument("--planner", type=Path, help="another binary that simulates")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps a run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each number of encoders")
    parser.add_argument("--folder", type=Path, help="keep the runs there; a temporary folder unless given")
    args = parser.parse_args()
    if not args.binary.is_file():
        parser.error(f"no program at {args.binary}: cargo build --release, or name another with --binary")
    with tempfile.TemporaryDirectory() as folder:
        args.folder = args.folder or Path(folder)
        args.data = args.folder / "data"
        run([args.binary, "data", "digits", "--out", args.data])
        measured = {encoders: [] for encoders in range(1, 5)}
        calibrate = []
        for at in range(args.rounds):
            for i, (batch, pack) in enumerate(CALIBRATION):
                calibrate += ["--calibrate", train(args, f"calibrate-{i}-{at}", batch=batch, pack=pack)[0]]
                if i + 1 in measured:
                    measured[i + 1].append(train(args, f"run-{i + 1}-{at}", encoders=i + 1)[1])
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end; milliseconds a step")
        worst = 0.0
        for encoders, times in measured.items():
            plan = [args.planner or args.binary, "plan", CONFIG, *overrides(args, encoders=encoders), "--simulate", *calibrate, "--json"]
            simulated = json.loads(run(plan))["mean_step"] * 1e3
            real = statistics.mean(times)
            worst = max(worst, abs(simulated / real - 1))
            spread = ", ".join(f"{time:.1f}" for time in times)
            print(f"{encoders} encoders: measured {real:6.1f} ({spread}), simulated {simulated:6.1f}, {simulated / real - 1:+.1%}")
        print(f"largest difference {worst:.1%}")


if __name__ == "__main__":
    main()
