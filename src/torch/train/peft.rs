//! Adapters in and out in PEFT's format: `adapter_config.json` beside `adapter_model.safetensors`, whose names are told in
//! `peft_names.rs`.

use super::hf::{Target, TensorFile, TensorFileError, WeightsError, load_weights, write_plain_file, write_tensor_file};
use super::peft_names::{PREFIX, file_names};
use super::shares::gather_whole;
use crate::comm::Mesh;
use crate::native::NativeError;
use crate::nn::moe::stacked_product;
use crate::nn::{LinearModule, LoraConfig, ParamId, ParamSpec, ParamStore};
use loongforge_core::message::SavedFile;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const TENSORS: &str = "adapter_model.safetensors";
/// Before the two names where another pool has adapters as well.
pub const ENCODER_PREFIX: &str = "encoder_";

#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error(transparent)]
    File(#[from] TensorFileError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not the config of a LoRA adapter: {reason}")]
    Config { path: PathBuf, reason: String },
    #[error("{path} and this run's lora do not fit: {}", problems.join("; "))]
    Mismatch { path: PathBuf, problems: Vec<String> },
}

/// Reads what an adapter's folder says of it. Which modules it adapts its tensors tell.
///
/// # Errors
/// The file is missing, of another method than LoRA, or asks for what is not implemented.
pub fn read_adapter_config(folder: &Path) -> Result<LoraConfig, AdapterError> {
    Ok(read_config(&folder.join(CONFIG))?.lora)
}

/// What `adapter_config.json` says that matters here.
pub(super) struct AdapterConfig {
    pub lora: LoraConfig,
    /// Names or endings of the stacked parameters that have adapters.
    target_parameters: Vec<String>,
}

fn read_json(path: &Path) -> Result<Value, AdapterError> {
    let text = std::fs::read_to_string(path).map_err(|source| AdapterError::Io { path: path.to_owned(), source })?;
    let wrong = |error: serde_json::Error| AdapterError::Config { path: path.to_owned(), reason: error.to_string() };
    serde_json::from_str(&text).map_err(wrong)
}

pub(super) fn read_config(path: &Path) -> Result<AdapterConfig, AdapterError> {
    let json = read_json(path)?;
    let wrong = |reason: String| AdapterError::Config { path: path.to_owned(), reason };
    if json["peft_type"] != "LORA" {
        return Err(wrong(format!("peft_type is {}", json["peft_type"])));
    }
    let is_unset = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    for key in [
        "use_dora",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "layers_to_transform",
        "layer_replication",
        "fan_in_fan_out",
        "lora_bias",
    ] {
        if !is_unset(&json[key]) {
            return Err(wrong(format!("{key} is {}, which is not implemented", json[key])));
        }
    }
    if json["bias"].as_str().is_some_and(|bias| bias != "none") {
        return Err(wrong(format!("bias is {}; supported: \"none\"", json["bias"])));
    }
    let r = json["r"].as_i64().filter(|r| *r > 0).ok_or_else(|| wrong("r is not a positive integer".into()))?;
    let parameters = json["target_parameters"].as_array().into_iter().flatten();
    Ok(AdapterConfig {
        lora: LoraConfig {
            r,
            alpha: json["lora_alpha"].as_f64().unwrap_or(8.0),
            dropout: json["lora_dropout"].as_f64().unwrap_or(0.0),
            use_rslora: json["use_rslora"].as_bool().unwrap_or(false),
        },
        target_parameters: parameters.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
    })
}

/// The parameters of the adapters in `file` that stand beside some of `specs`, with their names there.
pub(super) fn placed(specs: &[ParamSpec], config: &AdapterConfig, file: &TensorFile) -> Vec<(ParamSpec, String)> {
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
    let (adapters, names): (Vec<_>, Vec<_>) = placed(&specs, &config, &file).into_iter().unzip();
    let extra = file.tensors().keys().filter(|name| !names.contains(*name));
    let problems: Vec<String> = extra.map(|name| format!("{name} has no place here")).collect();
    if !problems.is_empty() {
        return Err(AdapterError::Mismatch { path, problems });
    }
    Ok(specs.into_iter().map(ParamSpec::frozen).chain(adapters).collect())
}

/// Where the base of adapters is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterBase {
    /// A folder, or an id of the hub.
    pub name: String,
    /// Of the hub's.
    pub revision: Option<String>,
}

impl AdapterBase {
    /// Of what was loaded: a folder of the hub's cache is told by its id, as other machines know it.
    pub fn of(folder: &str) -> Self {
        let mut parts = Path::new(folder).iter().rev().map(|part| part.to_str().unwrap_or_default());
        let [commit, snapshots, repo] = [(); 3].map(|()| parts.next().unwrap_or_default());
        match repo.strip_prefix("models--") {
            Some(id) if snapshots == "snapshots" => {
                Self { name: id.replacen("--", "/", 1), revision: Some(commit.to_owned()) }
            }
            _ => Self { name: folder.to_owned(), revision: None },
        }
    }
}

