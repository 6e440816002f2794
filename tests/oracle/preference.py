"""Pairs of answers, a tiny model, and what TRL makes of them.

`python preference.py make OUT` writes `OUT/model` (a Qwen3 of random weights with a byte tokenizer and a chat template),
`OUT/pairs.jsonl`, and `OUT/expected.json`: for each loss the losses, rewards, log-probabilities and gradient norms of five steps of
AdamW, and the norm of every parameter after them. TRL's trainers are asked one pair at a time (four are a step), so that every mean
is over pairs. DPO's kin is TRL's DPOTrainer, SimPO its CPOTrainer; ORPO is its `odds_ratio_loss` beside the negative
log-likelihood of the answer, where TRL's trainer takes that of the prompt, too.

`python preference.py kto OUT --model DIR` writes `OUT/answers.jsonl` (answers that are good or bad) and `OUT/expected.json`: the same
of TRL's KTOTrainer on that model, with two micro-batches of four answers a step, which are groups here.

Written with trl 1.16.0 and transformers 5.17.0.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.trainer_callback import TrainerCallback

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STEPS, PAIRS, RATE, BETA, SMOOTHING, GAMMA = 5, 4, 3e-3, 0.3, 0.1, 0.5
SPECIAL = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|pad|>"]
WORDS = "the cat sat on a mat and dog ran far away over hills while rain fell".split()
LOSSES = {
    "sigmoid": {},
    "sigmoid_nll": {},
    "robust": {"label_smoothing": SMOOTHING},
    "hinge": {},
    "ipo": {},
    "apo_zero": {},
    "apo_down": {},
}


def write_model(out: Path, seed: int):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.add_special_tokens({"additional_special_tokens": SPECIAL[:3]})
    fast.chat_template = TEMPLATE
    fast.save_pretrained(out)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, rope_theta=100.0, initializer_range=0.1,
        eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id, bos_token_id=None, max_position_embeddings=512,
    )
    Qwen3ForCausalLM(config).save_pretrained(out)


def write_pairs(path: Path, seed: int):
    draw = random.Random(seed)
    say = lambda most: " ".join(draw.choices(WORDS, k=draw.randint(1, most)))  # noqa: E731
    with path.open("w") as file:
        for number in range(STEPS * PAIRS):
            prompt = [{"role": "user", "content": say(9)}]
            if number % 3 == 0:
                prompt = [{"role": "system", "content": say(3)}, *prompt]
            if number % 4 == 1:
                prompt += [{"role": "assistant", "content": say(4)}, {"role": "user", "content": say(5)}]
            answers = [[{"role": "assistant", "content": say(most)}] for most in (8, 12)]
            record = {"prompt": prompt, "chosen": answers[0], "rejected": answers[1]}
            file.write(json.dumps(record) + "\n")


class Logs(TrainerCallback):
    def __init__(self):
        self.rows = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.rows.append({key: float(value) for key, value in logs.items()})


def settings():
    return dict(
        output_dir="/tmp/preference", max_steps=STEPS, per_device_train_batch_size=1, gradient_accumulation_steps=PAIRS,
        learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=1e9, adam_beta1=0.9, adam_beta2=0.95,
        adam_epsilon=1e-8, weight_decay=0.0, optim="adamw_torch", use_cpu=True, bf16=False, logging_steps=1, report_to=[],
        save_strategy="no", train_sampling_strategy="sequential", beta=BETA, disable_dropout=True, gradient_checkpointing=False,
        dataloader_num_workers=0, remove_unused_columns=False, seed=0,
    )


def pairs(folder: Path):
    from datasets import Dataset

    return Dataset.from_list([json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()])


def load(folder: Path):
    model = Qwen3ForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder / "model")


def report(rows, model):
    keys = {
        "loss": "loss", "grad_norm": "grad_norm", "chosen_reward": "rewards/chosen", "rejected_reward": "rewards/rejected",
        "accuracy": "rewards/accuracies", "chosen_logp": "logps/chosen", "rejected_logp": "logps/rejected",
    }
    steps = [{ours: row[theirs] for ours, theirs in keys.items() if theirs in row} for row in rows]
    norms = {name: value.double().norm().item() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    return {"steps": steps, "weight_norms": norms}


def with_dpo(folder: Path, name: str, options: dict):
    from trl import DPOConfig, DPOTrainer

    model, tokenizer = load(folder)
    loss = {"loss_type": [name]}
    if name == "sigmoid_nll":
        loss = {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}
    args = DPOConfig(**settings(), **loss, **options, max_length=None)
    logs = Logs()
    DPOTrainer(model, args=args, train_dataset=pairs(folder), processing_class=tokenizer, callbacks=[logs]).train()
    return report(logs.rows, model)


def with_cpo(folder: Path):
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    model, tokenizer = load(folder)
    args = CPOConfig(**settings(), loss_type="simpo", cpo_alpha=0.0, simpo_gamma=GAMMA, max_length=None)
    logs = Logs()
    CPOTrainer(model, args=args, train_dataset=pairs(folder), processing_class=tokenizer, callbacks=[logs]).train()
    return report(logs.rows, model)


def orpo_steps(model, optimizer, records, logps):
    """Steps of ORPO; `logps` gives the log-probabilities of the tokens of an answer of a record. The formula alone is the trainer's."""
    from trl.experimental.orpo import ORPOTrainer

    self = type("Self", (), {"beta": BETA, "accelerator": type("Accelerator", (), {"device": "cpu"})})()
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = []
        for record in records[step * PAIRS : (step + 1) * PAIRS]:
            means, sums = [], []
            for answer in ("chosen", "rejected"):
                of_tokens = logps(record, answer)
                means.append(of_tokens.mean()[None])
                sums.append(of_tokens.sum().item())
            losses, chosen, rejected, *_ = ORPOTrainer.odds_ratio_loss(self, *means)
            loss = -means[0].mean() - losses.mean()
            (loss / PAIRS).backward()
            rows.append([loss.item(), chosen.item(), rejected.item(), float(chosen > rejected), *sums])
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
        optimizer.step()
        names = ["loss", "chosen_reward", "rejected_reward", "accuracy", "chosen_logp", "rejected_logp"]
        means = [sum(column) / PAIRS for column in zip(*rows)]
        steps.append({**dict(zip(names, means)), "grad_norm": norm})
    return steps


