"""Writes parity fixtures of robot policies: tiny random weights in lerobot's layout, samples with a missing picture and prompts of
several lengths, and what lerobot makes of them: loss and gradients with given noise and times, and actions of given noise.

    python make_policies.py src/torch/tests/policies                       # those that are committed
    python make_policies.py OUT --seed 7 --set sizes.text.num_kv_heads=2   # another seed, another config
    python make_policies.py OUT --family pi0 --set chunk_size=4

It needs lerobot 0.6.1, which takes Python 3.12. A folder has `config.json` (lerobot's keys, and widths under `sizes`), the weights
under lerobot's names, and tensors of all samples: a picture is `[3, side, side]` in [-1, 1].
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixture_folder
import torch
from fixture_folder import arguments, changed, empty, write_json, write_tensors
from safetensors.torch import save_model
from torch import Tensor

HEADS = dict(num_heads=8, num_kv_heads=1, head_dim=4, depth=2)
SIZES = dict(vocab_size=40, vision=dict(hidden_size=12, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2,
                                        patch_size=4, image_size=8),
             text=dict(HEADS, width=16, mlp_dim=24), expert=dict(HEADS, width=12, mlp_dim=20))
POLICY = dict(chunk_size=5, max_action_dim=6, max_state_dim=4, num_inference_steps=10)
FAMILIES = {name: dict(type=name, sizes=SIZES, **POLICY) for name in ["pi05", "pi0"]}
# Joint attention, cross-attention and joint attention again, of a vision-language model that has a layer more.
SMOL = dict(vocab_size=40, scale_factor=2, expert_mlp_dim=20,
            vision=dict(hidden_size=12, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2, patch_size=4,
                        image_size=16),
            text=dict(num_heads=4, num_kv_heads=2, head_dim=4, depth=4, width=16, mlp_dim=24))
FAMILIES["smolvla"] = dict(type="smolvla", sizes=SMOL, chunk_size=5, max_action_dim=6, max_state_dim=4, num_steps=10, num_vlm_layers=3,
                           self_attn_every_n_layers=2, expert_width_multiplier=0.75, freeze_vision_encoder=False,
                           train_expert_only=False, train_state_proj=True)
CLASSES = {"pi05": ("pi05", "PI05Config", "PI05Pytorch"), "pi0": ("pi0", "PI0Config", "PI0Pytorch")}
# The true width of an action; prompts' lengths, and the pictures that each sample has.
ACTION_DIM = 4
SAMPLES = [dict(prompt=5, cameras=[0, 1]), dict(prompt=3, cameras=[0, 1]), dict(prompt=6, cameras=[1])]
NUM_CAMERAS, NUM_DRAWS = 2, 2
# Keys of `config.json` that lerobot's configs do not have, or that are given otherwise.
OTHERS = ["type", "sizes", "device", "dtype", "image_resolution", "resize_imgs_with_padding"]
# Actions of each sample that lie within its episode: SmolVLA leaves those behind out of the loss.
INSIDE = [5, 3, 4]


def build(config: dict) -> torch.nn.Module:
    """lerobot's model, whose widths are fixed in its source."""
    return build_smolvla(config) if config["type"] == "smolvla" else build_pi(config)


def build_smolvla(config: dict) -> torch.nn.Module:
    """The vision-language model's widths are those of a folder that `vlm_model_name` names."""
    from lerobot.policies.smolvla import configuration_smolvla, modeling_smolvla, smolvlm_with_expert as parts
    from transformers import SmolVLMConfig

    sizes = config["sizes"]
    text = sizes["text"]
    vlm = SmolVLMConfig(
        scale_factor=sizes["scale_factor"], image_token_id=sizes["vocab_size"] - 1, pad_token_id=0, vision_config=sizes["vision"],
        text_config=dict(model_type="llama", vocab_size=sizes["vocab_size"], hidden_size=text["width"], intermediate_size=text["mlp_dim"],
                         num_hidden_layers=text["depth"], num_attention_heads=text["num_heads"], rms_norm_eps=1e-5,
                         num_key_value_heads=text["num_kv_heads"], head_dim=text["head_dim"], pad_token_id=0))
    no_special_tokens = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)
    side = sizes["vision"]["image_size"]
    known = {key: value for key, value in config.items() if key not in OTHERS}
    with contextlib.ExitStack() as stack:
        patch = lambda holder, name, value: stack.enter_context(mock.patch.object(holder, name, value))
        patch(parts.AutoConfig, "from_pretrained", lambda name: vlm)
        patch(parts.AutoProcessor, "from_pretrained", lambda name: SimpleNamespace(tokenizer=no_special_tokens))
        if "expert_mlp_dim" in sizes:
            patch(parts, "get_intermediate_size", lambda width: sizes["expert_mlp_dim"])
        keys = configuration_smolvla.SmolVLAConfig(device="cpu", resize_imgs_with_padding=(side, side), **known)
        model = modeling_smolvla.VLAFlowMatching(keys)
    return model.float().eval()


