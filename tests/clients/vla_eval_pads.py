"""Pads as a benchmark of `vla-eval`, and a run of it through that harness, which is not changed.

    loongforge serve-policy runs/pads_policy --protocol vla-eval --port 8000
    python vla_eval_pads.py --port 8000 --layouts 30

Needs vla-eval 0.8.0. Prints one line of JSON.
"""

import argparse
import json
import logging
import tempfile

from vla_eval.api import run
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.specs import IMAGE_RGB, LANGUAGE, DimSpec

from pads import COLORS, HELD_OUT, MAX_STEPS, Layout, Pads, instruction


class PadsBenchmark(StepBenchmark):
    """A task for each color; episode n of it is the n-th layout that names this color."""

    render_backends = frozenset({"cpu", "gpu"})

    def __init__(self, seed: int = 1):
        super().__init__()
        self.seed = seed

    @classmethod
    def configure_render(cls, mode):
        return {}

    def get_tasks(self):
        return [{"name": f"go_to_{color}", "color": number} for number, color in enumerate(COLORS)]

    def reset(self, task):
        index = 3 * task.get("episode_idx", 0) + task["color"]
        self.scene = Pads(Layout(self.seed, HELD_OUT, index))
        return self.scene

    def step(self, action):
        self.scene.step(action["actions"])
        named = self.scene.layout.named
        return StepResult(self.scene, float(self.scene.reached[named]), self.scene.is_over(named), {})

    def make_obs(self, raw_obs, task):
        # A picture of rows, columns, channels: the harness sends it as PNG.
        seen = {"images": {"top": raw_obs.picture()}, "task_description": instruction(task["color"])}
        return {**seen, "state": raw_obs.state()}

    def get_step_result(self, step_result):
        return {"success": bool(self.scene.reached[self.scene.layout.named])}

    def get_action_spec(self):
        return {"actions": DimSpec("actions", 2, "raw")}

    def get_observation_spec(self):
        return {"image": IMAGE_RGB, "language": LANGUAGE, "state": DimSpec("state", 2, "raw")}

    def get_metadata(self):
        return {"max_steps": MAX_STEPS}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--layouts", type=int, default=30, help="a multiple of 3")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "server": {"url": f"ws://127.0.0.1:{args.port}"},
            "output_dir": folder,
            "render": "cpu",
            "benchmarks": [
                {
                    "benchmark": "vla_eval_pads:PadsBenchmark",
                    "name": "pads",
                    "episodes_per_task": args.layouts // 3,
                    "params": {"seed": args.seed},
                }
            ],
        }
        results = run(config, no_save=True)
    episodes = [episode for task in results[0]["tasks"] for episode in task["episodes"]]
    told = sum(bool(episode["metrics"]["success"]) for episode in episodes)
    failed = sorted({episode["failure_reason"] for episode in episodes if episode.get("failure_reason")})
    print(json.dumps({"layouts": len(episodes), "told": told, "failed": failed}))


if __name__ == "__main__":
    main()
