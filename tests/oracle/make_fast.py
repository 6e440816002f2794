"""FAST tokens of chunks of actions: a tiny tokenizer, trained as `physical-intelligence/fast` trains, and what its definition makes
of chunks.

    python make_fast.py src/core/data/goldens/fast
    python make_fast.py OUT --seed 2 --horizon 7 --width 5 --scale 25 --vocab 300

The definition (`UniversalActionProcessor`): scipy's orthonormal DCT-II along time, times `scale`, numpy's rounding; coefficients,
less `min_token`, are characters, and a byte-level BPE tokenizer makes ids of them. `pip install scipy tokenizers`. The universal
tokenizer is a folder of the same files: `--tokenizer FOLDER` takes that (or any other) instead of training one, and writes what
it makes of the chunks.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
from scipy.fft import dct, idct
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from tokenizers.trainers import BpeTrainer


def chunks(rng: np.random.Generator, count: int, horizon: int, width: int) -> np.ndarray:
    """Smooth paths with a jump here and there, as normalized actions are."""
    steps = rng.normal(size=(count, horizon, width)).cumsum(axis=1) * 0.15
    jumps = (rng.random((count, 1, width)) < 0.2) * (np.arange(horizon)[None, :, None] > horizon // 2)
    return (steps + jumps * rng.normal(size=(count, 1, width))).astype(np.float32)


def train(data: np.ndarray, scale: float, vocab_size: int) -> tuple[Tokenizer, int]:
    coefficients = np.around(dct(data, axis=1, norm="ortho") * scale).astype(int)
    least, most = int(coefficients.min()), int(coefficients.max())
    tokenizer = ByteLevelBPETokenizer()
    trainer = BpeTrainer(vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=[],
                         initial_alphabet=[chr(at) for at in range(most - least + 1)], max_token_length=10000)
    texts = ("".join(chr(value - least) for value in chunk.flatten()) for chunk in coefficients)
    tokenizer._tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer._tokenizer, least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--horizon", type=int, default=8)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--scale", type=float, default=10)
    parser.add_argument("--vocab", type=int, default=200)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--tokenizer", type=Path, help="a folder to take instead of training one")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.tokenizer:
        settings = json.loads((args.tokenizer / "processor_config.json").read_text())
        shutil.copy(args.tokenizer / "tokenizer.json", args.out)
        shutil.copy(args.tokenizer / "processor_config.json", args.out)
        bpe, least, args.scale = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json")), settings["min_token"], settings["scale"]
    else:
        bpe, least = train(chunks(rng, 400, args.horizon, args.width), args.scale, args.vocab)
        bpe.save(str(args.out / "tokenizer.json"), pretty=False)
        settings = dict(action_dim=None, auto_map={"AutoProcessor": "processing_action_tokenizer.UniversalActionProcessor"},
                        min_token=least, processor_class="UniversalActionProcessor", scale=args.scale, time_horizon=None,
                        vocab_size=args.vocab)
        (args.out / "processor_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    cases = []
    while len(cases) < args.count:
        chunk = chunks(rng, 1, args.horizon, args.width)[0]
        scaled = dct(chunk, axis=0, norm="ortho") * args.scale
        # float32 rounds nearly halves either way, and what lies below the smallest coefficient is another case.
        if np.abs(np.abs(scaled - np.floor(scaled)) - 0.5).min() < 1e-4:
            continue
        coefficients = np.around(scaled).astype(int)
        text = "".join(chr(max(value - least, 0)) for value in coefficients.flatten())
        ids = bpe.encode(text).ids
        back = bpe.decode(ids, skip_special_tokens=False)
        if back != text:
            continue
        values = np.array([ord(letter) for letter in back]) + least
        decoded = idct(values.reshape(args.horizon, args.width) / args.scale, axis=0, norm="ortho")
        cases.append(dict(actions=chunk.flatten().tolist(), ids=ids, decoded=decoded.astype(np.float32).flatten().tolist(),
                          clipped=int((coefficients < least).sum())))
    found = dict(horizon=args.horizon, width=args.width, cases=cases)
    (args.out / "expected.json").write_text(json.dumps(found) + "\n")
    print(args.out, "vocabulary", bpe.get_vocab_size(), "min_token", least, "tokens", [len(case["ids"]) for case in cases],
          "clipped", sum(case["clipped"] for case in cases))


if __name__ == "__main__":
    main()