/// What an adapter's files say beside its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    pub config: LoraConfig,
    /// `None` where nothing was loaded.
    pub base: Option<AdapterBase>,
    /// Before PEFT's names of the two files, where another pool writes those.
    pub prefix: &'static str,
}

/// Parameters of `base` with those adapters of `folder` added, in float32, that stand beside some of them.
///
/// # Errors
/// As [`read_adapter_config`] and [`load_weights`].
pub fn load_merged(
    specs: Vec<ParamSpec>,
    base: &Path,
    folder: &Path,
    kind: Kind,
    device: Device,
) -> Result<ParamStore, AdapterError> {
    let (mut all, mut values) = (specs.clone(), Vec::new());
    for prefix in ["", ENCODER_PREFIX] {
        let (config, path) = (folder.join(format!("{prefix}{CONFIG}")), folder.join(format!("{prefix}{TENSORS}")));
        if !config.is_file() {
            continue;
        }
        let (config, file) = (read_config(&config)?, TensorFile::open(&path)?);
        for (spec, name) in placed(&specs, &config, &file) {
            let problems = vec![format!("{name} is missing")];
            let value = file.read(&name)?.ok_or(AdapterError::Mismatch { path: path.clone(), problems })?;
            values.push((spec.name.clone(), value));
            all.push(spec);
        }
    }
    let params = ParamStore::new(all, kind, device);
    load_weights(&params, base)?;
    values.iter().for_each(|(name, value)| params.set(params.id(name), value));
    merge_adapter(&params);
    Ok(params)
}

