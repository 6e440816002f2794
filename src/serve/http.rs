//! The answers to requests over HTTP: a page of the protocol, a WebSocket, or a refusal.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderValue, ORIGIN, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use loongforge_actors::watch::is_same;
use loongforge_core::robot::wire::Protocol;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// The answer to a request.
pub enum Answer {
    Page(Response<Full<Bytes>>),
    /// The response with which a WebSocket begins.
    WebSocket(Response<Full<Bytes>>),
}

/// Answers by method, path and headers; `key` is what clients must have, if anything.
pub fn answer<B>(request: &Request<B>, protocol: Protocol, key: Option<&str>) -> Answer {
    let header = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let page = |status, text: &'static str| Answer::Page(text_page(status, "text/plain; charset=utf-8", text));
    if request.method() != Method::GET {
        return page(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n");
    }
    if let Some((kind, text)) = protocol.page(request.uri().path()) {
        return Answer::Page(text_page(StatusCode::OK, kind, text));
    }
    let is_websocket = header(UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    if !is_websocket || header(SEC_WEBSOCKET_VERSION) != Some("13") {
        return match request.uri().path() {
            "/" => page(StatusCode::UPGRADE_REQUIRED, "this is a policy server: connect with WebSocket, version 13\n"),
            _ => page(StatusCode::NOT_FOUND, "no such page\n"),
        };
    }
    // Browsers say where a page comes from, and clients of robots do not: no web page may drive a robot.
    if request.headers().contains_key(ORIGIN) {
        return page(StatusCode::FORBIDDEN, "requests from web pages are refused (the request has an Origin)\n");
    }
    let given = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Api-Key "));
    if key.is_some_and(|key| given.is_none_or(|given| !is_same(given, key))) {
        let mut refused =
            text_page(StatusCode::UNAUTHORIZED, "text/plain; charset=utf-8", "the Api-Key is missing or wrong\n");
        refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Api-Key"));
        return Answer::Page(refused);
    }
    let Some(key) = request.headers().get(SEC_WEBSOCKET_KEY) else {
        return page(StatusCode::BAD_REQUEST, "missing header Sec-WebSocket-Key\n");
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers
        .insert(SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()).parse().expect("base64 is a header's value"));
    Answer::WebSocket(response)
}

/// Returns the answer to who asks for a WebSocket where there are `most` already.
pub fn too_many(most: usize) -> Response<Full<Bytes>> {
    let text = format!("too many connections: {most} are open\n");
    let mut response = text_page(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Returns a page of text.
fn text_page(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(protocol: Protocol, path: &str, headers: &[(&str, &str)], key: Option<&str>) -> u16 {
        let request =
            headers.iter().fold(Request::builder().uri(path), |request, (name, value)| request.header(*name, *value));
        match answer(&request.body(()).unwrap(), protocol, key) {
            Answer::Page(page) | Answer::WebSocket(page) => page.status().as_u16(),
        }
    }

    #[test]
    fn health_needs_no_key_and_web_pages_are_refused() {
        let websocket = [("upgrade", "websocket"), ("sec-websocket-version", "13"), ("sec-websocket-key", "a2V5")];
        let with = |header| [&websocket[..], &[header]].concat();
        let openpi = |headers: &[(&str, &str)], key| status(Protocol::OpenPi, "/", headers, key);
        assert_eq!(status(Protocol::OpenPi, "/healthz", &[], Some("k")), 200);
        assert_eq!(status(Protocol::VlaEval, "/health", &[], Some("k")), 200);
        assert_eq!(status(Protocol::VlaEval, "/healthz", &[], None), 404);
        assert_eq!(openpi(&[], None), 426);
        assert_eq!(openpi(&websocket, None), 101);
        assert_eq!(openpi(&websocket, Some("k")), 401);
        assert_eq!(openpi(&with(("authorization", "Api-Key no")), Some("k")), 401);
        assert_eq!(openpi(&with(("authorization", "Api-Key k")), Some("k")), 101);
        assert_eq!(openpi(&with(("origin", "https://example.com")), None), 403);
    }
}
