"""Draws one config of a family from `sweep_space.py`, and writes `config.json` in other spellings."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from pathlib import Path

import transformers

from families import Family
from sweep_space import ABSENT, TEXT, TOWER, WHOLE, rope_of

TEXTS, TOWERS = ("text_config", "foundation", "llm_config"), ("vision_config", "audio_config", "image_encoder")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
DRAWN_TOGETHER = {
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "num_hidden_layers", "layer_types", "mlp_layer_types", "indexer_types",
    "no_rope_layers", "mlp_only_layers", "sliding_window", "use_sliding_window", "max_window_layers", "rope_parameters", "rope_theta",
    "partial_rotary_factor", "n_group", "topk_group", "num_experts_per_tok", "moe_k", *EXPERTS, "linear_num_key_heads", "linear_num_value_heads",
    "depth", "num_heads", "embed_dim", "d_model", "encoder_layers", "encoder_attention_heads", "deepstack_visual_indexes", "fullatt_block_indexes",
    "image_size", "pos_emb_width", "spatial_merge_size", "merge_kernel_size", "out_hidden_size", "output_dim", "compress_rates", "compress_rope_theta",
}
# What no model computes with: names of tokens, and what text goes on from.
INERT = {"use_cache", "bos_token_id", "eos_token_id", "in_channels", "num_channels"}


def known(section: str) -> set[str]:
    return {**TEXT, **TOWER, **WHOLE}.keys() | DRAWN_TOGETHER | INERT | {key for key in ("text_config", "vision_config", "audio_config")}


def sections(family: Family) -> list[tuple[str, dict]]:
    """The path of each part's config ("" is the whole), and the defaults of its class by key; of a plain reference its own keys."""
    if family.plain:
        inner = [key for key, value in family.config.items() if key in (*TEXTS, *TOWERS) and isinstance(value, dict)]
        return [("", {k: None for k in family.config}), *((key, {k: None for k in family.config[key]}) for key in inner)]
    base = {field.name for field in dataclasses.fields(transformers.PretrainedConfig)}

    def of(config) -> dict:
        return {f.name: None if f.default is dataclasses.MISSING else f.default for f in dataclasses.fields(config) if f.name not in base}

    whole = getattr(transformers, family.model).config_class(**copy.deepcopy(family.config))
    inner = {key: getattr(whole, key) for key in (*TEXTS, *TOWERS) if isinstance(getattr(whole, key, None), transformers.PretrainedConfig)}
    return [("", of(whole)), *((key, of(config)) for key, config in inner.items())]


def space(section: str, family: Family) -> dict:
    if section in TOWERS:
        return TOWER
    return TEXT if section or family.kind == "text" else WHOLE


def put(config: dict, key: str, value) -> None:
    config.pop(key, None) if value == ABSENT else config.__setitem__(key, value)


def draw_text(config: dict, fields: dict, rng: random.Random) -> None:
    """What hangs together in a language model."""
    has = lambda key: key in fields or key in config
    often = lambda: rng.random() < 0.4
    latent, compressed = "kv_lora_rank" in fields, "compress_rates" in fields
    if often() and not compressed:
        if latent:
            config["num_attention_heads"] = config["num_key_value_heads"] = rng.choice([2, 4])
        else:
            config["num_attention_heads"], config["num_key_value_heads"] = rng.choice([(4, 1), (4, 4), (2, 2), (6, 3), (3, 1), (4, 2)])
    if often() and not compressed and "head_dim" in fields and not latent:
        least = 16 if "linear_num_value_heads" in fields else 6
        put(config, "head_dim", rng.choice([value for value in (6, 8, 10, 16, 32, ABSENT) if value == ABSENT or value >= least]))
    if often():
        config["hidden_size"] = rng.choice([24, 36, 48]) if not compressed else rng.choice([16, 20])
    if often() and "linear_num_value_heads" in fields:
        config["linear_num_key_heads"], config["linear_num_value_heads"] = rng.choice([(2, 2), (1, 3), (2, 6), (3, 3)])
    experts = next((key for key in EXPERTS if key in config), None)
    if experts and often():
        top = "moe_k" if has("moe_k") else "num_experts_per_tok"
        config[experts], config[top] = rng.choice([(4, 1), (4, 4), (5, 2), (8, 3), (12, 3)])
        if config.get("n_group") is not None:
            groups = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 1)]
            fits = [(n, k) for n, k in groups if config[experts] % n == 0 and config[experts] // n * k >= config[top] and config[experts] // n >= 2]
            config["n_group"], config["topk_group"] = rng.choice(fits)
    draw_layers(config, fields, rng)
    if often() and "rope_parameters" in config:
        draw_rope(config, fields, rng)


def draw_layers(config: dict, fields: dict, rng: random.Random) -> None:
    if rng.random() < 0.4:
        number = config["num_hidden_layers"] = rng.choice([1, 2, 3, 4])
        lists = [key for key in ("layer_types", "mlp_layer_types", "indexer_types", "no_rope_layers") if key in config]
        for key in lists:
            kinds = list(dict.fromkeys(config[key]))
            config[key] = [rng.choice(kinds) for _ in range(number)]
    number = config["num_hidden_layers"]
    slides = "sliding_window" in fields and "compress_rates" not in fields
    if slides and rng.random() < 0.5:
        put(config, "sliding_window", rng.choice([3, 6, 40, None, ABSENT]))
        if "use_sliding_window" in fields:
            put(config, "use_sliding_window", rng.choice([True, True, False, ABSENT]))
        if "max_window_layers" in fields:
            put(config, "max_window_layers", rng.choice([0, 1, 2, ABSENT]))
        if "layer_types" in fields:
            kinds = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(number)]
            put(config, "layer_types", rng.choice([kinds, kinds, ABSENT]))
    if "mlp_only_layers" in fields and rng.random() < 0.3:
        put(config, "mlp_only_layers", rng.choice([[], [0], [number - 1], [0, 1], ABSENT]))
    if "no_rope_layers" in fields and rng.random() < 0.3:
        put(config, "no_rope_layers", rng.choice([[rng.choice([0, 1]) for _ in range(number)], ABSENT, None]))
    if "mlp_layer_types" in fields and "index_topk" in fields and "compress_rates" not in fields and rng.random() < 0.3:
        config["mlp_layer_types"] = [rng.choice(["dense", "sparse"]) for _ in range(number)]
    if "indexer_types" in fields and rng.random() < 0.3:
        config["indexer_types"] = ["full", *(rng.choice(["full", "shared"]) for _ in range(number - 1))]


