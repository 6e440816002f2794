"""Writes parity fixtures of Florence-2: tiny random weights in transformers' layout, samples with a picture of several sizes and
without one, and what transformers' `Florence2ForConditionalGeneration` in eval mode makes of each alone: scores, the loss over all
targets, all gradients, and greedy answers.

    python make_florence.py src/torch/tests/florence                                   # the one that is committed
    python make_florence.py OUT --seed 7 --set text_config.scale_embedding=true

A folder has `config.json` and the weights as transformers saves them. Of sample n `inputs.safetensors` has the prompt, the labels,
and the picture `[3, rows, columns]` where there is one; the prompt has the places of its features in front. `expected.safetensors`
has its scores, and its answer behind the token that begins it, as `generate` returns it.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import torch
from fixture_folder import arguments, changed, empty, randomize, write_json, write_tensors
from transformers import Florence2Config, Florence2ForConditionalGeneration

CONFIG = dict(
    image_token_id=39,
    vision_config=dict(depths=[1, 2, 1, 1], embed_dim=[4, 6, 8, 12], num_heads=[2, 2, 4, 3], num_groups=[2, 3, 2, 3],
                       patch_size=[7, 3, 3, 3], patch_stride=[4, 2, 2, 1], patch_padding=[3, 1, 1, 1],
                       patch_prenorm=[False, True, True, True], window_size=3, mlp_ratio=2.0, projection_dim=12,
                       drop_path_rate=0.1, max_temporal_embeddings=5, max_position_embeddings=6),
    text_config=dict(model_type="bart", d_model=12, encoder_layers=2, encoder_attention_heads=3, encoder_ffn_dim=20,
                     decoder_layers=3, decoder_attention_heads=2, decoder_ffn_dim=16, vocab_size=40, max_position_embeddings=30,
                     dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, scale_embedding=False, pad_token_id=1,
                     bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_bos_token_id=0, forced_eos_token_id=2),
)
# Rows and columns of the picture, tokens of the prompt and of the answer.
SAMPLES = [dict(size=[20, 36], prompt=5, answer=7), dict(size=None, prompt=4, answer=3), dict(size=[36, 20], prompt=1, answer=5),
           dict(size=[24, 24], prompt=8, answer=1)]
NEW_TOKENS = 9


def inputs(model: torch.nn.Module, config: Florence2Config, seed: int) -> list[dict]:
    rng = torch.Generator().manual_seed(seed + 1000)
    text, samples = config.text_config, []
    for sample in SAMPLES:
        tokens = lambda count: torch.randint(3, config.image_token_id, (count,), generator=rng)
        prompt, image = tokens(sample["prompt"]), None
        if sample["size"]:
            image = torch.randn(3, *sample["size"], generator=rng)
            count = model.get_image_features(image[None]).pooler_output.shape[1]
            prompt = torch.cat([torch.full((count,), config.image_token_id), prompt])
        labels = tokens(sample["answer"])
        if len(labels) > 5:
            labels[2] = -100
        if len(labels) > 1:
            labels[0], labels[-1] = text.bos_token_id, text.eos_token_id
        samples.append(dict(prompt=prompt, labels=labels, image=image))
    return samples


def write(folder: Path, config: dict, seed: int) -> None:
    torch.manual_seed(seed)
    forced = {key: config["text_config"].pop(key, None) for key in ["forced_bos_token_id"]}
    known = Florence2Config(**copy.deepcopy(config))
    model = Florence2ForConditionalGeneration(known).eval()
    randomize(model.named_parameters(), seed, dict.fromkeys(["embed_", "shared", "embeddings"], 0.5), 0.9)
    with torch.no_grad():
        samples = inputs(model, known, seed)
    num_targets = sum(int((sample["labels"] >= 0).sum()) for sample in samples)
    found, tensors = {}, {}
    total = torch.zeros((), dtype=torch.float64)
    for number, sample in enumerate(samples):
        pictures = {} if sample["image"] is None else dict(pixel_values=sample["image"][None])
        made = model(input_ids=sample["prompt"][None], labels=sample["labels"][None], **pictures)
        share = int((sample["labels"] >= 0).sum()) / num_targets
        (made.loss * share).backward()
        total += made.loss.detach().double() * share
        found[f"scores.{number}"] = made.logits[0].detach()
        answer = model.generate(input_ids=sample["prompt"][None], max_new_tokens=NEW_TOKENS, num_beams=1, do_sample=False,
                                forced_eos_token_id=known.text_config.forced_eos_token_id, **forced, **pictures)
        found[f"answer.{number}"] = answer[0, 1:]
        tensors.update({f"{name}.{number}": tensor for name, tensor in sample.items() if tensor is not None})
    found["loss"] = total
    for name, tensor in model.named_parameters():
        if tensor.grad is not None:
            found[f"grad/{name}"] = tensor.grad
    empty(folder)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    saved = json.loads((folder / "config.json").read_text())
    # transformers keeps these apart from a model's config; published configs have them.
    saved["text_config"].update(forced)
    write_json(folder / "config.json", saved)
    summary = dict(samples=SAMPLES, new_tokens=NEW_TOKENS, seed=seed)
    write_json(folder / "fixture.json", summary)
    write_tensors(folder, tensors, found, [found[f"answer.{number}"].tolist() for number in range(len(samples))])


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    changes = "".join("-" + re.sub(r"\W+", "_", setting.rsplit(".", 1)[-1]).strip("_") for setting in args.set)
    write(args.out / f"florence2-seed{args.seed}{changes}", changed(CONFIG, args.set), args.seed)


if __name__ == "__main__":
    main()
