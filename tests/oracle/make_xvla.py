"""Writes parity fixtures of X-VLA: tiny random weights in lerobot's layout, samples of two domains with a view that is missing and
padded prompts, and what lerobot's `XVLAModel` in eval mode makes of them: losses and gradients with given noise and times, and
actions of given noise.

    python make_xvla.py src/torch/tests/policies                                   # those that are committed
    python make_xvla.py OUT --space joint --seed 7 --set florence_config.vision_config.window_size=2

It needs lerobot 0.6.1, which takes Python 3.12. A folder has `config.json` as lerobot writes it, the weights under lerobot's names,
and tensors of all samples: pictures are `[samples, cameras, 3, rows, columns]`, normalized; those of views that a sample lacks are zeros.
"""

from __future__ import annotations

import contextlib
import copy
import re
from pathlib import Path
from unittest import mock

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.xvla.configuration_xvla import XVLAConfig
from lerobot.policies.xvla.modeling_xvla import XVLAModel, _remap_vendored_florence_state_dict
from safetensors.torch import save_model
from torch import Tensor

from fixture_folder import arguments, changed, empty, randomize, write_json, write_tensors
from make_policies import Policy

ROWS, COLUMNS = 20, 36
FLORENCE = dict(
    vision_config=dict(model_type="florence_vision", depths=[1, 2, 1, 1], embed_dim=[4, 6, 8, 12], num_heads=[2, 2, 4, 3],
                       num_groups=[2, 3, 2, 3], patch_size=[7, 3, 3, 3], patch_stride=[4, 2, 2, 1], patch_padding=[3, 1, 1, 1],
                       patch_prenorm=[False, True, True, True], window_size=3, mlp_ratio=2.0, projection_dim=12,
                       drop_path_rate=0.1, max_temporal_embeddings=5, max_position_embeddings=6),
    text_config=dict(model_type="florence2_language", d_model=12, encoder_layers=2, encoder_attention_heads=3, encoder_ffn_dim=20,
                     decoder_layers=1, decoder_attention_heads=3, decoder_ffn_dim=4, vocab_size=30, max_position_embeddings=24,
                     dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, scale_embedding=False),
)
CONFIG = dict(
    chunk_size=4, n_action_steps=4, florence_config=FLORENCE, tokenizer_max_length=8, hidden_size=16, depth=2, num_heads=2,
    mlp_ratio=2.0, num_domains=3, len_soft_prompts=4, dim_time=7, max_len_seq=40, max_state_dim=20, num_denoising_steps=5,
    resize_imgs_with_padding=[ROWS, COLUMNS], num_image_views=3,
)
# What an action has of numbers in the data; the model's are more.
SPACES = {
    "ee6d": dict(action_dim=10), "joint": dict(action_dim=14, max_state_dim=15, num_image_views=2),
    "auto": dict(action_dim=6, max_action_dim=8, use_hetero_proj=True, max_state_dim=3),
    "agibot_ee6d": dict(action_dim=20), "franka_joint7": dict(action_dim=7, max_state_dim=5),
    "so101_bimanual": dict(action_dim=12),
}
COMMITTED = ["ee6d", "joint", "auto"]
# The tokens of prompts before padding, the number of views that are there, domains, and the numbers of a state.
SAMPLES = [dict(prompt=5, views=2, domain=0), dict(prompt=8, views=1, domain=2), dict(prompt=3, views=2, domain=2)]
NUM_CAMERAS, NUM_DRAWS, PAD = 2, 2, 1
# Words of names of parameters that rows are taken from.
TABLES = ["embed_", "shared", "embeddings", "pos_emb", "soft_prompt", ".bias.", ".fc.weight"]


def build(config: dict, space: str, action_dim: int) -> tuple[XVLAConfig, torch.nn.Module]:
    visual = PolicyFeature(type=FeatureType.VISUAL, shape=(3, ROWS, COLUMNS))
    inputs = {f"observation.images.camera_{camera}": visual for camera in range(NUM_CAMERAS)}
    inputs["observation.state"] = PolicyFeature(type=FeatureType.STATE, shape=(config["max_state_dim"],))
    config = dict(copy.deepcopy(config), resize_imgs_with_padding=tuple(config["resize_imgs_with_padding"]))
    known = XVLAConfig(**config, action_mode=space, device="cpu", input_features=inputs,
                       output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(action_dim,))})
    known.validate_features()
    model = XVLAModel(known, known.get_florence_config(), known.max_state_dim if known.use_proprio else 0)
    return known, model.eval()


def inputs(model: torch.nn.Module, known: XVLAConfig, action_dim: int, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed + 1000)
    normal = lambda *shape: torch.randn(shape, generator=rng)
    num, horizon, width = len(SAMPLES), known.chunk_size, model.dim_action
    actions = torch.zeros(num, horizon, width)
    actions[:, :, :action_dim] = normal(num, horizon, action_dim)
    # Grippers are open or closed, or between.
    for at in [at for at in model.action_space.gripper_idx if at < action_dim]:
        actions[:, :, at] = torch.rand((num, horizon), generator=rng)
    images = normal(num, NUM_CAMERAS, 3, ROWS, COLUMNS)
    for sample, image in zip(SAMPLES, images):
        image[sample["views"]:] = 0
    length, vocab = known.tokenizer_max_length, known.florence_config["text_config"]["vocab_size"]
    tokens = torch.randint(2, vocab, (num, length), generator=rng)
    lens = torch.tensor([sample["prompt"] for sample in SAMPLES])
    tokens = torch.where(torch.arange(length)[None] < lens[:, None], tokens, PAD)
    return dict(images=images, tokens=tokens, state=normal(num, model.dim_proprio), actions=actions,
                domain=torch.tensor([sample["domain"] for sample in SAMPLES]), noise=normal(NUM_DRAWS, num, horizon, width),
                time=torch.rand((NUM_DRAWS, num), generator=rng) * 0.9 + 0.05, start=normal(num, horizon, width))