def draw_rope(config: dict, fields: dict, rng: random.Random) -> None:
    old = config["rope_parameters"]
    default = fields.get("head_dim") if isinstance(fields.get("head_dim"), int) else None
    width = config.get("head_dim") or default or config["hidden_size"] // config["num_attention_heads"]
    if "kv_lora_rank" in fields:
        width = config["qk_rope_head_dim"]
    kept = {key: old[key] for key in ("mrope_interleaved", "llama_4_scaling_beta") if key in old}
    if "alpha" in old and rng.random() < 0.5:
        kept["alpha"] = rng.choice([0, 9.0, 1000.0])
    if "partial_rotary_factor" in old:
        kept["partial_rotary_factor"] = rng.choice([0.25, 0.5, 0.75, 1.0])
    if any(isinstance(value, dict) for value in old.values()):
        config["rope_parameters"] = {kind: rope_of(rng, width, {k: v for k, v in own.items() if k == "partial_rotary_factor"}) for kind, own in old.items()}
        return
    made = rope_of(rng, width, kept)
    if "llama_4_scaling_beta" in made:
        made.setdefault("original_max_position_embeddings", rng.choice([4, 16]))
    if "mrope_section" in old:
        half = int(width * kept.get("partial_rotary_factor", 1.0)) // 2
        if half < 3:
            return
        first, second = sorted(rng.sample(range(1, half), 2))
        made["mrope_section"] = [first, second - first, half - second]
    config["rope_parameters"] = made


def draw_tower(config: dict, fields: dict, rng: random.Random) -> None:
    """What hangs together in a vision or an audio tower."""
    often = lambda: rng.random() < 0.4
    depth = next((key for key in ("depth", "num_hidden_layers", "encoder_layers") if key in config), None)
    if depth and often():
        config[depth] = rng.choice([1, 2, 3, 4])
    heads = next((key for key in ("num_heads", "num_attention_heads", "encoder_attention_heads") if key in config), None)
    width = next((key for key in ("embed_dim", "d_model", "hidden_size") if key in config), None)
    if heads and often():
        config[heads], config[width] = rng.choice([(1, 16), (2, 24), (4, 32), (3, 24), (2, 16)])
    for key in ("deepstack_visual_indexes", "fullatt_block_indexes"):
        if key in config and (often() or max(config[key], default=0) >= config[depth]):
            config[key] = sorted(rng.sample(range(config[depth]), rng.randint(0, config[depth])))
    if "spatial_merge_size" in config and rng.random() < 0.3:
        config["spatial_merge_size"] = rng.choice([1, 2, 3])
    if isinstance(config.get("image_size"), int) and "insert_layer_id" not in fields and rng.random() < 0.3:
        config["image_size"] = rng.choice([12, 14, 16, 20])
    if "pos_emb_width" in config and "pos_emb_height" in config:
        config["pos_emb_width"] = config["pos_emb_height"]


