"""Adds to a fixture of `make_policies.py` what its vision-language model makes of tokens behind the prompts: the next-token loss that
Pi0.5 learns beside its flow, with or without knowledge insulation.

    python make_answers.py src/torch/tests/policies/pi05-seed1
    python make_answers.py OUT/pi05-seed7

lerobot has no such training, and it is made of lerobot's parts: the language model reads pictures and prompt, which see each other,
and the answer, which sees what is before it; the mean cross-entropy of a sample's tokens, averaged over samples. The last token of
the prompt predicts the first of the answer. What the action expert reads is the prefix without the answer, so its loss and
gradients are those of `make_policies.py`. With insulation a parameter has the gradient of one of both, else their sum.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import make_policies
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ANSWERS = [4, 6, 1]


def loss(model: torch.nn.Module, data: dict[str, Tensor], answers: Tensor) -> Tensor:
    images, present, tokens, mask = make_policies.masked(data)
    embs, valid, _ = model.embed_prefix(images, present, tokens, mask)
    language = model.paligemma_with_expert.paligemma.model.language_model
    rows = model.paligemma_with_expert.embed_language_tokens(answers)
    has = torch.arange(answers.shape[1])[None] < torch.tensor(ANSWERS)[:, None]
    len_prefix, len_all = embs.shape[1], embs.shape[1] + answers.shape[1]
    x, valid = torch.cat([embs, rows], 1), torch.cat([valid, has], 1)
    at = torch.arange(len_all)
    sees = (at[None] < len_prefix) | ((at[:, None] >= len_prefix) & (at[None] <= at[:, None]))
    sees = sees[None] & valid[:, None, :] & valid[:, :, None]
    bias = torch.where(sees, 0.0, -2.3819763e38)[:, None]
    hidden = language(inputs_embeds=x, attention_mask=bias, position_ids=valid.cumsum(1) - 1, use_cache=False).last_hidden_state
    losses = []
    for sample, len_answer in enumerate(ANSWERS):
        own = hidden[sample, valid[sample]]
        scores = own[-len_answer - 1:-1] @ language.embed_tokens.weight.T
        losses.append(torch.nn.functional.cross_entropy(scores, answers[sample, :len_answer]))
    return torch.stack(losses).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = json.loads((args.folder / "config.json").read_text())
    given = make_policies.FAMILIES[config["type"]].keys() | {"n_action_steps"}
    model = make_policies.build({key: value for key, value in config.items() if key in given})
    missing, unexpected = make_policies.Policy(model).load_state_dict(load_file(args.folder / "model.safetensors"), strict=False)
    assert not unexpected and all("lm_head" in name or "embed_tokens" in name for name in missing), (missing, unexpected)
    pali = model.paligemma_with_expert.paligemma
    table, head = pali.model.language_model.embed_tokens, pali.lm_head
    held = table if not any("language_model.embed_tokens" in name for name in missing) else head
    table.weight = head.weight = held.weight
    rng = torch.Generator().manual_seed(json.loads((args.folder / "fixture.json").read_text())["seed"] + 2000)
    answers = torch.randint(1, config["sizes"]["vocab_size"] - 1, (len(ANSWERS), max(ANSWERS)), generator=rng)
    found = loss(model, load_file(args.folder / "inputs.safetensors"), answers)
    found.backward()
    saved = {f"grad/model.{name}": it.grad.contiguous() for name, it in model.named_parameters() if it.grad is not None}
    assert not any("expert.model" in name or "action_" in name for name in saved), list(saved)
    saved |= dict(loss=found.detach().double(), answers=answers, lens=torch.tensor(ANSWERS))
    save_file(saved, str(args.folder / "answers.safetensors"))
    size = (args.folder / "answers.safetensors").stat().st_size // 1024
    print(args.folder, size, "KiB, loss", float(found))


if __name__ == "__main__":
    main()
