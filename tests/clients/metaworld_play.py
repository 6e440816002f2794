"""Counts successes in a task of Meta-World through `openpi-client` alone, on goals that no demonstration had.

    loongforge serve-policy runs/metaworld/run --protocol openpi --port 8000
    python metaworld_play.py --port 8000 --task reach --policy served       # and: expert, random, blanked

Needs numpy and metaworld 3.1.1 (`--task stand-in`: not), and openpi-client 0.1.2. Prints one line of JSON.
"""

import argparse
import json
import math

import numpy as np

from metaworld_env import ACTION_DIM, INSTRUCTIONS, observed_state, open_task

HELD_OUT = 2


class Served:
    """The policy of a server; blanked: it sees a gray picture, or without pictures a state of zeros."""

    def __init__(self, args):
        from openpi_client.action_chunk_broker import ActionChunkBroker
        from openpi_client.websocket_client_policy import WebsocketClientPolicy

        client = WebsocketClientPolicy("127.0.0.1", args.port)
        self.broker, self.args = ActionChunkBroker(client, action_horizon=args.execute), args
        self.seen = None

    def reset(self):
        self.broker.reset()
        self.seen = None

    def act(self, env, step):
        # The client drops what it is given while a chunk lasts.
        if step % self.args.execute == 0:
            pictures, blanked = self.args.pictures, self.args.policy == "blanked"
            state = observed_state(env, pictures)
            self.seen = {"observation/state": np.zeros_like(state) if blanked and not pictures else state}
            self.seen["prompt"] = INSTRUCTIONS[self.args.task]
            if pictures:
                picture = env.picture()
                self.seen["observation/image"] = np.full_like(picture, 128) if blanked else picture
        return self.broker.infer(self.seen)["actions"]


def wilson(successes, trials, z=1.959964):
    share, square = successes / trials, z * z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    return [round(100 * max(middle - half, 0), 1), round(100 * min(middle + half, 1), 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(INSTRUCTIONS), default="reach")
    parser.add_argument("--policy", choices=["served", "blanked", "expert", "random"], default="served")
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--execute", type=int, default=4)
    args = parser.parse_args()
    env, rng = open_task(args.task, HELD_OUT), np.random.default_rng(HELD_OUT)
    served = Served(args) if args.policy in ("served", "blanked") else None
    acts = {"expert": lambda step: env.expert(), "random": lambda step: rng.uniform(-1, 1, ACTION_DIM)}
    act = acts.get(args.policy, lambda step: served.act(env, step))
    successes = steps = 0
    for episode in range(args.episodes):
        env.reset(episode)
        if served:
            served.reset()
        for step in range(env.max_steps):
            steps += 1
            if env.step(np.asarray(act(step), np.float32)):
                successes += 1
                break
    interval = wilson(successes, args.episodes)
    print(json.dumps(dict(policy=args.policy, episodes=args.episodes, successes=successes, interval=interval, steps=steps)))


if __name__ == "__main__":
    main()