def with_orpo(folder: Path):
    model, tokenizer = load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)

    def logps(record, answer):
        prompt = tokenizer.apply_chat_template(record["prompt"], tokenize=False, add_generation_prompt=True)
        text = tokenizer.apply_chat_template(record["prompt"] + record[answer], tokenize=False)
        begin = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        return model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[begin - 1 :, 0]

    records = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    return {**report([], model), "steps": orpo_steps(model, optimizer, records, logps)}


GROUPS, GROUP, DESIRABLE, UNDESIRABLE = 2, 4, 1.5, 0.75


def write_answers(path: Path, seed: int):
    draw = random.Random(seed)
    say = lambda most: " ".join(draw.choices(WORDS, k=draw.randint(1, most)))  # noqa: E731
    with path.open("w") as file:
        for number in range(STEPS * GROUPS * GROUP):
            prompt = [{"role": "user", "content": say(9)}]
            if number % 4 == 1:
                prompt += [{"role": "assistant", "content": say(4)}, {"role": "user", "content": say(5)}]
            # The last group has bad answers alone.
            good = draw.random() < 0.5 and number < (STEPS * GROUPS - 1) * GROUP
            completion = [{"role": "assistant", "content": say(10)}]
            file.write(json.dumps({"prompt": prompt, "completion": completion, "label": good}) + "\n")


def kto_steps(trained, processing_class, answers, weights: dict):
    """Steps of TRL's KTOTrainer, which reports means over micro-batches of means over their answers; here they are means over the
    answers of a step."""
    from trl import KTOConfig, KTOTrainer

    class Trainer(KTOTrainer):
        def _compute_loss(self, model, inputs, return_outputs):
            metrics, labels = self._metrics["train"], inputs["label"]
            result = super()._compute_loss(model, inputs, return_outputs)
            counts = {"chosen": int(sum(labels)), "rejected": len(labels) - int(sum(labels))}
            sums = {"kl": metrics["kl"][-1] * len(labels), **counts}
            for kind, count in counts.items():
                for what in ("rewards", "logps"):
                    sums[f"{what}/{kind}"] = metrics[f"{what}/{kind}"][-1] * count if count else 0.0
            self.parts.append(sums)
            return result

    of_run = {**settings(), "per_device_train_batch_size": GROUP, "gradient_accumulation_steps": GROUPS}
    args = KTOConfig(**of_run, **weights, max_length=None)
    logs = Logs()
    trainer = Trainer(trained, args=args, train_dataset=answers, processing_class=processing_class, callbacks=[logs])
    trainer.parts = []
    trainer.train()
    steps = []
    for step, row in enumerate(logs.rows):
        parts = trainer.parts[step * GROUPS : (step + 1) * GROUPS]
        total = {key: sum(part[key] for part in parts) for key in parts[0]}
        found = {"loss": row["loss"], "grad_norm": row["grad_norm"], "divergence": total["kl"] / (GROUPS * GROUP)}
        for kind in ("chosen", "rejected"):
            found[f"{kind}_reward"] = total[f"rewards/{kind}"] / total[kind]
            found[f"{kind}_logp"] = total[f"logps/{kind}"] / total[kind]
        steps.append(found)
    norms = {key: value.double().norm().item() for key, value in trained.state_dict().items() if key != "lm_head.weight"}
    return {"steps": steps, "weight_norms": norms}


def kto(out: Path, model: Path, seed: int):
    from datasets import Dataset

    out.mkdir(parents=True, exist_ok=True)
    write_answers(out / "answers.jsonl", seed)
    records = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    expected = {}
    for name, weights in [("even", {}), ("weighted", {"desirable_weight": DESIRABLE, "undesirable_weight": UNDESIRABLE})]:
        trained, tokenizer = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32), AutoTokenizer.from_pretrained(model)
        expected[name] = kto_steps(trained, tokenizer, Dataset.from_list(records), weights)
    of_all = {"rate": RATE, "beta": BETA, "group_size": GROUP, "desirable_weight": DESIRABLE, "undesirable_weight": UNDESIRABLE}
    (out / "expected.json").write_text(json.dumps({"settings": of_all, "losses": expected}, indent=1) + "\n")


def make(out: Path, seed: int):
    write_model(out / "model", seed)
    write_pairs(out / "pairs.jsonl", seed)
    expected = {name: with_dpo(out, name, options) for name, options in LOSSES.items()}
    expected["simpo"] = with_cpo(out)
    expected["orpo"] = with_orpo(out)
    settings = {"rate": RATE, "beta": BETA, "label_smoothing": SMOOTHING, "gamma": GAMMA, "nll_weight": 0.5}
    (out / "expected.json").write_text(json.dumps({"settings": settings, "losses": expected}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["make", "kto"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help="of kto")
    arguments = parser.parse_args()
    if arguments.what == "kto":
        kto(arguments.out, arguments.model, arguments.seed)
    else:
        make(arguments.out, arguments.seed)
