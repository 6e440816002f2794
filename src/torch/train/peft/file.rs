//! The adapters of a model's parameters in a file, and back.

use super::config::{AdapterConfig, AdapterFile, CONFIG, read_config};
use super::error::AdapterError;
use super::names::{PREFIX, file_names};
use crate::comm::Mesh;
use crate::native::NativeError;
use crate::nn::{LinearModule, ParamId, ParamSpec, ParamStore};
use crate::train::hf::{Target, TensorFile, WeightsError, write_plain_file, write_tensor_file};
use crate::train::shares::gather_whole;
use loongforge_core::message::SavedFile;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use tch::Tensor;

pub const TENSORS: &str = "adapter_model.safetensors";
/// Before the two names where another pool has adapters as well.
pub const ENCODER_PREFIX: &str = "encoder_";

/// The parameters of the adapters in `file` that stand beside some of `specs`, with their names there.
pub fn placed(specs: &[ParamSpec], config: &AdapterConfig, file: &TensorFile) -> Vec<(ParamSpec, String)> {
    let is_target = |path: &str| {
        let mut targets = config.target_parameters.iter();
        targets.any(|name| path.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
    };
    let mut modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
    modules.retain(|module| match module.stacked {
        Some(_) => is_target(&module.path),
        None => file.tensors().contains_key(&format!("{PREFIX}{}.lora_A.weight", module.path)),
    });
    let names = file_names(modules.iter().map(|module| (module.path.as_str(), module.stacked.is_some())));
    let named = |spec: ParamSpec| {
        let name = names[&spec.name].clone();
        (spec, name)
    };
    modules.iter().flat_map(|module| config.lora.specs(module)).map(named).collect()
}

/// The parameters with all of `specs` frozen, and those of the adapters in `folder` beside them.
///
/// # Errors
/// As [`read_adapter_config`], and where an adapter has no linear map to stand beside.
pub fn adapted(specs: Vec<ParamSpec>, folder: &Path) -> Result<Vec<ParamSpec>, AdapterError> {
    let (config, path) = (read_config(&folder.join(CONFIG))?, folder.join(TENSORS));
    let file = TensorFile::open(&path)?;
    let adapters = placed(&specs, &config, &file);
    expect_fit(&file, adapters.iter().map(|(spec, name)| (name, spec.whole_shape())))?;
    Ok(specs.into_iter().map(ParamSpec::frozen).chain(adapters.into_iter().map(|(spec, _)| spec)).collect())
}

/// Refuses a file that has other tensors than those `wanted`, or of other shapes: all differences.
pub fn expect_fit<'a>(
    file: &TensorFile,
    wanted: impl Iterator<Item = (&'a String, &'a [i64])>,
) -> Result<(), AdapterError> {
    let wanted: BTreeMap<&String, &[i64]> = wanted.collect();
    let mut problems = Vec::new();
    for (name, want) in &wanted {
        match file.tensors().get(*name).map(|info| &info.shape) {
            None => problems.push(format!("{name} is missing")),
            Some(shape) if shape != want => problems.push(format!("{name} is {shape:?} there and {want:?} here")),
            Some(_) => {}
        }
    }
    let extra = file.tensors().keys().filter(|name| !wanted.contains_key(name));
    problems.extend(extra.map(|name| format!("{name} has no place here")));
    if problems.is_empty() { Ok(()) } else { Err(AdapterError::Mismatch { path: file.path().to_owned(), problems }) }
}

/// Writes the adapters of `params` into `folder`.
///
/// # Errors
/// A file cannot be written.
pub fn save_adapter<'a>(
    params: &ParamStore,
    file: &AdapterFile,
    to: impl Into<Target<'a>>,
) -> Result<Vec<SavedFile>, AdapterError> {
    let names = names_in_file(params);
    let tensors = adapters(params).map(|(_, id)| (names[&params.spec(id).name].clone(), params.leaf(id).detach()));
    write_adapter(params, &tensors.collect::<Vec<_>>(), file, to.into())
}

