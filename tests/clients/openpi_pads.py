"""Counts successes in Pads through `openpi-client` alone, which is not changed: a policy server is asked as a robot asks it.

    loongforge serve-policy runs/pads_policy --protocol openpi --port 8000
    python openpi_pads.py --port 8000 --layouts 400                      # also: --told other, --told blanked

Needs numpy and openpi-client 0.1.2. Prints one line of JSON.
"""

import argparse
import json

import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from pads import HELD_OUT, SIDE, Layout, Pads, instruction, other_color


def play(policy, seed, index, told):
    """One episode; returns which pad was told, and which were reached."""
    scene = Pads(Layout(seed, HELD_OUT, index))
    named = other_color(scene.layout, index) if told == "other" else scene.layout.named
    policy.reset()
    while not scene.is_over(named):
        picture = np.full((SIDE, SIDE, 3), 128, np.uint8) if told == "blanked" else scene.picture()
        seen = {"observation/image": picture, "observation/state": scene.state(), "prompt": instruction(named)}
        scene.step(policy.infer(seen)["actions"])
    return scene.reached[named], scene.reached[scene.layout.named], scene.num_steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--layouts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--execute", type=int, default=4)
    parser.add_argument("--told", choices=["own", "other", "blanked"], default="own")
    args = parser.parse_args()
    policy = ActionChunkBroker(WebsocketClientPolicy(args.host, args.port), action_horizon=args.execute)
    played = [play(policy, args.seed, index, args.told) for index in range(args.layouts)]
    told, own = (sum(int(row[at]) for row in played) for at in range(2))
    print(json.dumps({"layouts": args.layouts, "told": told, "own": own, "steps": sum(row[2] for row in played)}))


if __name__ == "__main__":
    main()
