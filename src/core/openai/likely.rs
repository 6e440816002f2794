//! Log probabilities of an answer's tokens, in the forms that OpenAI's clients read.

use serde_json::{Map, Value as Json, json};

use super::request::Endpoint;

/// The number that OpenAI writes for tokens that are less likely than any number says.
const LEAST: f64 = -9999.0;
/// Stands for bytes that are no character.
const INCOMPLETE: char = '\u{fffd}';

/// A token and the natural logarithm of its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The text of the token; U+FFFD for a part of a character.
    pub token: String,
    pub logprob: f64,
}

/// The log probability of a token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    pub of: TokenLogprob,
    /// The most likely tokens at its place, the first one first.
    pub top: Vec<TokenLogprob>,
    /// Characters of the tokens before it.
    pub offset: usize,
}

impl TokenLogprob {
    fn value(&self) -> Json {
        // A number of JSON is finite.
        if self.logprob.is_finite() { self.logprob.max(LEAST).into() } else { LEAST.into() }
    }

    fn json(&self) -> Json {
        let bytes = (!self.token.contains(INCOMPLETE)).then_some(self.token.as_bytes());
        json!({"token": self.token, "logprob": self.value(), "bytes": bytes})
    }
}

impl Likely {
    fn json(&self) -> Json {
        let mut json = self.of.json();
        json["top_logprobs"] = self.top.iter().map(TokenLogprob::json).collect();
        json
    }

    /// Returns the most likely tokens and this one, by their texts; of several with one text the most likely.
    fn by_text(&self) -> Json {
        let mut map = Map::new();
        for one in self.top.iter().chain([&self.of]) {
            map.entry(one.token.as_str()).or_insert_with(|| one.value());
        }
        Json::Object(map)
    }
}

/// Returns the `logprobs` of a choice, of the tokens in their order.
pub fn logprobs(endpoint: Endpoint, tokens: &[Likely]) -> Json {
    match endpoint {
        Endpoint::Chat => json!({"content": tokens.iter().map(Likely::json).collect::<Json>(), "refusal": null}),
        Endpoint::Completions => json!({
            "tokens": tokens.iter().map(|it| it.of.token.as_str()).collect::<Json>(),
            "token_logprobs": tokens.iter().map(|it| it.of.value()).collect::<Json>(),
            "top_logprobs": tokens.iter().map(Likely::by_text).collect::<Json>(),
            "text_offset": tokens.iter().map(|it| it.offset).collect::<Json>(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_have_the_forms_that_clients_read() {
        let of = |token: &str, logprob| TokenLogprob { token: token.to_owned(), logprob };
        let top = vec![of("é", -0.5), of("\u{fffd}", -1.0), of("\u{fffd}", -2.0)];
        let tokens = [
            Likely { of: of("é", -0.5), top: top.clone(), offset: 0 },
            Likely { of: of("a", f64::NEG_INFINITY), top: Vec::new(), offset: 1 },
        ];
        let chat = logprobs(Endpoint::Chat, &tokens);
        let one = json!({"token": "é", "logprob": -0.5, "bytes": [195, 169]});
        let part = |logprob: f64| json!({"token": "\u{fffd}", "logprob": logprob, "bytes": null});
        let mut first = one.clone();
        first["top_logprobs"] = json!([one, part(-1.0), part(-2.0)]);
        let last = json!({"token": "a", "logprob": -9999.0, "bytes": [97], "top_logprobs": []});
        assert_eq!(chat, json!({"content": [first, last], "refusal": null}));
        let texts = logprobs(Endpoint::Completions, &tokens);
        let expected = json!({"tokens": ["é", "a"], "token_logprobs": [-0.5, -9999.0], "text_offset": [0, 1],
            "top_logprobs": [{"é": -0.5, "\u{fffd}": -1.0}, {"a": -9999.0}]});
        assert_eq!(texts, expected);
    }
}
