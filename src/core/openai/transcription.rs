//! A request for a transcript: the form of `/v1/audio/transcriptions`.

use std::collections::{BTreeMap, HashSet};

use super::error::ApiError;
use super::fields::MAX_NAME;
use super::multipart::{FormPart, boundary, parts};
use super::request::{Asked, Chance, Endpoint};
use crate::data::{Conversation, Locator, MediaSource, Part, Question, Turn};

/// The `model_type` whose system message is the context of what is said, and whose answers begin with the language.
const QWEN3_ASR: &str = "qwen3_asr";
/// Languages of Qwen3-ASR by their codes, as its documentation has them.
#[rustfmt::skip]
const LANGUAGES: [(&str, &str); 30] = [
    ("ar", "Arabic"), ("cs", "Czech"), ("da", "Danish"), ("de", "German"), ("el", "Greek"), ("en", "English"),
    ("es", "Spanish"), ("fa", "Persian"), ("fi", "Finnish"), ("fil", "Filipino"), ("fr", "French"), ("hi", "Hindi"),
    ("hu", "Hungarian"), ("id", "Indonesian"), ("it", "Italian"), ("ja", "Japanese"), ("ko", "Korean"),
    ("mk", "Macedonian"), ("ms", "Malay"), ("nl", "Dutch"), ("pl", "Polish"), ("pt", "Portuguese"), ("ro", "Romanian"),
    ("ru", "Russian"), ("sv", "Swedish"), ("th", "Thai"), ("tr", "Turkish"), ("vi", "Vietnamese"), ("yue", "Cantonese"),
    ("zh", "Chinese"),
];

/// A request for the transcript of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcription {
    pub model: Option<String>,
    file: Locator,
    language: Option<String>,
    prompt: Option<String>,
    temperature: f64,
    /// The response is the transcript alone, not JSON.
    pub is_text: bool,
}

impl Transcription {
    /// Reads a request's body, whose `Content-Type` is this.
    ///
    /// # Errors
    /// The request is wrong, or asks for something that is not supported; the error names the field.
    pub fn read(content_type: Option<&str>, body: &[u8]) -> Result<Self, ApiError> {
        let Some(boundary) = content_type.and_then(boundary) else {
            return Err(ApiError::new(400, "the body must be a form: its Content-Type is not multipart/form-data"));
        };
        let wrong = |reason| ApiError::new(400, format!("the body is not a form: {reason}"));
        let (mut file, mut texts, mut names) = (None, Texts::default(), HashSet::new());
        for part in parts(body, &boundary).map_err(wrong)? {
            let name: String = part.name.chars().take(MAX_NAME).collect();
            if !names.insert(name.clone()) {
                return Err(ApiError::bad(name.clone(), format!("`{name}` is there twice")));
            }
            match part.name.as_str() {
                "file" => file = Some(recording(&part)?),
                _ => texts.take(name, &part)?,
            }
        }
        let file = file.ok_or_else(|| ApiError::bad("file", "`file` is missing: it must be a recording"))?;
        let Texts { model, language, prompt, temperature, is_text } = texts;
        Ok(Self { model, file, language, prompt, temperature, is_text })
    }

    /// Returns the question to a model of this `model_type`.
    ///
    /// # Errors
    /// The model is told a language in another way, or does not know it.
    pub fn asked(self, model_type: &str) -> Result<Asked, ApiError> {
        let Self { model, file, language, prompt, temperature, .. } = self;
        let is_qwen3_asr = model_type == QWEN3_ASR;
        let start = match language {
            None => String::new(),
            Some(language) if is_qwen3_asr => format!("language {}<asr_text>", name_of(&language)?),
            Some(_) => {
                return Err(ApiError::unsupported("language", "this model is told the language in `prompt`"));
            }
        };
        let mut user = Turn::new("user", vec![Part::Audio]);
        let turns = match prompt {
            Some(prompt) if is_qwen3_asr => vec![Turn::text("system", &prompt), user],
            // As the `question` of training data.
            Some(prompt) => {
                user.parts.push(Part::Text { text: prompt });
                vec![user]
            }
            None => vec![user],
        };
        let conversation = Conversation { turns, media: vec![MediaSource::Audio(file.into())] };
        Ok(Asked {
            endpoint: Endpoint::Chat,
            model,
            questions: vec![Question::Chat(conversation)],
            questions_field: "file",
            start,
            n: 1,
            max_tokens: None,
            max_tokens_field: "max_tokens",
            chance: Chance {
                temperature,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                repetition_penalty: None,
                presence_penalty: 0.0,
                frequency_penalty: 0.0,
                logit_bias: BTreeMap::new(),
                seed: None,
            },
            stops: Vec::new(),
            top_logprobs: None,
            parallel_calls: true,
            streams: false,
            includes_usage: false,
        })
    }
}

/// The fields of a form beside its file.
#[derive(Default)]
struct Texts {
    model: Option<String>,
    language: Option<String>,
    prompt: Option<String>,
    temperature: f64,
    is_text: bool,
}

impl Texts {
    /// Takes a field, whose name is `name` in errors.
    fn take(&mut self, name: String, part: &FormPart<'_>) -> Result<(), ApiError> {
        let text = std::str::from_utf8(part.bytes);
        let text = text.map_err(|_| ApiError::bad(name.clone(), format!("`{name}` is not UTF-8")))?;
        match (part.name.as_str(), text) {
            ("model", _) => self.model = Some(text.to_owned()),
            // Clients that have nothing to say send an empty text.
            ("language", _) => self.language = Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            ("prompt", _) => self.prompt = Some(text.to_owned()).filter(|text| !text.is_empty()),
            ("temperature", _) => {
                let number = text.trim().parse().ok().filter(|number: &f64| (0.0..=2.0).contains(number));
                let wrong = || ApiError::bad(name, "`temperature` must be a number from 0 to 2");
                self.temperature = number.ok_or_else(wrong)?;
            }
            ("response_format", "json") => self.is_text = false,
            ("response_format", "text") => self.is_text = true,
            ("response_format", _) => return Err(ApiError::unsupported(name, "only `json` and `text` are")),
            ("stream", "false" | "False") => {}
            ("stream", _) => return Err(ApiError::unsupported(name, "a transcript comes in one piece")),
            _ => return Err(ApiError::unsupported(name, "this server does not know this field")),
        }
        Ok(())
    }
}

