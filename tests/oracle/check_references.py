"""Checks the plain modules of references.py and losses.py against classes that compute the same by another way.

    python check_references.py

Qwen 1 and InternLM2 against Llama (also its dynamic rope), InternVL's own layout against the `-HF` one, the
indexer's scores against the keys that transformers chose, and, where it is installed, LLaVA-OneVision-1.5 against the
class of `nemo-automodel` (`pip install --no-deps nemo-automodel`).
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import torch
import transformers
from torch import Tensor

import references
from batches import make_batch
from families import FAMILIES
from losses import index_scores
from make_fixture import Reference, changed

TOLERANCE = 2e-5


def moved(state: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    for old, new in names.items():
        state = {key.replace(old, new): value for key, value in state.items()}
    return state


def qwen1_as_llama(c: dict, state: dict[str, Tensor]):
    config = transformers.LlamaConfig(
        vocab_size=c["vocab_size"], hidden_size=c["hidden_size"], intermediate_size=c["intermediate_size"] // 2,
        num_hidden_layers=c["num_hidden_layers"], num_attention_heads=c["num_attention_heads"], head_dim=c["kv_channels"],
        num_key_value_heads=c["num_attention_heads"], rms_norm_eps=c["layer_norm_epsilon"], attention_bias=True,
        mlp_bias=not c["no_bias"], rope_parameters={"rope_type": "default", "rope_theta": c["rotary_emb_base"]},
        tie_word_embeddings=False)
    state = moved(state, {
        "transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm", "transformer.h.": "model.layers.",
        "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_proj": "self_attn.o_proj",
        "mlp.w2": "mlp.gate_proj", "mlp.w1": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"})
    for key in [key for key in state if "attn.c_attn" in key]:
        for part, value in zip("qkv", state.pop(key).chunk(3)):
            state[key.replace("attn.c_attn", f"self_attn.{part}_proj")] = value
    for layer in range(c["num_hidden_layers"]):
        state.setdefault(f"model.layers.{layer}.self_attn.o_proj.bias", torch.zeros(c["hidden_size"]))
    return transformers.LlamaForCausalLM(config), state


def as_llama(c: dict, state: dict[str, Tensor]):
    scaling = c["rope_scaling"]
    config = transformers.LlamaConfig(
        **{key: c[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                   "num_key_value_heads", "rms_norm_eps", "max_position_embeddings")},
        rope_parameters={"rope_type": scaling["type"], "rope_theta": c["rope_theta"], "factor": scaling["factor"]},
        attention_bias=c["bias"], tie_word_embeddings=False)
    state = moved(state, {
        "model.tok_embeddings": "model.embed_tokens", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj"})
    state = {("lm_head.weight" if key == "output.weight" else key): value for key, value in state.items()}
    head = c["hidden_size"] // c["num_attention_heads"]
    for key in [key for key in state if "attention.wqkv" in key]:
        fused = state.pop(key).unflatten(0, (c["num_key_value_heads"], -1, head))
        for part, value in (("q", fused[:, :-2]), ("k", fused[:, -2]), ("v", fused[:, -1])):
            state[key.replace("attention.wqkv", f"self_attn.{part}_proj")] = value.reshape(-1, *value.shape[-1:]) if "weight" in key else value.flatten()
    return transformers.LlamaForCausalLM(config), state


def as_internvl(c: dict, state: dict[str, Tensor]):
    language = {key.removeprefix("language_model."): value for key, value in state.items() if key.startswith("language_model.")}
    text = references.decoder(c["llm_config"]).config if c["llm_config"]["model_type"] != "internlm2" else None
    if text is None:
        llama, language = as_llama(c["llm_config"], language)
        text = llama.config
    v = c["vision_config"]
    config = transformers.InternVLConfig(
        text_config=text, image_token_id=c["image_token_id"], downsample_ratio=c["downsample_ratio"], tie_word_embeddings=False,
        vision_config=dict(hidden_size=v["hidden_size"], intermediate_size=v["intermediate_size"], num_hidden_layers=v["num_hidden_layers"],
                           num_attention_heads=v["num_attention_heads"], image_size=[v["image_size"]] * 2, patch_size=[v["patch_size"]] * 2,
                           attention_bias=v["qkv_bias"], use_qk_norm=v["qk_normalization"], norm_type=v["norm_type"]))
    vision = moved({key: value for key, value in state.items() if not key.startswith("language_model.")}, {
        "vision_model.embeddings.class_embedding": "model.vision_tower.embeddings.cls_token",
        "vision_model.embeddings.position_embedding": "model.vision_tower.embeddings.position_embeddings",
        "vision_model.embeddings.patch_embedding": "model.vision_tower.embeddings.patch_embeddings.projection",
        "vision_model.encoder.layers.": "model.vision_tower.encoder.layer.", "norm1": "layernorm_before", "norm2": "layernorm_after",
        "attn.proj": "attention.projection_layer", "attn.q_norm": "attention.q_norm", "attn.k_norm": "attention.k_norm",
        ".ls1": ".lambda_1", ".ls2": ".lambda_2", "mlp1.0.": "model.multi_modal_projector.layer_norm.",
        "mlp1.1.": "model.multi_modal_projector.linear_1.", "mlp1.3.": "model.multi_modal_projector.linear_2."})
    for key in [key for key in vision if "attn.qkv" in key]:
        for part, value in zip("qkv", vision.pop(key).chunk(3)):
            vision[key.replace("attn.qkv", f"attention.{part}_proj")] = value
    state = {**vision, **{("" if key.startswith("lm_head") else "model.language_model.") + key.removeprefix("model."): value
                          for key, value in language.items()}}
    return transformers.InternVLForConditionalGeneration(config), state


def as_nemo(c: dict, state: dict[str, Tensor]):
    """The class's own file alone, with stand-ins for what it imports of its package but does not compute with."""
    root = Path(importlib.util.find_spec("nemo_automodel").submodule_search_locations[0])
    prefix = "nemo_automodel.components.models."
    stand_ins = {
        "common.hf_checkpointing_mixin": {"HFCheckpointingMixin": type("HFCheckpointingMixin", (), {})},
        "common.tie_word_embeddings": {"TieSupport": types.SimpleNamespace(UNTIED_ONLY=None), "reject_unsupported_tie_word_embeddings": lambda *a: None},
        "common.utils": {"compute_lm_head_logits": lambda head, hidden, keep: types.SimpleNamespace(logits=head(hidden))},
        "llava_onevision.state_dict_adapter": {"LlavaOneVisionStateDictAdapter": lambda config: None},
    }
    for name, entries in stand_ins.items():
        sys.modules[prefix + name] = types.ModuleType(prefix + name)
        vars(sys.modules[prefix + name]).update(entries)
    loaded = {}
    for name in ("rice_vit", "model"):
        spec = importlib.util.spec_from_file_location(f"{prefix}llava_onevision.{name}", root / f"components/models/llava_onevision/{name}.py")
        loaded[name] = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded[name])
    text = {key: value for key, value in c["text_config"].items() if key != "rope_theta"}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": c["text_config"]["rope_theta"]}
    config = loaded["model"].Llavaonevision1_5Config(**{**{k: c[k] for k in ("image_token_id", "video_token_id", "vocab_size")},
                                                       "text_config": text, "vision_config": c["vision_config"]})
    state = {("model." + key if key.startswith("visual.") else key.replace("model.", "model.language_model.", 1)): value for key, value in state.items()}
    return loaded["model"].LLaVAOneVision1_5_ForConditionalGeneration(config), state


