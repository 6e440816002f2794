"""Frames of a LeRobot set's videos at random, in one thread, against lerobot's decoders.

Each frame is asked for alone, in the same shuffled order on both sides, from sets that lerobot wrote in AV1 and in H.264. Ours is the
program of `cargo bench -p loongforge-core --bench frames`, perhaps of several builds. lerobot's are its own function with torchcodec,
whose decoders it keeps open, torchcodec alone, and PyAV on containers that stay open. Rounds alternate between the sides in one run. Both sides
must see the same pictures: the mean of all bytes may differ by what the rounding of colors makes.

    cargo bench -p loongforge-core --bench frames --no-run         # prints PATH
    PYTHON benches/frames.py --binary PATH [--binary PATH] [--frames 800] [--rounds 3]

PYTHON has lerobot 0.6.1 (`lerobot[dataset,av-dep]`) with torchcodec and ffmpeg's libraries.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import av
import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.video_utils import VideoDecoderCache, decode_video_frames_torchcodec
from policies import CAMERA, FPS, make_set

CODECS = {"libsvtav1": "AV1", "h264": "H.264"}
FRAMES_OF_EPISODE = 40
# The share of the frames that comes before the clock starts, as in the program.
WARM = 8
# Means of bytes that are further apart are of other pictures.
MAX_APART = 1.5


def ours(program, order, folder):
    """Frames a second, and the mean of the bytes of the first ones."""
    done = subprocess.run([str(program), str(folder), CAMERA, str(order)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program}\n{done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    return found["frames_a_second"], found["mean_of_bytes"]


def timed(decode, wanted):
    """The same of a function of a path and a time."""
    warm = len(wanted) // WARM
    mean = statistics.mean(float(np.asarray(decode(*place)).mean()) for place in wanted[:warm])
    begin = time.perf_counter()
    for place in wanted[warm:]:
        decode(*place)
    return (len(wanted) - warm) / (time.perf_counter() - begin), mean


def decoders():
    """Functions of a path and a time in seconds, with what they keep open."""
    cache, containers = VideoDecoderCache(), {}

    def of_lerobot(path, seconds):
        return decode_video_frames_torchcodec(path, [seconds], 1e-4, decoder_cache=cache, return_uint8=True)

    def of_torchcodec(path, seconds):
        decoder = cache.get_decoder(path)
        return decoder.get_frame_at(round(seconds * decoder.metadata.average_fps)).data

    def of_pyav(path, seconds):
        if path not in containers:
            containers[path] = av.open(str(path))
            containers[path].streams.video[0].codec_context.thread_count = 1
        stream = containers[path].streams.video[0]
        containers[path].seek(round(seconds / stream.time_base), stream=stream)
        for frame in containers[path].decode(stream):
            if float(frame.pts * stream.time_base) >= seconds - 1e-4:
                return frame.to_ndarray(format="rgb24")

    return {"lerobot (torchcodec)": of_lerobot, "torchcodec": of_torchcodec, "PyAV": of_pyav}


def measure(args, folder, codec):
    make_set(folder, args.episodes, FRAMES_OF_EPISODE, args.size, codec)
    data = LeRobotDataset("local/bench", root=folder)
    rng = np.random.default_rng(2)
    places = np.stack([rng.integers(args.episodes, size=args.frames), rng.integers(FRAMES_OF_EPISODE, size=args.frames)], 1)
    order = folder.parent / f"{codec}-order"
    order.write_text("".join(f"{episode} {frame}\n" for episode, frame in places))

    def place(episode, frame):
        begin = data.meta.episodes[int(episode)][f"videos/{CAMERA}/from_timestamp"]
        return data.root / data.meta.get_video_file_path(int(episode), CAMERA), begin + int(frame) / FPS

    wanted = [place(*it) for it in places]
    sides = {str(program): functools.partial(ours, program, order, folder) for program in args.binary}
    theirs = {name: functools.partial(timed, decode, wanted) for name, decode in decoders().items()}
    found = {name: [] for name in sides | theirs}
    for _ in range(args.rounds):
        for name, side in (sides | theirs).items():
            found[name].append(side())
    rates = {name: statistics.median(rate for rate, _ in rounds) for name, rounds in found.items()}
    means = {name: rounds[0][1] for name, rounds in found.items()}
    apart = max(means.values()) - min(means.values())
    if apart > MAX_APART:
        sys.exit(f"{CODECS[codec]}: the sides saw other pictures: their bytes have the means {means}")
    best = max(rates[name] for name in theirs)
    rows, columns = args.size
    print(f"{CODECS[codec]}, {columns} x {rows}, {args.frames} frames in one thread; means of bytes at most {apart:.2f} apart")
    for name, rate in rates.items():
        each = " ".join(f"{rate:.0f}" for rate, _ in found[name])
        beside = f"{rate / best:.2f} x lerobot's fastest" if name in sides else ""
        print(f"  {name}: {rate:.0f} frames/s ({each}) {beside}".rstrip(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, action="append", required=True, help="may be repeated")
    parser.add_argument("--frames", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=6)
    parser.add_argument("--size", type=int, nargs=2, default=(480, 640), metavar=("ROWS", "COLUMNS"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for codec in CODECS:
            measure(args, Path(scratch) / codec, codec)


if __name__ == "__main__":
    main()
