"""Answers to questions about pictures, a tiny model that sees, and what TRL makes of them.

`python preference_pictures.py OUT` writes `OUT/model` (a Qwen2.5-VL of random weights, or with `--family llava` a LLaVA, with a byte
tokenizer, a chat template and an image processor), `OUT/pictures`, `OUT/pairs.jsonl`, `OUT/answers.jsonl`, and `OUT/expected.json`: for each case the losses, rewards,
log-probabilities and gradient norms of five steps of AdamW, and the norm of every parameter after them. Pairs are TRL's
DPOTrainer's, one a micro-batch and four a step, so that every mean is over pairs; answers its KTOTrainer's, two micro-batches of
four a step, which are groups here; ORPO's trainer takes no pictures, and gives its formula alone. TRL trains the vision tower and
the merger with the rest unless they are frozen; its reference model is a copy of all.

Written with trl 1.16.0 and transformers 5.17.0.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (AutoModelForImageTextToText, AutoProcessor, CLIPImageProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig,
                          LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast, Qwen2_5_VLConfig,
                          Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor, Qwen2VLImageProcessorPil, Qwen2VLVideoProcessor)

from preference import BETA, GROUP, GROUPS, PAIRS, RATE, STEPS, WORDS, Logs, kto_steps, orpo_steps, report, settings

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
           "<|video_pad|>"]
PATCH = 4
# Of the pictures, in blocks of two patches: so many features have they.
SIZES = [(3, 2), (2, 4), (2, 2), (5, 3)]


def write_tokenizer(special, image_token: str):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": special})
    # Families' own tokenizers have it as an attribute, which processors ask for.
    fast.image_token = image_token
    return fast


def decoder(fast, **more):
    return dict(vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.1, eos_token_id=fast.eos_token_id,
                pad_token_id=fast.pad_token_id, bos_token_id=None, **more)


def write_qwen(out: Path, seed: int):
    fast = write_tokenizer(SPECIAL, "<|image_pad|>")
    fast.video_token = "<|video_pad|>"
    ids = {token: fast.convert_tokens_to_ids(token) for token in SPECIAL}
    pixels = dict(patch_size=PATCH, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=4096)
    images = Qwen2VLImageProcessorPil(**pixels)
    videos = Qwen2VLVideoProcessor(**pixels)
    Qwen2_5_VLProcessor(images, fast, videos, chat_template=TEMPLATE).save_pretrained(out)
    images.save_pretrained(out)
    videos.save_pretrained(out)
    torch.manual_seed(seed)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 100.0}
    vision = dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=PATCH, spatial_merge_size=2, window_size=16,
                  temporal_patch_size=2, out_hidden_size=32, fullatt_block_indexes=[1], tokens_per_second=2, initializer_range=0.1)
    config = Qwen2_5_VLConfig(
        text_config=decoder(fast, rope_parameters=rope), vision_config=vision, image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=True, initializer_range=0.1)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(out)


def write_llava(out: Path, seed: int):
    """CLIP's tower, whose last layer is left out, two maps and a LLaMA."""
    fast = write_tokenizer(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<image>"], "<image>")
    size = {"height": 4 * PATCH, "width": 4 * PATCH}
    images = CLIPImageProcessor(size=size, do_center_crop=False)
    template = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    LlavaProcessor(images, fast, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
                   chat_template=template).save_pretrained(out)
    images.save_pretrained(out)
    torch.manual_seed(seed)
    text = LlamaConfig(**decoder(fast, rope_parameters={"rope_type": "default", "rope_theta": 100.0}))
    vision = CLIPVisionConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, image_size=4 * PATCH,
                              patch_size=PATCH, projection_dim=16)
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=fast.convert_tokens_to_ids("<image>"),
                         tie_word_embeddings=False)
    LlavaForConditionalGeneration(config).save_pretrained(out)


def write_pictures(out: Path):
    out.mkdir()
    for number in range(8):
        columns, rows = (side * 2 * PATCH for side in SIZES[number % len(SIZES)])
        x, y = np.meshgrid(np.arange(columns) / columns, np.arange(rows) / rows)
        waves = [128 + 90 * np.sin((number + 2) * (x * (c + 1) + y * 3) + c + number) for c in range(3)]
        Image.fromarray(np.stack(waves, -1).round().clip(0, 255).astype(np.uint8)).save(out / f"{number}.png")


