"""Label smoothing, weights of samples, NEFTune and LoRA+ on the tiny model of `preference.py`, as torch, transformers and PEFT have them.

`python training_methods.py OUT --model DIR` writes `OUT/answers.jsonl`, `OUT/adapter` (a LoRA of random weights) and
`OUT/expected.json`: for each method the losses and gradient norms of five steps of AdamW, four samples each, and the norm of every
trained parameter after them. One sample is computed at a time; the loss is the mean over the targets of the step.

- `plain`, `smoothing`: torch's cross_entropy over the answers' tokens; transformers' LabelSmoother is asked for the same and must
  agree.
- `sample`, `square`: the losses of a sample's n tokens count 1/n or 1/sqrt(n), and the step's loss is the weighted mean, as in the training
  of InternVL (`loss_reduction`).
- `neftune`: the noise is drawn as src/torch/model/decoder/neftune.rs says; its size is that which transformers' hook
  (`neftune_post_forward_hook`) gives to one sample, which is asked for its size and must agree.
- `loraplus`: PEFT's create_loraplus_optimizer, with weight decay 0, which it gives to all adapters by default.

Written with torch 2.11.0, transformers 5.17.0 and peft 0.21.2.
"""

import argparse
import json
import math
import random
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from torch.nn import functional as F
from transformers import AutoTokenizer, Qwen3ForCausalLM
from transformers.integrations.neftune import neftune_post_forward_hook
from transformers.trainer_pt_utils import LabelSmoother

STEPS, SAMPLES, RATE, SMOOTHING, ALPHA, RATIO, SEED = 5, 4, 3e-3, 0.2, 5.0, 16.0, 7
WORDS = "the cat sat on a mat and dog ran far away over hills while rain fell".split()
MASK, GOLDEN, NEFTUNE_SALT = (1 << 64) - 1, 0x9E3779B97F4A7C15, 0x006E65667475_6E65
ADAMW = dict(lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def noise(sample: int, length: int, width: int) -> torch.Tensor:
    """SplitMix64, as src/core/rng.rs has it: a key for each token, 24 bits for each number."""
    state = NEFTUNE_SALT
    for word in (SEED, sample, 0):
        state = mix(state ^ mix(word))
    rows = []
    for _ in range(length):
        state = (state + GOLDEN) & MASK
        key = mix(state)
        bits = [mix((key + (d + 1) * GOLDEN) & MASK) >> 40 for d in range(width)]
        rows.append([2 * (b + 0.5) / (1 << 24) - 1 for b in bits])
    return torch.tensor(rows, dtype=torch.float32) * (ALPHA / math.sqrt(length * width))


def write_answers(path: Path):
    draw = random.Random(SEED)
    say = lambda most: " ".join(draw.choices(WORDS, k=draw.randint(1, most)))  # noqa: E731
    with path.open("w") as file:
        for _ in range(STEPS * SAMPLES):
            turns = [{"role": "user", "content": say(9)}, {"role": "assistant", "content": say(8)}]
            file.write(json.dumps({"messages": turns}) + "\n")


def load(folder: Path):
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def samples(path: Path, tokenizer):
    """Ids, and the labels as transformers wants them."""
    for line in path.read_text().splitlines():
        turns = json.loads(line)["messages"]
        prompt = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        begin = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        yield ids, torch.where(torch.arange(len(ids)) < begin, -100, ids)


def steps(model, tokenizer, answers: Path, optimizer, smoothing=0.0, noisy=False, power=0.0):
    rows, all_samples = [], list(samples(answers, tokenizer))
    hook_of = model.get_input_embeddings()
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = all_samples[step * SAMPLES : (step + 1) * SAMPLES]
        count = sum(int((labels[1:] >= 0).sum()) ** (1 - power) for _, labels in batch)
        total = 0.0
        for index, (ids, labels) in enumerate(batch):
            handle = None
            if noisy:
                own = noise(step * SAMPLES + index, len(ids), model.config.hidden_size)
                check_size(own, len(ids), model.config.hidden_size)
                handle = hook_of.register_forward_hook(lambda module, inputs, output: output + own)
            outputs = model(ids[None])
            if handle:
                handle.remove()
            logits = outputs.logits[0, :-1]
            loss = F.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum", label_smoothing=smoothing)
            if smoothing:
                mean = LabelSmoother(smoothing)({"logits": outputs.logits}, labels[None], shift_labels=True)
                assert abs(mean.item() * int((labels[1:] >= 0).sum()) / loss.item() - 1) < 1e-5
            loss = loss * int((labels[1:] >= 0).sum()) ** -power
            (loss / count).backward()
            total += loss.item() / count
        trained = [p for p in model.parameters() if p.requires_grad]
        norm = torch.nn.utils.clip_grad_norm_(trained, 1e9).item()
        optimizer.step()
        rows.append({"loss": total, "grad_norm": norm})
    norms = {}
    for name, value in model.named_parameters():
        if value.requires_grad and name != "lm_head.weight":
            norms[name.replace(".default", "")] = value.detach().double().norm().item()
    return {"steps": rows, "weight_norms": norms}


def check_size(own, length, width):
    """Numbers are as large as those of transformers' hook, which are not ours."""
    module = torch.nn.Identity().train()
    module.neftune_noise_alpha = ALPHA
    theirs = neftune_post_forward_hook(module, None, torch.zeros(1, length, width)).abs().max().item()
    assert abs(own.abs().max().item() / theirs - 1) < 0.05


def make(out: Path, folder: Path):
    out.mkdir(parents=True, exist_ok=True)
    answers = out / "answers.jsonl"
    write_answers(answers)
    expected = {}
    methods = {"plain": {}, "smoothing": {"smoothing": SMOOTHING}, "neftune": {"noisy": True}}
    methods |= {"sample": {"power": 1.0}, "square": {"power": 0.5}}
    for name, options in methods.items():
        model, tokenizer = load(folder)
        model.train()
        expected[name] = steps(model, tokenizer, answers, torch.optim.AdamW(model.parameters(), **ADAMW), **options)
    model, tokenizer = load(folder)
    torch.manual_seed(SEED)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    made = get_peft_model(model, lora)
    with torch.no_grad():
        for name, value in made.named_parameters():
            if "lora_B" in name:
                value.mul_(0.1)
    made.save_pretrained(out / "adapter")
    (out / "adapter" / "README.md").unlink(missing_ok=True)
    for name, ratio in [("lora", 1.0), ("loraplus", RATIO)]:
        model, tokenizer = load(folder)
        model = PeftModel.from_pretrained(model, out / "adapter", is_trainable=True)
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, loraplus_lr_ratio=ratio, **{**ADAMW, "lr": RATE / 4})
        expected[name] = steps(model, tokenizer, answers, optimizer)
    settings = {"rate": RATE, "smoothing": SMOOTHING, "alpha": ALPHA, "ratio": RATIO, "seed": SEED}
    (out / "expected.json").write_text(json.dumps({"settings": settings, "methods": expected}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    arguments = parser.parse_args()
    make(arguments.out, arguments.model)
