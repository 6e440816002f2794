"""What lerobot's X-VLA makes of a frame before its model sees it: processor files, a small tokenizer as BART's, and pictures, prompts,
state and actions of frame 9 of the set `image` that `make_lerobot_sets.py` writes.

    python tests/oracle/make_xvla_samples.py src/core/data/goldens/lerobot/image --out src/core/data/goldens/xvla

Needs Python 3.12 with lerobot 0.6.1.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.common.vla_utils import pad_vector, resize_with_pad
from lerobot.policies.xvla.configuration_xvla import XVLAConfig
from lerobot.policies.xvla.processor_xvla import make_xvla_pre_post_processors
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from make_xvla import FLORENCE

CAMERA, HORIZON, LENGTH = "observation.images.front", 4, 9
PROMPTS = ["open the drawer", "open", "put the red cube into the open drawer and close it"]


def write_tokenizer(folder: Path) -> None:
    """Bytes without merges, between `<s>` and `</s>`; words of the tasks are cut to letters."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("c", "u"), ("cu", "b"), ("cub", "e"), ("Ġ", "the"), ("Ġ", "cube"), ("o", "p"), ("e", "n"), ("op", "en")]
    words = special + letters + ["".join(pair) for pair in merges]
    inner = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate(words)}, merges=merges, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    write_tokenizer(args.out)
    delta = {"action": [step / 10 for step in range(HORIZON)]}
    dataset = LeRobotDataset("oracle/set", root=args.set, delta_timestamps=delta)
    item = dataset[9]
    visual = PolicyFeature(type=FeatureType.VISUAL, shape=(3, 48, 64))
    config = XVLAConfig(
        chunk_size=HORIZON, n_action_steps=HORIZON, florence_config=dict(FLORENCE), tokenizer_name=str(args.out), device="cpu",
        tokenizer_max_length=LENGTH, max_state_dim=20, num_domains=9, resize_imgs_with_padding=(24, 40), num_image_views=2,
        input_features={CAMERA: visual, "observation.images.wrist": visual,
                        "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(3,))},
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(3,))},
    )
    config.florence_config["text_config"] = dict(FLORENCE["text_config"], vocab_size=300)
    before, after = make_xvla_pre_post_processors(config, dataset.meta.stats)
    before.steps[5].domain_id = 4
    found = {"prompts": {}, "pictures": {}}
    for prompt in PROMPTS:
        batch = before({**item, "task": prompt})
        found["prompts"][prompt] = batch["observation.language.tokens"][0].tolist()
    for rows, columns in ((24, 40), (40, 40), (48, 64)):
        picture = resize_with_pad(batch[CAMERA], rows, columns, pad_value=0.0)[0]
        found["pictures"][f"{rows}x{columns}"] = picture.flatten()[::37].tolist()
    found["state"] = pad_vector(batch["observation.state"], 20, truncate=True)[0].tolist()
    found["actions"] = pad_vector(batch["action"], 20, truncate=True).tolist()
    found["domain"] = batch["domain_id"][0].item()
    config.tokenizer_name = "facebook/bart-large"
    config._save_pretrained(args.out)
    for name, pipeline in (("policy_preprocessor", before), ("policy_postprocessor", after)):
        pipeline.save_pretrained(args.out, config_filename=f"{name}.json")
        path = args.out / f"{name}.json"
        path.write_text(path.read_text().replace(str(args.out), "facebook/bart-large"))
    (args.out / "expected.json").write_text(json.dumps(found) + "\n")
    print(sum(path.stat().st_size for path in args.out.iterdir()) // 1024, "KiB", sorted(path.name for path in args.out.iterdir()))


if __name__ == "__main__":
    main()
