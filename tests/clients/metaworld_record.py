"""Records the scripted expert of a Meta-World task as a LeRobot set, beside the folder of a small policy without weights.

    python metaworld_record.py --task reach --out runs/metaworld/reach               # states alone
    python metaworld_record.py --task reach --pictures --out runs/metaworld/seen     # pictures of 64 × 64

Needs numpy, pyarrow, pillow and metaworld 3.1.1; `--task stand-in` does without the last. Pictures without a display need OSMesa
(`MUJOCO_GL=osmesa`).
"""

import argparse
import json
from pathlib import Path

import numpy as np

from lerobot_set import SetWriter
from metaworld_env import ACTION_DIM, INSTRUCTIONS, PROPRIOCEPTION, SIDE, STATE_DIM, observed_state, open_task

CAMERA, STATE, ACTION = "observation.images.corner", "observation.state", "action"
DEMONSTRATIONS = 1
FPS = 80
# Steps that go on after the task is done, so that staying is learned.
STAY = 10
# Odd episodes are disturbed: the expert's action is the label, another one is executed.
DISTURBED = 0.5
WIDTH, LAYERS = 64, 3
BOS = "<bos>"


def record(task, pictures, episodes, folder):
    """Demonstrations that end with the task done; returns their frames, and the episodes that were played for them."""
    env, rng = open_task(task, DEMONSTRATIONS), np.random.default_rng(DEMONSTRATIONS)
    writer, played = SetWriter(folder, FPS, INSTRUCTIONS[task], "sawyer"), 0
    while len(writer.lengths) < episodes:
        env.reset(played)
        frames, left = [], None
        for _ in range(env.max_steps):
            action = env.expert()
            frames.append({STATE: observed_state(env, pictures), ACTION: action})
            if pictures:
                frames[-1][CAMERA] = env.picture()
            noise = rng.normal(size=ACTION_DIM) * DISTURBED * (played % 2)
            if env.step((action + noise).astype(np.float32)) and left is None:
                left = STAY
            left = None if left is None else left - 1
            if left == 0:
                break
        played += 1
        if left is not None:
            writer.add_episode(frames)
    writer.finish()
    return sum(writer.lengths), played


def write_model(folder, task, pictures):
    """A Pi0.5 of 0.5 M parameters in lerobot's layout, and a tokenizer that has the words of the instruction."""
    words = sorted(set(INSTRUCTIONS[task].split()))
    vocabulary = {word: number for number, word in enumerate([BOS, "<unk>", "\n", *words])}
    special = [dict(id=number, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
               for number, content in enumerate([BOS, "<unk>"])]
    tokenizer = dict(version="1.0", added_tokens=special, normalizer=None, post_processor=None, decoder=None,
                     pre_tokenizer=dict(type="WhitespaceSplit"), truncation=None, padding=None,
                     model=dict(type="WordLevel", vocab=vocabulary, unk_token="<unk>"))
    heads = dict(width=WIDTH, depth=LAYERS, num_heads=4, num_kv_heads=4, head_dim=16)
    vision = dict(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4, num_channels=3)
    vision |= dict(image_size=SIDE, patch_size=8, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6, attention_dropout=0.0)
    width = PROPRIOCEPTION if pictures else STATE_DIM
    inputs = {STATE: dict(type="STATE", shape=[width])}
    if pictures:
        inputs[CAMERA] = dict(type="VISUAL", shape=[3, SIDE, SIDE])
    config = dict(
        type="pi05", n_obs_steps=1, chunk_size=8, n_action_steps=4, max_state_dim=width, max_action_dim=ACTION_DIM,
        num_inference_steps=5, image_resolution=[SIDE, SIDE], tokenizer_max_length=16, image_token_id=len(vocabulary),
        normalization_mapping=dict(VISUAL="IDENTITY", STATE="MEAN_STD", ACTION="MEAN_STD"),
        input_features=inputs, output_features={ACTION: dict(type="ACTION", shape=[ACTION_DIM])},
        sizes=dict(vocab_size=len(vocabulary) + 1, vision=vision, state_token=True, initialization="visual",
                   text=dict(heads, mlp_dim=2 * WIDTH), expert=dict(heads, mlp_dim=3 * WIDTH)),
    )
    folder.mkdir(parents=True)
    about = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=BOS, add_bos_token=True, unk_token="<unk>")
    for name, content in [("config", config), ("tokenizer", tokenizer), ("tokenizer_config", about)]:
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(INSTRUCTIONS), default="reach")
    parser.add_argument("--pictures", action="store_true", help="pictures, and of the state the hand and gripper alone")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    frames, played = record(args.task, args.pictures, args.episodes, args.out / "train")
    write_model(args.out / "model", args.task, args.pictures)
    print(json.dumps(dict(episodes=args.episodes, frames=frames, played=played)))


if __name__ == "__main__":
    main()
