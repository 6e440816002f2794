//! Requests and responses of the page, in HTTP's types: GET and HEAD, a token, and headers that allow only the page's own script.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// A request that can be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The path without the query.
    pub path: String,
    pub token: Option<String>,
}

/// A response.
pub(super) struct Answer {
    pub status: StatusCode,
    pub kind: &'static str,
    pub body: Vec<u8>,
    /// The word that marks the scripts and styles which may run in the page.
    pub nonce: Option<String>,
}

impl Asked {
    /// # Errors
    /// The status to answer with instead.
    pub fn read<B>(request: &Request<B>) -> Result<Self, StatusCode> {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let target = request.uri();
        if target.authority().is_some() || !target.path().starts_with('/') {
            return Err(StatusCode::BAD_REQUEST);
        }
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = header.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
        let in_query = || target.query()?.split('&').find_map(|pair| pair.strip_prefix("token="));
        Ok(Self { path: target.path().to_owned(), token: bearer.or_else(in_query).map(str::to_owned) })
    }
}

impl Answer {
    /// Makes an answer with a body of a media type.
    pub fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: StatusCode::OK, kind, body: body.into(), nonce: None }
    }

    /// Makes an answer of an error, in plain text.
    pub fn error(status: StatusCode) -> Self {
        let hint = match status {
            StatusCode::UNAUTHORIZED => {
                "the token is missing or not this run's: open the address that the run printed\n"
            }
            _ => "",
        };
        Self { status, ..Self::new("text/plain; charset=utf-8", format!("{status}\n{hint}")) }
    }

    /// Returns the answer with its headers; hyper omits the body of a HEAD request.
    pub fn response(self) -> Response<Full<Bytes>> {
        let code = self.nonce.map_or("'none'".to_owned(), |nonce| format!("'nonce-{nonce}'"));
        let policy = format!(
            "default-src 'none'; script-src {code}; style-src {code}; connect-src 'self'; img-src blob:; base-uri 'none'; form-action \
             'none'; frame-ancestors 'none'"
        );
        let length = self.body.len();
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(CONTENT_LENGTH, length.into());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(CONTENT_SECURITY_POLICY, policy.parse().expect("a nonce is hexadecimal"));
        headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        match self.status {
            StatusCode::METHOD_NOT_ALLOWED => drop(headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"))),
            StatusCode::UNAUTHORIZED => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &str, target: &str, authorization: Option<&str>) -> Result<(String, Option<String>), StatusCode> {
        let mut request = Request::builder().method(method).uri(target);
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        Asked::read(&request.body(()).unwrap()).map(|asked| (asked.path, asked.token))
    }

    #[test]
    fn tokens_come_in_the_query_or_a_header() {
        let asked = |path: &str, token: Option<&str>| Ok((path.to_owned(), token.map(str::to_owned)));
        assert_eq!(read("GET", "/", None), asked("/", None));
        assert_eq!(read("GET", "/a?x=1&token=ab", None), asked("/a", Some("ab")));
        assert_eq!(read("HEAD", "/a?token=x", Some("Bearer ab ")), asked("/a", Some("ab")));
        assert_eq!(read("POST", "/", None), Err(StatusCode::METHOD_NOT_ALLOWED));
        assert_eq!(read("GET", "http://other/", None), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn a_page_may_run_its_own_script_and_nothing_else() {
        let page = Answer { nonce: Some("n1".into()), ..Answer::new("text/html", "<p>") }.response();
        let policy = page.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'nonce-n1'; style-src 'nonce-n1';"), "{policy}");
        assert_eq!(page.headers()[CONTENT_LENGTH], "3");
        let other = Answer::error(StatusCode::METHOD_NOT_ALLOWED).response();
        assert_eq!(other.headers()[ALLOW], "GET, HEAD");
        assert!(other.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().contains("script-src 'none'"));
    }
}
