"""Draws configs of diffusion transformers, autoencoders and robot policies and makes their fixtures, each in a folder of its own, for the
tests of these models and for `loongforge parity`, which reads those of policies.

    python sweep_parts.py OUT --part dit --cases 10 --seed 1
    for folder in OUT/dit/*; do LOONGFORGE_DIT=$folder cargo test -p loongforge-torch packed_samples_have_diffusers; done
    loongforge parity OUT/policy/*/*

Parts and what reads them: `dit` LOONGFORGE_DIT, `vae` LOONGFORGE_VAES, `policy` (Pi0, Pi0.5, SmolVLA), `groot` and `xvla` `loongforge
parity`. What was drawn is in `drawn.jsonl`; what the reference refuses is drawn again.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import shutil
from pathlib import Path

import torch

WAN = {
    "num_layers": [1, 3], "num_attention_heads": [1, 2, 3], "attention_head_dim": [12, 16, 20, 24], "ffn_dim": [20, 32], "freq_dim": [8, 16, 18],
    "text_dim": [6, 10], "patch_size": [[1, 1, 1], [1, 2, 2], [1, 1, 2]], "cross_attn_norm": [True, False], "eps": [1e-6, 1e-3],
    "qk_norm": ["rms_norm_across_heads", None], "rope_max_seq_len": [32, 64, 1024], "image_dim": [5, 9],
}
QWEN = {
    "num_layers": [1, 3], "axes_dims_rope": [[2, 2, 4], [4, 6, 6], [2, 4, 2], [8, 12, 12]], "num_attention_heads": [1, 2, 3], "in_channels": [8, 16],
    "joint_attention_dim": [6, 10], "guidance_embeds": [False, True], "zero_cond_t": [False, True], "use_additional_t_cond": [False, True],
    "use_layer3d_rope": [False, True],
}
PI = {
    "chunk_size": [2, 5, 8], "num_inference_steps": [3, 10], "max_action_dim": [4, 6, 9], "max_state_dim": [4, 7], "sizes.text.num_kv_heads": [1, 2, 4],
    "sizes.text.depth": [1, 3], "sizes.text.mlp_dim": [20, 24], "sizes.text.width": [16, 24], "sizes.expert.mlp_dim": [10, 20], "sizes.expert.width": [8, 12],
    "sizes.vision.num_hidden_layers": [1, 2], "sizes.vision.hidden_size": [8, 12], "sizes.vision.num_attention_heads": [1, 2], "sizes.vision.image_size": [8, 12],
    "sizes.vision.hidden_act": ["gelu", "gelu_pytorch_tanh"], "min_period": [4e-3, 1e-2], "max_period": [4.0, 10.0], "sizes.vocab_size": [40, 53],
    "time_sampling_beta_alpha": [1.5, 2.0], "train_expert_only": [False, True], "freeze_vision_encoder": [False, True],
}
SMOL = {
    "chunk_size": [2, 5], "num_steps": [3, 10], "num_vlm_layers": [1, 2, 3, 4], "self_attn_every_n_layers": [1, 2, 3, 0], "expert_width_multiplier": [0.5, 0.75, 1.0],
    "max_action_dim": [4, 6, 9], "max_state_dim": [4, 7], "freeze_vision_encoder": [False, True], "train_expert_only": [False, True],
    "train_state_proj": [True, False], "num_expert_layers": [-1, 1], "attention_mode": ["cross_attn", "self_attn"], "add_image_special_tokens": [False, True],
    "sizes.text.num_kv_heads": [1, 2, 4], "sizes.text.head_dim": [4, 6], "sizes.vision.num_hidden_layers": [1, 2], "sizes.scale_factor": [1, 2],
    "prefix_length": [-1, 24], "min_period": [4e-3, 1e-2], "load_vlm_weights": [False], "pad_language_to": ["longest", "max_length"],
}
GROOT = {
    "action_horizon": [3, 5], "num_inference_timesteps": [2, 4], "max_num_embodiments": [3, 5], "state_dropout_prob": [0.0, 0.5], "select_layer": [1, 2, 3],
    "diffusion_model_cfg.num_layers": [1, 2, 4, 5], "diffusion_model_cfg.num_attention_heads": [1, 2], "diffusion_model_cfg.interleave_self_attention": [True, False],
    "diffusion_model_cfg.norm_type": ["ada_norm", "layer_norm"], "diffusion_model_cfg.positional_embeddings": [None, "sinusoidal"],
    "vl_self_attention_cfg.num_layers": [0, 1, 2], "use_vlln": [True, False], "add_pos_embed": [True, False], "attend_text_every_n_blocks": [1, 2, 3],
    "use_alternate_vl_dit": [True, False], "num_timestep_buckets": [1000, 100], "hidden_size": [10, 14], "tune_top_llm_layers": [0, 1],
    "diffusion_model_cfg.attention_bias": [True, False], "diffusion_model_cfg.activation_fn": ["gelu-approximate", "geglu"],
    "backbone_config.vision_config.deepstack_visual_indexes": [[], [0], [0, 1]],
}
XVLA = {
    "chunk_size": [2, 4], "hidden_size": [16, 24], "depth": [1, 3], "num_heads": [1, 2, 4], "mlp_ratio": [1.5, 2.0, 4.0], "num_domains": [3, 5],
    "len_soft_prompts": [0, 2, 4], "dim_time": [7, 8], "num_denoising_steps": [2, 5], "use_hetero_proj": [True, False], "max_len_seq": [40, 64],
    "florence_config.vision_config.window_size": [2, 3, 4], "florence_config.vision_config.mlp_ratio": [2.0, 3.0], "florence_config.vision_config.depths": [[1, 1, 1, 1], [1, 2, 1, 1]],
    "florence_config.text_config.encoder_layers": [1, 2, 3], "florence_config.text_config.scale_embedding": [False, True],
    "florence_config.text_config.activation_function": ["gelu", "relu"], "florence_config.vision_config.qkv_bias": [True, False],
}


def put(config: dict, path: str, value) -> None:
    *holders, key = path.split(".")
    for holder in holders:
        config = config[holder]
    config[key] = value


def pick(space: dict, rng: random.Random, most: int = 5) -> dict:
    return {key: rng.choice(space[key]) for key in rng.sample(sorted(space), rng.randint(1, most))}


def dit(rng: random.Random, seed: int, out: Path) -> dict:
    import make_diffusion

    name = rng.choice(sorted(make_diffusion.FAMILIES))
    changes = pick(WAN if name.startswith("wan") else QWEN, rng)
    if "axes_dims_rope" in changes:
        changes["attention_head_dim"] = sum(changes["axes_dims_rope"])
    if "in_channels" in changes:
        changes["out_channels"] = changes["in_channels"] // 4
    if "image_dim" in changes and "image_dim" not in make_diffusion.FAMILIES[name]:
        del changes["image_dim"]
    make_diffusion.make(name, seed, out, changes)
    return {"family": name, **changes}


def vae(rng: random.Random, seed: int, out: Path) -> dict:
    import make_vae

    name = rng.choice(sorted(all_vaes := {**make_vae.VAES, **make_vae.MORE}))
    kind, config = all_vaes[name]
    space = {"num_res_blocks": [1, 2], "dim_mult": [[1, 2], [1, 2, 2], [1, 1, 2, 2]], "z_dim": [2, 4], "base_dim": [4, 6, 8], "attn_scales": [[], [0.5], [1.0]]}
    changes = pick(space, rng, 3)
    if "dim_mult" in changes:
        changes["temperal_downsample"] = [rng.choice([True, False]) for _ in changes["dim_mult"][1:]]
    make_vae.make(out, kind, {**config, **changes}, seed)
    return {"family": name, **changes}


def policy(rng: random.Random, seed: int, out: Path) -> dict:
    import make_policies

    name = rng.choice(sorted(make_policies.FAMILIES))
    config, changes = copy.deepcopy(make_policies.FAMILIES[name]), pick(SMOL if name == "smolvla" else PI, rng)
    for key, value in changes.items():
        put(config, key, value)
    if name != "smolvla":
        for key in ("depth", "num_kv_heads"):
            config["sizes"]["expert"][key] = config["sizes"]["text"][key]
    config.setdefault("n_action_steps", config["chunk_size"])
    make_policies.INSIDE = [min(inside, config["chunk_size"]) for inside in (5, 3, 4)]
    make_policies.write(out, config, seed)
    return {"family": name, **changes}


def groot(rng: random.Random, seed: int, out: Path) -> dict:
    import make_groot

    config, changes = copy.deepcopy(make_groot.CONFIG), pick(GROOT, rng)
    for key, value in changes.items():
        put(config, key, value)
    make_groot.write(out, config, seed)
    return {"family": "groot", **changes}


def xvla(rng: random.Random, seed: int, out: Path) -> dict:
    import make_xvla

    space = rng.choice(sorted(make_xvla.SPACES))
    own = copy.deepcopy(make_xvla.SPACES[space])
    config, changes = {**copy.deepcopy(make_xvla.CONFIG), **own}, pick(XVLA, rng)
    for key, value in changes.items():
        put(config, key, value)
    config["n_action_steps"] = config["chunk_size"]
    make_xvla.write(out, space, config, seed)
    return {"family": f"xvla {space}", **changes}


PARTS = {made.__name__: made for made in (dit, vae, policy, groot, xvla)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for part in args.part or PARTS:
        journal = args.out / "drawn.jsonl"
        for number in range(args.cases):
            rng, seed = random.Random(f"{part} {args.seed + number}"), args.seed + number
            for attempt in range(20):
                scratch = args.out / "scratch"
                shutil.rmtree(scratch, ignore_errors=True)
                try:
                    changes = PARTS[part](rng, seed, scratch)
                except Exception as error:  # the reference refuses, or cannot run it
                    print(f"{part} {seed}: {type(error).__name__}: {str(error)[:150]}")
                    continue
                name = f"{changes['family'].split()[0]}-{part}{seed}"
                folder = args.out / part / name / name  # the tests read all folders of a place
                shutil.rmtree(folder, ignore_errors=True)
                folder.parent.mkdir(parents=True, exist_ok=True)
                scratch.rename(folder)
                journal.open("a").write(json.dumps({"folder": str(folder.parent), **changes}) + "\n")
                break


if __name__ == "__main__":
    main()
