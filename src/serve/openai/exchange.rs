//! The handling that all requests share: bodies are read, answers are waited for, and pages are written.

use super::batch::Event;
use super::engine::Engine;
use super::reading::Limits;
use super::stream::{Body, whole};
use flume::Receiver;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use loongforge_core::openai::{Answer, ApiError, Finish, Usage};
use serde_json::Value as Json;
use std::time::Duration;
use tokio::task::JoinError;
use tokio::time::timeout;

/// Bytes of a request's body.
pub const MAX_BODY: usize = 64 << 20;
/// The time that a client may take to send a body.
const PATIENCE: Duration = Duration::from_secs(60);

/// The settings and the engine that all requests share.
pub struct Shared {
    pub engine: Engine,
    pub limits: Limits,
    /// The name of the model.
    pub name: String,
    /// The key that clients must send; `None`: they need none.
    pub key: Option<String>,
    /// When the server began, in seconds since 1970.
    pub since: u64,
}

/// # Errors
/// 404: another model is asked for than the one that is served.
pub fn expect_model(named: &str, shared: &Shared) -> Result<(), ApiError> {
    if named == shared.name {
        return Ok(());
    }
    let named: String = named.chars().take(64).collect();
    let reason = format!("the model {named:?} is not served, only {:?}", shared.name);
    Err(ApiError { param: Some("model".into()), ..ApiError::new(404, reason).with_code("model_not_found") })
}

/// Says that reading a request has panicked.
pub fn unreadable(_: JoinError) -> ApiError {
    ApiError::new(500, "the request cannot be read (see the server's log)")
}

/// Reads the body of a request.
///
/// # Errors
/// 413: it is too large. 400, 408: it does not arrive, or not in time.
pub async fn read<B>(headers: &HeaderMap, body: &mut B) -> Result<Vec<u8>, ApiError>
where
    B: hyper::body::Body + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let too_large = || ApiError::new(413, format!("the body may have at most {MAX_BODY} bytes"));
    let header = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if header.and_then(|value| value.parse().ok()).is_some_and(|length: u64| length > MAX_BODY as u64) {
        return Err(too_large());
    }
    let body = Limited::new(body, MAX_BODY);
    match timeout(PATIENCE, body.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::new(400, format!("the body is incomplete: {error}"))),
        Err(_) => Err(ApiError::new(408, "the body did not arrive in time")),
    }
}

/// Returns the next event of an answer that has not ended.
///
/// # Errors
/// The request is refused, or the answer has ended.
pub async fn next(answer: &Receiver<Event>) -> Result<Event, ApiError> {
    match answer.recv_async().await {
        Ok(Event::Refused(error)) => Err(error),
        Ok(event) => Ok(event),
        Err(_) => Err(ApiError::new(500, "the answer ended early")),
    }
}

/// Waits for the ends of all `n` answers to a request, and returns them.
///
/// # Errors
/// An answer has failed.
pub async fn collect(
    answer: &Receiver<Event>,
    n: usize,
    prompt_tokens: usize,
) -> Result<(Vec<Answer>, Usage), ApiError> {
    let none = Answer { text: String::new(), calls: Vec::new(), likely: Vec::new(), finish: Finish::Length };
    let mut answers = vec![none; n];
    let (mut num_ended, mut completion_tokens) = (0, 0);
    while num_ended < n {
        match next(answer).await? {
            Event::Likely { index, likely } => answers[index].likely.push(likely),
            Event::Text { index, text } => answers[index].text += &text,
            Event::Call { index, call, .. } => answers[index].calls.push(call),
            Event::End { index, finish, num_tokens } => {
                answers[index].finish = finish;
                num_ended += 1;
                completion_tokens += num_tokens;
            }
            Event::Begun { .. } | Event::Refused(_) => {}
        }
    }
    Ok((answers, Usage { prompt_tokens, completion_tokens }))
}

/// A response of JSON.
pub fn page(status: StatusCode, json: &Json) -> Response<Body> {
    let mut response = Response::new(whole(json.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
