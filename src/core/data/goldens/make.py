"""Writes the files beside it, from transformers 5.17 and torchvision 0.26: python make.py [MODEL_DIR DIGITS_DIR]

MODEL_DIR and DIGITS_DIR are what `write_model` and `compose` write (the test `write_for_goldens`); without them
processor.json stays as it is.
"""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from transformers import AutoProcessor, AutoTokenizer, BitImageProcessor, CLIPImageProcessor
from transformers.models.ernie4_5_vl_moe.image_processing_ernie4_5_vl_moe import Ernie4_5_VLMoeImageProcessor
from transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe import Ernie4_5_VLMoeModel
from transformers.models.ernie4_5_vl_moe.video_processing_ernie4_5_vl_moe import Ernie4_5_VLMoeVideoProcessor
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor
from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
from transformers.models.kimi_k25.processing_kimi_k25 import Kimi_K25Processor
from transformers.models.kimi_k25.video_processing_kimi_k25 import Kimi_K25VideoProcessor
from transformers.models.minicpmv4_6.image_processing_minicpmv4_6 import MiniCPMV4_6ImageProcessor
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.models.minicpmv4_6.video_processing_minicpmv4_6 import MiniCPMV4_6VideoProcessor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor, smart_resize
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor
from transformers.video_utils import VideoMetadata

here = Path(__file__).parent


def write(name, value):
    (here / name).write_text(json.dumps(value, separators=(",", ":")))


