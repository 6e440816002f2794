//! Towers whose weights nobody holds: they are read, or drawn, one parameter at a time.

use super::pool_specs::kind;
use super::weights::initialize;
use crate::model::REFERENCE_PREFIX;
use crate::params::{ParamSpec, ParamStore};
use crate::train::hf::{
    Checkpoint, LoadOptions, Origin, SameFiles, Shards, WeightsError, is_adapter, load_weights_from, save_specs,
};
use loongforge_core::config::RunConfig;
use loongforge_core::message::SavedFile;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tch::{Device, Kind, Tensor};

/// The frozen parameters of a pool, where its encoders would find them.
pub(super) struct StoredTowers {
    config: RunConfig,
    /// The checkpoint that has them, in a run that was resumed. It is open, since newer ones may have replaced it when it is read.
    checkpoint: Option<Origin>,
    pub specs: Vec<ParamSpec>,
}

impl StoredTowers {
    /// Returns the parameters with these specs; `checkpoint`: the one that the run goes on from.
    ///
    /// # Errors
    /// The files of the checkpoint cannot be opened.
    pub fn new(config: &RunConfig, checkpoint: Option<&Path>, specs: Vec<ParamSpec>) -> Result<Self, WeightsError> {
        // A reference model stays where it came from.
        let is_reference = specs.iter().any(|spec| spec.name.starts_with(REFERENCE_PREFIX));
        let checkpoint = checkpoint.filter(|folder| !is_reference && !is_adapter(folder));
        let checkpoint = checkpoint.map(|folder| Checkpoint::open_of(folder, &specs)).transpose()?.map(Origin::whole);
        Ok(Self { config: config.clone(), checkpoint, specs })
    }

    /// Returns the type that the weights are read in: that of `train.precision`.
    pub fn kind(&self) -> Kind {
        kind(self.config.train.precision)
    }

    /// Returns the value of a parameter on the CPU, in the shape `[…]` of its spec and the type of [`StoredTowers::kind`].
    ///
    /// # Errors
    /// It is missing in its folder, or the folder cannot be read.
    pub fn value(&self, spec: &ParamSpec) -> Result<Tensor, WeightsError> {
        let params = ParamStore::new(vec![spec.clone()], self.kind(), Device::Cpu);
        match &self.checkpoint {
            // As encoders do.
            Some(origin) if !spec.held.rounding.is_some() => {
                load_weights_from(&params, origin, &LoadOptions::default())?;
            }
            _ => initialize(&self.config, &params)?,
        }
        Ok(params.value(params.id(&spec.name)))
    }

    /// Writes the files that an encoder of the pool would write, unless they are the `same` as before. Ends with an error where `stop` is
    /// set.
    ///
    /// # Errors
    /// A parameter or a file cannot be read, or a file not be written.
    pub fn write(
        &self,
        (folder, same): (&Path, &SameFiles),
        shards: &Shards,
        stop: &AtomicBool,
    ) -> Result<Vec<SavedFile>, WeightsError> {
        save_specs(&self.specs, self.kind(), (folder, same), shards, |spec| {
            if stop.load(Relaxed) {
                let source = std::io::Error::other("the run ends");
                return Err(WeightsError::Write { path: folder.to_owned(), source });
            }
            self.value(spec)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Init;
    use crate::train::hf::{INDEX_FILE, index_of, write_tensor_file};
    use loongforge_core::config::load_text;

    #[test]
    fn a_checkpoint_is_read_after_newer_ones_have_replaced_it() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("d.jsonl");
        std::fs::write(&data, "{}\n").unwrap();
        let text = format!(
            "run: {{ name: t }}\nmodel: {{ config: {{ model_type: x }}, weights: random, tokenizer: org/name }}\n\
             data: {{ train: [{{ path: {} }}] }}\ntrain: {{ steps: 2, global_batch_size: 1, lr: 1.0 }}\n",
            data.display()
        );
        let config = load_text(&text).unwrap_or_else(|report| panic!("{report}")).config;
        let checkpoint = folder.path().join("step-00000001");
        std::fs::create_dir(&checkpoint).unwrap();
        let values = Tensor::from_slice(&[1f32, -2.0, 0.5]);
        let files = ["visual.weight", "model.weight"].into_iter().enumerate().map(|(index, name)| {
            let file = format!("model-{:05}-of-00002.safetensors", index + 1);
            write_tensor_file(&[(name.to_owned(), values.shallow_clone())], &[], checkpoint.as_path(), &file).unwrap()
        });
        let index = index_of(&files.collect::<Vec<_>>(), 24);
        std::fs::write(checkpoint.join(INDEX_FILE), index.to_string()).unwrap();
        let spec = ParamSpec::new("visual.weight", &[3], Init::Zeros).frozen();
        let specs = vec![spec.clone()];
        assert_eq!(Checkpoint::open_of(&checkpoint, &specs).unwrap().files().len(), 1, "the other file is closed");
        let of = |specs| StoredTowers::new(&config, Some(checkpoint.as_path()), specs).unwrap();
        let towers = of(specs);
        let reference = ParamSpec::new("reference.model.weight", &[3], Init::Zeros).frozen();
        assert!(of(vec![reference]).checkpoint.is_none(), "a checkpoint has no reference model");
        std::fs::remove_dir_all(&checkpoint).unwrap();
        assert_eq!(towers.value(&spec).unwrap(), values);
    }
}
