"""Training rate of a small Pi0.5 and SmolVLA, and the time of a chunk of actions, against lerobot.

Same weights, episodes, batch and float32. Rounds alternate between the two sides in one run. A is our binary: it reads, decodes and
tokenizes inside the measured time. B is a plain loop over lerobot's policy, processors and AdamW, once with its own data loader, which
decodes the same AV1 video, and once on batches made before its clock starts.

    PYTHON benches/policies.py [--binary target/release/loongforge] [--steps 20] [--rounds 3] [--workers 1]

PYTHON has lerobot 0.6.1 (`lerobot[dataset,training,av-dep]`), websockets and msgpack; libraries of the benchmark make no difference
to A.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENVIRONMENT = dict(os.environ)
if "--passive" in sys.argv:
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}

import numpy as np
import torch
from lerobot.configs.video import RGBEncoderConfig
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from safetensors.torch import save_model

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracle"))
import make_policies
import policy_roundtrip

SIDE, CAMERA, STATE_DIM, FPS = 112, "observation.images.top", 8, 10
FAMILIES = ["pi05", "smolvla"]
STREAM = dict(num_heads=8, num_kv_heads=1, head_dim=32, depth=6)
VISION = dict(hidden_size=192, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6, patch_size=14, image_size=SIDE)
TASK = "put the red block into the box"


def run(command, **options):
    done = subprocess.run([str(word) for word in command], env=ENVIRONMENT, capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_set(folder, episodes, frames, sizes=(SIDE, SIDE), codec="libsvtav1"):
    """Episodes of a disc that moves, written by lerobot as it does by default: every second frame is a key frame."""
    names = lambda name: [f"{name}{number}" for number in range(STATE_DIM)]
    features = {CAMERA: dict(dtype="video", shape=(*sizes, 3), names=["height", "width", "channels"]),
                "observation.state": dict(dtype="float32", shape=(STATE_DIM,), names=names("s")),
                "action": dict(dtype="float32", shape=(STATE_DIM,), names=names("a"))}
    encoder = RGBEncoderConfig(vcodec=codec)
    data = LeRobotDataset.create("local/bench", FPS, features, root=folder, use_videos=True, rgb_encoder=encoder)
    rng = np.random.default_rng(1)
    rows, columns = np.mgrid[:sizes[0], :sizes[1]]
    block, inner = [size // 8 for size in sizes], np.array(sizes)
    for _ in range(episodes):
        texture = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8).repeat(block[0], 0).repeat(block[1], 1)
        place = rng.uniform(20, inner - 20)
        for _ in range(frames):
            place = np.clip(place + rng.normal(size=2) * 3, 10, inner - 10)
            picture = np.where(((rows - place[0]) ** 2 + (columns - place[1]) ** 2 < 150)[..., None], 230, texture).astype(np.uint8)
            state = rng.normal(size=STATE_DIM).astype(np.float32)
            data.add_frame({CAMERA: picture, "observation.state": state, "action": state * 0.5, "task": TASK})
        data.save_episode()
    data.finalize()


def sizes_of(family, vocab):
    """A config of the published shape, and the key of a picture's sides."""
    text = dict(STREAM, width=256, mlp_dim=1024)
    if family == "pi05":
        sizes = dict(vocab_size=vocab, vision=VISION, text=text, expert=dict(STREAM, width=128, mlp_dim=512))
        return dict(sizes=sizes, num_inference_steps=10), "image_resolution"
    # The rate of the shape: every second layer attends to both streams; the vision-language model is frozen, as lerobot trains it.
    sizes = dict(vocab_size=vocab, scale_factor=2, vision=VISION, expert_mlp_dim=512, text=text | dict(num_kv_heads=4))
    return dict(sizes=sizes, num_steps=10, num_vlm_layers=STREAM["depth"], self_attn_every_n_layers=2, expert_width_multiplier=0.75,
                freeze_vision_encoder=True, train_expert_only=True, train_state_proj=True), "resize_imgs_with_padding"


def make_model(family, folder, binary, scratch):
    """The model's folder with random weights, and a tokenizer of the program's own."""
    if not (scratch / "pads").is_dir():
        run([binary, "data", "pads", "--out", scratch / "pads", "--episodes", "1"])
    folder.mkdir()
    for file in (scratch / "pads" / "model").glob("token*"):
        shutil.copy(file, folder)
    vocab = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) + 8
    own, sides = sizes_of(family, vocab)
    config = dict(type=family, chunk_size=16, n_action_steps=16, max_action_dim=32, max_state_dim=32, **own)
    torch.manual_seed(1)
    model = make_policies.build(config)
    make_policies.randomize(model, 1)
    save_model(make_policies.Policy(model), str(folder / "model.safetensors"))
    inputs = {CAMERA: dict(type="VISUAL", shape=[3, SIDE, SIDE]), "observation.state": dict(type="STATE", shape=[STATE_DIM])}
    modes = dict(VISUAL="IDENTITY", STATE="MEAN_STD", ACTION="MEAN_STD")
    saved = dict(config, **{sides: [SIDE, SIDE]}, input_features=inputs, normalization_mapping=modes,
                 output_features=dict(action=dict(type="ACTION", shape=[STATE_DIM])))
    (folder / "config.json").write_text(json.dumps(saved))
    return sum(parameter.numel() for parameter in model.parameters())


