//! Families that a program brings itself: encoders, foundations and makers of samples, by the names that configs have for them.

use loongforge_core::data::{AudioFamily, OpenMaker, Opened, OwnTower, VisionCut, register_makers, register_towers};
use loongforge_torch::model::{
    EncoderFamily, EncoderPart, FoundationFamily, FoundationPart, OwnFamilies, ReadEncoder, ReadFoundation,
    register_families,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The families that a program adds to the built-in ones. `loongforge::cli::main_with` runs the whole command line with them, in every
/// process of a run.
///
/// ```
/// use loongforge::compose::Families;
///
/// let mine = Families::new().sample_maker("mine", |_config, built_in| built_in());
/// let twice = mine.sample_maker("mine", |_config, built_in| built_in());
/// assert_eq!(twice.register(), Err("`mine` is registered twice".to_owned()));
/// ```
#[derive(Default)]
pub struct Families {
    towers: Vec<(String, OwnTower)>,
    models: OwnFamilies,
    makers: BTreeMap<String, Box<OpenMaker>>,
    twice: Option<String>,
}

impl Families {
    /// Returns an empty set of families.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an encoder of pictures and videos: `read` makes it where `model.image_encoder.config.model_type` is `name`. Its patches are
    /// cut as `cut` says, and of each item it must make as many features as that has places for.
    pub fn image_encoder<E: EncoderFamily + 'static>(
        mut self,
        name: &str,
        cut: VisionCut,
        read: impl Fn(EncoderPart<'_>) -> Result<E, String> + Send + Sync + 'static,
    ) -> Self {
        self.towers.push((name.to_owned(), OwnTower::Sees(cut)));
        self.add(name, |models| &mut models.image_encoders, encoder(read))
    }

    /// Adds an encoder of sound: `read` makes it where `model.audio_encoder.config.model_type` is `name`. It is given frames as `frames`
    /// says, and of each recording it must make as many features as that has places for.
    pub fn audio_encoder<E: EncoderFamily + 'static>(
        mut self,
        name: &str,
        frames: AudioFamily,
        read: impl Fn(EncoderPart<'_>) -> Result<E, String> + Send + Sync + 'static,
    ) -> Self {
        self.towers.push((name.to_owned(), OwnTower::Hears(frames)));
        self.add(name, |models| &mut models.audio_encoders, encoder(read))
    }

    /// Adds a foundation with its objective: `read` makes it where `name` is the `model_type` of the model, or of
    /// `model.foundation.config` in a model of parts.
    pub fn foundation<F: FoundationFamily + 'static>(
        self,
        name: &str,
        read: impl Fn(FoundationPart<'_>) -> Result<F, String> + Send + Sync + 'static,
    ) -> Self {
        let read = move |part: FoundationPart<'_>| Ok(Arc::new(read(part)?) as Arc<dyn FoundationFamily>);
        self.add::<Box<ReadFoundation>>(name, |models| &mut models.foundations, Box::new(read))
    }

    /// Adds a maker of samples: `open` makes it where `data.maker` is `name`. It is given the model's `config.json` and what opens the
    /// built-in maker.
    pub fn sample_maker(
        mut self,
        name: &str,
        open: impl Fn(&Value, &dyn Fn() -> Opened) -> Opened + Send + Sync + 'static,
    ) -> Self {
        if self.makers.insert(name.to_owned(), Box::new(open)).is_some() {
            self.twice.get_or_insert(name.to_owned());
        }
        self
    }

    fn add<T>(mut self, name: &str, of: impl FnOnce(&mut OwnFamilies) -> &mut BTreeMap<String, T>, read: T) -> Self {
        if of(&mut self.models).insert(name.to_owned(), read).is_some() {
            self.twice.get_or_insert(name.to_owned());
        }
        self
    }

    /// Makes them known to this process.
    ///
    /// # Errors
    /// A name comes twice or is built in, or there was a call before this one.
    pub fn register(self) -> Result<(), String> {
        if let Some(name) = self.twice {
            return Err(format!("`{name}` is registered twice"));
        }
        register_towers(&self.towers)?;
        register_families(self.models)?;
        register_makers(self.makers)
    }
}

fn encoder<E: EncoderFamily + 'static>(
    read: impl Fn(EncoderPart<'_>) -> Result<E, String> + Send + Sync + 'static,
) -> Box<ReadEncoder> {
    Box::new(move |part: EncoderPart<'_>| -> Result<Arc<dyn EncoderFamily>, String> { Ok(Arc::new(read(part)?)) })
}
