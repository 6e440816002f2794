"""What is seen of a model while it runs: the margins of its choices, its position ids, its routers."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import Tensor, nn

MASKED = -1e30  # a score this low stands for what may not be chosen


@contextlib.contextmanager
def watch_top_k(margins: list[float]):
    """Records the gap between the last chosen and the first refused value of every top-k."""
    functions = torch.topk, torch.Tensor.topk

    def watched(values, k, dim=-1, **kwargs):
        if values.is_floating_point() and k < values.shape[dim]:
            best = functions[0](values.detach(), k + 1, dim=dim).values.movedim(dim, -1)
            gap = (best[..., -2] - best[..., -1])[(best > MASKED).all(-1)]
            margins.extend([gap.min().item()] if gap.numel() else [])
        return functions[0](values, k, dim=dim, **kwargs)

    torch.topk, torch.Tensor.topk = watched, lambda self, k, dim=-1, **kwargs: watched(self, k, dim, **kwargs)
    try:
        yield
    finally:
        torch.topk, torch.Tensor.topk = functions


@contextlib.contextmanager
def catch_position_ids(model: nn.Module, caught: dict[str, Tensor]):
    """Keeps the position ids that the decoder of a vision-language model is given."""
    decoder = next((m for n, m in model.named_modules() if n.endswith("language_model")), None)
    if hasattr(model, "audio_tower"):
        decoder = model.model  # of a thinker

    def hook(module, args, kwargs):
        if isinstance(kwargs.get("position_ids"), Tensor):
            found = kwargs["position_ids"].detach().clone()
            # Qwen3-Omni's are real numbers.
            caught["position_ids"] = found.long() if torch.equal(found, found.round()) else found

    handle = decoder.register_forward_pre_hook(hook, with_kwargs=True) if decoder is not None else None
    try:
        yield
    finally:
        if handle:
            handle.remove()


@contextlib.contextmanager
def catch_routers(model: nn.Module, caught: dict[str, tuple]):
    """Of every router the logits before softmax or sigmoid, and what it chose, by the name of its layer."""

    def hook(name, router, args, out):
        hidden = args[0].detach().reshape(-1, args[0].shape[-1])
        logits = hidden.float() @ router.weight.detach().float().T
        if isinstance(getattr(router, "bias", None), nn.Parameter):
            logits = logits + router.bias.detach().float()
        caught[name] = (logits, *(x.detach() for x in out[1:]))

    routers = [(n, m) for n, m in model.named_modules() if type(m).__name__.lower().endswith("topkrouter")]
    handles = [m.register_forward_hook(functools.partial(hook, n.split("layers.")[1]))
               for n, m in routers if not n.startswith(("mtp.", "model.mtp."))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def router_outputs(caught: dict[str, tuple], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows of padding left out; the experts of a token in ascending order."""
    found, real = {}, inputs["attention_mask"].reshape(-1).bool()
    for name, (logits, weights, chosen) in caught.items():
        layer, kept = name.split(".")[0], real
        if "_moe" in name:  # routes the tokens of one modality
            kind = "vision_moe" if "vision_moe" in name else "text_moe"
            of_vision = inputs["moe_mm_token_type_ids"].reshape(-1).bool()
            layer, kept = f"{layer}/{kind}", real[of_vision == (kind == "vision_moe")]
        chosen, order = chosen[kept].sort(-1)
        found.update({f"router_logits/{layer}": logits[kept], f"router_experts/{layer}": chosen,
                      f"router_weights/{layer}": weights[kept].gather(-1, order)})
    return found
