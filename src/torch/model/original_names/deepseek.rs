//! The names in folders of DeepSeek-V4 that transformers has saved: it writes some as published and some as its modules are
//! called.

/// Read in one direction alone: folders are written with the published names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepseekV4Names;

impl DeepseekV4Names {
    /// Returns the names of these tensors; `None` where they are of no such folder.
    pub fn of<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<DeepseekV4Names> {
        names.any(|name| name.starts_with("model.layers.") && name.ends_with(".hc_attn_fn")).then_some(DeepseekV4Names)
    }

    /// Returns the published name of the tensor that files call `name`.
    pub fn ours(self, name: &str) -> String {
        let name = match name.strip_prefix("model.") {
            Some(inner) => inner.replacen("embed_tokens.", "embed.", 1).replacen("hc_head.hc_", "hc_head_", 1),
            None => name.to_owned(),
        };
        name.replacen(".attn.norm.", ".attn.kv_norm.", 1)
    }
}

#[cfg(test)]
mod tests {
    use super::DeepseekV4Names;

    #[test]
    fn folders_of_transformers_are_read_as_published_ones() {
        let names = ["head.weight", "model.layers.0.hc_attn_fn"];
        let found = DeepseekV4Names::of(names.into_iter()).unwrap();
        for (theirs, ours) in [
            ("head.weight", "head.weight"),
            ("model.embed_tokens.weight", "embed.weight"),
            ("model.hc_head.hc_fn", "hc_head_fn"),
            ("model.norm.weight", "norm.weight"),
            ("model.layers.1.attn.norm.weight", "layers.1.attn.kv_norm.weight"),
            ("model.layers.1.attn.compressor.norm.weight", "layers.1.attn.compressor.norm.weight"),
            ("model.layers.1.attn_norm.weight", "layers.1.attn_norm.weight"),
        ] {
            assert_eq!(found.ours(theirs), ours);
        }
        assert_eq!(DeepseekV4Names::of(["layers.0.hc_attn_fn"].into_iter()), None);
    }
}
