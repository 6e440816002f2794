"""Small LeRobot sets written by lerobot itself, and what its own reader and processors make of them.

    python tests/oracle/make_lerobot_sets.py --out src/core/data/goldens/lerobot

Needs Python 3.12 with lerobot 0.6.1. Sets of version 3.0: `image` (PNG in Parquet), `av1` and `h264` (videos); one of version
2.1, laid out by hand as lerobot wrote it then, which lerobot's converter to 3.0 takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.configs.video import RGBEncoderConfig
from lerobot.datasets.compute_stats import aggregate_stats, compute_episode_stats, compute_relative_action_stats
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.common.vla_utils import resize_with_pad, resize_with_pad_torch
from lerobot.policies.pi05.processor_pi05 import Pi05PrepareStateTokenizerProcessorStep
from lerobot.lerobot_types import TransitionKey
from lerobot.processor import NormalizerProcessorStep
from lerobot.processor.relative_action_processor import to_relative_actions

FPS = 10
SIDES = (48, 64)
LENGTHS = (7, 12, 5)
TASKS = ("pick_up the cube", "open the drawer", "pick_up the cube")
NAMES = ["shoulder", "elbow", "gripper"]
CAMERA = "observation.images.front"
STEPS = [-2, 0, 1, 3]


def values(rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    """States and actions of an episode; the last number is constant."""
    state = np.cumsum(rng.normal(size=(length, 3)), axis=0).astype(np.float32)
    action = (state + rng.normal(size=(length, 3))).astype(np.float32)
    state[:, 2] = 0.25
    return state, action


def picture(episode: int, frame: int) -> np.ndarray:
    """A smooth picture that tells its episode and frame, so that codecs keep it."""
    rows, columns = SIDES
    y, x = np.mgrid[0:rows, 0:columns]
    image = np.stack([x * 3 + frame * 9, y * 4 + episode * 40, (x + y) * 2 + frame * 5], axis=-1)
    return np.clip(image, 0, 255).astype(np.uint8)


def features(kind: str) -> dict:
    return {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": NAMES},
        "action": {"dtype": "float32", "shape": (3,), "names": NAMES},
        CAMERA: {"dtype": kind, "shape": (*SIDES, 3), "names": ["height", "width", "channels"]},
    }


def write(root: Path, kind: str, codec: str | None) -> None:
    encoder = RGBEncoderConfig(vcodec=codec) if codec else None
    dataset = LeRobotDataset.create(
        "oracle/set", FPS, features(kind), root=root, robot_type="arm", use_videos=kind == "video", rgb_encoder=encoder
    )
    rng = np.random.default_rng(3)
    for episode, (length, task) in enumerate(zip(LENGTHS, TASKS, strict=True)):
        state, action = values(rng, length)
        for frame in range(length):
            row = {"observation.state": state[frame], "action": action[frame], CAMERA: picture(episode, frame)}
            dataset.add_frame({**row, "task": task})
        dataset.save_episode()
    dataset.finalize()
    shutil.rmtree(root / "images", ignore_errors=True)


def write_v21(root: Path) -> None:
    """Version 2.1: an episode a file, statistics of each episode."""
    rng = np.random.default_rng(3)
    tasks = list(dict.fromkeys(TASKS))
    lines = {"episodes": [], "episodes_stats": [], "tasks": [{"task_index": i, "task": t} for i, t in enumerate(tasks)]}
    first = 0
    for episode, (length, task) in enumerate(zip(LENGTHS, TASKS, strict=True)):
        state, action = values(rng, length)
        numbers = {"observation.state": state, "action": action}
        places = {
            "timestamp": (np.arange(length) / FPS).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, episode),
            "index": np.arange(first, first + length),
            "task_index": np.full(length, tasks.index(task)),
        }
        first += length
        lists = {key: pa.FixedSizeListArray.from_arrays(pa.array(v.ravel()), 3) for key, v in numbers.items()}
        path = root / f"data/chunk-000/episode_{episode:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({**lists, **{key: pa.array(v) for key, v in places.items()}}), path)
        video = root / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4"
        video.parent.mkdir(parents=True, exist_ok=True)
        frames = [picture(episode, frame) for frame in range(length)]
        encode(video, frames)
        stats = compute_episode_stats({**numbers, **places}, {**features("video"), **place_features()})
        stats = {key: {name: stat for name, stat in of.items() if not name.startswith("q")} for key, of in stats.items()}
        pixels = np.stack(frames).transpose(0, 3, 1, 2) / 255.0
        stats[CAMERA] = {
            name: getattr(np, name)(pixels, axis=(0, 2, 3), keepdims=True)[0] for name in ("min", "max", "mean", "std")
        }
        stats[CAMERA]["count"] = np.array([length])
        lines["episodes"].append({"episode_index": episode, "tasks": [task], "length": length})
        lines["episodes_stats"].append({"episode_index": episode, "stats": plain(stats)})
    info = {
        "codebase_version": "v2.1", "robot_type": "arm", "total_episodes": len(LENGTHS), "total_frames": first,
        "total_tasks": len(tasks), "total_videos": len(LENGTHS), "total_chunks": 1, "chunks_size": 1000, "fps": FPS,
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": plain({**features("video"), **place_features()}),
    }
    info["features"][CAMERA]["info"] = {"video.fps": FPS, "video.codec": "h264", "video.is_depth_map": False}
    meta = root / "meta"
    meta.mkdir()
    (meta / "info.json").write_text(json.dumps(info, indent=1))
    for name, rows in lines.items():
        (meta / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def encode(path: Path, frames: list[np.ndarray]) -> None:
    """H.264 with frames in another order than they are shown, as x264 makes them by default."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", FPS, options={"crf": "18", "g": "6", "x264-params": "bframes=2:b-adapt=0"})
        stream.height, stream.width, stream.pix_fmt = *SIDES, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def place_features() -> dict:
    kinds = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64", "task_index": "int64"}
    return {key: {"dtype": kind, "shape": (1,), "names": None} for key, kind in kinds.items()}


