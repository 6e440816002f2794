//! Compares the parameters that a run trains with those trained by the run that made its checkpoint.

use crate::cli::UsageError;
use crate::cli::check::parts;
use crate::run::compose::Composition;
use loongforge_core::observe::Console;
use loongforge_core::text::counted;
use loongforge_torch::params::Role;
use loongforge_torch::train::hf::TensorFile;
use loongforge_torch::train::state_files;
use std::collections::BTreeMap;
use std::path::Path;

/// Ending of what a parameter itself is in such a file, where the checkpoint has its values nowhere else.
const VALUE: &str = "value";

/// The parts of a trained parameter that a checkpoint has.
#[derive(Debug, Default, PartialEq)]
struct Then {
    shape: Vec<i64>,
    /// True if the parameter's values are in the state alone.
    keeps_value: bool,
}

/// Compares the parameters that the run trains with those that have an optimizer's state in the checkpoint. Those that are frozen
/// from now on are told of.
///
/// # Errors
/// The run trains one that the checkpoint has no state of, or of another shape, or does not train one whose values would be lost
/// with its state: an adapter, for example.
pub fn expect_same_trained(checkpoint: &Path, composition: &Composition, console: &Console) -> anyhow::Result<()> {
    let then = trained_then(checkpoint)?;
    let parts = parts(composition.config(), composition.folder())?;
    let specs = parts.iter().flat_map(|(_, specs)| specs).filter(|spec| spec.role == Role::Trained);
    let now = specs.map(|spec| (spec.name.as_str(), spec.whole_shape())).collect();
    match compare(&then, &now) {
        Ok(None) => Ok(()),
        Ok(Some(line)) => {
            console.line(&format!("warning: {}: {line}", checkpoint.display()));
            Ok(())
        }
        Err(why) => {
            let path = checkpoint.display();
            Err(UsageError(format!(
                "{path} {why}: resume with the freeze, train_patterns and lora settings that it was made with, or begin a run \
                 with model.load={path}"
            ))
            .into())
        }
    }
}

/// Returns the parameters that have an optimizer state in the checkpoint.
fn trained_then(checkpoint: &Path) -> anyhow::Result<BTreeMap<String, Then>> {
    let mut then = BTreeMap::<String, Then>::new();
    for path in state_files(checkpoint)? {
        for (name, info) in TensorFile::open(&path)?.tensors() {
            let Some((name, state)) = name.rsplit_once('.') else { continue };
            let of = then.entry(name.to_owned()).or_default();
            of.keeps_value |= state == VALUE;
            // Moments in bytes are flat.
            if info.dtype.is_plain_float() && info.shape.len() >= of.shape.len() {
                of.shape = info.shape.clone();
            }
        }
    }
    Ok(then)
}

/// Returns a sentence on the parameters that the run no longer trains.
///
/// # Errors
/// The reason why the run cannot go on from the checkpoint.
fn compare(then: &BTreeMap<String, Then>, now: &BTreeMap<&str, &[i64]>) -> Result<Option<String>, String> {
    let new: Vec<&str> = now.keys().copied().filter(|name| !then.contains_key(*name)).collect();
    if let Some(first) = new.first() {
        return Err(format!(
            "has no optimizer state for {} that this run trains, such as {first}",
            counted(new.len() as u64, "parameter")
        ));
    }
    let other = now.iter().find(|(name, shape)| {
        let then = &then[**name].shape;
        then.len() == shape.len() && then != *shape
    });
    if let Some((name, shape)) = other {
        return Err(format!(
            "has {name} with shape {:?}, but this run trains it with shape {shape:?}",
            then[*name].shape
        ));
    }
    let dropped: Vec<(&String, &Then)> = then.iter().filter(|(name, _)| !now.contains_key(name.as_str())).collect();
    if let Some((first, _)) = dropped.iter().find(|(_, then)| then.keeps_value) {
        return Err(format!(
            "has trained {first}, which this run does not have or does not train: its training would be lost"
        ));
    }
    let count = counted(dropped.len() as u64, "parameter");
    let are = if dropped.len() == 1 { "is" } else { "are" };
    let line = |first| format!("{count} that it trained {are} frozen from now on, such as {first}");
    Ok(dropped.first().map(|(first, _)| line(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_trained_is_compared_by_name_and_shape() {
        let then = |keeps_value| {
            let of = |name: &str, shape: &[i64]| (name.to_owned(), Then { shape: shape.to_vec(), keeps_value });
            BTreeMap::from([of("a.weight", &[4, 2]), of("b.weight", &[3])])
        };
        let now = |trained: &[(&'static str, &'static [i64])]| trained.iter().copied().collect::<BTreeMap<_, _>>();
        let both: [(&str, &[i64]); 2] = [("a.weight", &[4, 2]), ("b.weight", &[3])];
        assert_eq!(compare(&then(true), &now(&both)), Ok(None));
        let frozen = compare(&then(false), &now(&both[..1])).unwrap().unwrap();
        assert!(frozen.contains("1 parameter that it trained is frozen") && frozen.contains("b.weight"), "{frozen}");
        assert!(compare(&then(true), &now(&both[..1])).unwrap_err().contains("b.weight, which this run does not"));
        assert!(compare(&then(false), &now(&[("c.weight", &[1])])).unwrap_err().contains("such as c.weight"));
        let wider = compare(&then(true), &now(&[("a.weight", &[8, 2]), ("b.weight", &[3])])).unwrap_err();
        assert!(wider.contains("[4, 2]") && wider.contains("[8, 2]"), "{wider}");
    }
}
