"""Balancing beside its peers, on the same lengths in the same run: costliest replica over the mean, and milliseconds.

    cargo bench -p loongforge-core --bench balance --no-run        # prints the binary's path
    PYTHON benches/balance.py --binary PATH [--ranks 8,32,128,512] [--verl CHECKOUT] [--loongforge CHECKOUT]

PYTHON has numpy and torch. Peers whose checkout is not given are left out; what they import beside their solver is replaced
by stubs. Peers are given processor time, we are given time on the wall. The original's trigger threshold is 0, which gives it
its best chance. Karmarkar-Karp takes half a minute at 128 replicas already.
"""

import argparse
import heapq
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch

WIDTH = 2048  # of the model whose costs the benchmark uses


def module_of(path, stubs):
    """The module at `path`, with stubs for what it imports."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in stubs}):
        spec.loader.exec_module(module)
    return module


def heap(costs, ranks):
    """Longest first in Python."""
    bins = [(0, rank) for rank in range(ranks)]
    for cost in sorted(costs, reverse=True):
        load, rank = bins[0]
        heapq.heapreplace(bins, (load + cost, rank))
    return [load for load, _ in bins]


def karmarkar_karp(checkout, costs, ranks):
    stubs = ["verl", "verl.protocol", "verl.utils", "verl.utils.tensordict_utils", "verl.utils.device"]
    module = module_of(checkout / "verl/utils/seqlen_balancing.py", stubs)
    start = time.process_time()
    parts = module.karmarkar_karp(costs, ranks, equal_size=False)
    return time.process_time() - start, [sum(costs[at] for at in part) for part in parts]


def original(checkout, lengths, cost_of, ranks):
    folder = "loongforge.data.dp_balance.rebalance"
    stubs = ["megatron", "megatron.core", "megatron.training", "loongforge", "loongforge.utils", "loongforge.data"]
    stubs += ["loongforge.data.dp_balance", folder, f"{folder}.pack", f"{folder}.reconstruct", f"{folder}.warmup"]
    module = module_of(checkout / "loongforge/data/dp_balance/rebalance/balance.py", stubs)
    arguments = argparse.Namespace(dp_balance_trigger_threshold_vlm=0.0, dp_balance_verbose=False)
    module.get_args = lambda: arguments
    module.get_dp_group_by_device = lambda _: argparse.Namespace(size=lambda: ranks)
    module.dist = argparse.Namespace(get_rank=lambda _: 1)
    source = torch.arange(len(lengths)) * ranks // len(lengths)
    tensor = torch.from_numpy(lengths.astype(np.int64))
    solve = module.solve_sample_dp_reorder_plan
    for _ in range(2):  # The first call warms up.
        start = time.process_time()
        plan, _ = solve(tensor, torch.arange(len(lengths)), source, cost_fn=cost_of, pack_len_ratio=1.2, caller="VLM")
        seconds = time.process_time() - start
    if plan is None:
        loads = np.zeros(ranks)
        np.add.at(loads, source.numpy(), cost_of(lengths.astype(np.float64)))
        return seconds, loads.tolist()
    return seconds, [sum(cost_of(float(lengths[at])) for at, _ in row) for row in plan]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--ranks", default="8,32,128,512")
    parser.add_argument("--laws", default="sft,vlm,longtail")
    parser.add_argument("--max-karmarkar-karp", type=int, default=128, help="most ranks that Karmarkar-Karp is given")
    parser.add_argument("--verl", type=Path)
    parser.add_argument("--loongforge", type=Path)
    args = parser.parse_args()

    def cost_of(length):
        return length * length + 12 * WIDTH * length

    with tempfile.TemporaryDirectory() as folder:
        command = [args.binary, "--ranks", args.ranks, "--laws", args.laws, "--write", folder]
        printed = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout
        for line in printed.splitlines():
            ours = json.loads(line)
            print(line, flush=True)
            if ours["what"] != "samples":
                continue
            ranks = ours["ranks"]
            lengths = np.fromfile(Path(folder) / f"{ours['law']}-{ranks}.u32", dtype="<u4")
            costs = [cost_of(int(length)) for length in lengths]

            def show(name, seconds, loads):
                print(
                    f"  {name:22} {max(loads) * ranks / sum(costs):.5f} in {seconds * 1e3:9.2f} ms; "
                    f"ours {ours['ours']:.5f} in {ours['ms']:.2f} ms",
                    flush=True,
                )

            start = time.process_time()
            loads = heap(costs, ranks)
            show("longest first (Python)", time.process_time() - start, loads)
            if args.verl and ranks <= args.max_karmarkar_karp:
                show("verl Karmarkar-Karp", *karmarkar_karp(args.verl, costs, ranks))
            if args.loongforge:
                show("loongforge (original)", *original(args.loongforge, lengths, cost_of, ranks))


if __name__ == "__main__":
    main()
