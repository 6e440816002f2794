"""Seeded inputs: sequences of different length, as a padded batch and one by one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from families import AUDIO_END, AUDIO_START, AUDIO_TOKEN, IMAGE, LAST_WORD, VIDEO, VISION_END, VISION_START

IGNORE = -100
GRIDS = [[(6, 4)], [(4, 4), (4, 8)]]  # of each sequence's pictures, in patches: height and width
TILES = [[(1, 1)], [(1, 1), (1, 2)]]  # InternVL: square tiles of a fixed size, four tokens each
SIDES = {"dinov2": 17, "dinov2_with_registers": 17}  # of pictures of another size than the tower's own, in pixels


@dataclass
class Batch:
    padded: dict[str, Tensor]  # what the model is given
    singles: list[dict[str, Tensor]]  # the same sequences on their own
    ours: dict[str, Tensor] = field(default_factory=dict)  # what ours is given beside, end to end


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


SQUARES = ("composed", "llava")  # kinds whose pictures are squares of one size, with a token for each patch


def side(vision: dict):
    return SIDES.get(vision.get("model_type"), vision["image_size"])


def pixels(kind: str, vision: dict, grids: list, rng: torch.Generator) -> dict[str, Tensor]:
    patches = sum(height * width for height, width in grids)
    if kind in SQUARES or kind.startswith("intern"):
        size = side(vision)
        height, width = size if isinstance(size, list) else (size, size)
        return {"pixel_values": torch.randn(patches, 3, height, width, generator=rng)}
    size = vision["patch_size"]
    shape = (3, size, size) if kind == "kimi" else (3 * vision.get("temporal_patch_size", 1) * size**2,)
    grid = torch.tensor([[1, height, width] for height, width in grids])
    return {"pixel_values": torch.randn(patches, *shape, generator=rng), "image_grid_thw": grid}


def tile_tokens(kind: str, config: dict, vision: dict) -> int:
    size, patch = side(vision), vision["patch_size"]
    size, patch = (value[0] if isinstance(value, list) else value for value in (size, patch))
    if kind in SQUARES:
        strategy = config.get("vision_feature_select_strategy")
        kept = int(strategy == "full" and vision.get("model_type") != "siglip_vision_model")  # the class token
        return (size // patch) ** 2 + kept
    return int(size // patch * config.get("downsample_ratio", 0.5)) ** 2


def vision_batch(kind: str, config: dict, rng: torch.Generator) -> Batch:
    """One picture in the first sequence, two in the second."""
    rows, pictures = [], []
    vision = config["image_encoder" if kind == "composed" else "vision_config"]
    in_tiles = kind in SQUARES or kind.startswith("intern")
    tokens_a_tile = tile_tokens(kind, config, vision) if in_tiles else 0
    merged = vision.get("spatial_merge_size", 2)
    in_patches = [[(height // 2 * merged, width // 2 * merged) for height, width in grids] for grids in GRIDS]
    for grids in TILES if in_tiles else in_patches:
        tokens = words(rng, 3, 4)
        for height, width in grids:
            count = height * width * tokens_a_tile if in_tiles else height * width // merged**2
            tokens += [VISION_START] + [IMAGE] * count + [VISION_END] + words(rng, 2, 3)
        made = row(tokens + words(rng, 9, 16), prompt=len(tokens))
        ids = made["input_ids"]
        if kind in ("qwen", "ernie"):
            made["mm_token_type_ids"] = (ids == IMAGE).long()
        if kind == "ernie":
            made["moe_mm_token_type_ids"] = ((ids == IMAGE) | (ids == VISION_START) | (ids == VISION_END)).int()
        rows.append(made)
        pictures.append(pixels(kind, vision, grids, rng))
    joined = {key: torch.cat([picture[key] for picture in pictures]) for key in pictures[0]}
    return Batch({**pad(rows), **joined}, [{**made, **picture} for made, picture in zip(rows, pictures)])


PICTURES = (1, 2, 0)  # of each sequence, in kinds that have a sequence without
PREFIXED = ("gemma3", "paligemma")  # kinds whose masks the reference makes of `token_type_ids`


def features_a_picture(kind: str, config: dict) -> int:
    vision = config["vision_config"]
    if kind == "gemma3":
        return config["mm_tokens_per_image"]
    return (vision["image_size"] // vision["patch_size"] // config.get("scale_factor", 1)) ** 2


def pictured_batch(kind: str, config: dict, rng: torch.Generator) -> Batch:
    """Squares of the tower's size: a picture, two pictures, none."""
    size, count = config["vision_config"]["image_size"], features_a_picture(kind, config)
    rows, pictures = [], []
    for number in PICTURES:
        tokens = words(rng, 3, 4)
        for _ in range(number):
            tokens += [VISION_START] + [IMAGE] * count + [VISION_END] + words(rng, 2, 3)
        made = row(tokens + words(rng, 9, 16), prompt=len(tokens))
        if kind == "gemma3":
            made["token_type_ids"] = (made["input_ids"] == IMAGE).long()
        if kind == "paligemma":
            made["token_type_ids"] = (made["labels"] != IGNORE).long()
        rows.append(made)
        pictures.append(torch.randn(number, 3, size, size, generator=rng))
    singles = [{**made, **({"pixel_values": own} if len(own) else {})} for made, own in zip(rows, pictures)]
    return Batch({**pad(rows), "pixel_values": torch.cat(pictures)}, singles)


