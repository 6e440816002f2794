"""Whether transformers reads a checkpoint of Florence-2, makes the same loss of its samples and gives the same greedy answers.

    python florence_roundtrip.py CHECKPOINT DATA.jsonl --binary target/debug/loongforge [--tokens 24] [--adapt OUT]

CHECKPOINT is a Hugging Face folder, or one of adapters, which PEFT adds to their base. With --adapt PEFT makes adapters for all
linear layers of CHECKPOINT, with random B, saves them in OUT, and these are compared instead. DATA has one prompt a line, with its answer.
The text and the pictures go through transformers' `Florence2Processor`. Exits 1 where a tensor has no place, losses differ by
more than 1e-5 of theirs, or an answer differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from transformers import CLIPImageProcessor, Florence2ForConditionalGeneration, Florence2Processor, PreTrainedTokenizerFast


def load(folder: Path) -> tuple[torch.nn.Module, Path]:
    """The model, and the folder that has the files of its processor."""
    adapter = folder / "adapter_config.json"
    base = Path(json.loads(adapter.read_text())["base_model_name_or_path"]) if adapter.is_file() else folder
    model, info = Florence2ForConditionalGeneration.from_pretrained(base, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    if adapter.is_file():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
    return model.eval(), base


def adapt(folder: Path, out: Path) -> Path:
    """A folder of adapters that PEFT has made for a model."""
    from peft import LoraConfig, get_peft_model

    model = Florence2ForConditionalGeneration.from_pretrained(folder.resolve(), dtype=torch.float32)
    torch.manual_seed(5)
    adapted = get_peft_model(model, LoraConfig(r=3, lora_alpha=7, target_modules="all-linear"))
    with torch.no_grad():
        for name, tensor in adapted.named_parameters():
            if "lora_B" in name:
                tensor.copy_(0.1 * torch.randn(tensor.shape))
    adapted.save_pretrained(out)
    return out


def processor_of(folder: Path) -> Florence2Processor:
    images = CLIPImageProcessor.from_pretrained(folder)
    images.image_seq_length = json.loads((folder / "preprocessor_config.json").read_text())["image_seq_length"]
    names = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = {key: names[key] for key in ["bos_token", "eos_token", "pad_token"]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **tokens,
                                        extra_special_tokens={"image_token": "<image>"})
    return Florence2Processor(image_processor=images, tokenizer=tokenizer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--adapt", type=Path, metavar="OUT", help="compare adapters that PEFT makes for CHECKPOINT in this folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.adapt:
        args.checkpoint = adapt(args.checkpoint, args.adapt)
    model, base = load(args.checkpoint)
    processor = processor_of(base)
    total, count, answers = 0.0, 0, []
    for line in args.data.read_text().splitlines():
        sample = json.loads(line)
        prompt, answer = (message["content"] for message in sample["messages"])
        pictures = [Image.open(args.data.parent / name).convert("RGB") for name in sample.get("images", [])]
        prompt = prompt.replace("<image>", "")
        # Without a picture the tokenizer's own processor would be asked; the text is the prompt as it is.
        inputs = processor(text=prompt, images=pictures or None, return_tensors="pt")
        inputs = {key: inputs[key] for key in ["input_ids", "pixel_values"] if key in inputs}
        labels = processor.tokenizer(f"<s>{answer}</s>", add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            total += model(**inputs, labels=labels).loss.item() * labels.numel()
            made = model.generate(**inputs, max_new_tokens=args.tokens, num_beams=1, do_sample=False)[0, 1:]
        count += labels.numel()
        text = processor.tokenizer.decode(made, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        answers.append(text.replace("<s>", "").replace("</s>", ""))
    evaluated = subprocess.run([args.binary, "evaluate", args.checkpoint, args.data, "--json"], check=True, capture_output=True)
    ours = json.loads(evaluated.stdout)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answers.jsonl"
        command = [args.binary, "generate", args.checkpoint, "--prompts", args.data, "-o", out, "--max-new-tokens", str(args.tokens)]
        subprocess.run(command, check=True, capture_output=True)
        found = [json.loads(line)["answer"] for line in out.read_text().splitlines()]
    loss = ours["loss"]
    off = abs(loss - total / count) / (total / count)
    equal = sum(one == other for one, other in zip(found, answers, strict=True))
    print(f"loss {loss:.7f}, off by {off:.1e} of transformers'; {equal} of {len(answers)} answers equal, as {answers[0]!r}")
    return 0 if off < 1e-5 and equal == len(answers) else 1


if __name__ == "__main__":
    sys.exit(main())