/// As [`save_adapter`] from the parts that ranks hold, each of which calls it; one of them has the folder and writes.
///
/// # Errors
/// A file cannot be written, or a rank is gone.
pub fn save_adapter_among(
    params: &ParamStore,
    mesh: &Mesh,
    file: &AdapterFile,
    to: Option<Target<'_>>,
) -> Result<Vec<SavedFile>, AdapterError> {
    let names = names_in_file(params);
    let whole = |(_, id): (&str, ParamId)| {
        let spec = params.spec(id);
        Ok((names[&spec.name].clone(), gather_whole(spec, &params.leaf(id).detach(), mesh)?))
    };
    let tensors = adapters(params).map(whole).collect::<Result<Vec<_>, NativeError>>().map_err(WeightsError::from)?;
    to.map_or(Ok(Vec::new()), |to| write_adapter(params, &tensors, file, to))
}

fn write_adapter(
    params: &ParamStore,
    tensors: &[(String, Tensor)],
    file: &AdapterFile,
    to: Target<'_>,
) -> Result<Vec<SavedFile>, AdapterError> {
    let AdapterFile { config, base, prefix } = file;
    let paths = |stacked: bool| {
        let found = adapters(params).filter(|(path, _)| is_stacked(params, path) == stacked);
        let mut paths: Vec<&str> = found.map(|(path, _)| path).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    };
    let json = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.as_ref().map(|base| &base.name),
        "revision": base.as_ref().and_then(|base| base.revision.as_ref()),
        "r": config.r,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "use_rslora": config.use_rslora,
        "target_modules": paths(false),
        "target_parameters": paths(true),
        "exclude_modules": null,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": null,
    });
    let text = serde_json::to_string_pretty(&json).expect("JSON of plain values");
    let config = write_plain_file(text.as_bytes(), to, &format!("{prefix}{CONFIG}"))?;
    let mut file = write_tensor_file(tensors, &[("format", "pt")], to, &format!("{prefix}{TENSORS}"))?;
    // They are not the model's: the model's index does not list them.
    file.tensors.clear();
    Ok(vec![config, file])
}

/// Fills the adapters of `params` from `folder`. All or nothing.
///
/// # Errors
/// The file is torn, or it and the parameters do not have the same adapters: all differences.
pub fn load_adapter(params: &ParamStore, folder: &Path) -> Result<(), AdapterError> {
    let file = TensorFile::open(&folder.join(TENSORS))?;
    let names = names_in_file(params);
    let known: Vec<(String, ParamId)> =
        adapters(params).map(|(_, id)| (names[&params.spec(id).name].clone(), id)).collect();
    expect_fit(&file, known.iter().map(|(name, id)| (name, params.spec(*id).whole_shape())))?;
    for (name, id) in known {
        params.set_whole(id, &file.read(&name)?.expect("its shape was found"));
    }
    Ok(())
}

/// Whether `module` is a stack of maps: the path of its adapter is then the parameter's name.
fn is_stacked(params: &ParamStore, module: &str) -> bool {
    params.find(module).is_some()
}

/// PEFT's names of the adapters' parameters, by our own.
pub fn names_in_file(params: &ParamStore) -> BTreeMap<String, String> {
    file_names(adapters(params).map(|(path, _)| (path, is_stacked(params, path))))
}

/// Whether some of the parameters are adapters.
pub fn has_adapter(params: &ParamStore) -> bool {
    adapters(params).next().is_some()
}

/// The adapters' parameters, with the paths of the maps they stand beside.
pub fn adapters(params: &ParamStore) -> impl Iterator<Item = (&str, ParamId)> {
    params.ids().filter_map(|id| {
        let name = &params.spec(id).name;
        let module = name.strip_suffix(".lora_A.weight").or_else(|| name.strip_suffix(".lora_B.weight"))?;
        Some((module, id))
    })
}
