"""Seeded inputs: two sequences of different length, as a padded batch and one by one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from families import IMAGE, LAST_WORD, VISION_END, VISION_START

IGNORE = -100
GRIDS = [[(6, 4)], [(4, 4), (4, 8)]]  # of each sequence's pictures, in patches: height and width
TILES = [[(1, 1)], [(1, 1), (1, 2)]]  # InternVL: square tiles of a fixed size, four tokens each


@dataclass
class Batch:
    padded: dict[str, Tensor]  # what the model is given
    singles: list[dict[str, Tensor]]  # the same sequences on their own


def words(rng: torch.Generator, low: int, high: int) -> list[int]:
    count = int(torch.randint(low, high, (1,), generator=rng))
    return torch.randint(3, LAST_WORD, (count,), generator=rng).tolist()


def row(tokens: list[int], prompt: int) -> dict[str, Tensor]:
    """Labels are the tokens themselves, the loss shifts them; the prompt and what belongs to pictures do not count."""
    ids = torch.tensor([tokens])
    labels = ids.clone()
    labels[:, :prompt] = IGNORE
    return {"input_ids": ids, "labels": labels}


def pad(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    longest = max(row["input_ids"].shape[1] for row in rows)

    def stack(key: str) -> Tensor:
        fill = IGNORE if key == "labels" else 0
        return torch.cat([torch.nn.functional.pad(r[key], (0, longest - r[key].shape[1]), value=fill) for r in rows])

    lengths = torch.tensor([[row["input_ids"].shape[1]] for row in rows])
    return {**{key: stack(key) for key in rows[0]}, "attention_mask": (torch.arange(longest)[None] < lengths).long()}


def text_batch(rng: torch.Generator, equal_lengths: bool) -> Batch:
    ranges = [(24, 25), (24, 25)] if equal_lengths else [(26, 33), (12, 20)]
    rows = [row(words(rng, *both), prompt=5) for both in ranges]
    return Batch(pad(rows), rows)


def pixels(kind: str, vision: dict, grids: list, rng: torch.Generator) -> dict[str, Tensor]:
    patches = sum(height * width for height, width in grids)
    if kind in ("intern", "intern_chat"):
        size = vision["image_size"]
        height, width = size if isinstance(size, list) else (size, size)
        return {"pixel_values": torch.randn(patches, 3, height, width, generator=rng)}
    size = vision["patch_size"]
    shape = (3, size, size) if kind == "kimi" else (3 * vision.get("temporal_patch_size", 1) * size**2,)
    grid = torch.tensor([[1, height, width] for height, width in grids])
    return {"pixel_values": torch.randn(patches, *shape, generator=rng), "image_grid_thw": grid}


def vision_batch(kind: str, config: dict, rng: torch.Generator) -> Batch:
    """One picture in the first sequence, two in the second."""
    rows, pictures = [], []
    for grids in TILES if kind.startswith("intern") else GRIDS:
        tokens = words(rng, 3, 4)
        for height, width in grids:
            count = height * width * 4 if kind.startswith("intern") else height * width // 4
            tokens += [VISION_START] + [IMAGE] * count + [VISION_END] + words(rng, 2, 3)
        made = row(tokens + words(rng, 9, 16), prompt=len(tokens))
        ids = made["input_ids"]
        if kind in ("qwen", "ernie"):
            made["mm_token_type_ids"] = (ids == IMAGE).long()
        if kind == "ernie":
            made["moe_mm_token_type_ids"] = ((ids == IMAGE) | (ids == VISION_START) | (ids == VISION_END)).int()
        rows.append(made)
        pictures.append(pixels(kind, config["vision_config"], grids, rng))
    joined = {key: torch.cat([picture[key] for picture in pictures]) for key in pictures[0]}
    return Batch({**pad(rows), **joined}, [{**made, **picture} for made, picture in zip(rows, pictures)])


def make_batch(kind: str, config: dict, seed: int, equal_lengths: bool) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    return text_batch(rng, equal_lengths) if kind == "text" else vision_batch(kind, config, rng)
