"""The task Pads in Python, with numpy alone: the same layouts, pictures and rules as `src/core/robot/pads`, bit for bit.

    python pads.py          # prints the digest that the tests of both sides expect
"""

import hashlib
import struct

import numpy as np

COLORS = ["red", "green", "blue"]
PAD_RADIUS, AGENT_RADIUS = 0.09, 0.045
MAX_STEP, MAX_STEPS = 0.08, 40
REACH, STEPS_ON_PAD = 0.05, 3
APART, FROM_EDGE = 0.28, 0.12
AGENT_APART, AGENT_FROM_EDGE = 0.2, 0.05
SIDE = 32
TABLE = np.array([235.0, 235.0, 235.0])
PAD_COLORS = np.array([[214.0, 48.0, 49.0], [46.0, 160.0, 67.0], [52.0, 101.0, 220.0]])
AGENT = np.array([20.0, 20.0, 20.0])
DEMONSTRATIONS, HELD_OUT = 0, 1

MASK = (1 << 64) - 1
GOLDEN_ANGLE = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


class Counter:
    """Numbers by their index, as `src/core/rng.rs` makes them."""

    def __init__(self, key):
        self.state = 0x6C6F6F6E67666F72
        for word in key:
            self.state = mix(self.state ^ mix(word))

    def unit(self, index):
        bits = mix((self.state + (index + 1) * GOLDEN_ANGLE) & MASK)
        return ((bits >> 11) + 0.5) / (1 << 53)


def distance(one, other):
    x, y = one[0] - other[0], one[1] - other[1]
    return float(np.sqrt(x * x + y * y))


class Layout:
    def __init__(self, seed, part, index):
        numbers = Counter([seed, part, index])
        self.named = index % 3
        attempt = 0
        while True:
            def point(at, edge):
                first = 8 * attempt + 2 * at
                return [edge + (1.0 - 2.0 * edge) * numbers.unit(number) for number in (first, first + 1)]

            self.pads = [point(at, FROM_EDGE) for at in range(3)]
            self.agent = point(3, AGENT_FROM_EDGE)
            apart = all(distance(self.pads[at], self.pads[(at + 1) % 3]) >= APART for at in range(3))
            if apart and all(distance(pad, self.agent) >= AGENT_APART for pad in self.pads):
                return
            attempt += 1


class Pads:
    """An episode of one layout."""

    def __init__(self, layout):
        self.layout = layout
        self.agent = list(layout.agent)
        self.num_steps = 0
        self.on_pad = [0, 0, 0]
        self.reached = [False, False, False]

    def step(self, action):
        x, y = (float(np.float32(value)) for value in action[:2])
        length = float(np.sqrt(x * x + y * y))
        if not np.isfinite(length):
            x, y = 0.0, 0.0
        elif length > MAX_STEP:
            x, y = x * (MAX_STEP / length), y * (MAX_STEP / length)
        self.agent = [min(max(self.agent[0] + x, 0.0), 1.0), min(max(self.agent[1] + y, 0.0), 1.0)]
        self.num_steps += 1
        for pad, center in enumerate(self.layout.pads):
            self.on_pad[pad] = self.on_pad[pad] + 1 if distance(center, self.agent) <= REACH else 0
            self.reached[pad] |= self.on_pad[pad] >= STEPS_ON_PAD

    def is_over(self, told):
        return self.reached[told] or self.num_steps >= MAX_STEPS

    def state(self):
        return np.array(self.agent, dtype=np.float32)

    def picture(self):
        """[32, 32, 3] bytes, rows from above."""
        places = (np.arange(SIDE) + 0.5) / SIDE
        pixels = np.broadcast_to(TABLE, (SIDE, SIDE, 3)).copy()
        discs = [(center, PAD_RADIUS, color) for center, color in zip(self.layout.pads, PAD_COLORS)]
        for center, radius, color in [*discs, (self.agent, AGENT_RADIUS, AGENT)]:
            x, y = places[None, :] - center[0], places[:, None] - center[1]
            covered = np.clip((radius - np.sqrt(x * x + y * y)) * SIDE + 0.5, 0.0, 1.0)
            pixels += (color - pixels) * covered[:, :, None]
        return np.floor(pixels + 0.5).astype(np.uint8)


def instruction(named):
    return f"go to the {COLORS[named]} pad"


def other_color(layout, index):
    """The pad that is told in the trial of another color."""
    return (layout.named + 1 + index // 3 % 2) % 3


def digest():
    """Layouts, pictures and moves of a few episodes as one number."""
    sha = hashlib.sha256()
    for index in range(20):
        scene = Pads(Layout(3, HELD_OUT, index))
        for step in range(10):
            sha.update(scene.picture().tobytes())
            sha.update(struct.pack("<2d", *scene.agent))
            action = [np.float32(0.01) * np.float32(step) - np.float32(0.05), np.float32(0.07) - np.float32(0.02) * np.float32(step)]
            scene.step(action)
    return sha.hexdigest()


if __name__ == "__main__":
    print(digest())
