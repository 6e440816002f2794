"""Writes parity fixtures of GR00T N1.6: tiny random weights under the published names, samples of two embodiments with a missing picture,
prompts of several lengths, padded actions and steps and a state that is replaced by the learned token, and what a plain reference makes of
them: loss and gradients with given noise and times, and actions of given noise. Samples are computed one at a time.

    python make_groot_n1_6.py src/torch/tests/policies                    # that which is committed
    python make_groot_n1_6.py OUT --seed 7 --set diffusion_model_cfg.num_layers=5

No package has this policy. The reference is written from NVIDIA's published code (`gr00t/model/gr00t_n1d6`, `gr00t/model/modules` of
Isaac-GR00T, N1.6) out of parts that packages have: SigLIP 2's tower and Qwen3 of transformers, attention and feed-forward of diffusers.
README.md says what that code leaves open. A folder has `config.json` (`Gr00tN1d6Config`'s keys, and Eagle 3's under `backbone_config`),
the weights, and tensors of all samples: pictures are patches `[N, patches, values]` of each camera, row by row, of rows, columns and
channels; ids are those of all samples, end to end.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers.models.attention import FeedForward
from diffusers.models.attention_processor import Attention
from diffusers.models.embeddings import TimestepEmbedding, Timesteps
from fixture_folder import empty, main, randomize, write_json, write_tensors
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model, Siglip2VisionConfig, Siglip2VisionModel

IMAGE = 44
BACKBONE = dict(
    model_type="eagle_3_vl", image_token_index=IMAGE, downsample_ratio=0.5, select_layer=-1,
    text_config=dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], vocab_size=48, hidden_size=16, intermediate_size=20,
                     num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=12, rms_norm_eps=1e-6,
                     rope_theta=10000.0, tie_word_embeddings=True, max_position_embeddings=512),
    vision_config=dict(model_type="siglip2_vision_model", hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
                       num_patches=16, patch_size=2, layer_norm_eps=1e-6, use_rope=False, use_windows_attn=False),
)
CONFIG = dict(
    model_type="Gr00tN1d6", model_name="tiny", backbone_model_type="eagle", select_layer=2, tune_llm=True, tune_visual=True,
    backbone_embedding_dim=16, max_state_dim=5, max_action_dim=6, action_horizon=5, hidden_size=10, input_embedding_dim=12,
    max_seq_len=7, max_num_embodiments=3, num_inference_timesteps=4, state_dropout_prob=0.5, state_additive_noise_scale=0.3,
    diffusion_model_cfg=dict(positional_embeddings=None, num_layers=5, num_attention_heads=2, attention_head_dim=6,
                             norm_type="ada_norm", dropout=0.0, final_dropout=True, output_dim=10, interleave_self_attention=True),
    backbone_config=BACKBONE,
)
# Patches of a picture of each camera, down and across: of the table's size, smaller, and longer than it on one axis.
GRIDS = [(4, 4), (2, 6)]
# Tokens behind the pictures, the cameras that are there, the embodiment, and which steps and numbers of actions count.
SAMPLES = [
    dict(prompt=5, cameras=[0, 1], embodiment=2, steps=5, action_dim=4),
    dict(prompt=3, cameras=[0, 1], embodiment=0, steps=3, action_dim=6),
    dict(prompt=6, cameras=[1], embodiment=2, steps=5, action_dim=4),
]
# By draw, the samples whose state is replaced.
DROPPED = [[1], [2]]


class Eagle(nn.Module):
    """The vision-language model up to the states that actions see."""

    def __init__(self, config: dict, select: int) -> None:
        super().__init__()
        vision, text = config["vision_config"], config["text_config"]
        own = {key: value for key, value in vision.items() if key not in ("model_type", "use_rope", "use_windows_attn")}
        self.vision_model = nn.Module()
        self.vision_model.vision_model = Siglip2VisionModel(Siglip2VisionConfig(**own, attn_implementation="eager"))
        self.merge = round(1 / config["downsample_ratio"])
        block, width = vision["hidden_size"] * self.merge**2, text["hidden_size"]
        self.mlp1 = nn.Sequential(nn.LayerNorm(block), nn.Linear(block, width), nn.GELU(), nn.Linear(width, width))
        language = Qwen3Model(Qwen3Config(**{key: value for key, value in text.items() if key != "model_type"}, attn_implementation="eager"))
        language.layers = language.layers[:select]
        language.config.num_hidden_layers = select
        self.language_model = nn.Module()
        self.language_model.model = language
        self.image = config["image_token_index"]

    def features(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Patches `[P, values]` of one picture to `[N, D]`."""
        rows, columns = grid
        whole = torch.ones(1, rows * columns, dtype=torch.long)
        states = self.vision_model.vision_model(patches[None], whole, torch.tensor([grid])).last_hidden_state[0]
        picture = states.T.reshape(1, -1, rows, columns)
        return self.mlp1(F.pixel_unshuffle(picture, self.merge).flatten(2).transpose(1, 2)[0])

    def forward(self, ids: Tensor, pictures: list[tuple[Tensor, tuple[int, int]]]) -> Tensor:
        """Tokens `[T]` to states `[T, D]`, behind the last norm: the last of `hidden_states`."""
        embeds = self.language_model.model.embed_tokens(ids)
        features = torch.cat([self.features(*picture) for picture in pictures])
        embeds = embeds.masked_scatter((ids == self.image)[:, None], features)
        return self.language_model.model(inputs_embeds=embeds[None]).last_hidden_state[0]


