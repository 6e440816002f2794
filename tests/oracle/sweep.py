"""Draws configs of every family at random, makes a fixture of each and compares it by `loongforge parity`.

    python sweep.py OUT --cases 20 --seed 1                   # every family
    python sweep.py OUT --family qwen3 --family glm5 --each   # every key alone, each of its values
    python sweep.py OUT --undeclared                          # keys of config classes that the space has no values for
    python sweep.py OUT --table table.md                      # the verdicts that OUT/rows.jsonl has, by family

Verdicts: `ok`; `refused` with the message, which names the key; `DIFFERS`; `CRASHED`; `rounding`, where gradients alone are beyond the
tolerance and the reference's in float32 are as far from its own in float64. `undecided` has a router or an indexer whose choices hang
on rounding, whatever the seed, and is not counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

import minicpm
import sweep_draw
from batches import make_batch
from families import FAMILIES
from make_fixture import Reference, decided, first_pass, make

PROGRAM = "loongforge"
ATTEMPTS, SEEDS, CHUNK = 12, 6, 12


def prepare(family, rng: random.Random, seed: int, out: Path, each=None) -> dict:
    """Draws until the reference runs; what was drawn, as a row of the report without a verdict."""
    reasons = []
    for _ in range(1 if each else ATTEMPTS):
        config, changes, whole = sweep_draw.draw(family, rng, each)
        # Of gradients that are rounding alone a small epsilon would make whole steps.
        drawn = dataclasses.replace(family, config=config, adam_eps=1e-5)
        try:
            for attempt in range(SEEDS):
                made = make(drawn, seed + 1000 * attempt, out, whole, generate=True)
                if decided({**made, "adamw_unrest": None}):
                    break
            if not decided(made):
                one_step(out)
            (out / "drawn.json").write_text(json.dumps({"config": config, "whole": whole}))
            spelled = sweep_draw.respell(drawn, out, rng) if not each else "saved"
            verdict = None if decided({**made, "adamw_unrest": None}) else "undecided"
            return {"family": family.name, "seed": made["seed"], "changes": changes, "spelling": spelled, "verdict": verdict}
        except Exception as error:  # the reference refuses, or cannot run it
            shutil.rmtree(out, ignore_errors=True)
            reasons.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200])
    return {"family": family.name, "seed": seed, "changes": changes, "verdict": "no reference", "message": reasons[-1]}


def one_step(out: Path) -> None:
    """Leaves one step of AdamW of a fixture whose later steps carry rounding too far to be compared."""
    expected = load_file(out / "expected.safetensors")
    kept = {key: value for key, value in expected.items() if not key.startswith("adamw.weight_norm/")}
    kept["adamw.loss"], kept["adamw.grad_norm"] = kept["adamw.loss"][:2].clone(), kept["adamw.grad_norm"][:1].clone()
    save_file(kept, out / "expected.safetensors")
    summary = json.loads((out / "fixture.json").read_text())
    summary["adamw"]["steps"] = 1
    (out / "fixture.json").write_text(json.dumps(summary, indent=2) + "\n")


ROW = re.compile(r"^  (\S.*?) +(\d+) +(\S+e[-+]?\d+|inf|NaN) +(\S+) %  (.*?)(  FAILED)?$")


def compare(program: list[str], rows: dict[str, dict]) -> None:
    """Puts verdicts into the rows, by folder. Where the program dies, the folder that it had begun crashed."""
    left = list(rows)
    while left:
        ran = subprocess.run([*program, "parity", *left], capture_output=True, text=True)
        blocks, current = {}, None
        for line in ran.stdout.splitlines():
            if line in rows:
                current = blocks.setdefault(line, [])
            elif current is not None:
                current.append(line)
        errors = dict(re.findall(r"^error: (\S+?): (.*)$", ran.stderr, re.M))
        for folder, lines in blocks.items():
            found = [match.groups() for match in map(ROW.match, lines) if match]
            failed = [line.strip() for line in lines if "FAILED" in line]
            rows[folder].update(verdict="DIFFERS" if failed or not found else "ok", error=max((float(row[2]) for row in found), default=None),
                                used=max((float(row[3]) for row in found), default=None), message="; ".join(failed)[:600])
        for folder, message in errors.items():
            if folder in rows:
                refused = "model config: " in message
                rows[folder].update(verdict="refused" if refused else "CRASHED", message=message.rpartition("model config: ")[2])
        rest = [folder for folder in left if folder not in blocks and folder not in errors]
        if rest and rest[0] == left[0] and ran.returncode not in (101, 134, -6, -11):
            raise SystemExit(f"{shlex.join(program)} parity: no answer\n{ran.stderr}")
        if rest:
            rows[rest[0]].update(verdict="CRASHED", message=ran.stderr.strip()[-600:])
        left = rest[1:]


def own_rounding(row: dict) -> float:
    """How far the reference's gradients in float32 are from those in float64, in per cent of what parity tolerates."""
    folder, family = Path(row["folder"]), FAMILIES[row["family"]]
    drawn = json.loads((folder / "drawn.json").read_text())
    torch.manual_seed(row["seed"])
    reference = Reference(family, drawn["config"], row["seed"], torch.float64)
    batch = make_batch(family.kind, drawn["config"], row["seed"] + 1, bool(drawn["whole"]))
    exact = first_pass(reference, {k: v.double() if v.is_floating_point() else v for k, v in batch.padded.items()})
    single = load_file(folder / "expected.safetensors")
    of = lambda key: ((single[key].double() - exact[key]).abs() / (1e-4 * exact[key].abs() + 1e-5 * exact[key].abs().max()).clamp_min(1e-300)).max()
    factor = 10 if "linear_num_value_heads" in json.dumps(drawn) else 1  # as parity has it for gated delta nets
    return 100 * max(float(of(key)) for key in exact if key.startswith("grad/") and key in single) / factor


