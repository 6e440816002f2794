"""Losses that transformers does not have: that of a multi-token prediction head, and that of a sparse-attention indexer.

Both are computed around a model of transformers, by hooks.
"""

from __future__ import annotations

import contextlib
import copy
import inspect

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MTP_LOSS_WEIGHT = 0.3

# What each layout calls the norms, the projection and the last norm, where the head hangs, and what comes first in the
# concatenation: the embedding of the next token, or the hidden state.
LAYOUTS = {
    "deepseek": dict(embedding="enorm", hidden="hnorm", project="eh_proj", last="shared_head.norm", hidden_first=False),
    "qwen3_next": dict(embedding="pre_fc_norm_embedding", hidden="pre_fc_norm_hidden", project="fc", last="norm", hidden_first=False),
    "mimo": dict(embedding="token_layernorm", hidden="hidden_layernorm", project="input_proj", last="final_layernorm", hidden_first=True),
}


class Mtp:
    """One head of depth one: from the state at a token and the embedding of the next one, the token after that.

    Embeddings and the output matrix are the model's own; the state is the model's last one, after its final norm.
    """

    def __init__(self, model: nn.Module, style: str):
        self.model, self.layout = model, LAYOUTS[style]
        config, trunk = model.config, model.model
        layer_class, norm_class = type(trunk.layers[-1]), type(trunk.norm)
        self.block = layer_class(config, config.num_hidden_layers - 1)
        self.parts = {name: norm_class(config.hidden_size, config.rms_norm_eps) for name in ("embedding", "hidden", "last")}
        self.parts["project"] = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        named = {self.layout[part]: module for part, module in self.parts.items()}
        if style == "qwen3_next":
            model.mtp = holder = nn.Module()
            holder.layers = nn.ModuleList([self.block])
        else:
            holder = self.block
            if style == "deepseek":
                trunk.layers.append(self.block)  # after the trunk's own layers, which is all that the trunk runs
                holder.shared_head = nn.Module()
            else:
                trunk.mtp_layers = nn.ModuleList([self.block])
        for name, module in named.items():
            *parent, last = name.split(".")
            setattr(holder.get_submodule(parent[0]) if parent else holder, last, module)

    def copies(self) -> dict[str, str]:
        """Names under which the published checkpoint stores a shared tensor again, and the tensor's own name."""
        if self.layout is not LAYOUTS["deepseek"]:
            return {}
        prefix = f"model.layers.{self.model.config.num_hidden_layers}"
        return {f"{prefix}.embed_tokens.weight": "model.embed_tokens.weight",
                f"{prefix}.shared_head.head.weight": "lm_head.weight"}

    @staticmethod
    def of(model: nn.Module, style: str) -> "Mtp":
        return StreamsMtp(model) if style == "deepseek_v4" else Mtp(model, style)

    @contextlib.contextmanager
    def listening(self):
        """Catches the final state and the arguments of the last layer of the trunk during a forward pass."""
        trunk, caught = self.model.model, {}
        last = trunk.layers[self.model.config.num_hidden_layers - 1]
        handles = [
            trunk.norm.register_forward_hook(lambda module, args, out: caught.update(hidden=out)),
            last.register_forward_pre_hook(lambda module, args, kwargs: caught.update(kwargs=kwargs), with_kwargs=True),
        ]
        try:
            yield caught
        finally:
            for handle in handles:
                handle.remove()

    def loss(self, caught: dict, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean over the counted tokens two ahead. The embedding after the last token is that of token 0: none sees it."""
        ahead = F.pad(input_ids[:, 1:], (0, 1))
        both = [self.parts["embedding"](self.model.model.embed_tokens(ahead)), self.parts["hidden"](caught["hidden"])]
        both = both[::-1] if self.layout["hidden_first"] else both
        known = inspect.signature(type(self.block).forward).parameters
        kwargs = {k: v for k, v in caught["kwargs"].items() if k in known and k not in ("past_key_values", "use_cache", "prev_topk_indices")}
        state = self.block(self.parts["project"](torch.cat(both, -1)), **kwargs)
        state = self.parts["last"](state[0] if isinstance(state, tuple) else state)
        logits = self.model.lm_head(state[:, :-2])
        return F.cross_entropy(logits.flatten(0, 1).float(), labels[:, 2:].flatten(), ignore_index=-100)


class StreamsMtp(Mtp):
    """DeepSeek-V4's head, as `MTPBlock` of its published inference code: a layer with a window alone and scored experts on
    all streams before the last mix, to each of which the next token's embedding is added, and a last mix of its own."""

    def __init__(self, model: nn.Module):
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

        self.model = model
        config = copy.deepcopy(model.config)
        config.layer_types = [*config.layer_types, "sliding_attention"]
        config.mlp_layer_types = [*config.mlp_layer_types, "moe"]
        width = config.hidden_size
        self.block = v4.DeepseekV4DecoderLayer(config, config.num_hidden_layers)
        for name in ("enorm", "hnorm", "norm"):
            setattr(self.block, name, v4.DeepseekV4RMSNorm(width, config.rms_norm_eps))
        for name in ("e_proj", "h_proj"):
            setattr(self.block, name, nn.Linear(width, width, bias=False))
        self.block.hc_head = v4.DeepseekV4HyperHead(config)
        for module in self.block.modules():
            model._init_weights(module)
        model.model.mtp = nn.ModuleList([self.block])

    def copies(self) -> dict[str, str]:
        return {}

    @contextlib.contextmanager
    def listening(self):
        trunk, caught = self.model.model, {}
        handles = [
            trunk.hc_head.register_forward_pre_hook(lambda module, args: caught.update(hidden=args[0])),
            trunk.layers[-1].register_forward_pre_hook(lambda module, args, kwargs: caught.update(kwargs=kwargs), with_kwargs=True),
        ]
        try:
            yield caught
        finally:
            for handle in handles:
                handle.remove()

    def loss(self, caught: dict, input_ids: Tensor, labels: Tensor) -> Tensor:
        block, ahead = self.block, F.pad(input_ids[:, 1:], (0, 1))
        embedding = block.e_proj(block.enorm(self.model.model.embed_tokens(ahead)))
        joined = embedding.unsqueeze(2) + block.h_proj(block.hnorm(caught["hidden"]))
        kwargs = {key: value for key, value in caught["kwargs"].items() if key != "past_key_values"}
        state = block.norm(block.hc_head(block(joined, **kwargs)))
        logits = self.model.lm_head(state[:, :-2])
        return F.cross_entropy(logits.flatten(0, 1).float(), labels[:, 2:].flatten(), ignore_index=-100)


# --------------------------------------------------------------------------------------------- indexer


def index_scores(indexer: nn.Module, hidden: Tensor, q_resid: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[B, S, S], before any mask: Σ_h w_h · relu(q_h · k / √D) / √H.

    DeepSeek-V3.2 turns the pairs (i, i + half) of the leading part, GLM-5 the pairs (2i, 2i + 1).
    """
    half = indexer.qk_rope_head_dim // 2
    cos, sin = cos[..., :half].unsqueeze(2), sin[..., :half].unsqueeze(2)

    def turned(x: Tensor) -> Tensor:  # [B, S, H, D]
        head, tail = x[..., : 2 * half], x[..., 2 * half :]
        first, second = (head[..., 0::2], head[..., 1::2]) if "Glm" in type(indexer).__name__ else head.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, tail], -1)

    q = turned(indexer.wq_b(q_resid).unflatten(-1, (indexer.n_heads, -1)))
    k = turned(indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)).squeeze(2)
    scores = F.relu(torch.einsum("bshd,btd->bhst", q, k) * indexer.head_dim**-0.5)
    return torch.einsum("bsh,bhst->bst", indexer.weights_proj(hidden) * indexer.n_heads**-0.5, scores)


def indexer_losses(model: nn.Module, inputs: dict[str, Tensor], dense: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Of each layer with an indexer the mean over tokens of KL(p ‖ softmax(scores)), and the gradients of their sum.

    p is the main attention summed over heads and normalized. Dense, as in the warm-up: attention and scores over all
    earlier tokens; else both over the chosen ones. Nothing but the indexer gets a gradient.
    """
    caught: dict[str, dict] = {}
    handles, kept = [], []
    for name, module in model.named_modules():
        if name.endswith(".indexer") and not name.startswith(f"model.layers.{model.config.num_hidden_layers}."):
            caught[name] = {"indexer": module}
            kept.append((module, module.index_topk))
            module.index_topk = 1 << 20 if dense else module.index_topk

            def before(indexer, args, kwargs, name=name):
                bound = inspect.signature(type(indexer).forward).bind(indexer, *args, **kwargs).arguments
                caught[name].update({key: bound[key] for key in ("hidden_states", "q_resid", "position_embeddings", "attention_mask")})

            def chosen(indexer, args, out, name=name):
                caught[name]["chosen"] = out

            def after(attention, args, out, name=name):
                caught[name]["weights"] = out[1]

            attention = model.get_submodule(name.removesuffix(".indexer"))
            handles += [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(chosen),
                        attention.register_forward_hook(after)]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    for module, top_k in kept:
        module.index_topk = top_k
    real = inputs["attention_mask"].bool()
    losses, gradients = [], {}
    for name, c in caught.items():
        indexer = c["indexer"]
        scores = index_scores(indexer, c["hidden_states"], c["q_resid"], *c["position_embeddings"])
        seen = c["attention_mask"] if c["attention_mask"].dtype == torch.bool else c["attention_mask"] > -1.0
        seen = seen & torch.zeros_like(scores, dtype=torch.bool).scatter(-1, c["chosen"].long(), True)
        target = c["weights"].sum(1).masked_fill(~seen, 0.0)
        target = target / target.sum(-1, keepdim=True)
        predicted = scores.masked_fill(~seen, float("-inf")).log_softmax(-1).masked_fill(~seen, 0.0)
        divergence = (torch.xlogy(target, target) - target * predicted).sum(-1)[real].mean()
        parameters = dict(indexer.named_parameters(prefix=name))
        for key, gradient in zip(parameters, torch.autograd.grad(divergence, parameters.values())):
            gradients[key] = gradient
        losses.append(divergence.detach())
    return torch.stack(losses), gradients
