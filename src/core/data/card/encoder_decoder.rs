//! What a `config.json` says of samples of a model whose encoder reads a prompt and whose decoder reads and writes the answer.

use serde_json::Value as Json;

use crate::data::media::dropped;

/// How samples of such a model are made. A sample is its prompt and then the tokens before those of its answer; where these begin,
/// positions restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderDecoder {
    /// The token before an answer.
    pub start_token: i64,
    /// Tokens of a prompt, features of pictures included, and tokens of an answer, at most.
    pub max_positions: usize,
    /// Special tokens that are no text of an answer. The others are, such as those of places in a picture.
    pub unwritten: Vec<i64>,
    /// What the config says of training and is not done.
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
        let note =
            dropped(vision, text).map(|rates| format!("the model is trained without {rates} of its config.json"));
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
