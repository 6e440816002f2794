//! Requests to the hub: with the token, tried again where the network or the hub stumbles, and with answers of a bounded size.

use super::error::PushError;
use crate::model::hub::Hub;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;
use ureq::http::Response;
use ureq::{Agent, Body};

const MAX_ANSWER_BYTES: u64 = 16 << 20;
const CONNECT: Duration = Duration::from_secs(30);
/// The time that an answer may take, once everything is sent.
const ANSWER: Duration = Duration::from_secs(300);
/// Seconds before each of the tries that follow the first.
const WAITS: [u64; 4] = [1, 2, 4, 8];

/// The hub, with a token that may write.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: String,
}

/// The body of a request.
#[derive(Clone, Copy)]
pub enum Sent<'a> {
    Nothing,
    Bytes(&'a [u8]),
    /// A part of a file: where it begins, and its length.
    Part(&'a File, u64, u64),
}

impl Client {
    /// # Errors
    /// There is no token, or the network is not to be used.
    pub fn new(hub: Hub) -> Result<Self, PushError> {
        let (endpoint, offline, token) = hub.writing();
        if offline {
            return Err(PushError::Offline);
        }
        let Some(token) = token else { return Err(PushError::NoToken { endpoint }) };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .build();
        Ok(Self { agent: agent.into(), endpoint, token })
    }

    /// Returns the address of something at the hub.
    pub fn api(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    /// # Errors
    /// The hub cannot be reached.
    pub fn exists(&self, url: &str) -> Result<bool, PushError> {
        let answer = self.send(url, "GET", url, &[], Sent::Nothing)?;
        Ok(answer.status().is_success())
    }

    /// # Errors
    /// The hub refuses, cannot be reached, or answers something else than JSON.
    pub fn post_json(&self, what: &str, url: &str, body: &Value) -> Result<Value, PushError> {
        self.post(what, url, "application/json", body.to_string().as_bytes())
    }

    /// # Errors
    /// Fails as [`Client::post_json`] does.
    pub fn post(&self, what: &str, url: &str, kind: &str, body: &[u8]) -> Result<Value, PushError> {
        let headers =
            [("content-type", kind), ("accept", kind)].map(|(name, value)| (name.to_owned(), value.to_owned()));
        // A commit is answered in plain JSON.
        let headers = if kind.ends_with("ndjson") { &headers[..1] } else { &headers[..] };
        let mut answer = expect_success(what, self.send(what, "POST", url, headers, Sent::Bytes(body))?)?;
        let text = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
        let wrong = |reason: String| PushError::Answer { what: what.to_owned(), reason };
        let text = text.map_err(|error| wrong(error.to_string()))?;
        match text.trim() {
            "" | "OK" => Ok(Value::Null),
            text => serde_json::from_str(text).map_err(|error| wrong(error.to_string())),
        }
    }

    /// Sends something and returns the answer, whatever its status. The token goes to the hub alone.
    ///
    /// # Errors
    /// It cannot be reached, several times.
    pub fn send(
        &self,
        what: &str,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        sent: Sent<'_>,
    ) -> Result<Response<Body>, PushError> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            let reason = format!("{url:.80} is not an address");
            return Err(PushError::Answer { what: what.to_owned(), reason });
        }
        let mut waits = WAITS.into_iter();
        loop {
            let tried = self.once(method, url, headers, sent);
            let fails = |status: u16| status == 429 || status >= 500;
            let reason = match tried {
                Ok(answer) if !fails(answer.status().as_u16()) => return Ok(answer),
                Ok(answer) => format!("the hub answered {}", answer.status()),
                Err(reason) => reason,
            };
            match waits.next() {
                Some(wait) => std::thread::sleep(Duration::from_secs(wait)),
                None => return Err(PushError::Network { what: what.to_owned(), reason }),
            }
        }
    }

    fn once(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        sent: Sent<'_>,
    ) -> Result<Response<Body>, String> {
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let of_hub = url.strip_prefix(self.endpoint.as_str()).is_some_and(|rest| rest.starts_with('/'));
        if of_hub && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        let failed = |error: ureq::Error| error.to_string();
        match sent {
            Sent::Nothing => self.agent.run(request.body(()).map_err(|error| error.to_string())?).map_err(failed),
            Sent::Bytes(bytes) => {
                self.agent.run(request.body(bytes).map_err(|error| error.to_string())?).map_err(failed)
            }
            Sent::Part(file, begin, len) => {
                let mut file = file;
                file.seek(SeekFrom::Start(begin)).map_err(|error| error.to_string())?;
                let mut part = file.take(len);
                let body = ureq::SendBody::from_reader(&mut part);
                // Presigned addresses take no chunked body.
                let request = request.header("content-length", len.to_string());
                self.agent.run(request.body(body).map_err(|error| error.to_string())?).map_err(failed)
            }
        }
    }
}

/// # Errors
/// The answer says no: with the hub's words.
pub fn expect_success(what: &str, mut answer: Response<Body>) -> Result<Response<Body>, PushError> {
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status().as_u16();
    let text = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string().unwrap_or_default();
    let told = serde_json::from_str::<Value>(&text).ok();
    let told = told.as_ref().and_then(|json| json["error"].as_str().or(json["message"].as_str()));
    let hint = match status {
        401 | 403 => " (check that the token in HF_TOKEN may write there)",
        404 => " (check the id)",
        _ => "",
    };
    let reason = format!("{}{hint}", told.unwrap_or(&text).chars().take(300).collect::<String>());
    Err(PushError::Refused { what: what.to_owned(), status, reason })
}
