"""Writes what the config classes of transformers take for keys that a config leaves out, and which keys its models heed:
`src/torch/tests/class_defaults.json`.

    python class_defaults.py ../../src/torch/tests/class_defaults.json

Of each family its tiny config, and by section the defaults that are numbers, flags, names or lists of such, and of every key of
`sweep_space.py` a value with which the reference computes something else. `src/torch/tests/class_defaults.rs` reads each config with the
default written out and without the key, and asks that no value that the reference heeds makes no difference here.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from pathlib import Path

import torch
import transformers

import minicpm
from batches import make_batch
from families import FAMILIES
from make_fixture import Reference
from sweep_draw import TEXTS, TOWERS, put, sections, settle, space
from sweep_space import ABSENT

# What a model does not compute with.
OTHERS = ("initializer_range", "use_cache", "pretraining_tp", "bos_token_id", "eos_token_id", "initializer_factor")


def is_plain(value) -> bool:
    return isinstance(value, (bool, int, float, str)) or isinstance(value, (list, tuple)) and all(map(is_plain, value))


def taken(known_class, config: dict, section: str, key: str):
    """What the class has where the key is absent; `None` where it cannot be made then."""
    config = copy.deepcopy(config)
    (config[section] if section in config else config).pop(key, None)
    try:
        made = known_class(**config)
    except Exception:
        return None
    return getattr(getattr(made, section) if section else made, key, None)


def described(family) -> dict:
    config = copy.deepcopy(family.config)
    known_class = getattr(transformers, family.model).config_class
    whole = known_class(**copy.deepcopy(config))
    config = {"model_type": known_class.model_type, **config, **family.published}
    for key in (*TEXTS, *TOWERS):
        if isinstance(config.get(key), dict):
            config[key] = {"model_type": getattr(whole, key).model_type, **config[key]}
    defaults = {}
    for section, fields in sections(family):
        kept = {key: taken(known_class, config, section, key) for key in fields if key not in OTHERS}
        defaults[section] = dict(sorted((key, value) for key, value in kept.items() if is_plain(value)))
    return {"config": config, "defaults": defaults}


def computed(family, config: dict) -> list:
    """What the reference makes of the batch of this config."""
    torch.manual_seed(1)
    reference = Reference(family, copy.deepcopy(config), 1, torch.float32)
    batch = make_batch(family.kind, config, 2, False)
    with torch.no_grad():
        result = reference.run(batch.padded)
    return [*batch.padded.values(), *(value for _, value in sorted(reference.model.state_dict().items())), result["loss"], result["logits"]]


def heeded(family) -> dict:
    base = computed(family, family.config)
    found: dict = {}
    for section, fields in sections(family):
        for key, values in space(section, family).items():
            for value in values or []:
                config = copy.deepcopy(family.config)
                own = config.setdefault(section, {}) if section else config
                if key in OTHERS or key not in {**fields, **own} or value == ABSENT or own.get(key, fields.get(key)) == value:
                    continue
                put(own, key, value)
                settle(config)
                try:
                    other = computed(family, config)
                except Exception:  # the reference refuses it
                    continue
                alike = len(base) == len(other) and all(a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(base, other))
                if not alike:
                    found.setdefault(section, {})[key] = value
                    break
    return found


def main() -> None:
    torch.set_num_threads(1)
    minicpm.encode_one_by_one()
    transformers.logging.set_verbosity_error()
    found, seen = {}, set()
    for name, family in FAMILIES.items():
        if family.plain or family.lora or family.mtp:
            continue
        made = described(family)
        same = json.dumps([made["defaults"], made["config"]["model_type"], [made["config"].get(key, {}).get("model_type") for key in TEXTS]])
        if same not in seen:
            seen.add(same)
            found[name] = {**made, "heeded": heeded(family)}
    lines = [f" {json.dumps(name)}: {json.dumps(made)}" for name, made in found.items()]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
