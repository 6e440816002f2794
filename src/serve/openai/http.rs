//! The answers to requests over HTTP.

use super::batch::Event;
use super::exchange::{Shared, collect, expect_model, next, page, read, unreadable};
use super::random::random;
use super::stream::{Body, events};
use super::transcribe::transcribe;
use http_body_util::BodyExt;
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, EXPECT, HeaderValue, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use loongforge_actors::watch::is_same;
use loongforge_core::clock::since_epoch;
use loongforge_core::openai::{ApiError, Asked, Endpoint, Reply, models};
use loongforge_core::text::hex;
use percent_encoding::percent_decode_str;
use serde_json::json;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The time that a client may continue to send a body that is refused.
const DRAIN: Duration = Duration::from_secs(2);
/// The time that a stream waits for its turn before it begins: proxies end a request without a response after 60 s, for example.
const TURN: Duration = Duration::from_secs(45);

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const HEALTH: &str = "/health";

/// Answers one request, whatever it is.
pub async fn answer<B>(request: Request<B>, shared: &Shared) -> Response<Body>
where
    B: hyper::body::Body + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let (head, mut body) = request.into_parts();
    let method = method_of(head.uri.path());
    match respond(&head, &mut body, shared).await {
        Ok(response) => response,
        Err(error) => {
            discard(&head, &mut body).await;
            let mut response = refusal(&error);
            if let Some(method) = method.filter(|_| error.status == 405) {
                let allowed = if method == Method::GET { "GET, HEAD" } else { "POST" };
                response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            }
            response
        }
    }
}

/// Returns the method of a page; `None`: there is no such page. A page that is read with GET may be asked for with HEAD.
fn method_of(path: &str) -> Option<Method> {
    match path {
        HEALTH | "/v1/models" => Some(Method::GET),
        "/v1/chat/completions" | "/v1/completions" | TRANSCRIPTIONS => Some(Method::POST),
        path => path.starts_with("/v1/models/").then_some(Method::GET),
    }
}

/// Reads what a client still sends of a request that is refused: a connection that is closed with bytes unread would take the answer from
/// it. One that waits until it is told to go on sends nothing.
async fn discard<B: hyper::body::Body + Unpin>(head: &Parts, body: &mut B) {
    if head.headers.contains_key(EXPECT) || body.is_end_stream() {
        return;
    }
    let read = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(DRAIN, read).await;
}

async fn respond<B>(head: &Parts, body: &mut B, shared: &Shared) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let path = head.uri.path();
    let Some(method) = method_of(path) else {
        return Err(ApiError::new(404, "no such page").with_code("not_found"));
    };
    if head.method != method && !(method == Method::GET && head.method == Method::HEAD) {
        return Err(ApiError::new(405, format!("{path} requires {method}")));
    }
    if path == HEALTH {
        return Ok(health());
    }
    admit(&head.headers, shared)?;
    let endpoint = match path {
        "/v1/chat/completions" => Endpoint::Chat,
        "/v1/completions" => Endpoint::Completions,
        TRANSCRIPTIONS => return transcribe(&head.headers, body, shared).await,
        "/v1/models" => return Ok(page(StatusCode::OK, &models(&shared.name, shared.since))),
        path => {
            // Clients write the slash of a hub id or a folder as %2F.
            let named = percent_decode_str(path.strip_prefix("/v1/models/").unwrap_or(path)).decode_utf8_lossy();
            expect_model(&named, shared)?;
            return Ok(page(StatusCode::OK, &models(&shared.name, shared.since)["data"][0]));
        }
    };
    let body = read(&head.headers, body).await?;
    // A large body takes its time, in which others are answered.
    let asked = spawn_blocking(move || Asked::read(endpoint, &body)).await;
    let asked = asked.map_err(unreadable)??;
    if let Some(named) = &asked.model {
        expect_model(named, shared)?;
    }
    let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
    let id = format!("{prefix}-{}", hex([random().to_le_bytes(), random().to_le_bytes()].concat()));
    let has_logprobs = asked.top_logprobs.is_some();
    let (streams, includes_usage, n) = (asked.streams, asked.includes_usage, asked.num_answers());
    let reply = Reply { endpoint, id, created: now(), model: shared.name.clone(), has_logprobs, includes_usage };
    let answer = shared.engine.ask(asked, &shared.limits)?;
    // Only then is it known whether the request can be answered at all. A stream that waits for long tells an error in its lines.
    let begun = match streams {
        true => timeout(TURN, next(&answer)).await.ok().transpose()?,
        false => Some(next(&answer).await?),
    };
    let prompt_tokens = match begun {
        Some(Event::Begun { prompt_tokens }) => prompt_tokens,
        None => 0,
        Some(_) => return Err(ApiError::new(500, "the model's answer has no beginning")),
    };
    if !streams {
        let (answers, usage) = collect(&answer, n, prompt_tokens).await?;
        return Ok(page(StatusCode::OK, &reply.whole(&answers, usage)));
    }
    let mut response = Response::new(events(answer, reply, n, prompt_tokens));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn health() -> Response<Body> {
    page(StatusCode::OK, &json!({"status": "ok"}))
}

