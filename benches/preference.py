"""DPO on packed pairs against TRL's DPOTrainer: same weights, pairs, order and AdamW.

Sides take turns in one run: ours (`loongforge run`, both answers of a pair in a pack of 2,048 tokens, their prompt computed once, the
reference model in the same actor) and TRL, whose pairs are padded, at the best of several micro-batches. Both compute the reference in
every step. Prompts and answers have log-normal lengths (medians 160 and 200); rates count real tokens, those of a prompt twice, never
padding. In bf16 three rounds of `--steps 3 --batch 2 --micro 1` take three minutes on two cores.

    PYTHON benches/preference.py [--binary target/release/loongforge] [--dtype float32|bf16] [--size 42m]

PYTHON has torch 2.11, transformers 5.17 and trl. bf16: ours has bf16 parameters with float32 masters, TRL float32 parameters under
bf16 autocast.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from sft_packed import SIZES, WORDS, alone

PACK, LR, BETAS, BETA = 2048, 1e-5, (0.9, 0.95), 0.1
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <end> {% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"


def make(folder, count, seed, size):
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(seed)
    config = Qwen3Config(**SIZES[size], max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=0)
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder / "model")
    vocabulary = {"<end>": 0, "<unk>": 1, "<user>": 2, "<assistant>": 3} | {f"{word:06d}": word + 4 for word in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder / "model")
    draw, tokens = random.Random(seed), []

    def text(median):
        length = min(600, max(4, round(math.exp(draw.gauss(math.log(median), 0.8)))))
        return length, " ".join(f"{int(WORDS ** draw.random()) - 1:06d}" for _ in range(length))

    with open(folder / "pairs.jsonl", "w") as lines:
        for _ in range(count):
            (prompt, asked), (chosen, one), (rejected, other) = text(160), text(200), text(200)
            say = lambda role, content: [{"role": role, "content": content}]  # noqa: E731
            record = {"prompt": say("user", asked), "chosen": say("assistant", one), "rejected": say("assistant", other)}
            lines.write(json.dumps(record) + "\n")
            # Each turn has its role and its end.
            tokens.append(2 * prompt + chosen + rejected + 8)
    return sum(parameter.numel() for parameter in model.parameters()), tokens


def ours(args, folder):
    settings = {
        "run": {"name": "dpo", "dir": str(folder / "ours")},
        "model": {"load": str(folder / "model")},
        "data": {"train": [{"path": str(folder / "pairs.jsonl")}], "shuffle": False, "pack": {"max_tokens": PACK}},
        "train": {
            "steps": args.steps, "global_batch_size": args.batch, "lr": LR, "min_lr": LR, "precision": args.dtype, "clip_grad": 1.0,
            "optimizer": {"betas": list(BETAS), "weight_decay": 0.0}, "preference": {"beta": BETA},
        },
        "pools": {"placement": "colocated"},
        "checkpoint": {"every_steps": 0},
        "log": {"tensorboard": False, "level": "warn"},
    }
    (folder / "dpo.yaml").write_text(json.dumps(settings))
    done = subprocess.run([args.binary, "run", folder / "dpo.yaml", *args.set, "--overwrite"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    rows = [json.loads(line) for line in (folder / "ours/metrics.jsonl").read_text().splitlines()]
    timed = rows[args.skip :]
    rate = sum(row["tokens"] for row in timed) / sum(row["step_ms"] for row in timed) * 1e3
    return {"rate": rate, "losses": [row["loss"] for row in rows], "tokens": [row["tokens"] for row in rows]}


def trl(args, folder, tokens, steps, micro):
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import DPOConfig, DPOTrainer

    torch.set_num_threads(os.cpu_count())
    times, losses = [], []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_, **__):
            times.append(time.perf_counter())

        def on_step_end(self, *_, **__):
            times.append(time.perf_counter())

        def on_log(self, _, __, ___, logs=None, **____):
            if "loss" in (logs or {}):
                losses.append(float(logs["loss"]))

    config = DPOConfig(
        output_dir=str(folder / "trl"), max_length=None, per_device_train_batch_size=micro, gradient_accumulation_steps=args.batch // micro,
        max_steps=steps, learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.0, adam_beta1=BETAS[0], adam_beta2=BETAS[1],
        max_grad_norm=1.0, beta=BETA, bf16=args.dtype == "bf16", use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True,
        gradient_checkpointing=False, logging_steps=1, train_sampling_strategy="sequential",
    )
    model = Qwen3ForCausalLM.from_pretrained(folder / "model", attn_implementation="sdpa", dtype=torch.float32)
    data = Dataset.from_list([json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    DPOTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[Clock()]).train()
    counted = sum(tokens[args.skip * args.batch : steps * args.batch])
    return {"rate": counted / (times[-1] - times[args.skip]), "losses": losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("target/release/loongforge"))
    parser.add_argument("--dtype", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--size", choices=SIZES, default="42m")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--skip", type=int, default=1, help="first steps of a round that are not timed")
    parser.add_argument("--batch", type=int, default=4, help="pairs a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--micro", type=int, nargs="+", default=[1, 2], help="pairs of TRL's micro-batch, to try")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys of our config")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size, tokens = alone(make, folder, args.steps * args.batch, 1, args.size)
        print(f"{size / 1e6:.1f} M parameters, {args.dtype}, {sum(tokens) / len(tokens):.0f} tokens a pair", flush=True)
        trial = {micro: alone(trl, args, folder, tokens, args.skip + 1, micro)["rate"] for micro in args.micro}
        best = max(trial, key=trial.get)
        print("TRL's micro-batches, real tokens/s:", *(f"{micro}: {rate:.0f}" for micro, rate in trial.items()), flush=True)
        found = {"ours": [], "trl": []}
        for _ in range(args.rounds):
            for name, side in [("ours", lambda: ours(args, folder)), ("trl", lambda: alone(trl, args, folder, tokens, args.steps, best))]:
                result = side()
                found[name].append(result)
                first, last = result["losses"][0], result["losses"][-1]
                print(f"{name:5} {result['rate']:8.0f} real tokens/s, loss {first:.4f} {last:.4f}", flush=True)
        batches = [sum(tokens[at : at + args.batch]) for at in range(0, len(tokens), args.batch)]
        assert found["ours"][0]["tokens"] == batches, (found["ours"][0]["tokens"], batches)
        rates = {name: statistics.median(result["rate"] for result in results) for name, results in found.items()}
        print(f"ratio to TRL: {rates['ours'] / rates['trl']:.2f}")


if __name__ == "__main__":
    main()