def split_batch(config: dict, rng: torch.Generator) -> Batch:
    """Pictures of several tiles, each behind a token of its place: one picture, two, none. The reference pads tiles with zeros."""
    vision, count = config["vision_config"], features_a_picture("split", config)
    side, patch = vision["image_size"], vision["patch_size"]
    rows, pictures, sizes = [], [], []
    for grids in [[1], [1, 3], []]:
        tokens = words(rng, 3, 4)
        for tiles in grids:
            tokens += ([VISION_START] + [IMAGE] * count) * tiles + [VISION_END] + words(rng, 2, 3)
            sizes.append([tiles, side // patch, side // patch])
        rows.append(row(tokens + words(rng, 9, 16), prompt=len(tokens)))
        pictures.append(torch.randn(sum(grids), 3, side, side, generator=rng))
    longest = max(map(len, pictures))
    padded = torch.stack([torch.cat([own, torch.zeros(longest - len(own), *own.shape[1:])]) for own in pictures])
    singles = [{**made, **({"pixel_values": own[None]} if len(own) else {})} for made, own in zip(rows, pictures)]
    whole = torch.cat(pictures)[:, :, : side // patch * patch, : side // patch * patch]
    cut = whole.unfold(2, patch, patch).unfold(3, patch, patch).permute(0, 2, 3, 1, 4, 5)
    ours = {"vision_patches": cut.reshape(-1, 3 * patch**2), "vision_sizes": torch.tensor(sizes)}
    return Batch({**pad(rows), "pixel_values": padded}, singles, ours)


# Of each sequence its pictures: the overview and then equal slices, rows and columns of patches.
SLICED = [[[(8, 4)]], [[(4, 8), (8, 4), (8, 4)], [(4, 4)]], []]


def sliced_batch(config: dict, rng: torch.Generator) -> Batch:
    """MiniCPM-V 4.6: pictures of an overview alone, and of one with slices of another shape; a sequence without."""
    patch, merged = config["vision_config"]["patch_size"], 4 if config.get("downsample_mode") == "4x" else 16
    rows, given, ours = [], [], {"vision_patches": [], "vision_sizes": []}
    for pictures in SLICED:
        tokens, own = words(rng, 3, 4), {"pixel_values": [], "target_sizes": []}
        for pieces in pictures:
            for number, (height, width) in enumerate(pieces):
                tokens += [VISION_START] + [IMAGE] * (height * width // merged) + [VISION_END]
                squares = torch.randn(height * width, 3, patch, patch, generator=rng)
                own["pixel_values"].append(squares.permute(1, 2, 0, 3).reshape(1, 3, patch, -1))
                own["target_sizes"].append([height, width])
                ours["vision_patches"].append(squares.flatten(1))
                # Slices are the frames of one item.
                if number < 2:
                    ours["vision_sizes"].append([1, height, width])
                else:
                    ours["vision_sizes"][-1][0] += 1
            tokens += words(rng, 2, 3)
        rows.append(row(tokens + words(rng, 9, 16), prompt=len(tokens)))
        given.append(own)
    join = lambda owns: {"pixel_values": torch.cat([p for own in owns for p in own["pixel_values"]], -1),
                         "target_sizes": torch.tensor([size for own in owns for size in own["target_sizes"]], dtype=torch.int32)}
    singles = [{**made, **(join([own]) if own["target_sizes"] else {})} for made, own in zip(rows, given)]
    ours = {"vision_patches": torch.cat(ours["vision_patches"]), "vision_sizes": torch.tensor(ours["vision_sizes"])}
    return Batch({**pad(rows), **join(given)}, singles, ours)


SAMPLES = 16000
# Seconds of each sequence's clips, and frames in which the reference pads or cuts them.
CLIPS = {"qwen2_audio": ([[0.61], [1.0, 0.2051]], 100), "voxtral": ([[0.7], [1.3]], 100), "qwen3_asr": ([[1.61], [2.3, 0.52]], 0)}


def wave(rng: torch.Generator, seconds: float) -> Tensor:
    """A tone that moves, and noise."""
    time = torch.arange(int(seconds * SAMPLES)) / SAMPLES
    low, bend = 200 + 1500 * torch.rand(2, generator=rng)
    return 0.4 * (2 * torch.pi * (low + bend * time) * time).sin() + 0.02 * torch.randn(len(time), generator=rng)


def mel(kind: str, audio: dict, clip: Tensor, window: int) -> tuple[dict[str, Tensor], Tensor, int]:
    """What the reference is given of a clip, the frames that ours is given, and how many frames are the clip's own: all by
    the reference's feature extractor."""
    import transformers

    if kind == "qwen3_asr":
        extractor = transformers.Qwen3ASRFeatureExtractor(feature_size=audio["num_mel_bins"])
        made = extractor(clip.numpy(), sampling_rate=SAMPLES, padding=True, return_attention_mask=True)
        frames, mask = made["input_features"], made["attention_mask"]
        return {"input_features": frames, "input_features_mask": mask}, frames[0].T[: int(mask.sum())], int(mask.sum())
    extractor = transformers.WhisperFeatureExtractor(feature_size=audio["num_mel_bins"], chunk_length=1)
    samples = clip if kind == "qwen2_audio" else torch.nn.functional.pad(clip, (0, -len(clip) % SAMPLES))
    padding = dict(padding="max_length") if kind == "qwen2_audio" else dict(padding=False, truncation=False)
    made = extractor(samples.numpy(), sampling_rate=SAMPLES, return_attention_mask=True, return_tensors="pt", **padding)
    whole = made["input_features"][0].T
    if kind == "voxtral":
        # Cut after the mel of the whole clip.
        return {"input_features": whole.view(-1, window, whole.shape[1]).transpose(1, 2)}, whole, len(whole)
    own = int(made["attention_mask"].sum())
    behind = torch.nn.functional.pad(whole, (0, 0, 0, 2))[: own + 2]
    return {"input_features": whole.T[None], "feature_attention_mask": made["attention_mask"]}, behind, own


def num_audio_tokens(kind: str, config: dict, frames: int) -> int:
    audio = config["audio_config"]
    if kind == "voxtral":
        return frames // 2 * audio["hidden_size"] // audio["intermediate_size"]
    if kind == "qwen2_audio":
        return ((frames - 1) // 2 + 1) // 2
    rest = frames % 100
    for _ in range(3):
        rest = (rest + 1) // 2
    return frames // 100 * 13 + rest


def audio_batch(kind: str, config: dict, rng: torch.Generator) -> Batch:
    rows, given, frames = [], [], []
    clips, window = CLIPS[kind]
    for sequence in clips:
        tokens, own = words(rng, 3, 4), []
        for seconds in sequence:
            inputs, ours, length = mel(kind, config["audio_config"], wave(rng, seconds), window)
            tokens += [VISION_START] + [IMAGE] * num_audio_tokens(kind, config, length) + [VISION_END] + words(rng, 2, 3)
            own.append(inputs)
            frames.append(ours)
        made = row(tokens + words(rng, 9, 16), prompt=len(tokens))
        rows.append(made)
        given.append(joined_clips(own))
    ours = {"audio_frames": torch.cat(frames), "audio_lengths": torch.tensor([len(clip) for clip in frames])}
    return Batch({**pad(rows), **joined_clips(given)}, [{**made, **own} for made, own in zip(rows, given)], ours)


def joined_clips(given: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Side by side, padded with zeros to the longest."""
    longest = max(own["input_features"].shape[2] for own in given)
    wide = lambda tensor: torch.nn.functional.pad(tensor, (0, longest - tensor.shape[-1]))
    return {key: torch.cat([wide(own[key]) for own in given]) for key in given[0]}


# Of each sequence pictures (height and width in patches), seconds of clips and videos (frames as well), in their order.
SCENES = [[(6, 4), 1.21, (2, 4, 4)], [1.0351, 0.2, (4, 4)]]
SECONDS_PER_GRID = {"omni2.5": 0.5, "omni3": 1.0}
# The same where videos have sound: of the video also the seconds of its sound. Qwen3-Omni's positions are fractions then.
HEARD_SCENES = [[(6, 4), (2, 4, 4, 1.21)], [1.0351, 0.2, (4, 4)]]
HEARD_SECONDS_PER_GRID = {"omni2.5": 1.1, "omni3": 0.7}


def video_order(kind: str, times: list[float], num_audio: int, chunk: int) -> list[bool]:
    """Of a video's tokens at these positions and those of its sound, in the order of the reference's processor, whether each is
    of the sound."""
    if kind == "omni2.5":
        from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor

        cut = lambda values: [end - start for start, end in Qwen2_5OmniProcessor.get_chunked_index(None, values, chunk)]
        seen, heard = cut(times), cut(range(num_audio))
        both = itertools.zip_longest(seen, heard, fillvalue=0)
        return [sound for frames, sounds in both for sound in [False] * int(frames) + [True] * int(sounds)]
    order, seen, heard = [], 0, 0
    while seen < len(times) and heard < num_audio:
        is_sound = times[seen] > heard
        order.append(is_sound)
        seen, heard = seen + (not is_sound), heard + is_sound
    return order + [False] * (len(times) - seen) + [True] * (num_audio - heard)


def thinker_mel(kind: str, audio: dict, clip: Tensor) -> Tensor:
    """The frames of a clip, `[frames, bins]`."""
    import transformers

    extractor = transformers.WhisperFeatureExtractor(feature_size=audio["num_mel_bins"], chunk_length=2)
    padding = dict(padding="max_length") if kind == "omni2.5" else dict(padding=True, truncation=False)
    made = extractor(clip.numpy(), sampling_rate=SAMPLES, return_attention_mask=True, return_tensors="pt", **padding)
    return made["input_features"][0].T[made["attention_mask"][0].bool()]


def thinker_batch(kind: str, config: dict, rng: torch.Generator, video_sound: bool) -> Batch:
    """Pictures, clips and a video in one sequence."""
    rows, given = [], []
    ours: dict[str, list] = {key: [] for key in ("vision_patches", "vision_sizes", "audio_frames", "audio_lengths")}
    values = 3 * config["vision_config"]["temporal_patch_size"] * config["vision_config"]["patch_size"] ** 2
    counted = "qwen3_asr" if kind == "omni3" else "qwen2_audio"
    seconds_per_grid = (HEARD_SECONDS_PER_GRID if video_sound else SECONDS_PER_GRID)[kind]
    for scene in HEARD_SCENES if video_sound else SCENES:
        tokens, own = words(rng, 3, 4), {}
        add = lambda key, value: own.setdefault(key, []).append(value)


        def hear(seconds: float) -> int:
            frames = thinker_mel(kind, config["audio_config"], wave(rng, seconds))
            add("input_features", frames)
            ours["audio_frames"].append(frames)
            ours["audio_lengths"].append(len(frames))
            return num_audio_tokens(counted, config, len(frames))

        for item in scene:
            if isinstance(item, float):
                start, end, places = [AUDIO_START], [AUDIO_END], [AUDIO_TOKEN] * hear(item)
            else:
                time, height, width = item[:3] if len(item) >= 3 else (1, *item)
                patches = torch.randn(time * height * width, values, generator=rng)
                place, suffix, of = (VIDEO, "_videos", "video") if time > 1 else (IMAGE, "", "image")
                start, end, places = [VISION_START], [VISION_END], [place] * (time * height * width // 4)
                add(f"pixel_values{suffix}", patches)
                add(f"{of}_grid_thw", torch.tensor([[time, height, width]]))
                if time > 1:
                    add("video_second_per_grid", torch.tensor([seconds_per_grid]))
                ours["vision_patches"].append(patches)
                ours["vision_sizes"].append(torch.tensor([[time, height, width]]))
                if len(item) == 4:
                    per_second, size = config["position_id_per_seconds"], height * width // 4
                    times = [seconds_per_grid * (at // size) * per_second for at in range(len(places))]
                    chunk = per_second * config.get("seconds_per_chunk", 0)
                    start, end = [VISION_START, AUDIO_START], [AUDIO_END, VISION_END]
                    places = [AUDIO_TOKEN if sound else VIDEO for sound in video_order(kind, times, hear(item[3]), chunk)]
            tokens += start + places + end + words(rng, 2, 3)
        rows.append(row(tokens + words(rng, 9, 16), prompt=len(tokens)))
        given.append(own)

    def joined(parts: list[dict]) -> dict[str, Tensor]:
        lists = {key: [value for part in parts for value in part.get(key, [])] for part in parts for key in part}
        clips = lists.pop("input_features")
        longest = max(map(len, clips))
        mask = torch.tensor([[1] * len(clip) + [0] * (longest - len(clip)) for clip in clips])
        padded = torch.stack([torch.nn.functional.pad(clip, (0, 0, 0, longest - len(clip))) for clip in clips])
        given = {"input_features": padded.transpose(1, 2).contiguous(), "feature_attention_mask": mask}
        if video_sound:
            given["use_audio_in_video"] = torch.tensor(True)
        return {**given, **{key: torch.cat(values) for key, values in lists.items()}}

    singles = [{**made, "attention_mask": torch.ones_like(made["input_ids"]), **joined([own])} for made, own in zip(rows, given)]
    ours["audio_lengths"] = [torch.tensor(ours["audio_lengths"])]
    return Batch({**pad(rows), **joined(given)}, singles, {key: torch.cat(values) for key, values in ours.items()})


def make_batch(kind: str, config: dict, seed: int, equal_lengths: bool, video_sound: bool = False) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    if kind in SECONDS_PER_GRID:
        return thinker_batch(kind, config, rng, video_sound)
    if kind in CLIPS:
        return audio_batch(kind, config, rng)
    if kind in PREFIXED:
        return pictured_batch(kind, config, rng)
    if kind == "split":
        return split_batch(config, rng)
    if kind == "sliced":
        return sliced_batch(config, rng)
    return text_batch(rng, equal_lengths) if kind == "text" else vision_batch(kind, config, rng)