@contextlib.contextmanager
def drawn(noise: Tensor, time: Tensor):
    """The model draws this noise, and times that come to these."""
    even = torch.arange(len(time)) / len(time)
    with mock.patch.object(torch, "rand", lambda *shape, **kinds: time - even), \
            mock.patch.object(torch, "randn_like", lambda like: noise), \
            mock.patch.object(torch, "randn", lambda *shape, **kinds: noise):
        yield


def expected(model: torch.nn.Module, data: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    num_views = model.config.num_image_views
    present = torch.tensor([[view < sample["views"] for view in range(num_views)] for sample in SAMPLES])
    images = torch.zeros(len(SAMPLES), num_views, 3, ROWS, COLUMNS)
    images[:, :NUM_CAMERAS] = data["images"]

    def observed(of: slice) -> tuple:
        return data["tokens"][of], images[of], present[of], data["domain"][of], data["state"][of]

    def loss(draw: int, of: slice) -> Tensor:
        with drawn(data["noise"][draw][of], data["time"][draw][of]):
            return sum(model(*observed(of), data["actions"][of]).values())

    everything = slice(None)
    total = sum(loss(draw, everything) for draw in range(NUM_DRAWS)) / NUM_DRAWS
    total.backward()
    found = dict(loss=total.detach().double())
    for name, tensor in model.named_parameters():
        if tensor.grad is not None:
            found[f"grad/model.{name}"] = tensor.grad.contiguous()
    with torch.no_grad():
        alone = [[loss(draw, slice(at, at + 1)) for draw in range(NUM_DRAWS)] for at in range(len(SAMPLES))]
    found["of_samples"] = torch.tensor(alone).mean(dim=1)
    with drawn(data["start"], data["time"][0]):
        found["sampled"] = model.generate_actions(*observed(everything), steps)
    return found


def write(folder: Path, space: str, config: dict, seed: int) -> None:
    torch.manual_seed(seed)
    action_dim = config.pop("action_dim")
    known, model = build(config, space, action_dim)
    randomize(model.named_parameters(), seed, dict.fromkeys(TABLES, 0.3))
    data = inputs(model, known, action_dim, seed)
    found = expected(model, data, known.num_denoising_steps)
    empty(folder)
    known._save_pretrained(folder)
    summary = dict(samples=SAMPLES, action_dim=action_dim, seed=seed)
    write_json(folder / "fixture.json", summary)
    save_model(Policy(model), str(folder / "model.safetensors"))
    write_tensors(folder, data, found)


def first_name(name: str) -> str:
    """What the first release of Florence-2 calls a tensor: the other direction of lerobot's renaming."""
    for now, then in [(r"(vision_tower\.convs\.\d+\.)conv\.", r"\1proj."), (r"_block\.(conv[12])\.", r"_block.\1.fn.dw."),
                      (r"(spatial)_block\.norm1\.", r"\1_block.window_attn.norm."),
                      (r"(channel)_block\.norm1\.", r"\1_block.channel_attn.norm."),
                      (r"_block\.(window_attn|channel_attn)\.(qkv|proj)\.", r"_block.\1.fn.\2."),
                      (r"_block\.norm2\.", "_block.ffn.norm."), (r"_block\.ffn\.fc", "_block.ffn.fn.net.fc"),
                      (r"multi_modal_projector\.image_position_embed\.", "image_pos_embed."),
                      (r"multi_modal_projector\.image_projection\.weight", "image_projection"),
                      (r"multi_modal_projector\.", ""), (r"vlm\.language_model\.", "vlm.language_model.model.")]:
        found, count = re.subn(now, then, name, count=1)
        if count:
            return found
    return name


def write_names(path: Path) -> None:
    """Each tensor of a small model, by its first name and by its present one."""
    config = copy.deepcopy(dict(CONFIG, **SPACES["ee6d"]))
    action_dim = config.pop("action_dim")
    _, model = build(config, "ee6d", action_dim)
    lines = []
    for name, value in Policy(model).state_dict().items():
        first = first_name(name)
        renamed = _remap_vendored_florence_state_dict({first: value})
        assert list(renamed) == [name], (first, list(renamed), name)
        lines.append(f"{first} {name}\n")
    path.write_text("".join(lines))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--space", choices=list(SPACES), action="append")
    parser.add_argument("--names", type=Path, metavar="FILE", help="writes the names of tensors to this file, and no fixture into OUT")
    args = parser.parse_args()
    if args.names:
        return write_names(args.names)
    torch.set_num_threads(1)
    for space in args.space or COMMITTED:
        config = changed(dict(CONFIG, **SPACES[space]), args.set)
        write(args.out / f"xvla-{space}-seed{args.seed}", space, config, args.seed)


if __name__ == "__main__":
    main()
