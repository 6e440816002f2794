//! Reads from a `config.json` how samples are made for a model whose encoder reads a prompt and whose decoder writes the answer.

use serde_json::Value as Json;

/// The rules of samples of such a model. A sample is its prompt and then the tokens before those of its answer; where these begin,
/// positions restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderDecoder {
    /// The token before an answer.
    pub start_token: i64,
    /// Tokens of a prompt, features of pictures included, and tokens of an answer, at most.
    pub max_positions: usize,
    /// Special tokens that are no text of an answer. The others are, such as those of places in a picture.
    pub unwritten: Vec<i64>,
    /// A note about the rates of the config that training does not apply.
    pub note: Option<String>,
}

impl EncoderDecoder {
    /// `None`: the model is another one.
    pub(super) fn of(config: &Json) -> Option<Self> {
        if config["model_type"] != "florence2" {
            return None;
        }
        let (text, vision) = (&config["text_config"], &config["vision_config"]);
        // The class's defaults.
        let number = |key: &str, default: i64| text[key].as_i64().unwrap_or(default);
        let start_token = number("decoder_start_token_id", 2);
        let with_default = |section: &Json, key: &str| {
            let mut filled = section.clone();
            if filled.is_object() && filled[key].is_null() {
                filled[key] = 0.1.into();
            }
            filled
        };
        let (of_tower, of_text) = (with_default(vision, "drop_path_rate"), with_default(text, "dropout"));
        let note = dropped(&of_tower, &of_text)
            .map(|rates| format!("the model is trained without {rates} of its config.json"));
        Some(Self {
            start_token,
            max_positions: text["max_position_embeddings"].as_u64().unwrap_or(1024) as usize,
            unwritten: vec![
                start_token,
                number("bos_token_id", 0),
                number("eos_token_id", 2),
                number("pad_token_id", 1),
            ],
            note,
        })
    }
}

/// Returns the keys of `vision` and `text` whose rates of dropout training does not apply, with these rates; `None`: there are none.
pub(in crate::data) fn dropped(vision: &Json, text: &Json) -> Option<String> {
    let keys =
        [(vision, "drop_path_rate"), (text, "dropout"), (text, "attention_dropout"), (text, "activation_dropout")];
    let rates = keys.iter().filter(|(holder, key)| holder[*key].as_f64().unwrap_or(0.0) > 0.0);
    let rates: Vec<String> = rates.map(|(holder, key)| format!("{key} {}", holder[*key])).collect();
    (!rates.is_empty()).then(|| rates.join(", "))
}