def compare(family_name: str, other) -> float:
    """Largest difference of the logits, over the family's config and all its changes."""
    family, differences = FAMILIES[family_name], []
    for changes in ({}, *family.variants.values()):
        config = changed(family.config, changes)
        reference = Reference(family, config, 3, torch.float32)
        model, state = other(config, dict(reference.model.state_dict()))
        found = model.load_state_dict(state, strict=False)
        missing = [key for key in found.missing_keys if "mask_token" not in key]
        assert not found.unexpected_keys and not missing, (found.unexpected_keys, missing)
        inputs = make_batch(family.kind, config, 4, changes.get("fixture.equal_lengths", False)).padded
        inputs.pop("labels")
        real = inputs["attention_mask"].bool()
        with torch.no_grad():
            differences.append((model.eval()(**inputs).logits - reference.model(**inputs).logits)[real].abs().max())
    return torch.stack(differences).max().item()  # NaN, where one is


def check_indexer(family_name: str) -> bool:
    """Whether our scores choose the keys that transformers chose."""
    family, same, compared = FAMILIES[family_name], True, 0
    reference = Reference(family, family.config, 3, torch.float32)
    inputs = make_batch("text", family.config, 4, False).padded

    def hook(indexer, args, kwargs, chosen):
        nonlocal same, compared
        hidden, resid, (cos, sin), mask = (kwargs.get(key, args[i] if i < len(args) else None) for i, key in
                                           enumerate(("hidden_states", "q_resid", "position_embeddings", "attention_mask")))
        scores = index_scores(indexer, hidden, resid, cos, sin)
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        late = torch.arange(scores.shape[1]) >= indexer.index_topk  # earlier tokens choose among masked keys too
        ours = scores.topk(chosen.shape[-1]).indices[:, late].sort(-1).values
        equal = (ours == chosen[:, late].long().sort(-1).values)[inputs["attention_mask"].bool()[:, late]]
        same, compared = same and bool(equal.all()), compared + equal.numel()

    for name, module in reference.model.named_modules():
        if name.endswith(".indexer"):
            module.register_forward_hook(hook, with_kwargs=True)
    with torch.no_grad():
        reference.model(**inputs)
    return same and compared > 0


def main() -> int:
    transformers.logging.set_verbosity_error()
    checks = [("qwen1", "Llama", qwen1_as_llama), ("internlm2.5", "Llama", as_llama), ("internvl2.5_chat", "InternVL", as_internvl)]
    if importlib.util.find_spec("nemo_automodel"):
        checks.append(("llava_onevision1.5", "nemo-automodel's class", as_nemo))
    failed = 0
    for name, other, build in checks:
        difference = compare(name, build)
        failed += not difference <= TOLERANCE
        print(f"{name:20} against {other:24} largest difference of the logits {difference:.1e}")
    for name in ("deepseek_v3.2", "glm5"):
        same = check_indexer(name)
        failed += not same
        print(f"{name:20} indexer: {'the same keys' if same else 'OTHER KEYS'} as transformers")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
