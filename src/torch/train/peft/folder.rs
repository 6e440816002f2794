//! A folder of PEFT's: which of a model's parameters its tensors belong to, and what they hold for them.

use super::averages::{Averages, parameter_of};
use super::config::{AdapterConfig, CONFIG, read_adapter_config, understand};
use super::error::AdapterError;
use super::files::Files;
use super::forms::{self, DIFFUSERS_LORA_FILE, METADATA, Written};
use super::keys::{ALPHA, Keys};
use super::names::{AdapterPlace, PREFIX, places};
use super::whole::{WholePiece, whole_pieces};
use crate::model::TreeNames;
use crate::params::{ADAPTER_PARTS, LinearModule, LoraConfig, ParamSpec};
use crate::train::hf::{ADAPTER_FILE, TensorFile, TensorInfo};
use loongforge_core::config::{is_low_noise_file, lora_files_of_two};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use tch::{Kind, Tensor};

/// The reason why a head has no tensor of its own.
const TIED: &str = "the model's head is its embedding (tie_word_embeddings)";

/// A folder of PEFT's, or a file of adapters in another form.
pub struct AdapterFolder {
    pub config: AdapterConfig,
    files: Files,
    /// Taken in place of what the file holds.
    averages: Option<Averages>,
    keys: Keys,
    /// Maps without alphas of their own have that of the config; else their rank.
    has_settings: bool,
}

/// An adapter of a folder.
pub struct Found {
    pub module: LinearModule,
    /// The settings of the adapter of the whole map.
    pub lora: LoraConfig,
    /// The places of its parts, of which some may not be in the file.
    places: Vec<(AdapterPlace, LoraConfig)>,
}

/// A parameter that a folder holds itself (`modules_to_save`).
pub struct FoundWhole {
    /// Our own.
    pub name: String,
    pieces: Vec<WholePiece>,
}

/// The adapters and parameters of a folder that belong to some parameters.
#[derive(Default)]
pub struct Contents {
    pub adapters: Vec<Found>,
    pub whole: Vec<FoundWhole>,
    /// The names of their tensors.
    pub tensors: BTreeSet<String>,
    /// The prefix of the names of tensors of a head that the model has in its embedding.
    tied_head: Option<String>,
}

impl AdapterFolder {
    /// Opens a folder of PEFT's, the folder of an adapter that Diffusers has saved, one file, or a folder with a file for each of
    /// two transformers. One file whose name ends with `_low_noise.safetensors` has adapters of that for low noise.
    ///
    /// # Errors
    /// Fails as [`read_adapter_config`] does, and where the file of tensors is missing or torn.
    pub fn open(path: &Path) -> Result<Self, AdapterError> {
        if path.is_file() {
            return Self::open_file(path);
        }
        let file = path.join(DIFFUSERS_LORA_FILE);
        if file.is_file() && !path.join(CONFIG).is_file() {
            return Self::open_file(&file);
        }
        if let Some([high, low]) = lora_files_of_two(path).filter(|_| !path.join(CONFIG).is_file()) {
            return Self::of_files(&high, Files::two(TensorFile::open(&high)?, TensorFile::open(&low)?));
        }
        let config = read_adapter_config(path)?;
        let files = Files::one(TensorFile::open(&path.join(ADAPTER_FILE))?);
        Ok(Self { config, files, averages: None, keys: Keys::default(), has_settings: true })
    }

    /// Returns the same folder with the averages of `train.ema` that the checkpoint `folder` has in place of the adapters.
    ///
    /// # Errors
    /// The checkpoint has none, or a file is torn.
    pub fn with_averages(self, folder: &Path) -> Result<Self, AdapterError> {
        Ok(Self { averages: Some(Averages::open(folder)?), ..self })
    }

    fn open_file(path: &Path) -> Result<Self, AdapterError> {
        let file = TensorFile::open(path)?;
        Self::of_files(path, if is_low_noise_file(path) { Files::second(file) } else { Files::one(file) })
    }

    fn of_files(path: &Path, files: Files) -> Result<Self, AdapterError> {
        let wrong = |problem| AdapterError::Mismatch { path: path.to_owned(), problems: vec![problem] };
        let keys = Keys::of(files.names()).map_err(wrong)?;
        let note = forms::settings_of(&files.notes(METADATA)).map_err(wrong)?;
        let has = |end: &str| files.names().any(|name| name.ends_with(end));
        let settings = note.clone().unwrap_or_else(|| json!({"r": 1, "use_dora": has(ADAPTER_PARTS[2])}));
        let config = understand(path, &settings)?;
        Ok(Self { config, files, averages: None, keys, has_settings: note.is_some() })
    }

