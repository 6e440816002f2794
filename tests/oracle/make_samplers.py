"""Writes src/torch/model/sampler/goldens.json: noise levels, trajectories of a linear "model" and guidance, as diffusers has them.

    python tests/oracle/make_samplers.py src/torch/model/sampler/goldens.json
"""
import json
import sys

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift
import numpy as np

QWEN = {
    "_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 8192,
    "max_shift": 0.9, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": 0.02, "time_shift_type": "exponential",
    "use_dynamic_shifting": True,
}
PLAIN = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}
WAN = {
    "_class_name": "UniPCMultistepScheduler", "flow_shift": 3.0, "num_train_timesteps": 1000, "prediction_type": "flow_prediction",
    "solver_order": 2, "solver_type": "bh2", "use_flow_sigmas": True,
}


def numbers(tensor):
    return [[float(f"{value:.9g}") for value in row] for row in tensor.tolist()]


def scheduler_of(name, config, steps, tokens):
    config = {key: value for key, value in config.items() if key != "_class_name"}
    if config.get("use_flow_sigmas"):
        scheduler = UniPCMultistepScheduler(**config)
        scheduler.set_timesteps(steps)
        return scheduler
    scheduler = FlowMatchEulerDiscreteScheduler(**config)
    mu = None
    if config.get("use_dynamic_shifting"):
        mu = calculate_shift(
            tokens, config["base_image_seq_len"], config["max_image_seq_len"], config["base_shift"], config["max_shift"]
        )
    if name.startswith("wan"):
        # Wan's pipelines leave the levels to the scheduler.
        scheduler.set_timesteps(steps)
        return scheduler
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    return scheduler


def case(name, config, steps, tokens, noise, weight, bias):
    scheduler = scheduler_of(name, config, steps, tokens)
    x, states = noise.clone(), []
    for time in scheduler.timesteps:
        velocity = x * weight + bias * (time / 1000)
        # A batch of one, as the scheduler wants it.
        x = scheduler.step(velocity[None], time, x[None], return_dict=False)[0][0]
        states.append(numbers(x))
    return {
        "name": f"{name}, {steps} steps, {tokens} tokens", "scheduler": config, "steps": steps, "tokens": tokens,
        "sigmas": [float(f"{value:.9g}") for value in scheduler.sigmas.tolist()],
        "times": [float(value) for value in scheduler.timesteps.tolist()], "states": states,
    }


def main(path):
    torch.manual_seed(5)
    noise, weight, bias = torch.randn(2, 3), 0.5 * torch.randn(2, 3), torch.randn(2, 3)
    cases = [
        case(name, config, steps, tokens, noise, weight, bias)
        for name, config, tokens in [("qwen", QWEN, 4096), ("plain", PLAIN, 4096), ("wan", WAN, 4096)]
        for steps in [4, 20, 50]
    ]
    cases += [case("qwen", QWEN, 20, tokens, noise, weight, bias) for tokens in [256, 6889]]
    cases += [case("wan", WAN, steps, 1, noise, weight, bias) for steps in [1, 2, 3]]
    cases.append(case("wan", {**WAN, "flow_shift": 12.0}, 20, 1, noise, weight, bias))
    cases += [case("wan by euler", PLAIN, steps, 1, noise, weight, bias) for steps in [1, 2, 4, 20]]
    cases.append(case("wan by euler", {**PLAIN, "shift": 1.0}, 20, 1, noise, weight, bias))
    velocity, negative = torch.randn(3, 4), torch.randn(3, 4)
    combined = negative + 4.0 * (velocity - negative)
    # As in QwenImagePipeline.__call__.
    length = torch.norm(velocity, dim=-1, keepdim=True) / torch.norm(combined, dim=-1, keepdim=True)
    guidance = {
        "velocity": numbers(velocity), "negative": numbers(negative), "wan": numbers(combined),
        "qwen": numbers(combined * length),
    }
    result = {
        "noise": numbers(noise), "weight": numbers(weight), "bias": numbers(bias), "cases": cases, "guidance": guidance,
    }
    with open(path, "w") as file:
        json.dump(result, file, separators=(",", ":"))
        file.write("\n")


main(sys.argv[1])
