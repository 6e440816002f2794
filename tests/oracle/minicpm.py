"""MiniCPM-V 4.6 of transformers 5.17, one picture after the other.

Its `ViTWindowAttentionMerger` takes the size of the first picture or slice of a batch for that of all of them: where others have
another number of patches it fails, and where only their shape differs it merges windows that are none. Its processor makes
overviews and slices of different sizes. So each is encoded on its own here, which is what the model computes for one alone.
"""

from __future__ import annotations

import torch
from transformers.models.minicpmv4_6.modeling_minicpmv4_6 import MiniCPMV4_6Model


def encode_one_by_one() -> None:
    """Replaces `get_image_features` for this process."""
    of_equal = MiniCPMV4_6Model.get_image_features

    def get_image_features(self, pixel_values, target_sizes, downsample_mode=None, **kwargs):
        ends = (target_sizes.prod(-1).cumsum(0) * self.config.vision_config.patch_size).tolist()
        starts = [0, *ends[:-1]]
        made = [of_equal(self, pixel_values[..., start:end], size[None], downsample_mode=downsample_mode)
                for start, end, size in zip(starts, ends, target_sizes)]
        made[0].pooler_output = [torch.cat(list(one.pooler_output)) for one in made]
        made[0].last_hidden_state = torch.cat([one.last_hidden_state for one in made], 1)
        return made[0]

    MiniCPMV4_6Model.get_image_features = get_image_features