    fn info(&self, name: &str) -> Option<(&str, &TensorInfo)> {
        self.files.info(self.keys.find(name)?)
    }

    fn has(&self, name: &str) -> bool {
        self.info(name).is_some()
    }

    /// Returns the settings of the map at `path`, whose adapter has rank `r`; `at` is what the names of its tensors begin with.
    fn lora_of(&self, at: &str, path: &str, r: i64, used: &mut BTreeSet<String>) -> Result<LoraConfig, AdapterError> {
        let alpha = format!("{at}{ALPHA}");
        if let Some((name, _)) = self.info(&alpha).filter(|_| self.keys.have_alphas()) {
            used.insert(name.to_owned());
            let value = self.read(&alpha)?.to_kind(Kind::Double);
            if value.numel() != 1 {
                return Err(
                    self.mismatch(vec![format!("{name} has the shape {:?}, but must be one number", value.size())])
                );
            }
            let scale = value.sum(Kind::Double).double_value(&[]) / r as f64;
            return Ok(LoraConfig { r, ..self.config.lora.clone() }.with_scale(scale));
        }
        match self.has_settings {
            true => self.config.lora_of(path, r),
            false => Ok(LoraConfig { r, ..self.config.lora.clone() }.with_scale(1.0)),
        }
    }

    /// Returns the adapters of all maps, by PEFT's paths.
    ///
    /// # Errors
    /// The file holds something else, which only folders of PEFT's can hold.
    pub(super) fn maps(&self) -> Result<Vec<Written>, AdapterError> {
        let (mut used, mut maps) = (BTreeSet::new(), Vec::new());
        for path in self.paths()? {
            let at = format!("{PREFIX}{path}");
            let [a, b] = [0, 1].map(|part| format!("{at}{}", ADAPTER_PARTS[part]));
            for name in [&a, &b] {
                let (name, _) = self.info(name).ok_or_else(|| self.mismatch(vec![format!("{name} is missing")]))?;
                used.insert(name.to_owned());
            }
            let (a, b) = (self.read(&a)?, self.read(&b)?);
            let (down, up) = (a.size(), b.size());
            // Convolutions have more sizes behind these two.
            let rank = down.first().copied().unwrap_or(0);
            if rank == 0 || down.len() < 2 || up.get(1) != Some(&rank) {
                return Err(
                    self.mismatch(vec![format!("{path}: A is {down:?} and B {up:?}, which do not fit together")])
                );
            }
            let scale = self.lora_of(&at, &path, rank, &mut used)?.scale();
            maps.push(Written { path, a, b, scale });
        }
        let extra = self.files.names().filter(|name| !used.contains(*name));
        let problems: Vec<String> = extra
            .map(|name| format!("{name} is not the A or B of an adapter: only a PEFT folder can hold it"))
            .collect();
        if problems.is_empty() { Ok(maps) } else { Err(self.mismatch(problems)) }
    }

    /// Returns PEFT's paths of the maps that have adapters.
    fn paths(&self) -> Result<Vec<String>, AdapterError> {
        if !self.config.target_parameters.is_empty() {
            return Err(self.mismatch(vec!["it has adapters of stacked parameters".to_owned()]));
        }
        let names: Vec<&str> = self.keys.names().unwrap_or_else(|| self.files.names().map(String::as_str).collect());
        if names.is_empty() {
            return Err(self
                .mismatch(vec!["it has no usable names: convert the file that it was made from instead".to_owned()]));
        }
        Ok(names.into_iter().filter_map(forms::path_of).map(str::to_owned).collect())
    }

