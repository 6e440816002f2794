//! Describes where each parameter's weights come from: one folder for all, or folders of parts, in which names go on as
//! in the model and begin otherwise: `foundation.model.norm.weight` is `model.norm.weight` in a language model's folder
//! and `model.language_model.norm.weight` in that of a vision-language model.

use super::checkpoint::Checkpoint;
use super::stored::Stored;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The folders of a model's weights.
#[derive(Default)]
pub struct Origin {
    whole: Option<Arc<Checkpoint>>,
    parts: Vec<Part>,
}

struct Part {
    /// The prefix of the model's names of this part.
    prefix: String,
    checkpoint: Arc<Checkpoint>,
    /// The prefixes of names here and there, the longest first.
    begins: Vec<(String, String)>,
}

impl Origin {
    /// All weights are in one folder.
    pub fn whole(checkpoint: Checkpoint) -> Self {
        Self { whole: Some(Arc::new(checkpoint)), parts: Vec::new() }
    }

    /// Parameters of `names` that begin with `prefix` come from a folder of their own.
    pub fn with_part<'a>(mut self, prefix: &str, checkpoint: Checkpoint, names: impl Iterator<Item = &'a str>) -> Self {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for name in names {
            let Some(tail) = name.strip_prefix(prefix) else { continue };
            // A language model's trunk may have moved on its own, its head not; CLIP's towers may have none.
            let trunk = ["model.", "vision_model.", "text_model."]
                .into_iter()
                .find(|trunk| tail.starts_with(trunk))
                .unwrap_or("");
            groups.entry(format!("{prefix}{trunk}")).or_default().push(&tail[trunk.len()..]);
        }
        let begin = |(here, tails): (String, Vec<&str>)| (find_begin(&tails, &checkpoint), here);
        let mut begins: Vec<(String, String)> =
            groups.into_iter().map(begin).map(|(there, here)| (here, there)).collect();
        begins.sort_by_key(|(here, _)| std::cmp::Reverse(here.len()));
        self.parts.push(Part { prefix: prefix.to_owned(), checkpoint: Arc::new(checkpoint), begins });
        self
    }

    /// Returns whether there is a folder for a parameter's tensor; whether it holds it is another question.
    pub fn covers(&self, name: &str) -> bool {
        self.whole.is_some() || self.parts.iter().any(|part| name.starts_with(&part.prefix))
    }

    /// Returns where the tensor of this name is stored, under the name that it has there.
    pub(super) fn find(&self, name: &str) -> Option<(&Checkpoint, &Stored)> {
        let Some(part) = self.parts.iter().find(|part| name.starts_with(&part.prefix)) else {
            let whole = self.whole.as_deref()?;
            return Some((whole, whole.get(name)?));
        };
        let (here, there) = part.begins.iter().find(|(here, _)| name.starts_with(here))?;
        Some((&part.checkpoint, part.checkpoint.get(&format!("{there}{}", &name[here.len()..]))?))
    }

    pub(super) fn checkpoints(&self) -> impl Iterator<Item = &Checkpoint> {
        self.whole.iter().chain(self.parts.iter().map(|part| &part.checkpoint)).map(Arc::as_ref)
    }
}

/// Returns the prefix of most of a folder's names that end so; the shortest such, and an empty one where there are none.
fn find_begin(tails: &[&str], checkpoint: &Checkpoint) -> String {
    let Some(first) = tails.first() else { return String::new() };
    let begins = checkpoint.tensors().filter_map(|(name, _)| name.strip_suffix(first));
    let begins = begins.filter(|begin| begin.is_empty() || begin.ends_with('.'));
    let count = |begin: &str| tails.iter().filter(|tail| checkpoint.get(&format!("{begin}{tail}")).is_some()).count();
    let best = begins.map(|begin| (count(begin), std::cmp::Reverse(begin.len()), begin)).max();
    best.map_or_else(String::new, |(_, _, begin)| begin.to_owned())
}
