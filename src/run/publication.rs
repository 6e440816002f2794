//! The files of a run's checkpoints besides those of its engines, and the publication of checkpoints.

use crate::checkpoint::{put_use_peft, saved_config};
use crate::model::folder::ModelFolder;
use crate::run::packs::{PacksError, data_fingerprint};
use loongforge_actors::Publisher;
use loongforge_actors::checkpoint::{Publication, Uploader, publish};
use loongforge_core::config::{ModelKind, Precision, RunConfig};
use loongforge_core::data::{InProcess, ProcessorOptions, built_in};
use loongforge_core::message::SaveTo;
use loongforge_torch::engine::drops_carried_parts;
use serde_json::Value;
use std::sync::Arc;

/// Publishes checkpoints with what is the same for all of them, and has them copied into the store; of those in memory the newest
/// is kept.
pub fn publisher(publication: Publication, uploader: Option<Uploader>) -> Publisher {
    let in_memory = Publication { keep_last: 1, ..publication.clone() };
    Box::new(move |draft| {
        let with = if draft.to == SaveTo::Memory { &in_memory } else { &publication };
        let checkpoint = publish(draft, with)?;
        uploader.iter().filter(|_| draft.to != SaveTo::Memory).for_each(|uploader| uploader.add(&checkpoint));
        Ok(checkpoint)
    })
}

/// Returns a precision as a config and a manifest write it.
pub(crate) fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Float32 => "float32",
        Precision::Bf16 => "bf16",
    }
}

/// Returns a precision as a `config.json` writes it.
fn dtype_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Float32 => "float32",
        Precision::Bf16 => "bfloat16",
    }
}

/// Returns the files of every checkpoint of a run besides those of its engines.
///
/// # Errors
/// The files of the data, or the statistics of a robot policy's data, cannot be read.
pub fn publication(config: &RunConfig, composed: Value, folder: &ModelFolder) -> Result<Publication, PacksError> {
    let parts = folder.config.carried;
    let mut model_config = saved_config(&folder.json, Some(dtype_name(config.train.precision)), parts.prefixes);
    if let Some(flag) = parts.flag
        && drops_carried_parts(config, &folder.config)
        && !config.saves_adapters_only()
    {
        model_config[flag] = false.into();
    }
    let mut processor = Vec::new();
    if folder.model_kind() == ModelKind::Policy {
        let maker = folder.maker(&ProcessorOptions::of_run(config, &config.data), Arc::new(InProcess))?;
        if let Some(policy) = maker.as_policy() {
            policy.put_features(&mut model_config);
            if config.saves_adapters_only() {
                put_use_peft(&mut model_config, true);
            }
            processor = policy.files();
        }
    }
    Ok(Publication {
        model_dir: folder.path.clone(),
        media_dir: (folder.media_path != folder.path).then(|| folder.media_path.clone()),
        text_tokenizer: folder.text_tokenizer.clone(),
        model_config,
        chat_template: built_in(config.data.template).map(str::to_owned),
        processor,
        config: composed,
        precision: precision_name(config.train.precision).to_owned(),
        data: Some(data_fingerprint(config, folder)?),
        keep_last: config.checkpoint.keep_last,
    })
}