fn recording(part: &FormPart<'_>) -> Result<Locator, ApiError> {
    if part.bytes.is_empty() {
        return Err(ApiError::bad("file", "`file` is empty: it must be a recording"));
    }
    let name: String = part.file_name.as_deref().unwrap_or("file").chars().take(MAX_NAME).collect();
    Ok(Locator::bytes(name, part.bytes))
}

/// The name of a language of Qwen3-ASR, which may be named by its code.
fn name_of(language: &str) -> Result<&'static str, ApiError> {
    let is_it = |(code, name): &&(&str, &str)| [code, name].iter().any(|word| language.eq_ignore_ascii_case(word));
    LANGUAGES.iter().find(is_it).map(|(_, name)| *name).ok_or_else(|| {
        let codes: Vec<&str> = LANGUAGES.iter().map(|(code, _)| *code).collect();
        ApiError::bad("language", format!("`language` must be one of {}", codes.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Option<&str> = Some("multipart/form-data; boundary=b");

    fn read(fields: &[(&str, &str)]) -> Result<Transcription, ApiError> {
        let field = |(name, value): &(&str, &str)| {
            let file = if *name == "file" { "; filename=\"a.wav\"" } else { "" };
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n")
        };
        let body = fields.iter().map(field).collect::<String>() + "--b--\r\n";
        Transcription::read(FORM, body.as_bytes())
    }

    /// The roles and parts of what a model is asked, and what its answer has begun with.
    type Told = (Vec<(String, Vec<Part>)>, String);

    fn told(fields: &[(&str, &str)], model_type: &str) -> Result<Told, ApiError> {
        let asked = read(fields)?.asked(model_type)?;
        let [Question::Chat(conversation)] = &asked.questions[..] else { panic!("a chat") };
        assert_eq!(conversation.media, [MediaSource::Audio(Locator::bytes("a.wav", *b"sound").into())]);
        let turns = conversation.turns.iter().map(|turn| (turn.role.clone(), turn.parts.clone())).collect();
        Ok((turns, asked.start))
    }

    #[test]
    fn every_field_of_a_form_is_read() {
        let fields = [("file", "sound"), ("model", "m"), ("language", ""), ("temperature", "0.5"), ("stream", "false")];
        let asked = read(&fields).unwrap();
        assert_eq!((asked.model.as_deref(), asked.is_text), (Some("m"), false));
        let asked = asked.asked("qwen2_audio").unwrap();
        assert_eq!((asked.chance.temperature, asked.questions_field, asked.num_answers()), (0.5, "file", 1));
        assert!(read(&[("response_format", "text"), ("file", "sound")]).unwrap().is_text);
    }

    #[test]
    fn a_model_is_told_prompt_and_language_in_its_own_way() {
        let text = |text: &str| Part::Text { text: text.to_owned() };
        let (file, user) = (("file", "sound"), |parts: Vec<Part>| ("user".to_owned(), parts));
        let system = |words: &str| ("system".to_owned(), vec![text(words)]);
        let (language, prompt) = (("language", "EN"), ("prompt", "What is said?"));
        let english = "language English<asr_text>";
        for (fields, model_type, turns, start) in [
            (vec![file], "qwen2_audio", vec![user(vec![Part::Audio])], ""),
            (vec![file, prompt], "voxtral", vec![user(vec![Part::Audio, text("What is said?")])], ""),
            (vec![file, language], QWEN3_ASR, vec![user(vec![Part::Audio])], english),
            (vec![prompt, file], QWEN3_ASR, vec![system("What is said?"), user(vec![Part::Audio])], ""),
            (vec![prompt, file, language], QWEN3_ASR, vec![system("What is said?"), user(vec![Part::Audio])], english),
        ] {
            assert_eq!(told(&fields, model_type).unwrap(), (turns, start.to_owned()), "{fields:?} {model_type}");
        }
        assert_eq!(told(&[file, language], "voxtral").unwrap_err().param.as_deref(), Some("language"));
        let unknown = told(&[file, ("language", "xx")], QWEN3_ASR).unwrap_err().to_string();
        assert!(unknown.contains("ar, cs, da"), "{unknown}");
    }

    #[test]
    fn what_is_wrong_with_a_form_is_named() {
        let file = ("file", "sound");
        for (fields, param) in [
            (vec![("model", "m")], "file"),
            (vec![("file", "")], "file"),
            (vec![file, file], "file"),
            (vec![file, ("temperature", "NaN")], "temperature"),
            (vec![file, ("temperature", "3")], "temperature"),
            (vec![file, ("response_format", "srt")], "response_format"),
            (vec![file, ("stream", "true")], "stream"),
            (vec![file, ("timestamp_granularities[]", "word")], "timestamp_granularities[]"),
        ] {
            let error = read(&fields).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{error}");
        }
        for (content_type, body) in [(None, "--b--"), (Some("application/json"), "{}"), (FORM, "{}")] {
            let error = Transcription::read(content_type, body.as_bytes()).unwrap_err();
            assert_eq!((error.status, &error.param), (400, &None), "{error}");
        }
    }
}
