"""Step time of the quick start against Python transformers: same weights, samples, order, learning rates, float32.

Rounds alternate between the two sides in one run: A is our binary, B a plain loop over
`Qwen3VLForConditionalGeneration` in right-padded batches. Rates count real tokens, never padding. B gets its batches
ready made before its clock starts, while A reads, decodes and tokenizes its pictures inside the measured time.

    PYTHON benches/step_time.py [--binary target/release/loongforge] [--steps 60] [--rounds 3]

PYTHON has torch 2.11, torchvision and transformers 5.17.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# A gets the environment as it is. For B, `--passive` has to be known before torch loads its OpenMP.
ENVIRONMENT = dict(os.environ)
if "--passive" in sys.argv:
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration
from transformers.utils import logging

IGNORE = -100
CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.yaml"


def run(command):
    done = subprocess.run([str(word) for word in command], env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


# ---------------------------------------------------------------- A: our binary


def paths(args, model):
    """Overrides that point the quick start's file at a model and at our copy of the data."""
    return [f"model.load={model}", f"data.train.0.path={args.data / 'train.jsonl'}", "eval=null"]


def train_ours(args, folder, model, steps, *overrides):
    """The run's metrics, one dictionary a step."""
    warmup = min(args.config["train"]["warmup_steps"], steps // 2)
    settings = {
        "run.dir": folder,
        "run.name": "bench",
        "data.shuffle": "false",
        "train.steps": steps,
        "train.warmup_steps": warmup,
        "checkpoint.every_steps": 0,
        "log.tensorboard": "false",
        "log.level": "warn",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    run([args.binary, "run", CONFIG, *paths(args, model), *words, *overrides, "--overwrite"])
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def round_ours(args, folder, checkpoint):
    rows = train_ours(args, folder, checkpoint, args.steps, "model.weights=load")
    timed = rows[args.skip :]
    return {
        "step_ms": statistics.median(row["step_ms"] for row in timed),
        "tokens_per_s": sum(row["tokens"] for row in timed) / sum(row["step_ms"] / 1e3 for row in timed),
        "losses": [row["loss"] for row in rows],
        "learning_rates": [row["learning_rate"] for row in rows],
        "tokens": [row["tokens"] for row in rows],
    }


# ---------------------------------------------------------------- B: transformers


def read_samples(data, processor, count):
    """Samples in file order, unpadded, with labels on the assistant's answers and the tokens that end them."""
    start = processor.tokenizer("<|im_start|>assistant\n").input_ids
    end = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    samples = []
    with open(data / "train.jsonl", encoding="utf-8") as lines:
        for line in itertools.islice(itertools.cycle(lines.readlines()), count):
            row = json.loads(line)
            text = processor.apply_chat_template(
                [{"role": turn["role"], "content": parts(turn["content"])} for turn in row["messages"]], tokenize=False
            )
            images = [Image.open(data / path).convert("RGB") for path in row["images"]]
            inputs = processor(text=[text], images=images, return_tensors="pt")
            ids = inputs["input_ids"][0]
            samples.append(
                {
                    "input_ids": ids,
                    "labels": torch.tensor(label(ids.tolist(), start, end)),
                    "mm_token_type_ids": inputs["mm_token_type_ids"][0],
                    "pixel_values": inputs["pixel_values"],
                    "image_grid_thw": inputs["image_grid_thw"],
                }
            )
    return samples


def parts(content):
    """`<image>Read it.` as the typed parts that chat templates know."""
    texts = content.split("<image>")
    mixed = [{"type": "text", "text": texts[0]}]
    for text in texts[1:]:
        mixed += [{"type": "image"}, {"type": "text", "text": text}]
    return [part for part in mixed if part.get("text") != ""]


def label(ids, start, end):
    labels, answering = [IGNORE] * len(ids), False
    for at, token in enumerate(ids):
        if answering:
            labels[at] = token
            answering = token != end
        elif ids[max(0, at + 1 - len(start)) : at + 1] == start:
            answering = True
    return labels


def collate(samples):
    """One right-padded batch."""
    padded = lambda key, value: torch.nn.utils.rnn.pad_sequence(
        [sample[key] for sample in samples], batch_first=True, padding_value=value
    )
    lengths = torch.tensor([len(sample["input_ids"]) for sample in samples])
    labels = padded("labels", IGNORE)
    return {
        "inputs": {
            "input_ids": padded("input_ids", 0),
            "attention_mask": (torch.arange(labels.shape[1]) < lengths[:, None]).long(),
            "mm_token_type_ids": padded("mm_token_type_ids", 0),
            "pixel_values": torch.cat([sample["pixel_values"] for sample in samples]),
            "image_grid_thw": torch.cat([sample["image_grid_thw"] for sample in samples]),
        },
        # Position i predicts token i + 1.
        "targets": F.pad(labels[:, 1:], (0, 1), value=IGNORE),
    }


def plan(samples, steps, batch_size, micro):
    """Micro-batches of every step: the whole batch at once, or `micro` samples of like length at a time."""
    planned = []
    for step in range(steps):
        batch = samples[step * batch_size : (step + 1) * batch_size]
        tokens = sum(len(sample["input_ids"]) for sample in batch)
        if micro is not None:
            batch = sorted(batch, key=lambda sample: len(sample["input_ids"]))
        size = micro or batch_size
        planned.append((tokens, [collate(batch[at : at + size]) for at in range(0, batch_size, size)]))
    return planned


def round_theirs(args, checkpoint, planned, attention, learning_rates):
    """Trains on all of `planned`."""
    train = args.config["train"]
    model = Qwen3VLForConditionalGeneration.from_pretrained(
        checkpoint, attn_implementation=attention, dtype=torch.float32
    )
    model.train()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    settings = train["optimizer"]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        betas=tuple(settings["betas"]),
        eps=settings["eps"],
        fused=True,
    )
    losses, seconds = [], []
    for (_, micros), learning_rate in zip(planned, learning_rates):
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        num_targets = sum((micro["targets"] != IGNORE).sum() for micro in micros)
        total = 0.0
        for micro in micros:
            # Logits of the rows that count only: less work than the loss that comes with the model.
            hidden = model.model(**micro["inputs"], use_cache=False).last_hidden_state
            counts = micro["targets"] != IGNORE
            logits = model.lm_head(hidden[counts])
            loss = F.cross_entropy(logits, micro["targets"][counts], reduction="sum") / num_targets
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train["clip_grad"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
        losses.append(total)
    timed = seconds[args.skip :]
    return {
        "step_ms": statistics.median(timed) * 1e3,
        "tokens_per_s": sum(tokens for tokens, _ in planned[args.skip :]) / sum(timed),
        "losses": losses,
    }


# ---------------------------------------------------------------- both


def spread(values, digits):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("target/release/loongforge"))
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps a round")
    parser.add_argument("--skip", type=int, default=10, help="first steps of a round that are not timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch, for transformers")
    parser.add_argument("--attention", nargs="+", default=["sdpa", "eager"], help="of transformers, to try")
    parser.add_argument("--micro", nargs="*", type=int, default=[16], help="length-grouped micro-batches, to try")
    parser.add_argument("--trial", type=int, default=10, help="timed steps of each variant; the best plays")
    parser.add_argument("--passive", action="store_true", help="waiting threads of transformers sleep")
    args = parser.parse_args()
    if not args.steps > args.skip:
        parser.error("--steps must be more than --skip")
    if not args.binary.is_file():
        parser.error(f"no program at {args.binary}: cargo build --release, or name another with --binary")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        args.data = folder / "data"
        run([args.binary, "data", "digits", "--out", args.data])
        check = [args.binary, "check", CONFIG, *paths(args, args.data / "model"), "--format", "json"]
        args.config = json.loads(run(check))
        batch_size = args.config["train"]["global_batch_size"]
        # Common weights: those of a first, random model after one step.
        first = folder / "first"
        train_ours(args, first, args.data / "model", 1)
        (checkpoint,) = (first / "checkpoints").glob("step-*")

        processor = AutoProcessor.from_pretrained(checkpoint)
        samples = read_samples(args.data, processor, args.steps * batch_size)
        layouts = {"one batch": plan(samples, args.steps, batch_size, None)}
        layouts |= {f"by length, {size} at a time": plan(samples, args.steps, batch_size, size) for size in args.micro}
        variants = [(attention, layout) for attention in args.attention for layout in layouts]

        ours, theirs, trial = [], [], {}
        for number in range(args.rounds):
            ours.append(round_ours(args, folder / "ours", checkpoint))
            rates = ours[0]["learning_rates"]
            if number == 0:
                for attention, layout in variants:
                    planned = layouts[layout][: args.skip + args.trial]
                    trial[attention, layout] = round_theirs(args, checkpoint, planned, attention, rates)
                best = max(variants, key=lambda variant: trial[variant]["tokens_per_s"])
            theirs.append(round_theirs(args, checkpoint, layouts[best[1]], best[0], rates))
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    assert ours[0]["tokens"] == [tokens for tokens, _ in layouts["one batch"]], "both sides read the same samples"
    report(args, layouts, trial, best, ours, theirs)


def report(args, layouts, trial, best, ours, theirs):
    batch_size = args.config["train"]["global_batch_size"]
    padded = sum(group["inputs"]["input_ids"].numel() for _, micros in layouts["one batch"] for group in micros)
    real = sum(tokens for tokens, _ in layouts["one batch"])
    revision = run([args.binary, "--version"]).strip()
    print(f"{revision}; transformers {transformers.__version__}, torch {torch.__version__}, {args.threads} threads")
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end")
    print(
        f"{args.rounds} rounds of {args.steps} steps, the first {args.skip} not timed; batch {batch_size}, "
        f"{real / args.steps:,.0f} real tokens a step, {1 - real / padded:.0%} of one padded batch is padding\n"
    )
    tried = [f"{', '.join(variant)}: {result['step_ms']:,.1f} ms" for variant, result in trial.items()]
    print(f"transformers' variants, {args.trial} steps each: {'; '.join(tried)}; the best plays: {', '.join(best)}\n")
    speeds = [[result["tokens_per_s"] for result in rounds] for rounds in (ours, theirs)]
    for name, rounds, speed in zip(("loongforge", "transformers"), (ours, theirs), speeds):
        step_ms, losses = [result["step_ms"] for result in rounds], rounds[-1]["losses"]
        print(
            f"{name:12}  step {spread(step_ms, 1)} ms  {spread(speed, 0)} real tokens/s  "
            f"loss {losses[0]:.4f}, after {len(losses)} steps {losses[-1]:.4f}"
        )
    print(f"ratio of real tokens/s: {spread([a / b for a, b in zip(*speeds)], 2)}")


if __name__ == "__main__":
    main()
