"""Writes clip.mp4 (H.264 High with frames out of order) and clip_av1.mp4 (AV1), and what PyAV decodes of them as clip.json
and clip_av1.json: python make_clip.py

Needs PyAV 18, NumPy and transformers 5.17.
"""

import json
from pathlib import Path

import av
import numpy as np
from transformers import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

here = Path(__file__).parent
FRAMES, FPS = 40, 24


def picture(index, size):
    y, x = np.mgrid[0:size[1], 0:size[0]].astype(np.float32)
    waves = [120 + 90 * np.sin((x + 3 * index) / a) * np.cos((y - index) / b) for a, b in [(9, 7), (14, 11), (6, 17)]]
    return np.stack(waves, -1).clip(0, 255).astype(np.uint8)


def make(name, codec, size, options):
    with av.open(here / f"{name}.mp4", "w") as out:
        stream = out.add_stream(codec, rate=FPS, options=options)
        (stream.width, stream.height), stream.pix_fmt = size, "yuv420p"
        for index in range(FRAMES):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture(index, size), format="rgb24")))
        out.mux(stream.encode())

    with av.open(here / f"{name}.mp4") as file:
        stream = file.streams.video[0]
        total, fps = stream.frames, float(stream.average_rate)
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    assert len(frames) == total == FRAMES
    indices = Qwen3VLVideoProcessor(min_frames=4, max_frames=8).sample_frames(
        VideoMetadata(total_num_frames=total, fps=fps), fps=2
    ).tolist()
    (here / f"{name}.json").write_text(json.dumps({
        "fps": fps, "width": size[0], "height": size[1], "total": total, "indices": indices, "stride": 97,
        "values": [frames[index].flatten()[::97].tolist() for index in indices],
    }, separators=(",", ":")))


make("clip", "libx264", (68, 50), {"crf": "20", "bf": "2", "g": "20", "preset": "medium"})
make("clip_av1", "libsvtav1", (68, 66), {"crf": "30", "g": "2", "preset": "8"})
