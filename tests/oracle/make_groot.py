"""Writes parity fixtures of GR00T N1.7: tiny random weights under the published names, samples of two embodiments with a missing picture,
prompts of several lengths, padded actions and steps and a state that is dropped, and what lerobot makes of them: loss and gradients with
given noise and times, and actions of given noise. Samples are computed one at a time.

    python make_groot.py src/torch/tests/policies                    # that which is committed
    python make_groot.py OUT --seed 7 --set diffusion_model_cfg.num_layers=5

It needs lerobot 0.6.1 with diffusers. A folder has `config.json` (`GR00TN17Config`'s keys, and Qwen3-VL's under
`backbone_config`), the weights as transformers saves them, and tensors of all samples: pictures are patches as Qwen3-VL's processor cuts
them, `[N, patches, values]` of each camera; ids and positions are those of all samples, end to end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import torch
from fixture_folder import empty, main, randomize, write_json, write_tensors
from lerobot.policies.groot.groot_n1_7 import GR00TN17, GR00TN17Config
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3VLConfig
from transformers.feature_extraction_utils import BatchFeature

IMAGE, START, END = 44, 45, 46
BACKBONE = dict(
    model_type="qwen3_vl", image_token_id=IMAGE, video_token_id=47, vision_start_token_id=START, vision_end_token_id=END,
    tie_word_embeddings=True,
    text_config=dict(model_type="qwen3_vl_text", vocab_size=48, hidden_size=16, intermediate_size=20, num_hidden_layers=3,
                     num_attention_heads=2, num_key_value_heads=1, head_dim=12, rms_norm_eps=1e-6, rope_theta=10000.0,
                     rope_scaling=dict(rope_type="default", mrope_interleaved=True, mrope_section=[2, 2, 2]),
                     tie_word_embeddings=True, max_position_embeddings=512),
    vision_config=dict(model_type="qwen3_vl", depth=2, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2,
                       spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=16, num_position_embeddings=16,
                       deepstack_visual_indexes=[0]),
)
CONFIG = dict(
    model_type="Gr00tN1d7", model_name="tiny", backbone_model_type="qwen", select_layer=2, tune_llm=True, tune_visual=True,
    backbone_embedding_dim=16, max_state_dim=5, max_action_dim=6, action_horizon=5, hidden_size=10, input_embedding_dim=12,
    max_seq_len=7, max_num_embodiments=3, num_inference_timesteps=4, state_dropout_prob=0.5,
    diffusion_model_cfg=dict(positional_embeddings=None, num_layers=3, num_attention_heads=2, attention_head_dim=6,
                             norm_type="ada_norm", dropout=0.0, final_dropout=True, output_dim=10, interleave_self_attention=True),
    vl_self_attention_cfg=dict(positional_embeddings=None, num_layers=1, num_attention_heads=2, attention_head_dim=8, dropout=0.0,
                               final_dropout=True),
    backbone_config=BACKBONE,
)
# Patches of a picture of each camera, down and across.
GRIDS = [(4, 4), (2, 4)]
# Tokens behind the pictures, the cameras that are there, the embodiment, and which steps and numbers of actions count.
SAMPLES = [
    dict(prompt=5, cameras=[0, 1], embodiment=2, steps=5, action_dim=4),
    dict(prompt=3, cameras=[0, 1], embodiment=0, steps=3, action_dim=6),
    dict(prompt=6, cameras=[1], embodiment=2, steps=5, action_dim=4),
]
# By draw, the samples whose state is dropped.
DROPPED = [[1], [2]]


def build(config: dict) -> GR00TN17:
    """lerobot's model, whose backbone is that of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        Qwen3VLConfig(**config["backbone_config"]).save_pretrained(folder)
        known = {key: value for key, value in config.items() if key not in ("backbone_config", "model_type")}
        model = GR00TN17(GR00TN17Config(**dict(known, model_name=folder)), load_backbone_weights=False).float()
    # All inputs are of the model's kind and device already, which is all that `prepare_input` sees to, by way of dm-tree.
    model.prepare_input = lambda inputs: (BatchFeature(dict(inputs)), BatchFeature(dict(inputs)))
    return model


