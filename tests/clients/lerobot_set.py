"""Writes a LeRobot data set v2.1, with numpy, pyarrow and pillow alone."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
CHUNK = 1000


class SetWriter:
    """Episodes of one task. A frame is a map from features to a vector or a picture `[rows, columns, 3]` of bytes."""

    def __init__(self, folder, fps, task, robot):
        self.folder, self.fps, self.task, self.robot = Path(folder), fps, task, robot
        (self.folder / "meta").mkdir(parents=True)
        self.lengths, self.stats, self.features = [], [], {}

    def add_episode(self, frames):
        number, first, count = len(self.lengths), sum(self.lengths), len(frames)
        columns, stats = {}, {}
        for key, value in frames[0].items():
            values = np.stack([frame[key] for frame in frames])
            picture = value.dtype == np.uint8
            kind = dict(dtype="image" if picture else "float32", shape=list(value.shape))
            self.features[key] = dict(kind, names=["height", "width", "channels"] if picture else None)
            columns[key] = [dict(bytes=png(row), path=None) for row in values] if picture else vectors(values)
            if not picture:
                parts = dict(min=values.min(0), max=values.max(0), mean=values.mean(0), std=values.std(0))
                stats[key] = {name: part.tolist() for name, part in parts.items()} | dict(count=[count])
        steps = np.arange(count)
        columns |= dict(timestamp=(steps / self.fps).astype(np.float32), frame_index=steps, index=first + steps)
        columns |= dict(episode_index=np.full(count, number), task_index=np.zeros(count, np.int64))
        path = self.folder / DATA.format(episode_chunk=number // CHUNK, episode_index=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        self.lengths.append(count)
        self.stats.append(stats)

    def finish(self):
        count = len(self.lengths)
        places = {key: dict(dtype="int64", shape=[1], names=None) for key in ["frame_index", "episode_index", "index", "task_index"]}
        features = self.features | dict(timestamp=dict(dtype="float32", shape=[1], names=None)) | places
        info = dict(codebase_version="v2.1", robot_type=self.robot, fps=self.fps, total_episodes=count)
        info |= dict(total_frames=sum(self.lengths), total_tasks=1, total_videos=0, total_chunks=-(-count // CHUNK))
        info |= dict(chunks_size=CHUNK, splits={"train": f"0:{count}"}, data_path=DATA, video_path=None, features=features)
        (self.folder / "meta/info.json").write_text(json.dumps(info, indent=2))
        episodes = [dict(episode_index=number, tasks=[self.task], length=length) for number, length in enumerate(self.lengths)]
        stats = [dict(episode_index=number, stats=found) for number, found in enumerate(self.stats)]
        for name, lines in [("tasks", [dict(task_index=0, task=self.task)]), ("episodes", episodes), ("episodes_stats", stats)]:
            (self.folder / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def vectors(values):
    return pa.FixedSizeListArray.from_arrays(pa.array(values.astype(np.float32).ravel()), values.shape[1])


def png(picture):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="PNG")
    return file.getvalue()