def train_ours(args, model, data, folder, steps):
    """Seconds a step, and the folder of the last checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)
    config = folder.with_suffix(".yaml")
    config.write_text(json.dumps({
        "run": {"name": "bench", "dir": str(folder), "seed": 1}, "model": {"load": str(model)},
        "data": {"train": [{"path": str(data)}], "pack": {"max_tokens": 16384}},
        "train": {"steps": steps, "global_batch_size": args.batch, "lr": 1e-4, "warmup_steps": 1},
        "log": {"tensorboard": False},
    }))
    run([args.binary, "run", config, *args.set])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    checkpoint = max((folder / "checkpoints").glob("step-*"))
    return [line["step_ms"] / 1000 for line in lines[args.warmup:]], checkpoint, [line["loss"] for line in lines]


def train_lerobot(args, exported, data, steps, ready):
    config = json.loads((exported / "config.json").read_text())
    policy, (before, _) = policy_roundtrip.load(exported, config), policy_roundtrip.processors(exported)
    policy.train()
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01, fused=True)
    windows = {"action": [step / FPS for step in range(config["chunk_size"])]}
    dataset = LeRobotDataset("local/bench", root=data, delta_timestamps=windows)
    loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch, shuffle=True, drop_last=True, num_workers=args.workers)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    if ready:
        batches = iter([before(batch) for batch in itertools.islice(batches, steps)])
    if args.compile:
        policy.model.forward = torch.compile(policy.model.forward)
    seconds = []
    begin = time.perf_counter()
    for _ in range(steps):
        batch = next(batches)
        loss, _ = policy.forward(batch if ready else before(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        now = time.perf_counter()
        seconds.append(now - begin)
        begin = now
    return seconds[args.warmup:]


def chunk_times(args, exported, data):
    """Milliseconds of a chunk of actions: asked of our server over its socket, and of lerobot's policy in its own process."""
    from websockets.sync.client import connect

    import msgpack

    server = subprocess.Popen([str(args.binary), "serve-policy", str(exported), "--protocol", "openpi", "--port", "0"],
                              env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().strip().rsplit(":", 1)[1]
    config = json.loads((exported / "config.json").read_text())
    policy, (before, after) = policy_roundtrip.load(exported, config), policy_roundtrip.processors(exported)
    item = LeRobotDataset("local/bench", root=data)[3]
    array = lambda x: {b"__ndarray__": True, b"data": x.tobytes(), b"dtype": x.dtype.str, b"shape": x.shape}
    picture = (item[CAMERA].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    message = msgpack.packb({"observation/image": array(picture), "observation/state": array(item["observation.state"].numpy()), "prompt": TASK})
    ours, theirs = [], []
    with connect(f"ws://127.0.0.1:{port}", max_size=None, compression=None) as socket, torch.no_grad():
        socket.recv()
        for _ in range(args.chunks):
            begin = time.perf_counter()
            socket.send(message)
            answer = socket.recv()
            ours.append(time.perf_counter() - begin)
            assert isinstance(answer, bytes), answer
            begin = time.perf_counter()
            seen = {key: item[key] for key in [CAMERA, "observation.state"]} | {"task": TASK}
            after(policy.predict_action_chunk(before(seen)))
            theirs.append(time.perf_counter() - begin)
    server.kill()
    return [1000 * statistics.median(times[len(times) // 5:]) for times in (ours, theirs)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "loongforge")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--chunks", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1, help="processes of lerobot's data loader")
    parser.add_argument("--passive", action="store_true", help="lerobot's threads sleep while they wait")
    parser.add_argument("--compile", action="store_true", help="lerobot's model goes through torch.compile")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="may be repeated; all")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of our run")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        make_set(scratch / "set", args.episodes, 40)
        for family in args.family or FAMILIES:
            rates_of(args, family, scratch)


def rates_of(args, family, scratch):
    count = make_model(family, scratch / family, args.binary, scratch)
    print(f"{family}: {count:,} parameters, batch {args.batch}, {SIDE} x {SIDE} pixels in AV1, {torch.get_num_threads()} threads")
    _, checkpoint, _ = train_ours(args, scratch / family, scratch / "set", scratch / "first", args.warmup + 1)
    exported = scratch / f"{family}-exported"
    run([args.binary, "checkpoint", "export-hf", checkpoint, exported])
    rates = {"loongforge": [], "lerobot, its data loader": [], "lerobot, batches made before": []}
    for _ in range(args.rounds):
        rates["loongforge"].append(train_ours(args, exported, scratch / "set", scratch / "run", args.steps)[0])
        for name, ready in [("lerobot, its data loader", False), ("lerobot, batches made before", True)]:
            rates[name].append(train_lerobot(args, exported, scratch / "set", args.steps, ready))
    found = {name: [args.batch / statistics.mean(seconds) for seconds in rounds] for name, rounds in rates.items()}
    ours = statistics.median(found["loongforge"])
    for name, rounds in found.items():
        rate = statistics.median(rounds)
        print(f"{name:<30} {rate:7.1f} samples/s ({min(rounds):.1f}-{max(rounds):.1f})   we are {ours / rate:.2f} x")
    mine, theirs = chunk_times(args, exported, scratch / "set")
    print(f"a chunk of actions: our server {mine:.1f} ms, lerobot in process {theirs:.1f} ms, {theirs / mine:.2f} x", flush=True)


if __name__ == "__main__":
    main()
