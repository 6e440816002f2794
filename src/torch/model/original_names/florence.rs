//! The names of Florence-2's tensors in files of X-VLA: those that were trained before lerobot took it from transformers have the names
//! of its first release (`_remap_vendored_florence_state_dict` of lerobot).

/// The prefix of the names of Florence-2.
const PREFIX: &str = "model.vlm.";
const TABLE: &str = "model.vlm.language_model.encoder.embed_tokens.weight";
const SHARED: &str = "model.vlm.language_model.shared.weight";

/// Beginnings of names, and what they are now.
const OUTER: [[&str; 2]; 5] = [
    ["image_proj_norm.", "multi_modal_projector.image_proj_norm."],
    ["image_projection", "multi_modal_projector.image_projection"],
    ["image_pos_embed.", "multi_modal_projector.image_position_embed."],
    ["visual_temporal_embed.", "multi_modal_projector.visual_temporal_embed."],
    ["language_model.model.", "language_model."],
];
/// Parts of names of a stage's convolution and of a block, and what they are now.
const INNER: [[&str; 2]; 9] = [
    [".conv1.fn.dw.", ".conv1."],
    [".conv2.fn.dw.", ".conv2."],
    [".window_attn.norm.", ".norm1."],
    [".channel_attn.norm.", ".norm1."],
    [".window_attn.fn.", ".window_attn."],
    [".channel_attn.fn.", ".channel_attn."],
    [".ffn.norm.", ".norm2."],
    [".ffn.fn.net.", ".ffn."],
    [".proj.", ".conv."],
];

/// The names in files of X-VLA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlorenceNames {
    /// True if they are those of the first release.
    is_first: bool,
    /// True if the table of tokens is stored under its other name alone.
    is_shared: bool,
}

impl FlorenceNames {
    /// Returns the names in files that have these tensors; `None`: they are of another model.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Option<FlorenceNames> {
        let names: Vec<&str> = names.filter(|name| name.starts_with(PREFIX)).collect();
        let begins = |end: &str| names.iter().any(|name| name[PREFIX.len()..].starts_with(end));
        let is_first = begins("image_projection") || begins("language_model.model.");
        let plain = FlorenceNames { is_first, is_shared: false };
        let has = |name: &str| names.iter().any(|own| plain.ours(own) == name);
        (!names.is_empty()).then(|| FlorenceNames { is_shared: has(SHARED) && !has(TABLE), ..plain })
    }

    /// Returns the name that transformers has.
    pub fn ours(self, name: &str) -> String {
        let Some(inner) = name.strip_prefix(PREFIX) else { return name.to_owned() };
        let inner = if self.is_first { renamed(inner) } else { inner.to_owned() };
        let name = format!("{PREFIX}{inner}");
        if self.is_shared && name == SHARED { TABLE.to_owned() } else { name }
    }
}

fn renamed(inner: &str) -> String {
    if let Some([from, to]) = OUTER.iter().find(|[from, _]| inner.starts_with(from)) {
        return inner.replacen(from, to, 1);
    }
    let is_conv = inner.starts_with("vision_tower.convs.");
    let is_block = inner.starts_with("vision_tower.blocks.");
    let fits = |[from, _]: &&[&str; 2]| inner.contains(from) && if *from == ".proj." { is_conv } else { is_block };
    INNER.iter().find(fits).map_or_else(|| inner.to_owned(), |[from, to]| inner.replacen(from, to, 1))
}

#[cfg(test)]
mod tests {
    use super::{FlorenceNames, SHARED, TABLE};

    /// `tests/oracle/make_xvla.py --names` lists them, as lerobot renames them.
    const LIST: &str = include_str!("../../tests/names/xvla.txt");

    #[test]
    fn names_of_the_first_release_become_those_of_transformers() {
        let pairs = || LIST.lines().map(|line| line.split_once(' ').expect("two names"));
        let first = FlorenceNames::of(pairs().map(|(first, _)| first)).unwrap();
        let now = FlorenceNames::of(pairs().map(|(_, now)| now)).unwrap();
        assert!(first.is_first && !now.is_first);
        let mut num_renamed = 0;
        for (one, other) in pairs() {
            // The map is stored the other way round there, which `train/hf/layout.rs` knows by the name that is left.
            let expected = other
                .strip_suffix("image_projection.weight")
                .map_or(other.to_owned(), |it| format!("{it}image_projection"));
            assert_eq!((first.ours(one), now.ours(other)), (expected, other.to_owned()));
            num_renamed += usize::from(one != other);
        }
        assert!(num_renamed > 50, "{num_renamed}");
        assert_eq!(FlorenceNames::of(["model.layers.0.mlp.up_proj.weight"].into_iter()), None);
    }

    #[test]
    fn the_table_has_two_names() {
        assert_eq!(FlorenceNames::of([SHARED].into_iter()).unwrap().ours(SHARED), TABLE);
        let both = FlorenceNames::of([SHARED, TABLE].into_iter()).unwrap();
        assert_eq!((both.ours(SHARED), both.ours(TABLE)), (SHARED.to_owned(), TABLE.to_owned()));
        let first = "model.vlm.language_model.model.shared.weight";
        assert_eq!(FlorenceNames::of([first].into_iter()).unwrap().ours(first), TABLE);
    }
}
