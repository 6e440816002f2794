//! The answer to a request for a transcript.

use super::batch::Event;
use super::exchange::{Shared, collect, expect_model, next, page, read, unreadable};
use super::stream::{Body, whole};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use loongforge_core::observe::transcript;
use loongforge_core::openai::{ApiError, Finish, Transcription, Usage};
use serde_json::json;
use tokio::task::spawn_blocking;

/// Answers a form with a recording.
///
/// # Errors
/// The request is wrong, or the model cannot make a transcript.
pub async fn transcribe<B>(headers: &HeaderMap, body: &mut B, shared: &Shared) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = read(headers, body).await?;
    let wanted = spawn_blocking(move || Transcription::read(content_type.as_deref(), &body)).await;
    let wanted = wanted.map_err(unreadable)??;
    if let Some(named) = &wanted.model {
        expect_model(named, shared)?;
    }
    let is_text = wanted.is_text;
    let answer = shared.engine.ask(wanted.asked(shared.engine.model_type())?, &shared.limits)?;
    let Event::Begun { prompt_tokens } = next(&answer).await? else {
        return Err(ApiError::new(500, "the model's answer has no beginning"));
    };
    let (answers, usage) = collect(&answer, 1, prompt_tokens).await?;
    let Some(answer) = answers.first() else { return Err(ApiError::new(500, "the answer ended early")) };
    if answer.finish == Finish::Length {
        let reason = format!(
            "the transcript has more than {} tokens: send a shorter recording, or start the server with a larger \
             --max-new-tokens",
            usage.completion_tokens
        );
        return Err(ApiError::bad("file", reason));
    }
    Ok(response(transcript(&answer.text), is_text, usage))
}

fn response(text: &str, is_text: bool, usage: Usage) -> Response<Body> {
    if !is_text {
        let Usage { prompt_tokens, completion_tokens } = usage;
        let total_tokens = prompt_tokens + completion_tokens;
        let usage = json!({"type": "tokens", "input_tokens": prompt_tokens, "output_tokens": completion_tokens,
            "total_tokens": total_tokens});
        return page(StatusCode::OK, &json!({"text": text, "usage": usage}));
    }
    let mut response = Response::new(whole(format!("{text}\n")));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::super::engine::Engine;
    use super::super::http::answer;
    use super::super::reading::Limits;
    use super::*;
    use http_body_util::{BodyExt, Full};
    use hyper::Request;
    use hyper::body::Bytes;

    /// Status and body of the response to a form with these fields, of a server whose model answers this.
    async fn asked(fields: &str, says: &'static str, finish: Finish) -> (u16, String) {
        let limits = Limits { max_new_tokens: 4, max_context: 64, batch: 4, queue: 2, files: None };
        let engine = Engine::saying(says, finish, "qwen3_asr");
        let shared = Shared { engine, limits, name: "m".to_owned(), key: None, since: 0 };
        let body = format!("{fields}--b--");
        let request = Request::post("/v1/audio/transcriptions")
            .header(CONTENT_TYPE, "multipart/form-data; boundary=b")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = answer(request, &shared).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn field(name: &str, value: &str) -> String {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    #[tokio::test]
    async fn a_recording_is_answered_with_its_transcript() {
        let file = field("file", "sound");
        let says = "language English<asr_text> Hello.";
        let (status, body) = asked(&(field("model", "m") + &file), says, Finish::Stop).await;
        let usage = json!({"type": "tokens", "input_tokens": 3, "output_tokens": 2, "total_tokens": 5});
        let found: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, found), (200, json!({"text": "Hello.", "usage": usage})));
        let text = file.clone() + &field("response_format", "text");
        assert_eq!(asked(&text, "Hello.", Finish::Stop).await, (200, "Hello.\n".to_owned()));
        for (fields, finish, status, expected) in [
            (file.clone(), Finish::Length, 400, "--max-new-tokens"),
            (field("model", "other") + &file, Finish::Stop, 404, "model_not_found"),
            (field("model", "m"), Finish::Stop, 400, "`file` is missing"),
        ] {
            let (found, body) = asked(&fields, says, finish).await;
            assert!(found == status && body.contains(expected), "{found}: {body}");
        }
    }
}
