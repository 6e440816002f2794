"""Whether transformers loads a whole Omni model that was trained here, with its talker and its vocoder.

    python whole_omni.py PROGRAM OUT

PROGRAM is loongforge, OUT a folder that is made. For each Omni model a tiny one is made with the classes of transformers, its
talker and vocoder in bfloat16; PROGRAM trains its thinker for four steps. Then:

* tensors that are not the thinker's are in the checkpoint as they were, in the same types,
* the class of the whole model loads the checkpoint with nothing missing, left over or misshaped,
* its thinker computes the logits of PROGRAM, within 1e-5 of the largest.

Exits 1 where one of these does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file

import make_fixture
import roundtrip
from families import FAMILIES

ROOT = Path(__file__).parent.parent.parent
TOKENIZER, TOLERANCE = ROOT / "configs/samples/tokenizer", 1e-5
VOCABULARY = 264  # of that tokenizer

DECODER = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=24,
               head_dim=8, vocab_size=40)
TALKER2_5 = {**DECODER, "embedding_size": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
DIT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, head_dim=8, emb_dim=8, num_embeds=20, mel_dim=8,
           enc_emb_dim=8, enc_dim=8, enc_channels=[8, 8, 8, 8, 24], enc_attention_channels=4, enc_se_channels=4,
           look_ahead_layers=[1], look_backward_layers=[0])
VOCODER2_5 = {"dit_config": DIT, "bigvgan_config": dict(mel_dim=8, upsample_initial_channel=64)}
TALKER3 = {"thinker_hidden_size": 24, "spatial_merge_size": 2, "num_code_groups": 3, "accept_hidden_layer": 1,
           "text_config": {**DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
                           "shared_expert_intermediate_size": 8,
                           "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
           "code_predictor_config": {**DECODER, "num_code_groups": 3}}
VOCODER3 = dict(codebook_size=20, hidden_size=16, num_attention_heads=2, num_key_value_heads=2, intermediate_size=24,
                num_hidden_layers=2, num_quantizers=3, decoder_dim=64)
MODELS = {
    "qwen2.5_omni": ("Qwen2_5OmniForConditionalGeneration", {"talker_config": TALKER2_5, "token2wav_config": VOCODER2_5}),
    "qwen3_omni": ("Qwen3OmniMoeForConditionalGeneration", {"talker_config": TALKER3, "code2wav_config": VOCODER3}),
}


def make(name: str, out: Path) -> tuple[Path, Path]:
    """A fixture of the thinker, and the whole model around the same thinker."""
    fixture, whole = out / f"{name}-thinker", out / f"{name}-whole"
    make_fixture.make(FAMILIES[name], 1, fixture, {"text_config.vocab_size": VOCABULARY})
    cls, parts = MODELS[name]
    model_class = getattr(transformers, cls)
    thinker = json.loads((fixture / "config.json").read_text())
    torch.manual_seed(1)
    model = model_class(model_class.config_class(thinker_config=thinker, **parts))
    make_fixture.randomize(model, 3)
    thinker = getattr(transformers, FAMILIES[name].model).from_pretrained(fixture, dtype=torch.float32)
    model.thinker.load_state_dict(thinker.state_dict())
    for part_name, part in model.named_children():
        if part_name != "thinker":
            part.to(torch.bfloat16)
    model.save_pretrained(whole)
    (whole / "generation_config.json").unlink(missing_ok=True)
    torch.save({"Ann": {"bos_token": 1, "cond": torch.zeros(1, 8), "ref_mel": torch.zeros(1, 4, 8)}}, whole / "spk_dict.pt")
    for file in TOKENIZER.iterdir():
        shutil.copy(file, whole)
    config = FAMILIES[name].config
    vision = {key: config["vision_config"][key] for key in ("patch_size", "temporal_patch_size")}
    audio = {"feature_size": config["audio_config"]["num_mel_bins"], "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 2}
    media = {**vision, **audio, "merge_size": config["vision_config"]["spatial_merge_size"], "min_pixels": 64, "max_pixels": 4096}
    (whole / "preprocessor_config.json").write_text(json.dumps(media))
    return fixture, whole


def train(program: str, whole: Path, out: Path) -> Path:
    """Trains on text alone; returns the last checkpoint."""
    out.mkdir()
    lines = [{"messages": [{"role": "user", "content": letter * 3}, {"role": "assistant", "content": letter * 5}]} for letter in "abcdefgh"]
    (out / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (out / "run.yaml").write_text(json.dumps({
        "run": {"name": "whole", "seed": 1, "dir": str(out / "run")}, "model": {"load": str(whole)},
        "data": {"train": [{"path": str(out / "train.jsonl")}], "template": "chatml", "pack": {"max_tokens": 128}},
        "train": {"phase": "sft", "steps": 4, "global_batch_size": 4, "lr": 1e-2, "warmup_steps": 1},
        "checkpoint": {"every_steps": 4}}))
    run([program, "run", out / "run.yaml"])
    return next(out.glob("**/step-00000004"))


def run(command: list) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr).strip()[-1500:])


def check(program: str, name: str, out: Path) -> list[str]:
    fixture, whole = make(name, out)
    saved = train(program, whole, out / f"{name}-run")
    before, after = roundtrip.weights(whole), roundtrip.weights(saved)
    problems = [f"only one side has {key}" for key in before.keys() ^ after.keys()]
    carried = [key for key in before.keys() & after.keys() if not key.startswith("thinker.")]
    problems += [f"changed: {key}" for key in carried
                 if before[key].dtype != after[key].dtype or not torch.equal(before[key], after[key])]
    trained = sum(not torch.equal(before[key], after[key]) for key in before.keys() & after.keys() - set(carried))
    model_class, how = getattr(transformers, MODELS[name][0]), dict(dtype=torch.float32, attn_implementation="eager")
    model = model_class.from_pretrained(saved, **how)
    # Qwen2.5-Omni's own `from_pretrained`, which reads the speakers, cannot return what was missing.
    load = transformers.PreTrainedModel.from_pretrained.__func__
    _, info = load(model_class, saved, output_loading_info=True, **how)
    problems += [f"{kind}: {key}" for kind, keys in info.items() for key in keys]
    # The fixture's inputs with the weights that were trained.
    there = out / f"{name}-parity"
    there.mkdir()
    for file in [*saved.glob("model*"), saved / "config.json"]:
        (there / file.name).symlink_to(file.resolve())
    for file in ("inputs.safetensors", "expected.safetensors", "fixture.json"):
        (there / file).symlink_to((fixture / file).resolve())
    run([program, "parity", there, "--export", out / "exported", "--steps", "0"])
    inputs = load_file(out / "exported" / there.name / "logits.safetensors")
    ours, mask = inputs.pop("logits"), inputs["attention_mask"].bool()
    with torch.no_grad():
        theirs = model.thinker.eval()(**inputs).logits
    error = ((ours - theirs)[mask].abs().max() / theirs[mask].abs().max()).item()
    print(f"{name:14} {type(model).__name__}: {len(carried)} tensors carried, {trained} trained, logits within {error:.1e}", flush=True)
    return problems + ([] if error <= TOLERANCE else [f"logits differ by {error}"]) + ([] if trained and carried else ["nothing trained or carried"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    problems = [f"{name}: {problem}" for name in MODELS for problem in check(args.program, name, args.out.resolve())]
    print("\n".join(problems[:40]) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
