"""Writes what audio towers and projectors make of clips of unequal length: features, the number of features of clips of
other lengths, and gradients of all parameters.

    python make_audio_towers.py ../../src/torch/tests/towers
    python make_audio_towers.py --more FOLDER      # two more seeds and two changes of the config of each tower
    LOONGFORGE_TOWERS=FOLDER cargo test -p loongforge-torch --test towers

A folder holds the config of a tower, the weights under its names, inputs and what is expected.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

from make_fixture import randomize, tidy

WIDTH = 24  # of the features
LENGTHS = [3, 4, 5, 99, 100, 101, 199, 200, 201, 399, 800, 801]
SIZES = dict(num_mel_bins=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=40, d_model=32)
CHANGES = {"narrow": dict(num_mel_bins=12, encoder_layers=3, encoder_attention_heads=3, d_model=24)}
VOXTRAL = dict(num_mel_bins=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, hidden_size=32)

# Class of the tower, config, frames of the clips, changes of the config.
TOWERS = {
    "whisper": ("WhisperEncoder", {**SIZES, "max_source_positions": 24}, [48, 96],
                {**CHANGES, "longer": dict(max_source_positions=30)}),
    "qwen2_audio": ("Qwen2AudioEncoder", {**SIZES, "max_source_positions": 50}, [100, 61, 3, 99, 4],
                    {**CHANGES, "longer": dict(max_source_positions=64)}),
    "qwen2.5_omni_audio": ("Qwen2_5OmniAudioEncoder", {**SIZES, "max_source_positions": 64, "n_window": 10, "output_dim": WIDTH},
                           [100, 61, 3, 20, 21, 4], {**CHANGES, "window13": dict(n_window=13)}),
    "qwen3_omni_audio": ("Qwen3OmniMoeAudioEncoder",
                         {**SIZES, "max_source_positions": 64, "n_window": 50, "n_window_infer": 200, "output_dim": WIDTH,
                          "downsample_hidden_size": 6, "conv_chunksize": 2},
                         [530, 1, 161, 100, 8, 99, 101], {**CHANGES, "window800": dict(n_window_infer=800, downsample_hidden_size=5)}),
    "qwen3_asr_audio": ("Qwen3ASREncoder",
                        {**SIZES, "n_window": 50, "n_window_infer": 300, "output_dim": WIDTH, "downsample_hidden_size": 6},
                        [161, 430, 9, 200], {**CHANGES, "window100": dict(n_window_infer=100, num_mel_bins=20)}),
    "voxtral_audio": ("VoxtralEncoder", {**VOXTRAL, "max_source_positions": 48}, [96, 192],
                      {"narrow": dict(num_mel_bins=12, num_attention_heads=3, hidden_size=24, intermediate_size=96),
                       "unstacked": dict(intermediate_size=32, num_hidden_layers=1)}),
}


class Clips(nn.Module):
    """A tower and a projector as modules of the names that ours have."""

    def __init__(self, name: str, config: dict):
        super().__init__()
        self.name = name
        module = importlib.import_module(f"transformers.models.{MODULES[name]}.modeling_{MODULES[name]}")
        tower_class = getattr(module, TOWERS[name][0])
        made = tower_class.config_class(**config)
        made._attn_implementation = "eager"
        self.audio_encoder = tower_class(made)
        self.config = made
        act, width = nn.GELU(), made.d_model
        if name in ("whisper", "qwen2_audio"):
            self.audio_projector = nn.ModuleDict({"linear": nn.Linear(width, WIDTH)})
        elif name == "voxtral_audio":
            self.audio_projector = nn.ModuleDict({"linear_1": nn.Linear(made.intermediate_size, WIDTH, bias=False),
                                                  "act": act, "linear_2": nn.Linear(WIDTH, WIDTH, bias=False)})
        elif name == "qwen3_asr_audio":
            self.audio_projector = nn.ModuleDict({"linear_1": nn.Linear(width, width), "act": act, "linear_2": nn.Linear(width, WIDTH)})

    def ours(self, name: str) -> str:
        """The maps that a tower ends with are its projector."""
        for last in ("proj.", "proj1.", "proj2."):
            name = name.replace(f"audio_encoder.{last}", f"audio_projector.{last}")
        return name

    def project(self, states: Tensor) -> Tensor:
        for module in self.audio_projector.values():
            states = module(states)
        return states

    def forward(self, clips: list[Tensor], padding: list[Tensor]) -> Tensor:
        """`clips` are `[frames, bins]`; `padding` is what the reference's padding has behind them."""
        lengths = torch.tensor([len(clip) for clip in clips])
        if self.name in ("whisper", "voxtral_audio"):
            window = 2 * self.config.max_source_positions
            windows = torch.cat(clips).view(-1, window, self.config.num_mel_bins).transpose(1, 2)
            states = self.audio_encoder(windows).last_hidden_state
            wide = self.config.intermediate_size if self.name == "voxtral_audio" else self.config.d_model
            return self.project(states.reshape(-1, wide))
        if self.name == "qwen2_audio":
            whole = torch.stack([torch.cat([clip, pad]) for clip, pad in zip(clips, padding)]).transpose(1, 2)
            valid, counts = self.audio_encoder._get_feat_extract_output_lengths(lengths)
            keys = torch.arange(self.config.max_source_positions)[None] < valid[:, None]
            mask = torch.zeros(keys.shape).masked_fill(~keys, torch.finfo(torch.float32).min)[:, None, None]
            mask = mask.expand(-1, 1, keys.shape[1], -1)
            features = self.project(self.audio_encoder(whole, attention_mask=mask).last_hidden_state)
            return torch.cat([rows[:count] for rows, count in zip(features, counts)])
        if self.name == "qwen3_asr_audio":
            padded = -(-int(lengths.max()) // 100) * 100
            rows = torch.stack([nn.functional.pad(clip, (0, 0, 0, padded - len(clip))) for clip in clips])
            mask = (torch.arange(padded)[None] < lengths[:, None]).long()
            return self.project(self.audio_encoder(rows.transpose(1, 2), mask).last_hidden_state)
        return self.audio_encoder(torch.cat(clips).T, feature_lens=lengths).last_hidden_state

    def count(self, frames: int) -> int:
        length = torch.tensor(frames)
        if self.name.startswith("qwen3"):
            return int(_get_feat_extract_output_lengths(length))
        return int(self.audio_encoder._get_feat_extract_output_lengths(length)[1])


MODULES = {"whisper": "whisper", "qwen2_audio": "qwen2_audio", "qwen2.5_omni_audio": "qwen2_5_omni",
           "qwen3_omni_audio": "qwen3_omni_moe", "qwen3_asr_audio": "qwen3_asr", "voxtral_audio": "voxtral"}


def make(name: str, out: Path, seed: int, changes: dict) -> None:
    _, config, lengths, _ = TOWERS[name]
    config = {**config, **changes}
    torch.manual_seed(seed)
    model = Clips(name, config).eval()
    randomize(model, seed)
    rng = torch.Generator().manual_seed(seed + 1)
    mel, window = model.config.num_mel_bins, 2 * getattr(model.config, "max_source_positions", 0)
    if name in ("whisper", "voxtral_audio"):
        lengths = [window, 2 * window]
    random = lambda frames: 0.6 * torch.randn(frames, mel, generator=rng)
    clips = [random(frames) for frames in lengths]
    padding, behind = [], 2 if name == "qwen2_audio" else 0
    frames = []
    for clip in clips:
        padding.append(random(window - len(clip)) if behind else random(0))
        frames.append(nn.functional.pad(torch.cat([clip, padding[-1]]), (0, 0, 0, behind))[: len(clip) + behind])
    found = model(clips, padding)
    seeds = torch.randn(found.shape, generator=rng)
    (found * seeds).sum().backward()

    named = {model.ours(key): p for key, p in model.named_parameters()}
    expected = {"features/0": found}
    expected |= {f"grad/{key}": p.grad for key, p in named.items() if p.grad is not None}
    expected |= {f"grad_norm/{key}": p.grad.norm() for key, p in named.items() if p.grad is not None}
    inputs = {"patches": torch.cat(frames), "sizes": torch.tensor([[len(clip), 1, 1] for clip in frames]), "seeds/0": seeds}
    if name not in ("whisper", "voxtral_audio"):
        inputs["frames"] = torch.tensor([[frames + behind, 1, 1] for frames in LENGTHS])
        expected["counts"] = torch.tensor([model.count(frames) for frames in LENGTHS])
    foundation = dict(model_type="llama", vocab_size=64, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1,
                      num_attention_heads=4)
    whole = dict(model_type="loongforge_vlm", foundation=foundation, audio_token_id=1, audio_projector={},
                 audio_encoder={**config, "model_type": model.config.model_type})
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")
    weights = {key: p.detach() for key, p in named.items()}
    for file, tensors in (("model", weights), ("inputs", inputs), ("expected", expected)):
        save_file(tidy(tensors), out / f"{file}.safetensors")
    print(f"{out.name}: {sum(f.stat().st_size for f in out.iterdir()) / 1e3:.0f} KB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--more", action="store_true", help="more seeds and changes of the config, not those that are committed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names or TOWERS:
        if not args.more:
            make(name, args.out / name, 3, {})
            continue
        for seed in (5, 7):
            make(name, args.out / f"{name}-seed{seed}", seed, {})
        for label, changes in TOWERS[name][3].items():
            make(name, args.out / f"{name}-{label}", 11, changes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
