"""Packed training of a Qwen3 (B1) against transformers: same weights, documents, order and AdamW.

Sides take turns in one run: ours (`loongforge run`, packs of `--pack` tokens), P0 (a plain loop over `Qwen3ForCausalLM` in padded
micro-batches of like length, the best of several sizes), P1 (P0 under `torch.compile`) and P2 (TRL's SFTTrainer with packing). Name those you have with `--peers`.
Documents have log-normal lengths (median 420) of at most 900 tokens; rates count real tokens, never padding.

    PYTHON benches/sft_packed.py [--binary target/release/loongforge] [--device cpu|cuda] [--dtype float32|bf16] [--peers p0 p1 p2]

PYTHON has torch 2.11, transformers 5.17 and, for P2, trl. bf16: ours has bf16 parameters with float32 masters; P0 and P1 float32
parameters under bf16 autocast, which is the same arithmetic of products; P2 the same by `bf16=True`.
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
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
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

WORDS, EOS, LR, BETAS, DECAY, CLIP = 16_000, 0, 3e-4, (0.9, 0.95), 0.1, 1.0


SIZES = {
    "42m": {"vocab_size": WORDS + 64, "hidden_size": 512, "intermediate_size": 1664, "num_hidden_layers": 10,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64},
    # Qwen3-0.6B
    "0.6b": {"vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
}


def make(folder, samples, seed, model_size="42m"):
    """A random model with a tokenizer of one token a word, and documents."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(seed)
    config = Qwen3Config(**SIZES[model_size], max_position_embeddings=2048, tie_word_embeddings=True, eos_token_id=EOS)
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder / "model")
    vocabulary = {"<eos>": EOS, "<unk>": 1} | {f"{word:06d}": word + 2 for word in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>").save_pretrained(folder / "model")
    draw = random.Random(seed)
    documents = []
    for _ in range(samples):
        length = min(900, max(16, round(math.exp(draw.gauss(math.log(420), 0.995)))))
        # A Zipf-like text, so that there is something to learn.
        documents.append([2 + int(WORDS ** draw.random()) - 1 for _ in range(length)])
    with open(folder / "train.jsonl", "w") as lines:
        for document in documents:
            lines.write(json.dumps({"text": " ".join(f"{token - 2:06d}" for token in document)}) + "\n")
    return sum(parameter.numel() for parameter in model.parameters()), documents


def ours(args, folder, name):
    settings = {
        "run": {"name": "b1", "dir": str(folder / name)},
        "device": args.device,
        "model": {"load": str(folder / "model")},
        "data": {"train": [{"path": str(folder / "train.jsonl"), "format": "text"}], "shuffle": False, "pack": {"max_tokens": args.pack}},
        "train": {
            "phase": "pretrain", "steps": args.steps, "global_batch_size": args.batch, "lr": LR, "min_lr": LR, "warmup_steps": 0,
            "precision": args.dtype, "clip_grad": CLIP, "optimizer": {"betas": list(BETAS), "weight_decay": DECAY},
        },
        "log": {"tensorboard": False, "level": "warn"},
    }
    (folder / "b1.yaml").write_text(json.dumps(settings))
    done = subprocess.run([args.binary, "run", folder / "b1.yaml", *args.set, "--overwrite"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    timed = rows[args.skip :]
    seconds = sum(row["step_ms"] for row in timed) / 1e3
    return {"rate": sum(row["tokens"] for row in timed) / seconds, "losses": [row["loss"] for row in rows],
            "tokens": [row["tokens"] for row in rows]}


def plain(args, folder, steps, micro, compiled):
    torch.set_num_threads(os.cpu_count())
    model = Qwen3ForCausalLM.from_pretrained(folder / "model", attn_implementation="sdpa", dtype=torch.float32).to(args.device).train()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, fused=True)
    forward = torch.compile(model, dynamic=True) if compiled else model
    losses, seconds, tokens = [], [], []
    # A GPU computes while the program goes on: a step ends when it has.
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    for batch in steps:
        begin = time.perf_counter()
        batch = sorted(batch, key=len)
        targets = sum(len(document) - 1 for document in batch)
        total = 0.0
        for at in range(0, len(batch), micro):
            rows = [torch.tensor(document) for document in batch[at : at + micro]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(args.device)
            real = (torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]).to(args.device)
            mask = None if real.all() else real.long()
            with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
                logits = forward(input_ids=ids, attention_mask=mask, use_cache=False).logits
            labels = ids[:, 1:].masked_fill(~real[:, 1:], -100)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels.flatten(), reduction="sum") / targets
            loss.backward()
            total += loss.detach()  # read at the step's end, so that a GPU need not wait
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        seconds.append(time.perf_counter() - begin)
        losses.append(float(total))
        tokens.append(sum(map(len, batch)))
    return {"rate": sum(tokens[args.skip :]) / sum(seconds[args.skip :]), "losses": losses, "tokens": tokens}


def trl(args, folder, documents):
    """Real tokens a second of the trainer's own steps; it packs 1,024 tokens a row, `batch` documents' worth a step."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(os.cpu_count())
    times, seen = [], []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_, **__):
            times.append((time.perf_counter(), 0))

        def on_step_end(self, *_, **__):
            times.append((time.perf_counter(), sum(seen)))

    rows = max(1, round(args.batch * sum(map(len, documents)) / len(documents) / args.pack))
    config = SFTConfig(
        output_dir=str(folder / "trl"), packing=True, packing_strategy="bfd", max_length=args.pack, per_device_train_batch_size=1,
        gradient_accumulation_steps=rows, max_steps=args.steps, learning_rate=LR, lr_scheduler_type="constant", weight_decay=DECAY,
        adam_beta1=BETAS[0], adam_beta2=BETAS[1], max_grad_norm=CLIP, bf16=args.dtype == "bf16", use_cpu=args.device == "cpu", save_strategy="no",
        report_to=[], disable_tqdm=True, gradient_checkpointing=False, logging_steps=1000, dataset_num_proc=None,
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    model = Qwen3ForCausalLM.from_pretrained(folder / "model", attn_implementation="sdpa", dtype=torch.float32)
    # Rows of one pack are not padded: what goes in is real.
    model.register_forward_pre_hook(lambda _, __, inputs: seen.append(inputs["input_ids"].numel()), with_kwargs=True)
    data = Dataset.from_list([{"input_ids": document} for document in documents])
    SFTTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[Clock()]).train()
    (begin, before), (end, after) = times[args.skip], times[-1]
    return {"rate": (after - before) / (end - begin), "losses": []}


def alone(side, *arguments):
    """In a process of its own, so that no side keeps memory of another's."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(side, *arguments).result()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("target/release/loongforge"))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--size", choices=SIZES, default="42m")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--skip", type=int, default=2, help="first steps of a round that are not timed")
    parser.add_argument("--batch", type=int, default=8, help="documents a step")
    parser.add_argument("--pack", type=int, default=1024, help="tokens of a pack, ours and p2's")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--micro", type=int, nargs="+", default=[1, 2, 4], help="documents of a padded micro-batch, to try")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys of our config, as run.products=libtorch")
    parser.add_argument("--peers", nargs="+", default=["p0", "p1", "p2"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size, documents = alone(make, folder, args.steps * args.batch, 1, args.size)
        ended = [[*document, EOS] for document in documents]
        steps = [ended[at : at + args.batch] for at in range(0, len(ended), args.batch)]
        print(f"{size / 1e6:.1f} M parameters, {args.dtype}", flush=True)
        best = args.micro[0]
        if len(args.micro) > 1:
            trial = {micro: alone(plain, args, folder, steps[: args.skip + 2], micro, False)["rate"] for micro in args.micro}
            best = max(trial, key=trial.get)
            print("padded micro-batches, real tokens/s:", *(f"{micro}: {rate:.0f}" for micro, rate in trial.items()), flush=True)
        sides = {"ours": lambda: ours(args, folder, "ours"), "p0": lambda: alone(plain, args, folder, steps, best, False),
                 "p1": lambda: alone(plain, args, folder, steps, best, True),
                 "p2": lambda: alone(trl, args, folder, ended)}
        found = {name: [] for name in ["ours", *args.peers]}
        for _ in range(args.rounds):
            for name in found:
                result = sides[name]()
                found[name].append(result)
                print(f"{name:5} {result['rate']:8.0f} real tokens/s", *(f"loss {x:.4f}" for x in result["losses"][:1] + result["losses"][-1:]), flush=True)
        assert found["ours"][0]["tokens"] == [sum(map(len, batch)) for batch in steps], "both sides read the same documents"
        rate = {name: statistics.median(result["rate"] for result in results) for name, results in found.items()}
        ends = {name: results[0]["losses"][-1] for name, results in found.items() if results[0]["losses"]}
        print(f"loss after {args.steps} steps, ours against each, relative:",
              {name: f"{ends['ours'] / loss - 1:+.2e}" for name, loss in ends.items() if name != "ours"})
        print("ratio to the best peer:", round(rate["ours"] / max(rate[name] for name in args.peers), 2),
              {name: round(rate["ours"] / rate[name], 2) for name in args.peers})


if __name__ == "__main__":
    main()
