"""Plain modules for the families that transformers does not have, with the published names of their tensors.

Each takes its published `config.json` as a dict. Sequences are padded on the right, so a causal mask is all that
attention needs. The README beside this file tells what each was checked against.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def activation(c: dict, default: str):
    """By transformers' names."""
    from transformers.activations import ACT2FN

    return ACT2FN[c.get("hidden_act") or default]


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turns the pairs (i, i + half) of the last dimension of x [..., S, H, D] by angles [..., S, D / 2]."""
    angles = torch.cat([angles, angles], -1).unsqueeze(-2)
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def frequencies(width: int, base: float) -> Tensor:
    return 1.0 / base ** (torch.arange(0, width, 2).float() / width)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [B, S, H, D], k and v [B, S, G, D], mask [S, S] of what may be seen; gives [B, S, H * D]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)


def output(logits: Tensor, labels: Tensor | None) -> SimpleNamespace:
    return SimpleNamespace(logits=logits, loss=None if labels is None else next_token_loss(logits, labels))


def put_images(embeds: Tensor, input_ids: Tensor, token: int, images: Tensor) -> Tensor:
    """The first tokens of that id become the images; one that was generated after them stays a token."""
    found = input_ids == token
    found &= found.flatten().cumsum(0).reshape(found.shape) <= len(images)
    return embeds.masked_scatter(found.unsqueeze(-1), images)


# ------------------------------------------------------------------------------------------------ Qwen


class Qwen1Block(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width, heads, biased = c["hidden_size"], c["num_attention_heads"] * c["kv_channels"], not c["no_bias"]
        inner = c["intermediate_size"] // 2  # the published number counts both halves
        self.head_dim = c["kv_channels"]
        self.ln_1, self.ln_2 = (RmsNorm(width, c["layer_norm_epsilon"]) for _ in range(2))
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * heads), "c_proj": nn.Linear(heads, width, bias=biased)})
        self.mlp = nn.ModuleDict({
            "w1": nn.Linear(width, inner, bias=biased), "w2": nn.Linear(width, inner, bias=biased),
            "c_proj": nn.Linear(inner, width, bias=biased),
        })

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.attn["c_attn"](self.ln_1(x)).chunk(3, -1))
        x = x + self.attn["c_proj"](attend(rotate(q, angles), rotate(k, angles), v, mask))
        normed = self.ln_2(x)
        return x + self.mlp["c_proj"](self.mlp["w1"](normed) * F.silu(self.mlp["w2"](normed)))


class Qwen1(nn.Module):
    """`use_dynamic_ntk` and `use_logn_attn` act beyond `seq_length` and in inference only: not here."""

    def __init__(self, c: dict):
        super().__init__()
        self.c = c
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(c["vocab_size"], c["hidden_size"]),
            "h": nn.ModuleList(Qwen1Block(c) for _ in range(c["num_hidden_layers"])),
            "ln_f": RmsNorm(c["hidden_size"], c["layer_norm_epsilon"]),
        })
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None):
        length = input_ids.shape[1]
        angles = torch.outer(torch.arange(length).float(), frequencies(self.c["kv_channels"], self.c["rotary_emb_base"]))
        x = self.transformer["wte"](input_ids)
        for block in self.transformer["h"]:
            x = block(x, angles, causal(length))
        return output(self.lm_head(self.transformer["ln_f"](x)), labels)


# ------------------------------------------------------------------------------------------- InternLM2


class InternLM2Block(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width, heads, groups = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.groups, self.head_dim = groups, width // heads
        self.attention = nn.ModuleDict({
            "wqkv": nn.Linear(width, (heads + 2 * groups) * self.head_dim, bias=c["bias"]),
            "wo": nn.Linear(width, width, bias=c["bias"]),
        })
        inner = c["intermediate_size"]
        self.feed_forward = nn.ModuleDict({
            "w1": nn.Linear(width, inner, bias=False), "w3": nn.Linear(width, inner, bias=False),
            "w2": nn.Linear(inner, width, bias=False),
        })
        self.act = activation(c, "silu")
        self.attention_norm, self.ffn_norm = (RmsNorm(width, c["rms_norm_eps"]) for _ in range(2))

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        # Of each key-value head: its query heads, then the key, then the value.
        fused = self.attention["wqkv"](self.attention_norm(x)).unflatten(-1, (self.groups, -1, self.head_dim))
        q, k, v = fused[..., :-2, :].flatten(2, 3), fused[..., -2, :], fused[..., -1, :]
        x = x + self.attention["wo"](attend(rotate(q, angles), rotate(k, angles), v, mask))
        normed = self.ffn_norm(x)
        return x + self.feed_forward["w2"](self.act(self.feed_forward["w1"](normed)) * self.feed_forward["w3"](normed))


class InternLM2(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.c = c
        self.model = nn.ModuleDict({
            "tok_embeddings": nn.Embedding(c["vocab_size"], c["hidden_size"], c.get("pad_token_id")),
            "layers": nn.ModuleList(InternLM2Block(c) for _ in range(c["num_hidden_layers"])),
            "norm": RmsNorm(c["hidden_size"], c["rms_norm_eps"]),
        })
        self.output = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.output.weight = self.model["tok_embeddings"].weight

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model["tok_embeddings"]

    def angles(self, length: int) -> Tensor:
        c, scaling = self.c, self.c.get("rope_scaling") or {"type": "none", "factor": 1.0}
        width, base, longest = c["hidden_size"] // c["num_attention_heads"], c["rope_theta"], c["max_position_embeddings"]
        positions, factor = torch.arange(length).float(), scaling["factor"]
        if scaling["type"] == "linear":
            positions = positions / factor
        elif scaling["type"] == "dynamic" and length > longest:
            base *= (factor * length / longest - (factor - 1)) ** (width / (width - 2))
        return torch.outer(positions, frequencies(width, base))

    def forward(self, input_ids=None, attention_mask=None, labels=None, inputs_embeds=None):
        x = self.model["tok_embeddings"](input_ids) if inputs_embeds is None else inputs_embeds
        for block in self.model["layers"]:
            x = block(x, self.angles(x.shape[1]), causal(x.shape[1]))
        return output(self.output(self.model["norm"](x)), labels)


# -------------------------------------------------------------------------- InternVL in its own layout


class InternVitBlock(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width, eps = c["hidden_size"], c["layer_norm_eps"]
        norm = RmsNorm if c["norm_type"] == "rms_norm" else nn.LayerNorm
        self.heads = c["num_attention_heads"]
        self.norm1, self.norm2 = norm(width, eps=eps), norm(width, eps=eps)
        self.ls1, self.ls2 = (nn.Parameter(c["initializer_factor"] * torch.ones(width)) for _ in range(2))
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width, bias=c["qkv_bias"]), "proj": nn.Linear(width, width)})
        if c["qk_normalization"]:
            self.attn.update({"q_norm": RmsNorm(width, eps), "k_norm": RmsNorm(width, eps)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, c["intermediate_size"]), "fc2": nn.Linear(c["intermediate_size"], width)})
        self.act = activation(c, "gelu")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attn["qkv"](self.norm1(x)).chunk(3, -1)
        if "q_norm" in self.attn:
            q, k = self.attn["q_norm"](q), self.attn["k_norm"](k)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in (q, k, v))
        everything = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        x = x + self.ls1 * self.attn["proj"](attend(q, k, v, everything))
        return x + self.ls2 * self.mlp["fc2"](self.act(self.mlp["fc1"](self.norm2(x))))


class InternVit(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width, side = c["hidden_size"], c["image_size"] // c["patch_size"]
        self.embeddings = nn.Module()
        self.embeddings.class_embedding = nn.Parameter(torch.randn(1, 1, width))
        self.embeddings.patch_embedding = nn.Conv2d(3, width, c["patch_size"], c["patch_size"])
        self.embeddings.position_embedding = nn.Parameter(torch.randn(1, side * side + 1, width))
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(InternVitBlock(c) for _ in range(c["num_hidden_layers"]))})

    def forward(self, pixels: Tensor) -> Tensor:
        e = self.embeddings
        patches = e.patch_embedding(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([e.class_embedding.expand(len(pixels), -1, -1), patches], 1) + e.position_embedding
        for block in self.encoder["layers"]:
            x = block(x)
        return x[:, 1:]


def pixel_shuffle(x: Tensor, ratio: float) -> Tensor:
    """x [N, H, W, C] → [N, H * ratio, W * ratio, C / ratio²], the second version."""
    n, rows, columns, width = x.shape
    x = x.reshape(n, rows, int(columns * ratio), int(width / ratio)).transpose(1, 2)
    x = x.reshape(n, int(columns * ratio), int(rows * ratio), int(width / ratio**2))
    return x.transpose(1, 2)


def decoder(c: dict) -> nn.Module:
    """The language model of an InternVL checkpoint: InternLM2, or a family of transformers."""
    name = c["architectures"][0]
    if name == "InternLM2ForCausalLM":
        return InternLM2(c)
    model_class = getattr(__import__("transformers"), name)
    config = model_class.config_class(**c)
    config._attn_implementation = "eager"
    return model_class(config)


class InternVLChat(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.c, width, text = c, c["vision_config"]["hidden_size"], c["llm_config"]["hidden_size"]
        merged = int(width / c["downsample_ratio"] ** 2)
        self.vision_model = InternVit(c["vision_config"])
        self.mlp1 = nn.Sequential(nn.LayerNorm(merged), nn.Linear(merged, text), nn.GELU(), nn.Linear(text, text))
        self.language_model = decoder(c["llm_config"])
        if c.get("tie_word_embeddings"):  # the language model's own key ties it as well
            head = getattr(self.language_model, "output", None) or self.language_model.lm_head
            head.weight = self.language_model.get_input_embeddings().weight

    def forward(self, input_ids: Tensor, pixel_values: Tensor, attention_mask=None, labels=None):
        patches = self.vision_model(pixel_values)
        side = int(patches.shape[1] ** 0.5)
        images = pixel_shuffle(patches.unflatten(1, (side, side)), self.c["downsample_ratio"])
        images = self.mlp1(images.flatten(1, 2)).flatten(0, 1)
        embeds = put_images(self.language_model.get_input_embeddings()(input_ids), input_ids, self.c["image_token_id"], images)
        return self.language_model(inputs_embeds=embeds, attention_mask=attention_mask, labels=labels)


# ------------------------------------------------------------------------- models put together from parts


class Composed(nn.Module):
    """A vision tower of transformers, a projector of two maps and a language model, in the layout of `loongforge_vlm`."""

    # States of which layer are taken where the config has no `vision_feature_layer`; those behind the last norm of others.
    LAYERS = {"clip_vision_model": -2}

    def __init__(self, c: dict):
        super().__init__()
        import transformers

        self.c, vision = c, c["image_encoder"]
        made = transformers.CONFIG_MAPPING[vision["model_type"]](**vision)
        made._attn_implementation = "eager"
        tower = transformers.AutoModel.from_config(made)
        self.layer = vision.get("vision_feature_layer") or self.LAYERS.get(vision["model_type"])
        self.is_bare = vision["model_type"].startswith("dinov2")
        self.image_encoder = tower if self.is_bare else nn.ModuleDict({"vision_model": tower})
        self.foundation = decoder(c["foundation"])
        width, outputs = vision["hidden_size"], c["foundation"]["hidden_size"]
        self.image_projector = nn.ModuleDict({"linear_1": nn.Linear(width, outputs), "linear_2": nn.Linear(outputs, outputs)})

    def states(self, pixel_values: Tensor) -> Tensor:
        """[pictures, patches, width]: without the class token, where there is one."""
        out = (self.image_encoder if self.is_bare else self.image_encoder["vision_model"])(pixel_values, output_hidden_states=True)
        states = out.last_hidden_state if self.layer is None else out.hidden_states[self.layer]
        vision = self.c["image_encoder"]
        before = 0 if vision["model_type"].startswith("siglip") else 1 + vision.get("num_register_tokens", 0)
        return states[:, before:]

    def forward(self, input_ids: Tensor, pixel_values: Tensor, attention_mask=None, labels=None):
        states = self.states(pixel_values)
        images = self.image_projector["linear_2"](F.gelu(self.image_projector["linear_1"](states))).flatten(0, 1)
        embeds = put_images(self.foundation.get_input_embeddings()(input_ids), input_ids, self.c["image_token_id"], images)
        return self.foundation(inputs_embeds=embeds, attention_mask=attention_mask, labels=labels)


# ----------------------------------------------------------------------------------- LLaVA-OneVision-1.5


class RiceBlock(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width = c["hidden_size"]
        self.heads = c["num_heads"]
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=c["layer_norm_eps"]) for _ in range(2))
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, c["intermediate_size"]), "fc2": nn.Linear(c["intermediate_size"], width)})
        self.act = activation(c, "gelu")

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.attn["qkv"](self.norm1(x)).chunk(3, -1))
        attended = attend(rotate(q, angles)[None], rotate(k, angles)[None], v[None], mask)[0]
        x = x + self.attn["proj"](attended)
        return x + self.mlp["fc2"](self.act(self.mlp["fc1"](self.norm2(x))))


class Rice(nn.Module):
    """A class token with a learned rotary angle stands before each picture; it is dropped before the merger."""

    def __init__(self, c: dict):
        super().__init__()
        self.c, width, head = c, c["hidden_size"], c["hidden_size"] // c["num_heads"]
        merged = width * c["spatial_merge_size"] ** 2
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, c["patch_size"], c["patch_size"], bias=False)})
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.class_pos_emb = nn.Parameter(torch.randn(1, head // 2))
        self.pre_layernorm = nn.LayerNorm(width, eps=c["layer_norm_eps"])
        self.blocks = nn.ModuleList(RiceBlock(c) for _ in range(c["depth"]))
        self.merger = nn.ModuleDict({
            "ln_q": nn.LayerNorm(width, eps=c["layer_norm_eps"]),
            "mlp": nn.Sequential(nn.Linear(merged, merged), nn.GELU(), nn.Linear(merged, c["text_hidden_size"])),
        })

    def angles(self, height: int, width: int) -> Tensor:
        """[height * width, head / 2]: a quarter of the head turns with the row, a quarter with the column."""
        merge = self.c["spatial_merge_size"]
        where = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1).float()
        blocks = where.reshape(height // merge, merge, width // merge, merge, 2).transpose(1, 2).reshape(-1, 2, 1)
        return (blocks * frequencies(self.c["hidden_size"] // self.c["num_heads"] // 2, 10000.0)).flatten(1)

    def picture(self, patches: Tensor, height: int, width: int) -> Tensor:
        side = self.c["patch_size"]
        x = self.patch_embed["proj"](patches.reshape(-1, 3, side, side)).flatten(1)
        x = self.pre_layernorm(torch.cat([self.class_embedding[None], x]))
        angles = torch.cat([self.class_pos_emb, self.angles(height, width)])
        everything = torch.ones(len(x), len(x), dtype=torch.bool)
        for block in self.blocks:
            x = block(x, angles, everything)
        merged = self.merger["ln_q"](x[1:]).reshape(-1, x.shape[1] * self.c["spatial_merge_size"] ** 2)
        return self.merger["mlp"](merged)

    def forward(self, pixels: Tensor, grids: Tensor) -> Tensor:
        parts = pixels.split(grids.prod(-1).tolist())
        return torch.cat([self.picture(part, height, width) for part, (_, height, width) in zip(parts, grids.tolist())])


class LlavaOneVision15(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        from transformers import Qwen3Config, Qwen3Model

        text = {key: value for key, value in c["text_config"].items() if key not in ("model_type", "rope_theta")}
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": c["text_config"]["rope_theta"]}
        config = Qwen3Config(**text)
        config._attn_implementation = "eager"
        self.c = c
        self.visual, self.model = Rice(c["vision_config"]), Qwen3Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if c.get("tie_word_embeddings"):  # the model's, whatever the language model's own says
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor, pixel_values: Tensor, image_grid_thw: Tensor, attention_mask=None, labels=None):
        images = self.visual(pixel_values, image_grid_thw)
        embeds = put_images(self.model.embed_tokens(input_ids), input_ids, self.c["image_token_id"], images)
        hidden = self.model(inputs_embeds=embeds, attention_mask=attention_mask).last_hidden_state
        return output(self.lm_head(hidden), labels)