    /// Returns the adapters of the folder that belong to these parameters, whole or parts of ranks.
    ///
    /// # Errors
    /// Tensors are missing or of other shapes: all of them.
    pub fn contents(&self, specs: &[ParamSpec], tree: &TreeNames) -> Result<Contents, AdapterError> {
        let mut modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
        modules.retain(|module| module.stacked.is_none() || self.config.is_target_parameter(&tree.name(&module.path)));
        let places = places(&modules, tree);
        let tied_head = tree.tied_module().map(|head| format!("{PREFIX}{head}."));
        let (mut found, mut problems) = (Contents { tied_head, ..Contents::default() }, Vec::new());
        for module in modules {
            let there = |place: &&AdapterPlace| self.has(&place.tensor(ADAPTER_PARTS[0])) || module.stacked.is_some();
            // transformers 4 had other modules, whose names are those of the weights: PEFT reads such files as well.
            let old =
                AdapterPlace { in_file: format!("{PREFIX}{}", module.path), path: module.path.clone(), rows: None };
            let mut held: Vec<AdapterPlace> = places[&module.path].iter().filter(there).cloned().collect();
            if held.is_empty() && there(&&old) {
                held.push(old);
            }
            if held.is_empty() {
                continue;
            }
            let mut parts = Vec::new();
            for place in held {
                parts.extend(self.part(place, &module, &mut found.tensors, &mut problems)?);
            }
            if let Some((_, first)) = parts.first() {
                let r = self.rank(&parts)?;
                let whole = LoraConfig { r, ..first.clone() };
                let lora = if r == first.r { whole } else { whole.with_scale(first.scale()) };
                found.adapters.push(Found { module, lora, places: parts });
            }
        }
        for spec in specs {
            let pieces = whole_pieces(spec, tree);
            let held = pieces.iter().filter(|piece| self.has(&piece.in_file)).count();
            if held == 0 {
                continue;
            }
            let is_tied = pieces.iter().any(|piece| piece.is_tied_head);
            for piece in &pieces {
                let name = &piece.in_file;
                match is_tied && !self.has(name) {
                    true => problems.push(format!("{name} is missing: {TIED}, and a file must hold both")),
                    false => self.expect(name, &piece.shape, &mut found.tensors, &mut problems),
                }
            }
            found.whole.push(FoundWhole { name: spec.name.clone(), pieces });
        }
        if problems.is_empty() { Ok(found) } else { Err(self.mismatch(problems)) }
    }

    /// Returns the part of a map's adapter that is at `place`, where its tensors are as they must be.
    fn part(
        &self,
        place: AdapterPlace,
        module: &LinearModule,
        used: &mut BTreeSet<String>,
        problems: &mut Vec<String>,
    ) -> Result<Option<(AdapterPlace, LoraConfig)>, AdapterError> {
        let stack = module.whole_stack();
        let [a, b, magnitude] = ADAPTER_PARTS.map(|part| place.tensor(part));
        let Some((_, info)) = self.info(&a) else {
            problems.push(format!("{a} is missing"));
            return Ok(None);
        };
        let shape = info.shape.clone();
        let rows = shape.first().copied().unwrap_or(0);
        let outputs = place.rows.as_ref().map_or(module.whole_outputs(), |rows| rows.len() as i64);
        if rows == 0 || rows % stack != 0 {
            problems.push(format!("{a} is {shape:?}, which is not a whole number of rows for each of {stack} experts"));
            return Ok(None);
        }
        self.expect(&a, &[rows, module.whole_inputs()], used, problems);
        self.expect(&b, &[outputs, rows], used, problems);
        if self.config.lora.use_dora {
            self.expect(&magnitude, &[outputs], used, problems);
        }
        let by_parameter = format!("{}.weight", place.path);
        let path = if self.config.is_target_parameter(&by_parameter) { &by_parameter } else { &place.path };
        let lora = self.lora_of(&place.in_file, path, rows / stack, used)?;
        Ok(Some((place, lora)))
    }

    fn expect(&self, name: &str, want: &[i64], used: &mut BTreeSet<String>, problems: &mut Vec<String>) {
        match self.info(name).map(|(name, info)| (name, &info.shape)) {
            None => problems.push(format!("{name} is missing")),
            Some((name, shape)) if shape != want => problems.push(format!("{name}: adapter {shape:?}, model {want:?}")),
            Some((name, _)) => {
                used.insert(name.to_owned());
            }
        }
    }

    /// Returns the path of its first file.
    pub(super) fn first_file(&self) -> &Path {
        self.files.path()
    }

    /// Makes the error of tensors that do not fit the model.
    pub(super) fn mismatch(&self, problems: Vec<String>) -> AdapterError {
        AdapterError::Mismatch { path: self.files.path().to_owned(), problems }
    }