def noise_picture(width, height, seed):
    """The same formula as in the Rust test: smooth waves and hard edges."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack(
        [(x * 7 + y * seed) % 256, (x * y + 31 * seed) % 256, ((x // 5 + y // 3) % 2) * 200 + 20], axis=-1
    ).astype(np.uint8)


def clip(frames, width, height, seed):
    return np.stack([noise_picture(width, height, seed + index) for index in range(frames)])


def thinned(values):
    """Whole patches would be large: a fixed stride through them, and their sum."""
    values = values.flatten()
    stride = max(37, values.numel() // 150)
    return {"len": values.numel(), "sum": values.double().sum().item(), "stride": stride,
            "values": [round(v, 5) for v in values[::stride].tolist()]}


def patches(tiles, size):
    """Tiles as rows of patches, as our encoders take them: [tiles, 3, height, width] to [patches, 3 * size * size]."""
    n, c, h, w = tiles.shape
    tiles = tiles.reshape(n, c, h // size, size, w // size, size)
    return tiles.permute(0, 2, 4, 1, 3, 5).reshape(-1, c * size * size)


def bare(cls, **attributes):
    """A processor for the sake of its methods, without a tokenizer."""
    processor = cls.__new__(cls)
    for name, value in attributes.items():
        object.__setattr__(processor, name, value)
    return processor


SMALL = {"patch_size": 8, "merge_size": 2}
PIXELS = {"shortest_edge": 256, "longest_edge": 4096}
QWEN2 = {"model_type": "qwen2_5_vl", "vision_config": {"tokens_per_second": 2}}
QWEN3 = {"model_type": "qwen3_vl", "vision_config": {}}
ERNIE = {"model_type": "ernie4_5_vl_moe", "vision_config": {}}
INTERN = {"model_type": "internvl", "downsample_ratio": 0.5, "vision_config": {"patch_size": [8, 8], "image_size": [32, 32]}}
KIMI = {"model_type": "kimi_k25", "vision_config": {}}
SIGLIP = {"model_type": "loongforge_vlm", "image_encoder": {"model_type": "siglip_vision_model", "patch_size": 8, "image_size": 36}}
CLIP = {"model_type": "loongforge_vlm", "image_encoder": {"model_type": "clip_vision_model", "patch_size": 8, "image_size": 36}}
DINOV2 = {"model_type": "loongforge_vlm", "image_encoder": {"model_type": "dinov2", "patch_size": 8, "image_size": 56}}
GEMMA3 = {"model_type": "gemma3", "mm_tokens_per_image": 4, "boi_token_index": 1, "eoi_token_index": 2,
          "vision_config": {"model_type": "siglip_vision_model", "patch_size": 8, "image_size": 32}}
PALIGEMMA = {"model_type": "paligemma", "vision_config": {"model_type": "siglip_vision_model", "patch_size": 8, "image_size": 32}}
FLORENCE2 = {"model_type": "florence2", "vision_config": {"model_type": "florence_vision", "patch_size": [7, 3], "patch_stride": [4, 2],
                                                         "patch_padding": [3, 1]}}
SMOLVLM = {"model_type": "smolvlm", "scale_factor": 2, "vision_config": {"model_type": "smolvlm_vision", "patch_size": 8, "image_size": 36}}
SPLIT = {"size": {"longest_edge": 108}, "max_image_size": {"longest_edge": 36}, "do_image_splitting": True, "resample": 1}
# The whole is enlarged, reduced, or cut into slices.
MINICPM = {"model_type": "minicpmv4_6", "vision_config": {"model_type": "minicpmv4_6_vision", "patch_size": 4}}
SLICES = {"patch_size": 4, "scale_resolution": 32, "max_slice_nums": 6}
WHOLE = {**SLICES, "slice_mode": False}
FINE = {**SLICES, "max_slice_nums": 9, "scale_resolution": 48, "downsample_mode": "4x", "use_image_id": False}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SIZES = [(48, 32, 1), (45, 27, 2), (100, 90, 3), (9, 13, 4), (37, 111, 5)]


# Pictures of any shape for processors that crop.
RANDOM = random.Random(6)
MORE_SIZES = [(RANDOM.randrange(20, 260), RANDOM.randrange(20, 260), seed) for seed in range(6, 14)]


def sliced_media(values, sizes, grids, divisor):
    """Copies and slices as our encoders take them: the slices of a picture are the frames of one item."""
    size, at, media = MINICPM["vision_config"]["patch_size"], 0, []
    rows = values[0].reshape(3, size, -1, size).permute(2, 0, 1, 3).flatten(1)
    sizes = iter(sizes.tolist())
    for grid in grids:
        for frames in [1, int(grid[0] * grid[1])]:
            if frames == 0:
                continue
            height, width = [next(sizes) for _ in range(frames)][-1]
            count = frames * height * width
            media.append({"grid": [frames, height, width], "features": count // divisor, **thinned(rows[at:at + count])})
            at += count
    return media


def minicpm(**made):
    """Its processor, which numbers what it replaces by itself."""
    tokens = dict(image_token="<p>", video_token="<p>", image_start_token="<image>", image_end_token="</image>",
                  slice_start_token="<slice>", slice_end_token="</slice>")
    return bare(MiniCPMV4_6Processor, **tokens, **made)


def sliced_cases():
    for width, height, seed in [*SIZES, (64, 64, 6), (210, 40, 7), (131, 170, 8), (30, 200, 9)]:
        for settings in (SLICES, WHOLE, FINE):
            config = {**MINICPM, "downsample_mode": settings.get("downsample_mode", "16x")}
            divisor = 4 if config["downsample_mode"] == "4x" else 16
            processor = MiniCPMV4_6ImageProcessor(**settings)
            out = processor(images=[Image.fromarray(noise_picture(width, height, seed))], return_tensors="pt")
            whole = minicpm(slice_mode=processor.slice_mode)
            text = whole.replace_image_token(out, 0, image_token_divisor=divisor)
            if processor.use_image_id:
                text = f"<image_id>0</image_id>{text}"
            yield {"config": config, "image": settings, "video": {}, "width": width, "height": height, "seed": seed,
                   "frames": 0, "fps": None, "text": text,
                   "media": sliced_media(out["pixel_values"], out["target_sizes"], out["grids"], divisor)}
    for frames, fps, width, height, seed in [(9, 4, 45, 27, 2), (6, 3, 20, 14, 4), (30, 5, 64, 48, 5)]:
        for settings in (SLICES, {**WHOLE, "max_num_frames": 4}):
            processor = MiniCPMV4_6VideoProcessor(**settings)
            metadata = VideoMetadata(total_num_frames=frames, fps=fps, duration=frames / fps)
            out = processor(videos=[clip(frames, width, height, seed)], video_metadata=[metadata], return_tensors="pt")
            whole = minicpm(video_slice_mode=processor.slice_mode)
            text = whole.replace_video_token(out, 0, video_token_divisor=16)
            yield {"config": MINICPM, "image": SLICES, "video": settings, "width": width, "height": height, "seed": seed,
                   "frames": frames, "fps": fps, "text": f"<image_id>0</image_id>{text}",
                   "media": sliced_media(out["pixel_values_videos"], out["target_sizes_videos"], out["grids_videos"].tolist(), 16)}


def image_cases():
    qwen = {**SMALL, "temporal_patch_size": 2, "size": PIXELS}
    ernie = {**SMALL, "size": PIXELS}
    intern = {"size": {"height": 32, "width": 32}, "min_patches": 1, "max_patches": 6}
    kimi = {**SMALL, "max_patches": 60, "size": {"max_height": 12, "max_width": 12}}
    siglip = {"size": {"height": 36, "width": 36}}
    crop = {"crop_size": {"height": 36, "width": 36}, "resample": 3}
    for width, height, seed in SIZES + MORE_SIZES:
        for config, settings, make in [
            (QWEN2, qwen, Qwen2VLImageProcessor),
            (ERNIE, ernie, Ernie4_5_VLMoeImageProcessor),
            (INTERN, intern, lambda **kw: GotOcr2ImageProcessor(**kw, crop_to_patches=True)),
            (KIMI, kimi, Kimi_K25ImageProcessor),
            (SIGLIP, {**siglip, "resample": 3}, SiglipImageProcessor),
            (SIGLIP, {**siglip, "resample": 2}, SiglipImageProcessor),
            (GEMMA3, {"size": {"height": 32, "width": 32}}, Gemma3ImageProcessor),
            (PALIGEMMA, {"size": {"height": 32, "width": 32}}, SiglipImageProcessor),
            (FLORENCE2, {"size": {"height": 32, "width": 32}, "do_center_crop": False, **IMAGENET}, CLIPImageProcessor),
            (SMOLVLM, SPLIT, SmolVLMImageProcessorPil),
            (SMOLVLM, {**SPLIT, "do_image_splitting": False}, SmolVLMImageProcessorPil),
            (CLIP, {**crop, "size": {"shortest_edge": 36}}, CLIPImageProcessor),
            (DINOV2, {**crop, **IMAGENET, "size": {"shortest_edge": 43}}, BitImageProcessor),
        ]:
            if seed > len(SIZES) and config not in (CLIP, DINOV2):
                continue
            more = {"return_row_col_info": True} if config is SMOLVLM else {}
            out = make(**settings)(images=[Image.fromarray(noise_picture(width, height, seed))], return_tensors="pt", **more)
            values = out["pixel_values"]
            if config is INTERN:
                grid = [len(values), 4, 4]
                values = patches(values, 8)
                features = 4 * grid[0]
                text = f"<img>{'<p>' * features}</img>"
            elif config is SMOLVLM:
                # The tower's convolution leaves out the last four rows and columns of each tile.
                values, grid = patches(values[0, :, :, :32, :32], 8), [values.shape[1], 4, 4]
                features = 4 * grid[0]
                text = get_image_prompt_string(out["rows"][0][0], out["cols"][0][0], 4, "<fake_token_around_image>", "<p>", "<global-img>")
            elif config in (GEMMA3, PALIGEMMA):
                grid, features, values = [1, 4, 4], 4 if config is GEMMA3 else 16, patches(values, 8)
                text = f"\n\n<img>{'<p>' * 4}</img>\n\n" if config is GEMMA3 else "<p>" * 16
            elif config is FLORENCE2:
                grid, features, values, text = [1, 8, 8], 17, patches(values, 4), "<p>" * 17
            elif config in (SIGLIP, CLIP, DINOV2):
                # The tower's convolution leaves out the last four rows and columns.
                grid, features = [1, 4, 4], 16
                values, text = patches(values[:, :, :32, :32], 8), "<p>" * 16
            else:
                grid = out["image_grid_thw"][0].tolist()
                features = grid[1] * grid[2] // 4
                text = "<p>" * features
            yield {"config": config, "image": settings, "video": {}, "width": width, "height": height, "seed": seed,
                   "frames": 0, "fps": None, "text": text,
                   "media": [{"grid": grid, "features": features, **thinned(values)}]}


def video_cases():
    two = {**SMALL, "temporal_patch_size": 2, "min_frames": 4, "max_frames": 8}
    for frames, fps, width, height, seed in [(9, 4, 45, 27, 2), (6, 3, 100, 90, 3), (24, 8, 20, 14, 4), (5, 2, 64, 48, 5)]:
        shape = {"width": width, "height": height, "seed": seed, "frames": frames, "fps": fps}
        video = clip(frames, width, height, seed)

        def run(processor, **kwargs):
            metadata = VideoMetadata(total_num_frames=frames, fps=fps)
            return processor(videos=[video], video_metadata=[metadata], return_tensors="pt", do_sample_frames=True,
                             return_metadata=True, **kwargs)

        for cap in [False, True]:
            settings = {**two, "size": PIXELS, "cap_pixels_per_frame": cap, "max_video_tokens": 20}
            out = run(Qwen2VLVideoProcessor(**settings), fps=2)
            grid = out["video_grid_thw"][0].tolist()
            features = grid[0] * grid[1] * grid[2] // 4
            seconds = 2 / out["video_metadata"][0].sampled_fps
            yield {"config": QWEN2, "image": {**SMALL, "size": PIXELS}, "video": settings, **shape,
                   "interval": 2 * int(seconds), "text": "<p>" * features,
                   "media": [{"grid": grid, "features": features, **thinned(out["pixel_values_videos"])}]}

            settings = {**settings, "size": {"shortest_edge": 1024, "longest_edge": 8192}}
            processor = Qwen3VLVideoProcessor(**settings)
            out = run(processor)
            grid = out["video_grid_thw"][0].tolist()
            whole = bare(Qwen3VLProcessor, video_processor=processor, video_token="<p>",
                         vision_start_token="<|vision_start|>", vision_end_token="<|vision_end|>")
            yield {"config": QWEN3, "image": {**SMALL, "size": PIXELS}, "video": settings, **shape, "interval": 1,
                   "text": whole.replace_video_token(out, 0),
                   "media": [{"grid": grid, "features": grid[0] * grid[1] * grid[2] // 4,
                              **thinned(out["pixel_values_videos"])}]}

        settings = {**SMALL, "size": PIXELS, "min_frames": 4, "max_frames": 8, "draw_on_frames": False, "fps": 2}
        out = run(Ernie4_5_VLMoeVideoProcessor(**settings))
        grid = out["video_grid_thw"][0].tolist()
        features = grid[0] * grid[1] * grid[2] // 8
        yield {"config": ERNIE, "image": {**SMALL, "size": PIXELS}, "video": settings, **shape, "interval": 1,
               "text": "<p>" * features,
               "media": [{"grid": grid, "features": features, **thinned(out["pixel_values_videos"])}]}

        settings = {"size": {"height": 32, "width": 32}, "num_frames": 4}
        out = run(InternVLVideoProcessor(**settings))
        tiles = out["pixel_values_videos"][0]
        whole = bare(InternVLProcessor, start_image_token="<img>", end_image_token="</img>", image_token="<p>",
                     image_seq_length=4)
        yield {"config": INTERN, "image": {"size": 32}, "video": settings, **shape, "interval": 1,
               "text": whole.replace_video_token(out, 0),
               "media": [{"grid": [len(tiles), 4, 4], "features": 4 * len(tiles), **thinned(patches(tiles, 8))}]}

        settings = {**SMALL, "temporal_patch_size": 4, "max_patches": 60, "size": {"max_height": 12, "max_width": 12}}
        processor = Kimi_K25VideoProcessor(**settings)
        out = run(processor)
        whole = bare(Kimi_K25Processor, video_processor=processor, video_token="<p>")
        media, at = [], 0
        for grid in out["video_grid_thw"].tolist():
            count = grid[0] * grid[1] * grid[2]
            media.append({"grid": grid, "features": grid[1] * grid[2] // 4,
                          **thinned(out["pixel_values_videos"][at:at + count])})
            at += count
        yield {"config": KIMI, "image": {**SMALL}, "video": settings, **shape, "interval": 1,
               "text": whole.replace_video_token(out, 0), "media": media}


def sampling():
    rng = random.Random(4)
    cases = []
    qwen2, qwen3 = Qwen2VLVideoProcessor(), Qwen3VLVideoProcessor()
    ernie, intern, kimi = Ernie4_5_VLMoeVideoProcessor(), InternVLVideoProcessor(), Kimi_K25VideoProcessor()
    for total, source in [(1, 30), (90, 30), (91, 30), (239, 24), (241, 23.976), (400, 25), (1500, 29.97), (33, 3.3), (700, 10)]:
        for high in (4, 10, 31):
            metadata = VideoMetadata(total_num_frames=total, fps=source, duration=total / source)
            indices = MiniCPMV4_6VideoProcessor(max_num_frames=high).sample_frames(metadata)
            cases.append(["seconds", total, source, 1, 1, high, len(indices), *indices[:: max(1, len(indices) // 12)]])
    for _ in range(120):
        total, source = rng.randrange(4, 400), rng.choice([1, 2, 5, 10, 23.976, 24, 25, 29.97, 30, 60])
        fps, low, high = rng.choice([0.5, 1, 2, 3.3]), rng.choice([2, 4, 16]), rng.choice([16, 31, 180])
        metadata = VideoMetadata(total_num_frames=total, fps=source)
        for kind, sample in [
            ("parts", lambda: qwen2.sample_frames(metadata, fps=fps, min_frames=low, max_frames=high)),
            ("fractional", lambda: ernie.sample_frames(metadata, fps=fps, min_frames=low, max_frames=high)),
            ("ends", lambda: Qwen3VLVideoProcessor(min_frames=low, max_frames=high).sample_frames(metadata, fps=fps)),
            ("middle", lambda: intern.sample_frames(metadata, fps=fps)),
            ("whole", lambda: kimi.sample_frames(metadata, fps=fps)),
        ]:
            whole = kind in ("middle", "whole")
            num = int(total / source * fps)
            if whole and not 1 <= num <= min(total, high):
                continue
            indices = sample().tolist()
            cases.append([kind, total, source, fps, low, high, len(indices), *indices[:: max(1, len(indices) // 12)]])
    write("sampling.json", cases)


def positions():
    rng = random.Random(0)
    cases = []
    for family, cls in [("qwen2_vl", Qwen2VLModel), ("qwen2_5_vl", Qwen2_5_VLModel), ("qwen3_vl", Qwen3VLModel),
                        ("qwen3_5", Qwen3_5Model), ("ernie4_5_vl_moe", Ernie4_5_VLMoeModel)]:
        model = cls.__new__(cls)
        torch.nn.Module.__init__(model)
        vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2, temporal_merge_size=2)
        object.__setattr__(model, "config", SimpleNamespace(vision_config=vision))
        for kinds in ["", "i", "ii", "v", "iv", "vi", "iiv", "vv", "ivvi", "iii"]:
            spans, types, images, videos, seconds = [], [], [], [], []

            def text(low):
                count = rng.randrange(low, 8)
                spans.append(count)
                types.extend([0] * count)

            text(1)
            for kind in kinds:
                h, w = rng.randrange(1, 5), rng.randrange(1, 6)
                if kind == "i":
                    images.append([1, 2 * h, 2 * w])
                    spans.append([1, h, w, 1])
                    types += [1] * (h * w)
                elif family in ("qwen3_vl", "qwen3_5"):
                    t = rng.randrange(1, 5)
                    videos.append([t, 2 * h, 2 * w])
                    for frame in range(t):
                        if frame:
                            text(1)
                        spans.append([1, h, w, 1])
                        types += [2] * (h * w)
                else:
                    t = rng.randrange(1, 5)
                    ernie = family == "ernie4_5_vl_moe"
                    videos.append([2 * t if ernie else t, 2 * h, 2 * w])
                    seconds.append(rng.choice([0.5, 1.0, 2.0, 3.7]))
                    interval = 2 * int(seconds[-1]) if family == "qwen2_5_vl" else 1
                    spans.append([t, h, w, interval])
                    types += [2] * (t * h * w)
                text(1)
            ids = torch.zeros(1, len(types), dtype=torch.long)
            kwargs = {"second_per_grid_ts": seconds} if family == "qwen2_5_vl" and seconds else {}
            position_ids, _ = cls.get_rope_index(
                model, ids, torch.tensor([types]), torch.tensor(images) if images else None,
                torch.tensor(videos) if videos else None, attention_mask=torch.ones_like(ids), **kwargs,
            )
            cases.append({"family": family, "spans": spans, "position_ids": position_ids[:, 0].tolist()})
    write("positions.json", cases)


def resizes():
    rng = random.Random(1)
    cases = []
    for _ in range(200):
        height, width = (int(2 ** rng.uniform(0, 12)) for _ in range(2))
        factor, low, high = rng.choice([(16, 256, 65536), (28, 3136, 1003520), (32, 65536, 16777216)])
        try:
            cases.append([height, width, factor, low, high, *map(int, smart_resize(height, width, factor, low, high))])
        except ValueError:
            cases.append([height, width, factor, low, high, 0, 0])
    (here / "smart_resize.json").write_text(json.dumps(cases, separators=(",", ":")))


def processor():
    """The quick start's model: ids and pixels of the whole processor."""
    model_dir, digits_dir = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    processor = AutoProcessor.from_pretrained(model_dir)
    texts = ["Read the number.", "naïve 数字 <|im_end|>\n\t", "0123 a  b"]
    cases = []
    for line in (digits_dir / "train.jsonl").read_text().splitlines()[:4]:
        line = json.loads(line)
        content = [{"type": "image"}, {"type": "text", "text": line["messages"][0]["content"].removeprefix("<image>")}]
        messages = [{"role": "user", "content": content}, line["messages"][1]]
        picture = Image.open(digits_dir / line["images"][0])
        text = processor.apply_chat_template(messages, tokenize=False)
        out = processor(text=[text], images=[picture], return_tensors="pt")
        pixels = out["pixel_values"].flatten()
        cases.append({
            "input_ids": out["input_ids"][0].tolist(), "grid": out["image_grid_thw"][0].tolist(),
            "pixel_sum": pixels.double().sum().item(), "stride": 41,
            "pixels": [round(v, 6) for v in pixels[::41].tolist()],
        })
    (here / "processor.json").write_text(json.dumps(
        {"texts": [[text, tokenizer(text)["input_ids"]] for text in texts], "samples": cases},
        separators=(",", ":"),
    ))


resizes()
write("media.json", [*image_cases(), *video_cases(), *sliced_cases()])
sampling()
positions()
if len(sys.argv) > 1:
    processor()