class Speaker:
    """Draws questions about pictures, and answers."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)

    def say(self, most: int) -> str:
        return " ".join(self.draw.choices(WORDS, k=self.draw.randint(1, most)))

    def prompt(self, number: int):
        """The third of three has no picture, and each fourth has two, the second in a later turn."""
        part = lambda text: {"type": "text", "text": text}  # noqa: E731
        image = {"type": "image", "text": None}
        if number % 3 == 2:
            return [], [{"role": "user", "content": [part(self.say(9))]}]
        pictures = [self.draw.randrange(8)]
        content = [image, part(self.say(6))] if number % 2 else [part(self.say(3)), image, part(self.say(4))]
        prompt = [{"role": "user", "content": content}]
        if number % 4 == 1:
            pictures.append(self.draw.randrange(8))
            prompt += [{"role": "assistant", "content": [part(self.say(4))]},
                       {"role": "user", "content": [part(self.say(3)), image, part(self.say(3))]}]
        return [f"pictures/{picture}.png" for picture in pictures], prompt

    def answer(self, most: int):
        return [{"role": "assistant", "content": [{"type": "text", "text": self.say(most)}]}]


def write_lines(path: Path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_data(out: Path, seed: int):
    write_pictures(out / "pictures")
    speaker, pairs, answers = Speaker(seed), [], []
    for number in range(STEPS * PAIRS):
        images, prompt = speaker.prompt(number)
        pairs.append({"images": images, "prompt": prompt, "chosen": speaker.answer(8), "rejected": speaker.answer(12)})
    for number in range(STEPS * GROUPS * GROUP):
        images, prompt = speaker.prompt(number)
        good = speaker.draw.random() < 0.5
        answers.append({"images": images, "prompt": prompt, "completion": speaker.answer(10), "label": good})
    write_lines(out / "pairs.jsonl", pairs)
    write_lines(out / "answers.jsonl", answers)


def dataset(folder: Path, name: str):
    from datasets import Dataset

    records = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    for record in records:
        record["images"] = [Image.open(folder / image).convert("RGB") for image in record["images"]]
    return Dataset.from_list(records)


def load(folder: Path, frozen: tuple):
    model = AutoModelForImageTextToText.from_pretrained(folder / "model", dtype=torch.float32)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    processor = AutoProcessor.from_pretrained(folder / "model")
    return model, processor


def weight_norms(model):
    """By the names that checkpoints have."""
    moved = {"model.visual.": "visual.", "model.multi_modal_projector.": "multi_modal_projector.", "model.language_model.": "model."}
    if model.config.model_type == "llava":
        moved.update({"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
                      "model.vision_tower.": "vision_tower.vision_model."})
    norms = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        begin = next((begin for begin in moved if name.startswith(begin)), "")
        norms[moved.get(begin, "") + name[len(begin):]] = weight.double().norm().item()
    return dict(sorted(norms.items()))


def with_dpo(folder: Path, loss: str, frozen: tuple):
    from trl import DPOConfig, DPOTrainer

    model, processor = load(folder, frozen)
    args = DPOConfig(**settings(), loss_type=[loss], max_length=None)
    logs = Logs()
    DPOTrainer(model, args=args, train_dataset=dataset(folder, "pairs.jsonl"), processing_class=processor, callbacks=[logs]).train()
    return {**report(logs.rows, model), "weight_norms": weight_norms(model)}


def with_orpo(folder: Path, frozen: tuple):
    """ORPO's formula is its trainer's, which takes no pictures; the log-probabilities are of transformers' model."""
    model, processor = load(folder, frozen)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=RATE, betas=(0.9, 0.95),
                                  eps=1e-8, weight_decay=0.0)

    def logps(record, answer):
        prompt = processor.apply_chat_template(record["prompt"], tokenize=False, add_generation_prompt=True)
        text = processor.apply_chat_template(record["prompt"] + record[answer], tokenize=False)
        assert text.startswith(prompt)
        pictures = [Image.open(folder / image).convert("RGB") for image in record["images"]]
        inputs = processor(text=[text], images=pictures or None, return_tensors="pt")
        ids = inputs["input_ids"][0]
        learned = len(processor.tokenizer(text[len(prompt):], add_special_tokens=False)["input_ids"])
        logits = model(**inputs).logits[0, -learned - 1 : -1]
        return logits.log_softmax(-1).gather(1, ids[-learned:, None])[:, 0]

    records = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    steps = orpo_steps(model, optimizer, records, logps)
    return {"steps": steps, "weight_norms": weight_norms(model)}


def with_kto(folder: Path, frozen: tuple):
    model, processor = load(folder, frozen)
    found = kto_steps(model, processor, dataset(folder, "answers.jsonl"), {})
    return {**found, "weight_norms": weight_norms(model)}


FAMILIES = {
    "qwen2_5_vl": (write_qwen, ("visual.patch_embed", "visual.blocks"), ("visual",)),
    "llava": (write_llava, ("vision_tower",), ("vision_tower", "multi_modal_projector")),
}


def make(out: Path, seed: int, family: str):
    out.mkdir(parents=True)
    write_model, tower, all_of_it = FAMILIES[family]
    write_model(out / "model", seed)
    write_data(out, seed)
    cases = {
        "trained": lambda: with_dpo(out, "sigmoid", ()),
        "tower_frozen": lambda: with_dpo(out, "sigmoid", tower),
        "frozen": lambda: with_dpo(out, "sigmoid", all_of_it),
        "hinge": lambda: with_dpo(out, "hinge", ()),
        "ipo": lambda: with_dpo(out, "ipo", ()),
        "orpo": lambda: with_orpo(out, ()),
        "orpo_tower_frozen": lambda: with_orpo(out, tower),
        "kto": lambda: with_kto(out, ()),
        "kto_tower_frozen": lambda: with_kto(out, tower),
    }
    expected = {name: case() for name, case in cases.items()}
    of_all = {"rate": RATE, "beta": BETA, "group_size": GROUP}
    (out / "expected.json").write_text(json.dumps({"settings": of_all, "cases": expected}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=FAMILIES, default="qwen2_5_vl")
    arguments = parser.parse_args()
    make(arguments.out, arguments.seed, arguments.family)
