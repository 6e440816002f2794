//! The names of the blocks of FastWAM's streams in its first files: they lay under the stream then (`MoT._load_from_state_dict` of
//! lerobot), and now lie under the layer that both share.

/// The start of the names of a stream, behind the prefix of all names.
const STREAMS: &str = "mot.mixtures.";

/// The names in files whose blocks lie under their stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastwamNames;

impl FastwamNames {
    /// Returns the names in files that have these tensors; `None`: they are of another model, or as ours.
    pub fn of<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<FastwamNames> {
        names.any(|name| moved(name).is_some()).then_some(FastwamNames)
    }

    /// Returns our name.
    pub fn ours(self, name: &str) -> String {
        moved(name).unwrap_or_else(|| name.to_owned())
    }
}

/// Returns `…mot.mixtures.STREAM.blocks.N.…` as `…mot.layers.N.blocks.STREAM.…`; `None`: another name.
fn moved(name: &str) -> Option<String> {
    let (before, rest) = name.split_once(STREAMS)?;
    let (stream, rest) = rest.split_once(".blocks.")?;
    let (number, rest) = rest.split_once('.')?;
    let is_block = !stream.contains('.') && number.parse::<u32>().is_ok();
    is_block.then(|| format!("{before}mot.layers.{number}.blocks.{stream}.{rest}"))
}

#[cfg(test)]
mod tests {
    use super::FastwamNames;

    #[test]
    fn blocks_lie_under_their_layer() {
        let first = "model.mot.mixtures.video.blocks.12.self_attn.q.weight";
        let names = FastwamNames::of(std::iter::once(first)).unwrap();
        assert_eq!(names.ours(first), "model.mot.layers.12.blocks.video.self_attn.q.weight");
        let others =
            ["model.mot.mixtures.action.head.weight", "model.mot.layers.0.blocks.video.modulation", "lm_head.weight"];
        assert!(others.iter().all(|name| names.ours(name) == *name));
        assert_eq!(FastwamNames::of(others.into_iter()), None);
    }
}
