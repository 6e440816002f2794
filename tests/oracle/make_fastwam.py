"""Writes parity fixtures of FastWAM: tiny random weights in lerobot's layout, samples with prompts of several lengths, actions and
frames behind the end of their episodes, and what lerobot's `FastWAM` makes of them: losses and gradients with given noise and times,
and actions of given noise.

    python make_fastwam.py src/torch/tests/policies                                    # the one that is committed
    python make_fastwam.py OUT --seed 7 --set action_dit_config.hidden_dim=20          # another seed, another config

It needs lerobot 0.6.1, which takes Python 3.12, and diffusers. A folder has `config.json` (lerobot's keys, and the configs of the
frozen networks under `sizes`), the weights under lerobot's names, and tensors of all samples: what the autoencoder makes of their
frames is given as `latents` `[samples, channels, frames, rows, columns]`, and what the text encoder makes of a prompt as `text`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from lerobot.policies.fastwam.wan.modular import ActionDiT, FastWAM, MoT
from lerobot.policies.fastwam.wan.video_dit import WanVideoDiT
from safetensors.torch import save_model
from torch import Tensor

from fixture_folder import empty, main, randomize, write_json, write_tensors
from make_policies import Policy

HEADS = dict(num_heads=2, attn_head_dim=12, num_layers=2, text_dim=10, freq_dim=8, eps=1e-6)
SHIFTS = dict(train_shift=5.0, infer_shift=5.0, num_train_timesteps=1000)
VISUAL = dict(type="VISUAL", shape=[3, 64, 96])
CONFIG = dict(
    type="fastwam", n_obs_steps=1, action_dim=5, proprio_dim=3, action_horizon=8, n_action_steps=8, num_video_frames=9,
    action_video_freq_ratio=1, image_size=[64, 96], tokenizer_max_len=9, num_inference_steps=10, torch_dtype="float32",
    video_dit_config=dict(HEADS, hidden_dim=24, in_dim=4, out_dim=4, ffn_dim=32, patch_size=[1, 2, 2], seperated_timestep=True,
                          video_attention_mask_mode="first_frame_causal", action_conditioned=False, action_dim=5),
    action_dit_config=dict(HEADS, action_dim=5, hidden_dim=16, ffn_dim=28),
    video_scheduler=dict(SHIFTS), action_scheduler=dict(SHIFTS), loss=dict(lambda_video=1.0, lambda_action=1.0),
    input_features={"observation.images.image": VISUAL, "observation.state": dict(type="STATE", shape=[3])},
    output_features={"action": dict(type="ACTION", shape=[5])},
    sizes=dict(
        vae=dict(_class_name="AutoencoderKLWan", base_dim=4, decoder_base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
                 temperal_downsample=[False, True, True], patch_size=2, in_channels=12, out_channels=12, is_residual=True,
                 latents_mean=[0.0] * 4, latents_std=[1.0] * 4),
        text_encoder=dict(model_type="umt5", vocab_size=40, d_model=10, d_kv=5, d_ff=12, num_layers=1, num_heads=2),
    ),
)
# Tokens of a prompt, actions within the episode, and frames within it.
SAMPLES = [dict(prompt=4, inside=8, frames=9), dict(prompt=9, inside=5, frames=5), dict(prompt=2, inside=6, frames=7)]


def build(config: dict) -> FastWAM:
    """lerobot's model, without the frozen networks, of which it asks sizes alone."""
    video, action = WanVideoDiT(**config["video_dit_config"]), ActionDiT(**config["action_dit_config"])
    frozen = SimpleNamespace(requires_grad_=lambda flag: None, _apply=lambda change: None, temporal_downsample_factor=4)
    of = lambda name, key: float(config[f"{name}_scheduler"][key])
    return FastWAM(
        video, action, MoT(dict(video=video, action=action), mot_checkpoint_mixed_attn=False), frozen,
        text_dim=config["video_dit_config"]["text_dim"], proprio_dim=config["proprio_dim"],
        video_train_shift=of("video", "train_shift"), video_infer_shift=of("video", "infer_shift"),
        video_num_train_timesteps=int(of("video", "num_train_timesteps")),
        action_train_shift=of("action", "train_shift"), action_infer_shift=of("action", "infer_shift"),
        action_num_train_timesteps=int(of("action", "num_train_timesteps")),
        loss_lambda_video=config["loss"]["lambda_video"], loss_lambda_action=config["loss"]["lambda_action"])