def plain(value):
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def read(root: Path) -> dict:
    """What lerobot's reader makes of a set: some frames with windows around them, and the statistics."""
    delta = {key: [step / FPS for step in STEPS] for key in ("observation.state", "action")}
    dataset = LeRobotDataset("oracle/set", root=root, delta_timestamps=delta, video_backend="pyav")
    items = []
    for index in (0, 1, 5, 6, 7, 12, 18, 19, 23):
        item = dataset[index]
        pixels = (item[CAMERA] * 255).round().to(torch.uint8).permute(1, 2, 0).flatten()
        items.append({
            "index": index, "task": item["task"],
            "episode": item["episode_index"].item(), "frame": item["frame_index"].item(),
            **{key: plain(item[key]) for key in delta}, **{f"{key}_is_pad": plain(item[f"{key}_is_pad"]) for key in delta},
            "pixels": plain(pixels[::101]),
        })
    keys = ("observation.state", "action", CAMERA)
    return {"items": items, "stats": {key: plain(dataset.meta.stats[key]) for key in keys}}


def processed(root: Path) -> dict:
    """What lerobot's processors make of a frame, by the set's statistics."""
    horizon = 4
    delta = {"action": [step / FPS for step in range(horizon)]}
    dataset = LeRobotDataset("oracle/set", root=root, delta_timestamps=delta, video_backend="pyav")
    item, result = dataset[9], {"index": 9, "horizon": horizon, "modes": {}}
    kinds = {"observation.state": PolicyFeature(FeatureType.STATE, (3,)), "action": PolicyFeature(FeatureType.ACTION, (3,))}
    for mode in NormalizationMode:
        step = NormalizerProcessorStep(
            features=kinds, norm_map={FeatureType.STATE: mode, FeatureType.ACTION: mode}, stats=dataset.meta.stats
        )
        transition = {
            TransitionKey.OBSERVATION: {"observation.state": item["observation.state"][None]},
            TransitionKey.ACTION: item["action"][None],
            TransitionKey.COMPLEMENTARY_DATA: {"task": [item["task"]]},
        }
        out = step(transition)
        prompt = Pi05PrepareStateTokenizerProcessorStep()(out)
        result["modes"][mode.value] = {
            "state": plain(out[TransitionKey.OBSERVATION]["observation.state"][0]),
            "action": plain(out[TransitionKey.ACTION][0]),
            "prompt": prompt[TransitionKey.COMPLEMENTARY_DATA]["task"][0],
        }
    exclude = ["gripper"]
    relative = to_relative_actions(item["action"][None], item["observation.state"][None], [True, True, False])
    stats = compute_relative_action_stats(dataset.hf_dataset.with_format(None), features("image"), horizon, exclude)
    result["relative"] = {"action": plain(relative[0]), "stats": plain(stats)}
    canvases, corners = {}, {}
    for rows, columns in ((28, 28), (56, 42), (64, 96)):
        canvas = resize_with_pad_torch(item[CAMERA].permute(1, 2, 0)[None], rows, columns)[0] * 2.0 - 1.0
        canvases[f"{rows}x{columns}"] = plain(canvas.permute(2, 0, 1).flatten()[::37])
        # As SmolVLA takes them.
        corner = resize_with_pad(item[CAMERA][None], rows, columns, pad_value=0)[0] * 2.0 - 1.0
        corners[f"{rows}x{columns}"] = plain(corner.flatten()[::37])
    return {**result, "canvases": canvases, "corners": corners}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    expected = {}
    for name, kind, codec in (("image", "image", None), ("av1", "video", "libsvtav1"), ("h264", "video", "h264")):
        write(out / name, kind, codec)
        expected[name] = read(out / name)
    expected["image"]["processed"] = processed(out / "image")
    write_v21(out / "v21")
    episodes = [json.loads(line)["stats"] for line in (out / "v21/meta/episodes_stats.jsonl").read_text().splitlines()]
    arrays = [{key: {name: np.array(v) for name, v in of.items()} for key, of in stats.items()} for stats in episodes]
    expected["v21"] = {"stats": {key: plain(of) for key, of in aggregate_stats(arrays).items()}}
    frames = []
    for index in (0, 3, 6, 9, 18, 23):
        episode = int(np.searchsorted(np.cumsum(LENGTHS), index, side="right"))
        frame = index - sum(LENGTHS[:episode])
        with av.open(str(out / f"v21/videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4")) as container:
            shown = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)][frame]
        frames.append({"episode": episode, "frame": frame, "pixels": plain(shown.flatten()[::101])})
    expected["v21"]["frames"] = frames
    (out / "expected.json").write_text(json.dumps(expected) + "\n")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