/// Answers where `most` connections are open: what looks after the server must not take a full one for one that has failed.
pub fn answer_where_full<B>(request: &Request<B>, most: usize) -> Response<Body> {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, HEALTH) => health(),
        _ => refusal(&ApiError::new(503, format!("too many connections: {most} are open"))),
    }
}

/// Who may ask.
fn admit(headers: &HeaderMap, shared: &Shared) -> Result<(), ApiError> {
    // Browsers say where a page comes from: no web page may use the model of who looks at it.
    if headers.contains_key(ORIGIN) {
        return Err(ApiError::new(403, "requests from web pages are refused (the request has an Origin)"));
    }
    let Some(key) = &shared.key else { return Ok(()) };
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match header.and_then(|value| value.split_once(' ')) {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("Bearer") && is_same(given.trim(), key) => Ok(()),
        _ => Err(ApiError::new(401, "the API key is missing or wrong").with_code("invalid_api_key")),
    }
}

/// An error as OpenAI's clients read it.
fn refusal(error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = page(status, &error.json());
    let headers = response.headers_mut();
    match error.status {
        401 => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        429 | 503 => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => {}
    }
    response
}

/// Returns the seconds since 1970.
pub fn now() -> u64 {
    since_epoch().as_secs()
}

#[cfg(test)]
mod tests {
    use super::super::engine::Engine;
    use super::super::reading::Limits;
    use super::*;
    use futures_util::StreamExt;
    use http_body_util::StreamBody;
    use hyper::body::{Bytes, Frame};
    use loongforge_core::openai::Finish;
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn who_is_refused_may_send_the_rest_of_the_body() {
        let limits = Limits { max_new_tokens: 4, max_context: 64, batch: 4, queue: 2, files: None };
        let engine = Engine::saying("", Finish::Stop, "");
        let shared = Shared { engine, limits, name: "m".to_owned(), key: Some("secret".to_owned()), since: 0 };
        for (expects, num_read) in [(false, 100), (true, 0)] {
            let counted = Arc::new(AtomicUsize::new(0));
            let count = counted.clone();
            let pieces = futures_util::stream::iter(0..100).map(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x")))
            });
            let request = Request::post("/v1/completions");
            let request = if expects { request.header(EXPECT, "100-continue") } else { request };
            let response = answer(request.body(StreamBody::new(pieces)).unwrap(), &shared).await;
            assert_eq!((response.status().as_u16(), counted.load(Ordering::Relaxed)), (401, num_read));
        }
    }

    #[test]
    fn a_server_that_is_full_is_healthy() {
        let status =
            |request: hyper::http::request::Builder| answer_where_full(&request.body(()).unwrap(), 1).status().as_u16();
        assert_eq!([Request::get("/health"), Request::head("/health")].map(status), [200; 2]);
        assert_eq!([Request::get("/v1/models"), Request::post("/health")].map(status), [503; 2]);
    }
}
