"""Packing beside its peers, on the same lengths in the same run: samples a second, and packs over the least there could be.

    cargo bench -p loongforge-core --bench packing --no-run        # prints the binary's path
    PYTHON benches/packing.py --binary PATH [--samples 1000000] [--llama-factory CHECKOUT] [--loongforge CHECKOUT]

PYTHON has numpy, pyarrow and trl. Peers whose checkout is not given are left out. Only their packing is timed: no tokens
are moved (TRL packs lists of nulls), nothing is read or written, and their inputs are ready made. Peers are given processor
time, which waiting for a core does not count in; we are given time on the wall.
"""

import argparse
import importlib.util
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def timed(pack, *arguments):
    """Seconds of processor time, and number of packs: all run on one thread."""
    start = time.process_time()
    packs = pack(*arguments)
    return time.process_time() - start, packs


def trl(lengths, max_tokens):
    import pyarrow
    from trl.data_utils import _pack_bfd

    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    small = offsets[-1] < 2**31
    of = pyarrow.ListArray if small else pyarrow.LargeListArray
    offsets = pyarrow.array(offsets.astype(np.int32 if small else np.int64))
    column = of.from_arrays(offsets, pyarrow.nulls(int(lengths.sum())))
    table = pyarrow.Table.from_arrays([column], names=["input_ids"])
    return timed(lambda: len(_pack_bfd(table, max_tokens)))


def llama_factory(checkout, lengths, max_tokens):
    path = checkout / "src/llamafactory/data/processor/processor_utils.py"
    spec = importlib.util.spec_from_file_location("processor_utils", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    numbers = lengths.tolist()
    return timed(lambda: len(module.greedy_knapsack(numbers, max_tokens)))


def loongforge(checkout, lengths, max_tokens):
    folder = str(checkout / "tools/data_preprocess/vlm/offline_packing")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.WARNING)
    from wds_pack.algorithms.hashbucket import HashBucketProcessor
    from wds_pack.core.types import PackItem

    items = (PackItem(sample_id=str(at), token_len=int(length)) for at, length in enumerate(lengths))
    processor = HashBucketProcessor.from_items(items)
    return timed(lambda: len(processor.pack_best_fit_decreasing(box_capacity=max_tokens)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--laws", default="sft,vlm,longtail")
    parser.add_argument("--tokens", default="8192,32768")
    parser.add_argument("--llama-factory", type=Path)
    parser.add_argument("--loongforge", type=Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:

        def measure(law, max_tokens):
            words = ["--samples", args.samples, "--laws", law, "--tokens", max_tokens, "--write", folder]
            command = [str(word) for word in [args.binary, *words]]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            return {line["what"]: line for line in map(json.loads, printed.splitlines())}

        for law, max_tokens in itertools.product(args.laws.split(","), map(int, args.tokens.split(","))):
            ours = measure(law, max_tokens)
            lengths = np.fromfile(Path(folder) / f"{law}-{max_tokens}-{args.samples}.u32", dtype="<u4")
            peers = {"trl": lambda: trl(lengths, max_tokens)}
            if args.llama_factory:
                peers["llama-factory"] = lambda: llama_factory(args.llama_factory, lengths, max_tokens)
            if args.loongforge:
                peers["loongforge (original)"] = lambda: loongforge(args.loongforge, lengths, max_tokens)
            found = {name: run() for name, run in peers.items()}
            # Other programs come and go: the slower of before and after counts.
            seconds = max(ours["offline"]["seconds"], measure(law, max_tokens)["offline"]["seconds"])
            bound = ours["offline"]["bound"]
            print(f"{law}, {max_tokens} tokens, {args.samples} samples: {args.samples / seconds / 1e6:.1f} M samples/s, "
                  f"bound / packs {ours['offline']['of_bound']:.6f}; stream: fill {ours['stream']['fill']:.5f}", flush=True)
            for name, (theirs, packs) in found.items():
                print(f"  {name:22} {args.samples / theirs / 1e3:8.0f} k samples/s, bound / packs {bound / packs:.6f}; "
                      f"we are {theirs / seconds:.0f} times as fast", flush=True)


if __name__ == "__main__":
    main()
