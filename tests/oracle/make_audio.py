"""Makes the goldens of sound: frames as transformers' feature extractors make them, and files as other decoders read
them, and positions of samples of pictures, videos and sound as the Omni models count them.

    pip install torch==2.11.0 transformers==5.17.0 soundfile av
    python make_audio.py ../../src/core/data/audio/goldens          # the committed ones
    python make_audio.py --seeds 20 FOLDER                          # more clips, to be compared by hand

A test of loongforge-core reads them; `LOONGFORGE_AUDIO=FOLDER` names a folder of more.
"""

import argparse
import base64
import gzip
import io
import json
from pathlib import Path
from types import MethodType, SimpleNamespace

import av
import numpy as np
import soundfile
from transformers import Qwen3ASRFeatureExtractor, WhisperFeatureExtractor
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

from batches import video_order

RATE = 16_000
LENGTHS = [1, 2, 3, 4, 5, 8, 9, 50, 99, 100, 101, 150, 199, 200, 201, 399, 530, 800, 801, 3000]


def tone(seconds, rng, rate=RATE):
    """A chord that glides, noise that fades, a quiet end."""
    t = np.arange(round(seconds * rate)) / rate
    x = sum(np.sin(2 * np.pi * (f * t + g * t * t)) for f, g in rng.uniform([80, -50], [3500, 300], (3, 2))) / 8
    x += rng.normal(size=t.size) * 0.2 * np.exp(-3 * t / max(seconds, 0.01))
    return (x * np.where(t > 0.8 * seconds, 1e-3, 1)).astype(np.float32)


def to_wav(x, rate=RATE, subtype="PCM_16", container="WAV"):
    file = io.BytesIO()
    soundfile.write(file, x, rate, subtype=subtype, format=container)
    return file.getvalue()


def read(wav):
    return soundfile.read(io.BytesIO(wav), dtype="float32", always_2d=True)


def packed(x):
    return base64.b64encode(np.asarray(x, dtype="<f4").tobytes()).decode()


def half(n):
    return (n - 1) // 2 + 1