/// What the adapters in `folder` say that their base is, a folder or `org/name@revision`; `None` where they do not say.
///
/// # Errors
/// Their config cannot be read.
pub fn adapter_base(folder: &Path) -> Result<Option<String>, AdapterError> {
    let json = read_json(&folder.join(CONFIG))?;
    let name = json["base_model_name_or_path"].as_str().filter(|name| !name.is_empty());
    Ok(name.map(|name| match json["revision"].as_str() {
        Some(revision) => format!("{name}@{revision}"),
        None => name.to_owned(),
    }))
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
pub(super) fn save_adapter_among(
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
    let path = folder.join(TENSORS);
    let file = TensorFile::open(&path)?;
    let mut problems = Vec::new();
    let names = names_in_file(params);
    let known: Vec<(String, ParamId)> =
        adapters(params).map(|(_, id)| (names[&params.spec(id).name].clone(), id)).collect();
    for (name, id) in &known {
        let want = params.spec(*id).whole_shape();
        match file.tensors().get(name).map(|info| &info.shape) {
            None => problems.push(format!("{name} is missing")),
            Some(shape) if shape != want => problems.push(format!("{name} is {shape:?} there and {want:?} here")),
            Some(_) => {}
        }
    }
    let extra = file.tensors().keys().filter(|name| !known.iter().any(|(known, _)| known == *name));
    problems.extend(extra.map(|name| format!("{name} has no place here")));
    if !problems.is_empty() {
        return Err(AdapterError::Mismatch { path, problems });
    }
    for (name, id) in known {
        params.set_whole(id, &file.read(&name)?.expect("its shape was found"));
    }
    Ok(())
}

/// Adds the adapters' products to their base and sets the adapters to nothing.
pub fn merge_adapter(params: &ParamStore) {
    let _no_grad = tch::no_grad_guard();
    for (module, id) in adapters(params).filter(|(_, id)| params.spec(*id).adapter.is_some()) {
        let base = base(params, module);
        params.set(base, &merged(params, base));
        let b = params.find(&params.spec(id).name.replace(".lora_A.", ".lora_B.")).expect("adapters come in twos");
        let _ = params.leaf(b).detach().zero_();
    }
}

/// A parameter with the product of its adapter added, in float32, where it has one; else as it is.
pub(super) fn merged(params: &ParamStore, id: ParamId) -> Tensor {
    let (value, spec) = (params.leaf(id).detach(), params.spec(id));
    let Some(module) = LinearModule::of(spec) else { return value };
    let Some(a) = params.find(&format!("{}.lora_A.weight", module.path)) else { return value };
    let _no_grad = tch::no_grad_guard();
    let float = |id| params.leaf(id).detach().to_kind(Kind::Float);
    let b = params.id(&format!("{}.lora_B.weight", module.path));
    let product = match module.stacked {
        Some(_) => stacked_product(&float(a), &float(b), spec),
        None => float(b).matmul(&float(a)),
    };
    let scale = params.spec(a).adapter.expect("an adapter's first parameter tells its scale").scale;
    (float(id) + product * scale).to_kind(value.kind())
}

/// The parameter that the adapter of `module` stands beside.
fn base(params: &ParamStore, module: &str) -> ParamId {
    params.find(module).unwrap_or_else(|| params.id(&format!("{module}.weight")))
}

/// Whether `module` is a stack of maps: the path of its adapter is then the parameter's name.
fn is_stacked(params: &ParamStore, module: &str) -> bool {
    params.find(module).is_some()
}

/// PEFT's names of the adapters' parameters, by our own.
pub(super) fn names_in_file(params: &ParamStore) -> BTreeMap<String, String> {
    file_names(adapters(params).map(|(path, _)| (path, is_stacked(params, path))))
}

/// Whether some of the parameters are adapters.
pub fn has_adapter(params: &ParamStore) -> bool {
    adapters(params).next().is_some()
}

/// The adapters' parameters, with the paths of the maps they stand beside.
fn adapters(params: &ParamStore) -> impl Iterator<Item = (&str, ParamId)> {
    params.ids().filter_map(|id| {
        let name = &params.spec(id).name;
        let module = name.strip_suffix(".lora_A.weight").or_else(|| name.strip_suffix(".lora_B.weight"))?;
        Some((module, id))
    })
}

#[cfg(test)]
mod tests {
    use super::{
        AdapterBase, AdapterError, AdapterFile, adapter_base, load_adapter, merge_adapter, read_adapter_config,
        save_adapter,
    };
    use crate::nn::{Linear, LinearModule, LoraConfig, ParamStore, Scope};
    use tch::{Device, Kind, Tensor};

    fn config(r: i64) -> LoraConfig {
        LoraConfig { r, alpha: 4.0, dropout: 0.1, use_rslora: true }
    }

    fn store(config: &LoraConfig, seed: u64) -> ParamStore {
        let mut specs = Linear::specs("model.", "up_proj", 5, 7, true, 0.5);
        specs.extend(config.specs(&LinearModule::of(&specs[0]).unwrap()));
        let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
        params.init_random(seed);
        let b = params.id("model.up_proj.lora_B.weight");
        tch::manual_seed(seed as i64);
        params.set(b, &Tensor::randn([7, config.r], (Kind::Float, Device::Cpu)));
        params
    }

    #[test]
    fn an_adapter_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let (saved, other) = (store(&config(2), 1), store(&config(2), 2));
        let file = AdapterFile {
            config: config(2),
            base: Some(AdapterBase::of("hub/models--org--base/snapshots/1f")),
            prefix: "",
        };
        save_adapter(&saved, &file, dir.path()).unwrap();
        assert_eq!(adapter_base(dir.path()).unwrap().as_deref(), Some("org/base@1f"));
        assert_eq!(AdapterBase::of("runs/models--x"), AdapterBase { name: "runs/models--x".into(), revision: None });
        let read = read_adapter_config(dir.path()).unwrap();
        assert_eq!(read, config(2));
        load_adapter(&other, dir.path()).unwrap();
        for name in ["lora_A", "lora_B"] {
            let name = format!("model.up_proj.{name}.weight");
            assert_eq!(saved.get(&name), other.get(&name));
        }
        let error = load_adapter(&store(&config(3), 1), dir.path()).unwrap_err();
        assert!(matches!(&error, AdapterError::Mismatch { problems, .. } if problems.len() == 2), "{error}");
    }

    #[test]
    fn a_merged_model_computes_the_same() {
        let params = store(&config(2), 3);
        let linear = Linear::new(&Scope::new(&params, "model."), "up_proj");
        let x = Tensor::randn([4, 5], (Kind::Float, Device::Cpu));
        let before = linear.forward(&x);
        merge_adapter(&params);
        assert!(linear.forward(&x).allclose(&before, 1e-5, 1e-5, false));
        let bias = Some(params.get("model.up_proj.bias"));
        assert!(x.linear(&params.get("model.up_proj.weight"), bias).allclose(&before, 1e-5, 1e-5, false));
    }

    #[test]
    fn what_is_not_implemented_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(dir.path().join("adapter_config.json"), text).unwrap();
        for (text, expected) in [
            (r#"{"peft_type": "IA3"}"#, "peft_type is \"IA3\""),
            (r#"{"peft_type": "LORA", "r": 4, "target_modules": ["q"], "use_dora": true}"#, "use_dora is true"),
            (r#"{"peft_type": "LORA", "r": 0, "target_modules": ["q"]}"#, "r is not a positive integer"),
        ] {
            write(text);
            let message = read_adapter_config(dir.path()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
