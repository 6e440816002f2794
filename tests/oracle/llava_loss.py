"""The mean cross-entropy of answers about pictures, as transformers computes it from an exported folder by its own processor and
chat template: `loongforge evaluate FOLDER DATA --limit N` must print the same.

    python llava_loss.py FOLDER DATA.jsonl [--limit 40]

A line of DATA is what `loongforge data digits` writes: a question, an answer and one picture. Assistant turns end with <|im_end|>.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=40)
    args = parser.parse_args()
    model, info = LlavaForConditionalGeneration.from_pretrained(args.folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    processor = AutoProcessor.from_pretrained(args.folder)
    total, count = 0.0, 0
    for line in args.data.read_text().splitlines()[: args.limit]:
        line = json.loads(line)
        question, answer = (message["content"] for message in line["messages"])
        content = [{"type": "image"}, {"type": "text", "text": question.removeprefix("<image>")}]
        prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False)
        picture = Image.open(args.data.parent / line["images"][0]).convert("RGB")
        encoded = lambda text: processor(text=[text], images=[picture], return_tensors="pt")
        length, inputs = encoded(prompt)["input_ids"].shape[1], encoded(f"{prompt}{answer}<|im_end|>")
        with torch.no_grad():
            logits = model(**inputs).logits[0, length - 1 : -1]
        targets = inputs["input_ids"][0, length:]
        total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        count += len(targets)
    print(f"loss {total / count:.8f} over {count} tokens ({type(processor).__name__}, {type(processor.image_processor).__name__})")


if __name__ == "__main__":
    main()