def inputs(config: dict, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed + 1000)
    normal = lambda *shape: torch.randn(shape, generator=rng)
    num, (rows, columns) = len(SAMPLES), config["image_size"]
    frames = 1 + (config["num_video_frames"] - 1) // config["action_video_freq_ratio"] // 4
    text = normal(num, config["tokenizer_max_len"], config["video_dit_config"]["text_dim"])
    for sample, of in zip(SAMPLES, text):
        of[sample["prompt"]:] = 0
    latents = normal(num, config["video_dit_config"]["in_dim"], frames, rows // 16, columns // 16)
    actions = normal(num, config["action_horizon"], config["action_dim"])
    times = torch.rand((2, num), generator=rng) * 0.9 + 0.05
    found = dict(text=text, latents=latents, actions=actions, video_noise=torch.randn(latents.shape, generator=rng),
                 action_noise=torch.randn(actions.shape, generator=rng), video_time=times[0], action_time=times[1],
                 start=torch.randn(actions.shape, generator=rng))
    if config["proprio_dim"]:
        found["state"] = normal(num, config["proprio_dim"])
    return found


def loss_of(model: FastWAM, config: dict, data: dict[str, Tensor], of: slice, masks_frames: bool = False) -> Tensor:
    """lerobot's `training_loss` of some samples, with the noise and times of `data`."""
    latents, actions = data["latents"][of], data["actions"][of]
    num, horizon = actions.shape[:2]
    frames = 1 + (config["num_video_frames"] - 1) // config["action_video_freq_ratio"]
    lens = lambda key: torch.tensor([sample[key] for sample in SAMPLES[of]])[:, None]
    sample = dict(video=torch.zeros(num, 3, frames, *config["image_size"]), action=actions, context=data["text"][of],
                  context_mask=torch.ones(data["text"][of].shape[:2], dtype=torch.bool),
                  action_is_pad=torch.arange(horizon)[None] >= lens("inside"))
    if "state" in data:
        sample["proprio"] = data["state"][of][:, None]
    if masks_frames:
        sample["image_is_pad"] = torch.arange(frames)[None] >= lens("frames")
    noises = iter([data["video_noise"][of], data["action_noise"][of]])
    steps = lambda scheduler, time: mock.patch.object(scheduler, "sample_training_t",
                                                      lambda **kinds: time * scheduler.num_train_timesteps)
    with mock.patch.object(model, "_encode_video_latents", lambda video, tiled: latents.clone()), \
            mock.patch.object(torch, "randn_like", lambda like: next(noises)), \
            steps(model.train_video_scheduler, data["video_time"][of]), steps(model.train_action_scheduler, data["action_time"][of]):
        return model.training_loss(sample)[0]


def act(model: FastWAM, config: dict, data: dict[str, Tensor], at: int) -> Tensor:
    """Actions of one sample from its noise, with keys and values of the first frame computed once."""
    with mock.patch.object(model, "_encode_input_image_latents_tensor", lambda input_image, tiled: data["latents"][at:at + 1, :, :1]), \
            mock.patch.object(model, "_make_action_latents", lambda *sizes: data["start"][at:at + 1].clone()):
        return model.infer_action(
            prompt=None, input_image=torch.zeros(1, 3, *config["image_size"]), action_horizon=config["action_horizon"],
            context=data["text"][at:at + 1], context_mask=torch.ones(1, data["text"].shape[1], dtype=torch.bool),
            proprio=data["state"][at] if "state" in data else None,
            num_inference_steps=config["num_inference_steps"], sigma_shift=config.get("sigma_shift"))["action"]


def expected(model: FastWAM, config: dict, data: dict[str, Tensor]) -> dict[str, Tensor]:
    everything = slice(None)
    total = loss_of(model.train(), config, data, everything)
    total.backward()
    found = dict(loss=total.detach().double())
    for name, tensor in model.named_parameters():
        # What has none is what no action sees: the last layer of the video stream, where its loss counts for nothing.
        if tensor.grad is not None:
            found[f"grad/model.{name}"] = tensor.grad.contiguous()
    with torch.no_grad():
        found["loss_of_frames"] = loss_of(model, config, data, everything, masks_frames=True).double()
        found["of_samples"] = torch.stack([loss_of(model, config, data, slice(at, at + 1)) for at in range(len(SAMPLES))])
    if config["video_dit_config"]["video_attention_mask_mode"] == "first_frame_causal":
        found["sampled"] = torch.stack([act(model, config, data, at) for at in range(len(SAMPLES))])
    return found


def write(folder: Path, config: dict, seed: int) -> None:
    torch.manual_seed(seed)
    model = build(config)
    randomize(model.named_parameters(), seed, {"modulation": 0.5})
    data = inputs(config, seed)
    found = expected(model, config, data)
    empty(folder)
    write_json(folder / "config.json", config)
    write_json(folder / "fixture.json", dict(samples=SAMPLES, seed=seed))
    save_model(Policy(model), str(folder / "model.safetensors"))
    write_tensors(folder, data, found)


if __name__ == "__main__":
    main(__doc__, "fastwam", CONFIG, write)
