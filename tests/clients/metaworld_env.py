"""Tasks of Meta-World behind the few functions that demonstrations and trials need, and a stand-in with the same functions.

The stand-in is a hand that flies to a goal: it keeps the scripts beside this file working where MuJoCo is not installed.
"""

import numpy as np

SIDE = 64
STATE_DIM, ACTION_DIM = 39, 4
# What a robot knows of itself when a picture shows the rest: the hand's place and the gripper.
PROPRIOCEPTION = 4
INSTRUCTIONS = {
    "reach": "reach the goal",
    "push": "push the puck to the goal",
    "drawer-open": "open the drawer",
    "stand-in": "reach the goal",
}


class MetaWorld:
    """A task of Meta-World 3: `reach`, `push`, `drawer-open`. The places of goal and objects belong to seed and episode."""

    max_steps = 150

    def __init__(self, task, seed):
        import metaworld
        import metaworld.policies as experts

        self.benchmark = metaworld.MT1(f"{task}-v3", seed=seed)
        make = self.benchmark.train_classes[f"{task}-v3"]
        self.env = make(render_mode="rgb_array", camera_name="corner2", width=SIDE, height=SIDE)
        # Software rendering is 15 times as fast without them.
        self.env.model.vis.quality.offsamples = 0
        self.env.model.vis.quality.shadowsize = 0
        name = "".join(part.capitalize() for part in task.split("-"))
        self.policy = getattr(experts, f"Sawyer{name}V3Policy")()

    def reset(self, episode):
        self.env.set_task(self.benchmark.train_tasks[episode % len(self.benchmark.train_tasks)])
        self.seen, _ = self.env.reset()

    def state(self):
        return self.seen.astype(np.float32)

    def picture(self):
        """`[64, 64, 3]` bytes, rows from above: this camera of Meta-World hangs upside down."""
        return np.ascontiguousarray(self.env.render()[::-1, ::-1])

    def expert(self):
        return np.clip(self.policy.get_action(self.seen), -1, 1).astype(np.float32)

    def step(self, action):
        """Returns whether the task is done."""
        self.seen, _, _, _, info = self.env.step(np.clip(action, -1, 1))
        return bool(info["success"])


class StandIn:
    """A hand that is moved to a goal, with the sizes of Meta-World's observations and actions."""

    max_steps = 40

    def __init__(self, task, seed):
        self.seed = seed

    def reset(self, episode):
        rng = np.random.default_rng([self.seed, episode])
        self.hand = np.zeros(3)
        self.goal = rng.uniform(-0.5, 0.5, 3)

    def state(self):
        state = np.zeros(STATE_DIM, np.float32)
        state[:3], state[36:] = self.hand, self.goal
        return state

    def picture(self):
        """A bright square where the goal is and a dark one where the hand is, seen from above."""
        picture = np.full((SIDE, SIDE, 3), 128, np.uint8)
        for place, color in [(self.goal, [220, 40, 40]), (self.hand, [20, 20, 20])]:
            x, y = (np.clip((place[:2] + 0.6) / 1.2, 0, 1) * (SIDE - 5)).astype(int)
            picture[y : y + 5, x : x + 5] = color
        return picture

    def expert(self):
        return np.append(np.clip(4 * (self.goal - self.hand), -1, 1), 0).astype(np.float32)

    def step(self, action):
        self.hand = self.hand + 0.1 * np.clip(action[:3], -1, 1)
        return bool(np.linalg.norm(self.goal - self.hand) < 0.05)


def open_task(task, seed):
    return StandIn(task, seed) if task == "stand-in" else MetaWorld(task, seed)


def observed_state(env, pictures):
    """What the policy is given of the state: all of it, or what a picture does not show."""
    return env.state()[:PROPRIOCEPTION] if pictures else env.state()
