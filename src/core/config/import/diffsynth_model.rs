//! The models that DiffSynth-Studio's commands name, file by file, and the folders of the same in Diffusers' layout.

use serde_json::{Map, Value};

use super::sheet::Sheet;

/// Hub ids in the form that DiffSynth-Studio reads, and in Diffusers'. Qwen-Image's are the same.
const MODELS: [(&str, &str); 15] = [
    ("Wan-AI/Wan2.1-T2V-1.3B", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"),
    ("Wan-AI/Wan2.1-T2V-14B", "Wan-AI/Wan2.1-T2V-14B-Diffusers"),
    ("Wan-AI/Wan2.1-I2V-14B-480P", "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers"),
    ("Wan-AI/Wan2.1-I2V-14B-720P", "Wan-AI/Wan2.1-I2V-14B-720P-Diffusers"),
    ("Wan-AI/Wan2.1-FLF2V-14B-720P", "Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers"),
    ("Wan-AI/Wan2.2-T2V-A14B", "Wan-AI/Wan2.2-T2V-A14B-Diffusers"),
    ("Wan-AI/Wan2.2-I2V-A14B", "Wan-AI/Wan2.2-I2V-A14B-Diffusers"),
    ("Wan-AI/Wan2.2-TI2V-5B", "Wan-AI/Wan2.2-TI2V-5B-Diffusers"),
    ("Qwen/Qwen-Image-Edit-2511", "Qwen/Qwen-Image-Edit-2511"),
    ("Qwen/Qwen-Image-Edit-2509", "Qwen/Qwen-Image-Edit-2509"),
    ("Qwen/Qwen-Image-Edit", "Qwen/Qwen-Image-Edit"),
    ("Qwen/Qwen-Image-2512", "Qwen/Qwen-Image-2512"),
    ("Qwen/Qwen-Image", "Qwen/Qwen-Image"),
    // Qwen-Image-Edit-2509, trained on.
    ("FireRedTeam/FireRed-Image-Edit-1.1", "FireRedTeam/FireRed-Image-Edit-1.1"),
    ("FireRedTeam/FireRed-Image-Edit-1.0", "FireRedTeam/FireRed-Image-Edit-1.0"),
];

/// Parts of the names of files that are no transformer's.
const TOWERS: [&str; 6] = ["models_t5", "models_clip", "_vae", "vae/", "text_encoder/", "wav2vec"];

/// A model that is implemented here, by its transformer.
pub(super) struct Named {
    theirs: &'static str,
    /// Folder or hub id for `model.load`.
    pub load: String,
    /// `high` or `low`: one of two transformers.
    pub experts: Option<&'static str>,
    /// The command names files of this machine that are not read.
    pub is_local: bool,
}

impl Named {
    /// Returns the model with this hub id in the form that DiffSynth-Studio reads.
    pub fn known(id: &str) -> Option<Self> {
        let (theirs, ours) = MODELS.iter().find(|(theirs, _)| *theirs == id)?;
        Some(Self { theirs, load: (*ours).to_owned(), experts: None, is_local: true })
    }

    /// Sets the length of packs, and the memory of pixels on their way, so that one sample fits of each of these numbers of frames and
    /// pixels of a frame.
    pub fn packs(&self, sheet: &mut Sheet, sizes: &[(u64, u64)]) {
        let most = |of: fn(u64, u64) -> u64| {
            let all = sizes.iter().map(|(frames, pixels)| of(*frames, *pixels));
            all.max().unwrap_or(0)
        };
        let tokens = most(|frames, pixels| frames.div_ceil(4).saturating_mul(pixels)) / self.cell().pow(2);
        sheet.set("data.pack.max_tokens", tokens.saturating_mul(self.pictures()));
        // Pixels on their way to the autoencoder, in float32.
        let bytes = 12 * self.pictures() * if self.sees_frames() { 2 } else { 1 };
        let mib = most(u64::saturating_mul).saturating_mul(bytes).div_ceil(1 << 20);
        if mib > 64 {
            sheet.set("edges.pixels.credit", format!("{mib}MiB"));
        }
    }

    /// Returns whether it makes pictures.
    pub fn is_image(&self) -> bool {
        !self.theirs.starts_with("Wan-AI/")
    }

    /// Returns whether frames are conditions of it: twice as many pixels go to its autoencoder.
    pub fn sees_frames(&self) -> bool {
        self.theirs.contains("I2V-A14B") || self.theirs.contains("I2V-14B") || self.theirs.contains("FLF2V")
    }

    /// Returns whether the first frame may be given, by the visit.
    pub fn may_begin(&self) -> bool {
        self.theirs.contains("TI2V")
    }

    /// Pixels of a token's side.
    pub fn cell(&self) -> u64 {
        if self.may_begin() { 32 } else { 16 }
    }

    /// Pictures in a sample's sequence: the one that is made, and those that it is made from at most.
    pub fn pictures(&self) -> u64 {
        match self.theirs {
            "Qwen/Qwen-Image-Edit" => 2,
            theirs if theirs.contains("Edit") => 4,
            _ => 1,
        }
    }

    /// Returns the shift of the noise levels in training.
    pub fn shift(&self) -> f64 {
        if self.is_image() { f64::exp(0.8) } else { 5.0 }
    }
}

/// The transformer that a command names.
pub(super) enum Found {
    Known(Named),
    /// This hub id, which is none of those that are implemented.
    Other(String),
    /// Files of this machine, whose names do not tell.
    Nameless,
}

/// Finds the transformer among the files of a command; there may be none.
pub(super) fn find(fields: &Map<String, Value>) -> Option<Found> {
    let is_transformer = |file: &str| !TOWERS.iter().any(|part| file.to_lowercase().contains(part));
    let ids = fields.get("model_id_with_origin_paths").and_then(Value::as_str).unwrap_or_default();
    let is_known = |id: &str| MODELS.iter().find(|(theirs, _)| *theirs == id);
    let named = ids.split(',').map(str::trim).filter_map(|id| id.split_once(':'));
    let networks: Vec<(&str, &str)> = named.filter(|(_, file)| is_transformer(file)).collect();
    // A network beside the transformer, such as one that controls it, makes another model of it.
    if let Some((id, _)) = networks.iter().find(|(id, _)| is_known(id).is_none()) {
        return Some(Found::Other((*id).to_owned()));
    }
    let found = networks.into_iter().find_map(|(id, file)| Some((is_known(id)?, file)));
    if let Some(((theirs, ours), file)) = found {
        return Some(Found::Known(Named { theirs, load: (*ours).to_owned(), experts: experts(file), is_local: false }));
    }
    let paths = fields.get("model_paths")?;
    let list: Value = paths.as_str().map_or_else(|| Some(paths.clone()), |text| serde_json::from_str(text).ok())?;
    let mut files = Vec::new();
    texts(&list, &mut files);
    let file = files.iter().map(String::as_str).find(|file| is_transformer(file))?;
    let is_of = |theirs: &str| file.split('/').any(|part| part == theirs.rsplit('/').next().unwrap_or(theirs));
    Some(match MODELS.iter().find(|(theirs, _)| is_of(theirs)) {
        Some((theirs, ours)) => {
            let folder = file.split_once("/transformer/").map(|(folder, _)| folder.to_owned());
            let is_local = folder.is_none();
            Found::Known(Named {
                theirs,
                load: folder.unwrap_or_else(|| (*ours).to_owned()),
                experts: experts(file),
                is_local,
            })
        }
        None => Found::Nameless,
    })
}

/// Returns which of two transformers a file is, by its name.
pub(super) fn experts(file: &str) -> Option<&'static str> {
    let parts = [("high_noise", "high"), ("low_noise", "low")];
    parts.into_iter().find(|(part, _)| file.contains(part)).map(|(_, name)| name)
}

/// Collects the texts of lists within lists: files of one network may be several.
fn texts(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::String(text) => all.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|value| texts(value, all)),
        _ => {}
    }
}