    /// Refuses tensors that belong to none of `contents`.
    ///
    /// # Errors
    /// There are such tensors: the error names all of them.
    pub fn expect_all<'a>(&self, contents: impl IntoIterator<Item = &'a Contents>) -> Result<(), AdapterError> {
        let (mut used, mut tied): (BTreeSet<&String>, Option<&str>) = (BTreeSet::new(), None);
        for contents in contents {
            used.extend(&contents.tensors);
            tied = tied.or(contents.tied_head.as_deref());
        }
        let problem = |name: &String| match tied.is_some_and(|head| name.starts_with(head)) {
            true => format!("{name} matches no parameter: {TIED}, and adapters of the head alone have no place"),
            false => format!("{name} matches no parameter"),
        };
        let extra = self.files.names().filter(|name| !used.contains(name));
        let problems: Vec<String> = extra.map(problem).collect();
        if problems.is_empty() { Ok(()) } else { Err(self.mismatch(problems)) }
    }

    /// Returns whether every tensor belongs to `contents`.
    pub fn is_all(&self, contents: &Contents) -> bool {
        contents.tensors.len() == self.files.num_tensors()
    }

    /// Returns the rank of the adapter of a whole map from those of its parts: parts with the same A are one.
    fn rank(&self, parts: &[(AdapterPlace, LoraConfig)]) -> Result<i64, AdapterError> {
        Ok(if self.is_one(parts)? { parts[0].1.r } else { parts.iter().map(|(_, lora)| lora.r).sum() })
    }

    fn is_one(&self, parts: &[(AdapterPlace, LoraConfig)]) -> Result<bool, AdapterError> {
        if parts.len() == 1 {
            return Ok(true);
        }
        let first = self.read(&parts[0].0.tensor(ADAPTER_PARTS[0]))?;
        for (place, lora) in &parts[1..] {
            if lora.r != parts[0].1.r || self.read(&place.tensor(ADAPTER_PARTS[0]))? != first {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read(&self, name: &str) -> Result<Tensor, AdapterError> {
        let in_file = self.keys.find(name).expect("its shape was found");
        let own = self.files.read(in_file)?.expect("its shape was found");
        match &self.averages {
            Some(averages) => averages.of_trained(&parameter_of(name), &own),
            None => Ok(own),
        }
    }

    /// Returns `lora_A` `[r, in]` and `lora_B` `[out, r]` of the whole map, and with DoRA the norms `[out]` of its rows; of a stack of E
    /// maps `[E·r, in]` and `[out, r·E]`.
    ///
    /// # Errors
    /// A file cannot be read, or has norms of some of a map's rows only.
    pub fn tensors_of(&self, found: &Found) -> Result<Vec<Tensor>, AdapterError> {
        let Found { module, lora, places } = found;
        if let [(place, _)] = places.as_slice()
            && place.rows.is_none()
        {
            let num_parts = if lora.use_dora { 3 } else { 2 };
            return ADAPTER_PARTS[..num_parts].iter().map(|part| self.read(&place.tensor(part))).collect();
        }
        let one = self.is_one(places)?;
        let (outputs, like) = (module.whole_outputs(), self.read(&places[0].0.tensor(ADAPTER_PARTS[0]))?);
        let options = (like.kind(), like.device());
        let (b, magnitude) = (Tensor::zeros([outputs, lora.r], options), Tensor::zeros([outputs], options));
        let (mut all_a, mut at, mut num_rows) = (Vec::new(), 0, 0);
        for (place, part) in places {
            let rows = Tensor::from_slice(place.rows.as_deref().expect("a part of a map tells its rows"));
            let part_b = self.read(&place.tensor(ADAPTER_PARTS[1]))? * (part.scale() / lora.scale());
            let _ = b.narrow(1, at, part.r).index_copy_(0, &rows, &part_b);
            if lora.use_dora {
                let _ = magnitude.shallow_clone().index_copy_(0, &rows, &self.read(&place.tensor(ADAPTER_PARTS[2]))?);
            }
            if !one || all_a.is_empty() {
                all_a.push(self.read(&place.tensor(ADAPTER_PARTS[0]))?);
            }
            at += if one { 0 } else { part.r };
            num_rows += rows.numel() as i64;
        }
        if lora.use_dora && num_rows < outputs {
            let what = format!(
                "{} is a single linear layer here, and some of its rows have no norms in the file",
                module.path
            );
            return Err(self.mismatch(vec![what]));
        }
        let mut tensors = vec![Tensor::cat(&all_a, 0), b];
        tensors.extend(lora.use_dora.then_some(magnitude));
        Ok(tensors)
    }

    /// Returns a parameter that the folder holds itself, in its whole shape `[…]`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn whole(&self, found: &FoundWhole, shape: &[i64]) -> Result<Tensor, AdapterError> {
        let whole = Tensor::zeros(shape, (Kind::Float, tch::Device::Cpu));
        for piece in &found.pieces {
            let tensor = self.read(&piece.in_file)?;
            if piece.is_tied_head && whole != tensor.to_kind(Kind::Float) {
                let what = format!("{} differs from the embedding in the file: {TIED}", piece.in_file);
                return Err(self.mismatch(vec![what]));
            }
            piece.put(&whole, &tensor);
        }
        Ok(whole)
    }
}