def inputs(config: dict, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed + 1000)
    normal = lambda *shape: torch.randn(shape, generator=rng)
    num, draws = len(SAMPLES), len(DROPPED)
    vision = config["backbone_config"]["vision_config"]
    patch = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    horizon, dim = config["action_horizon"], config["max_action_dim"]
    mask = torch.zeros(num, horizon, dim)
    for row, sample in zip(mask, SAMPLES):
        row[: min(sample["steps"], horizon), : min(sample["action_dim"], dim)] = 1
    data = {f"pixels_{camera}": normal(num, rows * columns, patch).clamp(-1, 1) for camera, (rows, columns) in enumerate(GRIDS)}
    return dict(
        data, prompts=torch.randint(1, IMAGE, (num, 8), generator=rng), state=normal(num, 1, config["max_state_dim"]),
        actions=normal(num, horizon, dim) * mask, weights=mask, noise=normal(draws, num, horizon, dim),
        time=torch.rand((draws, num), generator=rng) * 0.9 + 0.05, start=normal(num, horizon, dim),
        embodiment=torch.tensor([min(sample["embodiment"], config["max_num_embodiments"] - 1) for sample in SAMPLES]),
    )


def tokens(data: dict[str, Tensor], number: int) -> list[int]:
    sample, ids = SAMPLES[number], [1]
    for camera in sample["cameras"]:
        rows, columns = GRIDS[camera]
        ids += [START] + [IMAGE] * (rows * columns // 4) + [END]
    return ids + data["prompts"][number, : sample["prompt"]].tolist()


def alone(data: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """A batch of one sample. In a batch of several lerobot's `vl_self_attention` sees the padding of shorter prompts, so that what comes
    of a sample depends on the others."""
    ids = torch.tensor([tokens(data, number)])
    cameras = SAMPLES[number]["cameras"]
    own = lambda name: data[name][number : number + 1]
    return dict(
        input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=torch.cat([data[f"pixels_{camera}"][number] for camera in cameras]),
        image_grid_thw=torch.tensor([[1, *GRIDS[camera]] for camera in cameras]), state=own("state"), embodiment_id=own("embodiment"),
        action_mask=own("weights"),
    )


def expected(model: GR00TN17, data: dict[str, Tensor]) -> dict[str, Tensor]:
    model.train()
    positions = []

    def note(_, args, kwargs):
        positions.append(kwargs["position_ids"][-3:, 0])

    hook = model.backbone.language_model.register_forward_pre_hook(note, with_kwargs=True)
    losses = []
    for noise, time, dropped in zip(data["noise"], data["time"], DROPPED):
        for number in range(len(SAMPLES)):
            drawn = torch.tensor([0.0 if number in dropped else 1.0])
            own = slice(number, number + 1)
            with mock.patch.object(torch, "randn", lambda *_, **__: noise[own]), mock.patch.object(torch, "rand", lambda *_, **__: drawn), \
                    mock.patch.object(model.action_head, "sample_time", lambda *_, **__: time[own]):
                losses.append(model(dict(alone(data, number), action=data["actions"][own]))["action_loss"].sum())
    hook.remove()
    loss = torch.stack(losses).sum() / (len(DROPPED) * data["weights"].sum())
    loss.backward()
    found = dict(loss=loss.detach().double())
    for name, tensor in model.named_parameters():
        if tensor.grad is not None:
            found[f"grad/{name}"] = tensor.grad
    found["position_ids"] = torch.cat(positions[: len(SAMPLES)], 1).float()
    model.eval()
    sampled = []
    for number in range(len(SAMPLES)):
        with mock.patch.object(torch, "randn", lambda *_, **__: data["start"][number : number + 1]):
            sampled.append(model.get_action(alone(data, number))["action_pred"])
    found["sampled"] = torch.cat(sampled)
    return found


def write(folder: Path, config: dict, seed: int) -> None:
    torch.manual_seed(seed)
    model = build(config)
    randomize(model.named_parameters(), seed)
    data = inputs(config, seed)
    found = expected(model, data)
    empty(folder)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        weights = load_file(Path(saved) / "model.safetensors")
    save_file(weights, str(folder / "model.safetensors"))
    data["input_ids"] = torch.tensor(sum((tokens(data, number) for number in range(len(SAMPLES))), []))
    data["position_ids"] = found.pop("position_ids")
    del data["prompts"]
    summary = dict(samples=SAMPLES, grids=GRIDS, dropped=DROPPED, seed=seed, lens=[len(tokens_of) for tokens_of in lens(data)])
    write_json(folder / "config.json", config)
    write_json(folder / "fixture.json", summary)
    write_tensors(folder, data, found)


def lens(data: dict[str, Tensor]) -> list[list[int]]:
    """The ids of each sample: every one begins with the only token 1 before pictures."""
    ends = [0]
    for sample in SAMPLES:
        pictures = sum(GRIDS[camera][0] * GRIDS[camera][1] // 4 + 2 for camera in sample["cameras"])
        ends.append(ends[-1] + 1 + pictures + sample["prompt"])
    return [data["input_ids"][start:end].tolist() for start, end in zip(ends, ends[1:])]


if __name__ == "__main__":
    main(__doc__, "groot", CONFIG, write)