def tokens(family, n):
    if family in ("qwen3_omni", "qwen3_asr"):
        import torch

        return int(_get_feat_extract_output_lengths(torch.tensor([n])).item())
    return {"whisper": half(n), "voxtral": half(n) // 4}.get(family, (half(n) - 2) // 2 + 1)


def frames(family, settings, x):
    """Frames of a clip alone, [frames, mels], and how many of them are the clip's."""
    cls = Qwen3ASRFeatureExtractor if family == "qwen3_asr" else WhisperFeatureExtractor
    extractor = cls(**settings)
    options = {"return_attention_mask": True, "sampling_rate": settings["sampling_rate"], "return_tensors": "np"}
    if family == "qwen3_asr":
        out = extractor(x, padding=True, **options)
    elif family == "qwen3_omni":
        out = extractor(x, padding=True, truncation=False, **options)
    elif family == "voxtral":
        out = extractor(x, padding=True, truncation=False, pad_to_multiple_of=extractor.n_samples, **options)
    else:
        out = extractor(x, padding="max_length", **options)
    mel = np.asarray(out["input_features"])[0].T
    valid = int(np.asarray(out["attention_mask"])[0].sum())
    if family in ("whisper", "voxtral"):
        return mel, len(mel)
    if family == "qwen2_audio":
        return mel[: valid + 2], valid
    return mel[:valid], valid


def cases(seeds):
    """Name, family, settings, a clip, and how many of its samples are taken."""
    small = {"sampling_rate": RATE, "hop_length": 160, "n_fft": 400, "chunk_length": 1}
    for seed in range(seeds):
        chord = tone(1.0189, np.random.default_rng(seed))
        sine = (0.5 * np.sin(2 * np.pi * 1000 * np.arange(9600) / RATE)).astype(np.float32)
        clips = {
            "longer than a chunk": (chord, len(chord)),
            "as long as a chunk": (chord, RATE),
            "just shorter than a chunk": (chord, RATE - 130),
            "no multiple of a hop": (chord, 9921),
            "short": (chord, 960),
            "one frame": (chord, 201),
            "silence": (np.zeros(8000, np.float32), 8000),
            "sine": (sine, 9600),
        }
        plan = {
            "qwen2_audio": ["no multiple of a hop", "as long as a chunk", "just shorter than a chunk"],
            "qwen2_5_omni": ["no multiple of a hop", "short", "silence"],
            "qwen3_omni": ["as long as a chunk", "no multiple of a hop", "longer than a chunk", "short", "one frame", "sine"],
            "qwen3_asr": ["short", "no multiple of a hop"],
            "voxtral": ["longer than a chunk"],
            "whisper": ["no multiple of a hop", "silence", "as long as a chunk"],
        }
        for family, names in plan.items():
            if seeds > 1:
                is_free = family in ("qwen3_omni", "qwen3_asr", "voxtral")
                names = [name for name in clips if (is_free or clips[name][1] <= RATE) and name != "one frame"]
            for name in names:
                mels = 80 if family == "whisper" else 128
                yield f"{name}, seed {seed}", family, {"feature_size": mels, **small}, *clips[name]
        if seeds == 1:
            other = {"feature_size": 40, "sampling_rate": RATE, "hop_length": 128, "n_fft": 512, "chunk_length": 2}
            yield "another transform", "qwen3_omni", other, chord, 9921
            odd = {"feature_size": 64, "sampling_rate": 24_000, "hop_length": 100, "n_fft": 480, "chunk_length": 1}
            yield "another rate", "whisper", odd, chord, 9921


def write_frames(folder, seeds, stride):
    wavs, done = [], []
    for name, family, settings, x, length in cases(seeds):
        wav = to_wav(x)
        if wav not in wavs:
            wavs.append(wav)
        x = read(wav)[0][:length, 0]
        mel, valid = frames(family, settings, x)
        last = len(mel) - 1
        rows = sorted({*range(0, len(mel), stride), *range(min(2, len(mel))), last, max(last - 1, 0), min(valid, last)})
        done.append(
            {"name": name, "family": family, "settings": settings, "wav": wavs.index(wav), "length": length, "num_frames": len(mel)}
            | {"num_tokens": tokens(family, valid), "rows": rows, "values": packed(mel[rows])}
        )
    families = ["whisper", "qwen2_audio", "qwen2_5_omni", "qwen3_omni", "qwen3_asr", "voxtral"]
    table = {family: [[n, tokens(family, n)] for n in LENGTHS] for family in families}
    write(folder / "frames.json.gz", {"wavs": [base64.b64encode(wav).decode() for wav in wavs], "cases": done, "tokens": table})


def encode(x, rate, container, codec, **options):
    """x: [channels, samples] of float32."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout="stereo" if len(x) == 2 else "mono", **options)
        for begin in range(0, x.shape[1], 1024):
            piece = np.ascontiguousarray(x[:, begin : begin + 1024])
            frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="stereo" if len(x) == 2 else "mono")
            frame.sample_rate, frame.pts = rate, begin
            for packet in stream.encode(frame):
                out.mux(packet)
        for packet in stream.encode(None):
            out.mux(packet)
    return file.getvalue()


def write_files(folder):
    rng = np.random.default_rng(5)
    mono, stereo = tone(0.4, rng, 44_100), np.stack([tone(0.3, rng, 22_050), tone(0.3, rng, 22_050)], 1)
    files = {}
    for subtype in ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"]:
        files[f"wav {subtype.lower()}"] = to_wav(tone(0.06, rng, 8000), 8000, subtype)
    files["wav extensible"] = to_wav(stereo[:1500], 22_050, "PCM_24", "WAVEX")
    files["flac 16"] = to_wav(stereo[:3000], 22_050, "PCM_16", "FLAC")
    files["flac 24"] = to_wav(tone(0.1, rng), RATE, "PCM_24", "FLAC")
    files["vorbis"] = to_wav(mono, 44_100, "VORBIS", "OGG")
    files["vorbis stereo"] = to_wav(stereo, 22_050, "VORBIS", "OGG")
    files["mp3"] = to_wav(mono, 44_100, "MPEG_LAYER_III", "MP3")
    files["mp3 stereo"] = to_wav(stereo, 22_050, "MPEG_LAYER_III", "MP3")
    files["aac"] = encode(mono[None], 44_100, "mp4", "aac", options={"movflags": "faststart"})
    done = []
    for name, file in files.items():
        if name == "aac":
            with av.open(io.BytesIO(file)) as opened:
                rate = opened.streams.audio[0].rate
                x = np.concatenate([frame.to_ndarray() for frame in opened.decode(audio=0)], 1).T
        else:
            x, rate = read(file)
        x = x.mean(1)
        stride = max(1, len(x) // 200)
        done.append(
            {"name": name, "file": base64.b64encode(file).decode(), "rate": rate, "num_samples": len(x)}
            | {"stride": stride, "values": packed(x[::stride])}
        )
    opus = to_wav(mono[:9600], 48_000, "OPUS", "OGG")
    write(folder / "files.json.gz", {"files": done, "opus": base64.b64encode(opus).decode()})


def write_clip(folder):
    """A video with sound: a square that moves, and a tone."""
    path = folder / "clip.mp4"
    with av.open(path, "w") as out:
        video = out.add_stream("libx264", rate=8, options={"crf": "30"})
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        audio = out.add_stream("aac", rate=RATE, layout="mono")
        audio.bit_rate = 16_000
        for index in range(24):
            picture = np.zeros((64, 64, 3), np.uint8)
            picture[20:40, index : index + 20] = 200
            out.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        x = (0.3 * np.sin(2 * np.pi * 440 * np.arange(3 * RATE) / RATE)).astype(np.float32)
        for begin in range(0, len(x), 1024):
            frame = av.AudioFrame.from_ndarray(x[None, begin : begin + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = RATE, begin
            out.mux(audio.encode(frame))
        out.mux(video.encode())
        out.mux(audio.encode())
    print(path, path.stat().st_size)


def rope(family):
    """The reference's `get_rope_index` and what it needs of a model."""
    if family == "qwen2_5_omni":
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as module

        cls, per_second = module.Qwen2_5OmniPreTrainedModelForConditionalGeneration, 25
    else:
        from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as module

        cls, per_second = module.Qwen3OmniMoePreTrainedModelForConditionalGeneration, 13
    ids = {"image_token_id": 101, "video_token_id": 102, "audio_token_id": 100, "vision_start_token_id": 105}
    ids |= {"audio_start_token_id": 103, "position_id_per_seconds": per_second, "seconds_per_chunk": 2}
    model = SimpleNamespace(config=SimpleNamespace(**ids, audio_config=SimpleNamespace(n_window=50)), spatial_merge_size=2)
    for name in ["get_llm_pos_ids_for_vision", "get_chunked_index"]:
        setattr(model, name, MethodType(getattr(cls, name), model))
    return MethodType(cls.get_rope_index, model), per_second


def frames_of(family, num_tokens):
    """Frames of a clip of so many tokens."""
    return next(n for n in range(1, 10_000) if tokens(family, n) == num_tokens)


def write_positions(folder):
    import torch

    rng, done = np.random.default_rng(7), []
    for number in range(64):
        family = ["qwen2_5_omni", "qwen3_omni"][number % 2]
        index, per_second = rope(family)
        # The reference takes all videos of a sample with their sound, or none.
        with_sound = number % 4 < 2
        spans, ids, grids, frames, seconds = [], [], {"image": [], "video": []}, [], []
        for kind in rng.permutation(["image", "image", "audio", "audio", "video", "video"][: 6 - number // 4 % 3]):
            text = int(rng.integers(1, 5))
            spans.append(["text", text])
            ids += [1] * text
            h, w, num_tokens = (int(n) for n in (rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 140)))
            if kind == "image":
                spans.append(["image", h, w])
                ids += [105] + [101] * (h * w) + [106]
                grids["image"].append([1, 2 * h, 2 * w])
            elif kind == "audio":
                spans.append(["audio", num_tokens])
                ids += [103] + [100] * num_tokens + [104]
                frames.append(frames_of(family, num_tokens))
            else:
                t = int(rng.integers(1, 9))
                # Fractions of a position for Qwen3-Omni; of Qwen2.5-Omni also jumps over chunks.
                step = float(rng.choice([0.5, 1 / 3, 1.0, 2.0, 2.2, 5.0]))
                grids["video"].append([t, 2 * h, 2 * w])
                seconds.append(step)
                spans.append(["video", t, h, w, step, num_tokens if with_sound else 0])
                if with_sound:
                    frames.append(frames_of(family, num_tokens))
                    times = np.repeat(np.arange(t), h * w) * step * per_second
                    order = video_order({"qwen2_5_omni": "omni2.5", "qwen3_omni": "omni3"}[family], times, num_tokens, 2 * per_second)
                    ids += [105, 103] + [100 if sound else 102 for sound in order] + [104, 106]
                else:
                    ids += [105] + [102] * (t * h * w) + [106]
        if not grids["image"] + grids["video"]:
            continue
        spans.append(["text", 3])
        ids += [1] * 3
        tensor = lambda values: torch.tensor(values) if values else None
        positions, _ = index(
            torch.tensor([ids]),
            tensor(grids["image"]),
            tensor(grids["video"]),
            torch.ones(1, len(ids), dtype=torch.long),
            with_sound,
            tensor(frames),
            tensor(seconds),
        )
        positions = positions[:, 0]
        kinds = [{100: 2, 101: 1, 102: 1}.get(i, 0) for i in ids]
        done.append({"family": family, "spans": spans, "kinds": kinds, "positions": positions.tolist()})
    write(folder / "positions.json.gz", done)


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(value).encode(), 9, mtime=0))
    print(path, path.stat().st_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    write_frames(args.folder, args.seeds, 15 if args.seeds == 1 else 1)
    if args.seeds == 1:
        write_files(args.folder)
        write_positions(args.folder)
        write_clip(args.folder)


main()
