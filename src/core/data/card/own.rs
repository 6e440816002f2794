//! Towers that a program brings itself: what is cut out of pictures and sound for them.

use std::sync::OnceLock;

use super::rows::{Row, VisionCut, built_in_row, hears, sees};
use crate::data::audio::AudioFamily;

/// Describes how files become items of a tower that is not built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnTower {
    /// Pictures and videos, cut into patches in this manner.
    Sees(VisionCut),
    /// Sound, as frames of log-mel bins in this manner.
    Hears(AudioFamily),
}

static OWN: OnceLock<Vec<(String, Row)>> = OnceLock::new();

/// Adds towers by their `model_type` to those that cards know, for the rest of the process.
///
/// # Errors
/// A name is built in or comes twice, or this was called before.
pub fn register_towers(towers: &[(String, OwnTower)]) -> Result<(), String> {
    let mut rows: Vec<(String, Row)> = Vec::new();
    for (name, tower) in towers {
        if built_in_row(name).is_some() {
            return Err(format!("the model_type `{name}` is built in: choose another name"));
        }
        if rows.iter().any(|(other, _)| other == name) {
            return Err(format!("the model_type `{name}` is registered twice"));
        }
        let row = match *tower {
            OwnTower::Sees(cut) => sees("", cut),
            OwnTower::Hears(family) => hears("", family),
        };
        rows.push((name.clone(), row));
    }
    OWN.set(rows).map_err(|_| "families are already registered: register all of them at once".to_owned())
}

/// Returns the row of a model or of one of its parts, built in or registered.
pub(super) fn row_of(model_type: &str) -> Option<&'static Row> {
    let own = OWN.get().and_then(|own| own.iter().find(|(name, _)| name == model_type));
    own.map(|(_, row)| row).or_else(|| built_in_row(model_type))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::ModelCard;

    /// There is one test, since there is one register in a process.
    #[test]
    fn own_towers_have_cards_and_names_of_their_own() {
        let sees = OwnTower::Sees(VisionCut::Qwen3);
        let register = |names: &[&str]| {
            register_towers(&names.iter().map(|name| ((*name).to_owned(), sees)).collect::<Vec<_>>()).unwrap_err()
        };
        assert!(register(&["siglip_vision_model"]).contains("`siglip_vision_model` is built in"));
        assert!(register(&["mine", "mine"]).contains("`mine` is registered twice"));
        let towers = [("mine".to_owned(), sees), ("ours".to_owned(), OwnTower::Hears(AudioFamily::Whisper))];
        register_towers(&towers).unwrap();
        assert!(register(&["other"]).contains("at once"));
        let config = json!({"model_type": "loongforge_vlm", "image_encoder": {"model_type": "mine"},
            "audio_encoder": {"model_type": "ours"}, "foundation": {"model_type": "qwen3"}});
        let card = ModelCard::of(&config);
        assert_eq!(card.vision_cut(), Some(VisionCut::Qwen3));
        assert_eq!(card.audio_family(), Some(AudioFamily::Whisper));
    }
}