def table(rows: list[dict]) -> str:
    lines = ["| family | cases | ok | refused by name | rounding | differs | largest error | of the tolerance |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == name and row["verdict"] not in ("undecided", "no reference")]
        fine = [row for row in own if row["verdict"] == "ok"]
        count = lambda *verdicts: sum(row["verdict"] in verdicts for row in own)
        error, used = (max((row[key] for row in fine), default=0) for key in ("error", "used"))
        lines.append(f"| {name} | {len(own)} | {len(fine)} | {count('refused')} | {count('rounding')} | {count('DIFFERS', 'CRASHED')} | {error:.1e} | {used:.0f} % |")
    return "\n".join(lines) + "\n"


def undeclared() -> None:
    for name, family in FAMILIES.items():
        for section, keys in sweep_draw.sections(family):
            missing = sorted(set(keys) - sweep_draw.known(section))
            if missing:
                print(f"{name} {section or '(whole)'}: {', '.join(missing)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", choices=sorted(FAMILIES), metavar="NAME", action="append")
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="every key alone instead of draws of several")
    parser.add_argument("--program", default=PROGRAM, help="the command before `parity` (default loongforge)")
    parser.add_argument("--make-only", action="store_true", help="make the fixtures, compare them by --compare-only later")
    parser.add_argument("--compare-only", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the fixtures that agree")
    parser.add_argument("--undeclared", action="store_true")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    minicpm.encode_one_by_one()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.undeclared:
        undeclared()
        return 0
    journal = args.out / "rows.jsonl"
    if args.table:
        rows = [json.loads(line) for line in journal.read_text().splitlines()]
        args.table.write_text(table(rows))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.family or [name for name, family in FAMILIES.items() if not family.lora]
    waiting = args.out / "waiting.jsonl"
    rows: dict[str, dict] = {}
    if args.compare_only:
        rows = {row["folder"]: row for row in map(json.loads, waiting.read_text().splitlines())}
    else:
        for name in names:
            family = FAMILIES[name]
            plans = sweep_draw.each(family) if args.each else [None] * args.cases
            for number, plan in enumerate(plans):
                seed = args.seed + number
                out = args.out / f"{name}-{'each' if args.each else 'draw'}{seed}"
                rng = random.Random(f"{name} {seed}")
                row = prepare(family, rng, seed, out, plan)
                if row["verdict"] in ("no reference", "undecided"):
                    shutil.rmtree(out, ignore_errors=True)
                    journal.open("a").write(json.dumps(row) + "\n")
                else:
                    rows[str(out)] = {**row, "folder": str(out)}
                    waiting.open("a").write(json.dumps(rows[str(out)]) + "\n")
        if args.make_only:
            return 0
    folders, failed = list(rows), 0
    for start in range(0, len(folders), CHUNK):
        chunk = {folder: rows[folder] for folder in folders[start : start + CHUNK]}
        compare(shlex.split(args.program), chunk)
        for folder, row in chunk.items():
            if row["verdict"] == "DIFFERS" and set(re.findall(r"(?:^|; )(\w[\w. -]*?)  ", row["message"])) <= {"gradients", "gradient norms"}:
                own = own_rounding(row)
                row["message"] += f"; the reference's own rounding: {own:.0f} %"
                row["verdict"] = "rounding" if 2 * own >= row["used"] else "DIFFERS"
            bad = row["verdict"] in ("DIFFERS", "CRASHED")
            failed += bad
            journal.open("a").write(json.dumps(row) + "\n")
            print(f"{Path(folder).name:32} {row['verdict']:8} {row.get('error') or 0:.1e} {row['spelling']} {json.dumps(row['changes'])}"
                  + (f"\n    {row['message']}" if row["verdict"] != "ok" else ""), flush=True)
            if not bad and not args.keep:
                shutil.rmtree(folder, ignore_errors=True)
    waiting.unlink(missing_ok=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