def build_pi(config: dict) -> torch.nn.Module:
    folder, config_class, model_class = CLASSES[config["type"]]
    package = f"lerobot.policies.{folder}"
    source = importlib.import_module(f"{package}.modeling_{folder}")
    keys = importlib.import_module(f"{package}.configuration_{folder}")
    sizes = config["sizes"]
    widths = {"gemma_2b": source.GemmaConfig(**sizes["text"]), "gemma_300m": source.GemmaConfig(**sizes["expert"])}
    paligemma, gemma = source.PaliGemmaForConditionalGenerationWithPiGemma, source.PiGemmaForCausalLM

    def small_paligemma(config):
        config.text_config.vocab_size = sizes["vocab_size"]
        config.image_token_index = config.image_token_id = sizes["vocab_size"] - 1
        for key, value in sizes["vision"].items():
            setattr(config.vision_config, key, value)
        config.vision_config.projection_dim = config.projection_dim = sizes["text"]["width"]
        config._attn_implementation = "eager"
        return paligemma(config=config)

    def small_gemma(config):
        config.vocab_size = sizes["vocab_size"]
        config._attn_implementation = "eager"
        return gemma(config=config)

    side = sizes["vision"]["image_size"]
    known = {key: value for key, value in config.items() if key not in OTHERS}
    with contextlib.ExitStack() as stack:
        for name, value in [("get_gemma_config", widths.__getitem__),
                            ("PaliGemmaForConditionalGenerationWithPiGemma", small_paligemma),
                            ("PiGemmaForCausalLM", small_gemma)]:
            stack.enter_context(mock.patch.object(source, name, value))
        known = keys.__dict__[config_class](dtype="float32", device="cpu", image_resolution=(side, side), **known)
        model = source.__dict__[model_class](known)
    return model.eval()


def randomize(model: torch.nn.Module, seed: int) -> None:
    fixture_folder.randomize(model.named_parameters(), seed)
    if not hasattr(model, "paligemma_with_expert"):
        return
    # The head of PaliGemma is its table.
    pali = model.paligemma_with_expert.paligemma
    pali.lm_head.weight = pali.model.language_model.embed_tokens.weight


def inputs(config: dict, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed + 1000)
    normal = lambda *shape: torch.randn(shape, generator=rng)
    num, side = len(SAMPLES), config["sizes"]["vision"]["image_size"]
    horizon, dim = config["chunk_size"], config["max_action_dim"]
    actions = normal(num, horizon, dim)
    actions[:, :, ACTION_DIM:] = 0
    longest = max(sample["prompt"] for sample in SAMPLES) + 2
    return dict(
        images=normal(NUM_CAMERAS, num, 3, side, side).clamp(-1, 1),
        tokens=torch.randint(1, config["sizes"]["vocab_size"] - 1, (num, longest), generator=rng),
        state=normal(num, config["max_state_dim"]), actions=actions,
        noise=normal(NUM_DRAWS, num, horizon, dim), time=torch.rand((NUM_DRAWS, num), generator=rng) * 0.9 + 0.05,
        start=normal(num, horizon, dim),
    )


def masked(data: dict[str, Tensor]) -> tuple:
    """Pictures, which of them are there, tokens, and which of them are there."""
    present = [torch.tensor([camera in sample["cameras"] for sample in SAMPLES]) for camera in range(NUM_CAMERAS)]
    images = [torch.where(there[:, None, None, None], image, -torch.ones_like(image))
              for image, there in zip(data["images"], present)]
    lens = torch.tensor([sample["prompt"] for sample in SAMPLES])
    mask = torch.arange(data["tokens"].shape[1])[None] < lens[:, None]
    return images, present, torch.where(mask, data["tokens"], 0), mask


def expected(model: torch.nn.Module, config: dict, data: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = masked(data)
    state = () if config["type"] == "pi05" else (data["state"],)
    losses = [model.forward(*prefix, *state, data["actions"], noise, time)[:, :, :ACTION_DIM]
              for noise, time in zip(data["noise"], data["time"])]
    losses = torch.stack(losses)
    if config["type"] == "smolvla":
        # As `SmolVLAPolicy.forward` with `action_is_pad`: a sample counts by its actions within the episode.
        inside = torch.arange(config["chunk_size"])[None] < torch.tensor(INSIDE)[:, None]
        losses = losses * inside[None, :, :, None] * (inside.numel() / inside.sum())
    losses.mean().backward()
    found = dict(loss=losses.mean().detach().double(), of_samples=losses.mean(dim=(0, 2, 3)).detach())
    for name, tensor in model.named_parameters():
        if tensor.grad is not None:
            found[f"grad/model.{name}"] = tensor.grad.contiguous()
    found["sampled"] = model.sample_actions(*prefix, *state, noise=data["start"]).detach()
    return found


class Policy(torch.nn.Module):
    """As lerobot saves it."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model


def write(folder: Path, config: dict, seed: int) -> None:
    torch.manual_seed(seed)
    model = build(config)
    randomize(model, seed)
    data = inputs(config, seed)
    found = expected(model, config, data)
    empty(folder)
    side = config["sizes"]["vision"]["image_size"]
    visual = {f"observation.images.camera_{camera}": dict(type="VISUAL", shape=[3, side, side]) for camera in range(NUM_CAMERAS)}
    features = dict(visual, **{"observation.state": dict(type="STATE", shape=[config["max_state_dim"]])})
    resolution = "resize_imgs_with_padding" if config["type"] == "smolvla" else "image_resolution"
    saved = dict(config, **{resolution: [side, side]}, input_features=features,
                 output_features=dict(action=dict(type="ACTION", shape=[ACTION_DIM])))
    samples = SAMPLES
    if config["type"] == "smolvla":
        samples = [dict(sample, inside=inside) for sample, inside in zip(SAMPLES, INSIDE)]
    summary = dict(samples=samples, action_dim=ACTION_DIM, seed=seed)
    write_json(folder / "config.json", saved)
    write_json(folder / "fixture.json", summary)
    save_model(Policy(model), str(folder / "model.safetensors"))
    write_tensors(folder, data, found)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--family", choices=list(FAMILIES), action="append")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for family in args.family or FAMILIES:
        config = changed(FAMILIES[family], args.set)
        config.setdefault("n_action_steps", config["chunk_size"])
        write(args.out / f"{family}-seed{args.seed}", config, args.seed)


if __name__ == "__main__":
    main()