class CategoryLinear(nn.Module):
    def __init__(self, categories: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(categories, inputs, outputs))
        self.b = nn.Parameter(torch.zeros(categories, outputs))

    def forward(self, x: Tensor, of: int) -> Tensor:
        return x @ self.W[of] + self.b[of]


class CategoryMLP(nn.Module):
    def __init__(self, categories: int, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = CategoryLinear(categories, inputs, inner), CategoryLinear(categories, inner, outputs)

    def forward(self, x: Tensor, of: int) -> Tensor:
        return self.layer2(F.relu(self.layer1(x, of)), of)


class ActionEncoder(nn.Module):
    def __init__(self, categories: int, inputs: int, width: int) -> None:
        super().__init__()
        self.W1, self.W2 = CategoryLinear(categories, inputs, width), CategoryLinear(categories, 2 * width, width)
        self.W3, self.width = CategoryLinear(categories, width, width), width

    def forward(self, actions: Tensor, bucket: int, of: int) -> Tensor:
        half = self.width // 2
        angles = bucket * torch.exp(-torch.arange(half) * math.log(10000.0) / half)
        time = torch.cat([angles.sin(), angles.cos()]).expand(len(actions), -1)
        return self.W3(F.silu(self.W2(torch.cat([self.W1(actions, of), time], -1), of)), of)


class AdaNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.linear(F.silu(condition)).chunk(2)
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * (1 + scale) + shift


class Block(nn.Module):
    def __init__(self, width: int, heads: int, head_dim: int, seen: int | None) -> None:
        super().__init__()
        self.norm1 = AdaNorm(width)
        self.attn1 = Attention(width, seen, heads=heads, dim_head=head_dim, bias=True, out_bias=True)
        self.ff = FeedForward(width, activation_fn="gelu-approximate", final_dropout=True)

    def forward(self, x: Tensor, condition: Tensor, seen: Tensor | None, is_seen: Tensor | None) -> Tensor:
        mask = None if is_seen is None else is_seen[None]
        x = x + self.attn1(self.norm1(x, condition)[None], None if seen is None else seen[None], attention_mask=mask)[0]
        return x + self.ff(F.layer_norm(x, x.shape[-1:], eps=1e-5))


class Transformer(nn.Module):
    def __init__(self, config: dict, seen: int, text_every: int) -> None:
        super().__init__()
        heads, head_dim = config["num_attention_heads"], config["attention_head_dim"]
        width = heads * head_dim
        self.timestep_encoder = nn.Module()
        self.timestep_encoder.timestep_embedder = TimestepEmbedding(256, width)
        blocks = [Block(width, heads, head_dim, None if at % 2 else seen) for at in range(config["num_layers"])]
        self.transformer_blocks = nn.ModuleList(blocks)
        self.proj_out_1, self.proj_out_2 = nn.Linear(width, 2 * width), nn.Linear(width, config["output_dim"])
        self.text_every = text_every

    def forward(self, x: Tensor, bucket: int, seen: Tensor, is_picture: Tensor) -> Tensor:
        sines = Timesteps(256, flip_sin_to_cos=True, downscale_freq_shift=1)(torch.tensor([bucket]))
        condition = self.timestep_encoder.timestep_embedder(sines)[0]
        for at, block in enumerate(self.transformer_blocks):
            is_seen = ~is_picture if at % (2 * self.text_every) == 0 else is_picture
            x = block(x, condition, None, None) if at % 2 else block(x, condition, seen, is_seen)
        shift, scale = self.proj_out_1(F.silu(condition)).chunk(2)
        return self.proj_out_2(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)


class Head(nn.Module):
    def __init__(self, config: dict) -> None:
        super().__init__()
        width, hidden, robots = config["input_embedding_dim"], config["hidden_size"], config["max_num_embodiments"]
        self.model = Transformer(config["diffusion_model_cfg"], config["backbone_embedding_dim"], config.get("attend_text_every_n_blocks", 2))
        self.state_encoder = CategoryMLP(robots, config["max_state_dim"], hidden, width)
        self.action_encoder = ActionEncoder(robots, config["max_action_dim"], width)
        self.action_decoder = CategoryMLP(robots, hidden, hidden, config["max_action_dim"])
        self.vlln = nn.LayerNorm(config["backbone_embedding_dim"]) if config.get("use_vlln", True) else nn.Identity()
        if config.get("add_pos_embed", True):
            self.position_embedding = nn.Embedding(config["max_seq_len"], width)
        if config["state_dropout_prob"] > 0:
            self.mask_token = nn.Parameter(torch.zeros(1, 1, width))

    def velocity(self, states: Tensor, is_picture: Tensor, state: Tensor, noised: Tensor, bucket: int, of: int) -> Tensor:
        """`state` `[1, width]` is the row of the state, `noised` `[H, A]`."""
        actions = self.action_encoder(noised, bucket, of)
        if hasattr(self, "position_embedding"):
            actions = actions + self.position_embedding.weight[: len(actions)]
        found = self.model(torch.cat([state, actions]), bucket, self.vlln(states), is_picture)
        return self.action_decoder(found, of)[-len(noised):]


class Policy(nn.Module):
    def __init__(self, config: dict) -> None:
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.model = Eagle(config["backbone_config"], config["select_layer"])
        self.action_head = Head(config)


def freeze(policy: Policy, config: dict) -> None:
    """`set_trainable_parameters` of the backbone and of the head."""
    eagle, head, of = policy.backbone.model, policy.action_head, lambda key, default=True: config.get(key, default)
    if not of("tune_llm", False):
        eagle.language_model.requires_grad_(False)
    for layer in eagle.language_model.model.layers[-of("tune_top_llm_layers", 4):] if of("tune_top_llm_layers", 4) > 0 else []:
        layer.requires_grad_(True)
    if not of("tune_visual", False):
        eagle.vision_model.requires_grad_(False)
        eagle.mlp1.requires_grad_(False)
    if not of("tune_projector"):
        for name, tensor in head.named_parameters():
            if not name.startswith(("model.", "vlln.")):
                tensor.requires_grad_(False)
    if not of("tune_diffusion_model"):
        head.model.requires_grad_(False)
    if not of("tune_vlln"):
        head.vlln.requires_grad_(False)


def dropped_states(config: dict) -> list[list[int]]:
    return DROPPED if config["state_dropout_prob"] > 0 else [[] for _ in DROPPED]


def inputs(config: dict, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed + 1000)
    normal = lambda *shape: torch.randn(shape, generator=rng)
    num, draws = len(SAMPLES), len(DROPPED)
    patch = 3 * config["backbone_config"]["vision_config"]["patch_size"] ** 2
    horizon, dim, width = config["action_horizon"], config["max_action_dim"], config["input_embedding_dim"]
    mask = torch.zeros(num, horizon, dim)
    for row, sample in zip(mask, SAMPLES):
        row[: min(sample["steps"], horizon), : min(sample["action_dim"], dim)] = 1
    data = {f"pixels_{camera}": normal(num, rows * columns, patch).clamp(-1, 1) for camera, (rows, columns) in enumerate(GRIDS)}
    if config["state_additive_noise_scale"] > 0:
        data["state_noise"] = normal(draws, num, 1, width) * config["state_additive_noise_scale"]
    return dict(
        data, prompts=torch.randint(1, IMAGE, (num, 8), generator=rng), state=normal(num, 1, config["max_state_dim"]),
        actions=normal(num, horizon, dim) * mask, weights=mask, noise=normal(draws, num, horizon, dim),
        time=torch.rand((draws, num), generator=rng) * 0.9 + 0.05, start=normal(num, horizon, dim),
        embodiment=torch.tensor([min(sample["embodiment"], config["max_num_embodiments"] - 1) for sample in SAMPLES]),
    )


def tokens(data: dict[str, Tensor], number: int, merge: int) -> list[int]:
    """Text before, between and behind the pictures of a sample."""
    sample, ids = SAMPLES[number], [1]
    for camera in sample["cameras"]:
        rows, columns = GRIDS[camera]
        ids += [2] + [IMAGE] * (rows * columns // merge**2) + [3]
    return ids + data["prompts"][number, : sample["prompt"]].tolist()


def expected(model: Policy, config: dict, data: dict[str, Tensor], ids: list[list[int]]) -> dict[str, Tensor]:
    head, eagle = model.action_head, model.backbone.model
    buckets, steps = config.get("num_timestep_buckets", 1000), config["num_inference_timesteps"]
    losses, sampled = [], []
    for number, sample in enumerate(SAMPLES):
        of, own = int(data["embodiment"][number]), torch.tensor(ids[number])
        pictures = [(data[f"pixels_{camera}"][number], GRIDS[camera]) for camera in sample["cameras"]]
        states = eagle(own, pictures)
        is_picture = own == IMAGE
        clean = head.state_encoder(data["state"][number], of)
        for draw, dropped in enumerate(dropped_states(config)):
            state = head.mask_token[0] if number in dropped else clean
            if "state_noise" in data:
                state = state + data["state_noise"][draw, number]
            time, noise, actions = data["time"][draw, number], data["noise"][draw, number], data["actions"][number]
            noised = (1 - time) * noise + time * actions
            found = head.velocity(states, is_picture, state, noised, int(time * buckets), of)
            losses.append((F.mse_loss(found, actions - noise, reduction="none") * data["weights"][number]).sum())
        with torch.no_grad():
            actions = data["start"][number]
            for step in range(steps):
                bucket = int(step / steps * buckets)
                actions = actions + head.velocity(states, is_picture, clean, actions, bucket, of) / steps
            sampled.append(actions)
    loss = torch.stack(losses).sum() / (len(DROPPED) * data["weights"].sum())
    loss.backward()
    found = dict(loss=loss.detach().double(), sampled=torch.stack(sampled))
    for name, tensor in model.named_parameters():
        if tensor.grad is not None:
            found[f"grad/{name}"] = tensor.grad
    return found


def write(folder: Path, config: dict, seed: int) -> None:
    torch.manual_seed(seed)
    model = Policy(config)
    randomize(model.named_parameters(), seed)
    freeze(model, config)
    data = inputs(config, seed)
    ids = [tokens(data, number, model.backbone.model.merge) for number in range(len(SAMPLES))]
    found = expected(model, config, data, ids)
    empty(folder)
    save_file({name: tensor.detach().contiguous() for name, tensor in model.named_parameters()}, str(folder / "model.safetensors"))
    data["input_ids"] = torch.tensor(sum(ids, []))
    data["position_ids"] = torch.cat([torch.arange(len(own)) for own in ids]).expand(3, -1).float()
    del data["prompts"]
    write_json(folder / "config.json", config)
    write_json(folder / "fixture.json", dict(samples=SAMPLES, grids=GRIDS, dropped=dropped_states(config), seed=seed, lens=[len(own) for own in ids]))
    write_tensors(folder, data, found)


if __name__ == "__main__":
    main(__doc__, "groot-n1_6", CONFIG, write)