def settle(config: dict) -> None:
    """Sizes of one part that another part's follow."""
    text = next((config[key] for key in TEXTS if key in config), None)
    vision, audio = config.get("vision_config"), config.get("audio_config")
    if text is None:
        return
    width = text["hidden_size"]
    for tower in (vision, audio):
        for key in ("out_hidden_size", "output_dim", "text_hidden_size"):
            if tower and key in tower:
                tower[key] = width
    if vision and "embed_dim" in vision and "model_type" not in vision:  # Qwen2-VL's
        vision["hidden_size"] = width
    if vision and "embed_dim" in vision and "text_hidden_size" in vision:
        vision["embed_dim"] = vision["hidden_size"]
    if "projection_dim" in config:
        config["projection_dim"] = width
    if "projection_hidden_size" in config and vision:
        config["projection_hidden_size"] = vision["hidden_size"]


def draw(family: Family, rng: random.Random, one=None) -> tuple[dict, dict, dict]:
    """A config, what it changes of the family's, and the settings of the fixture. `one`: section, key and value alone."""
    config = copy.deepcopy(family.config)
    for section, fields in sections(family):
        own = config if not section else config.setdefault(section, {})
        if one:
            if one[0] == section:
                put(own, one[1], one[2])
            continue
        if section in TOWERS:
            draw_tower(own, fields, rng)
        elif section or family.kind == "text":
            draw_text(own, fields, rng)
        values = {key: given for key, given in space(section, family).items() if given and key in {**fields, **own}}
        for key in rng.sample(sorted(values), min(len(values), rng.randint(1, 5))):
            put(own, key, rng.choice(values[key]))
    settle(config)
    whole = {}
    if '"dynamic"' in json.dumps(config) and family.kind == "text":
        whole = {"fixture.equal_lengths": True}
    return config, difference(family.config, config), whole


def each(family: Family) -> list[tuple]:
    """Every key of every section alone, with every value that is not the family's."""
    plans = []
    for section, fields in sections(family):
        own = family.config if not section else family.config.get(section, {})
        for key, values in space(section, family).items():
            if key in {**fields, **own}:
                plans += [(section, key, value) for value in values or [] if own.get(key, ABSENT) != value]
    return plans


def difference(old, new, path: str = "") -> dict:
    if not isinstance(old, dict) or not isinstance(new, dict) or path.endswith("rope_parameters."):
        return {} if old == new else {path.rstrip("."): new}
    changes: dict = {}
    for key in {**old, **new}:
        changes.update(difference(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}{key}."))
    return changes


# ------------------------------------------------------------------------------------------ spellings


def respell(family: Family, out: Path, rng: random.Random) -> str:
    """Writes `config.json` in another way that the reference reads as the same, if the one that was drawn is such; its name."""
    how = rng.choice(["saved", "saved", "given", "given", "older", "older", "null"])
    if family.plain or "model_type" in family.published or how == "saved":
        return "saved"
    path, known_class = out / "config.json", getattr(transformers, family.model).config_class
    text = path.read_text()
    before, config = known_class.from_pretrained(out).to_dict(), json.loads(text)
    if how == "given":
        without_defaults(config, known_class)
    parts = [config, *(config[key] for key in (*TEXTS, *TOWERS) if isinstance(config.get(key), dict))]
    for part in parts:
        if how == "older":
            older(part, rng)
        if how == "null":
            keys = [key for key, value in part.items() if isinstance(value, (int, float, bool, str)) and not key.endswith("model_type")]
            part.update(dict.fromkeys(rng.sample(sorted(keys), min(4, len(keys)))))
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    try:
        same = known_class.from_pretrained(out).to_dict() == before
    except Exception:
        same = False
    if not same:
        path.write_text(text)
    return how if same else "saved"


def without_defaults(config: dict, known_class) -> None:
    """Leaves out what the class takes anyway."""
    plain = known_class().to_dict()
    for key in list(config):
        if isinstance(config[key], dict) and key in (*TEXTS, *TOWERS):
            inner = known_class.sub_configs.get(key)
            named = config[key].get("model_type")
            inner = transformers.CONFIG_MAPPING[named] if named in transformers.CONFIG_MAPPING else inner
            if inner:
                without_defaults(config[key], inner)
        elif key != "model_type" and key in plain and plain[key] == config[key]:
            del config[key]


def older(part: dict, rng: random.Random) -> None:
    """As transformers 4 wrote it: `rope_theta` beside `rope_scaling`, `torch_dtype`."""
    if "dtype" in part:
        part["torch_dtype"] = part.pop("dtype")
    parameters = part.get("rope_parameters")
    if not isinstance(parameters, dict):
        return
    del part["rope_parameters"]
    if "sliding_attention" in parameters and "full_attention" in parameters:
        part["rope_local_base_freq"] = parameters["sliding_attention"].get("rope_theta")
        parameters = dict(parameters["full_attention"])
    parameters = dict(parameters)
    part["rope_theta"] = parameters.pop("rope_theta", None)
    if "partial_rotary_factor" in parameters:
        part["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    kind = parameters.pop("rope_type", "default")
    name = rng.choice(["type", "rope_type"])
    part["rope_scaling"] = {name: kind, **parameters} if kind != "default" or parameters else None
