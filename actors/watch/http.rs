//! As much of HTTP/1.1 as a page that is only read needs: GET and HEAD, a head of bounded length, one answer a
//! connection. Bytes in, bytes out.

/// Longest head of a request.
pub(super) const MAX_HEAD: usize = 8 << 10;

/// A request that can be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Without the query.
    pub path: String,
    pub token: Option<String>,
    /// The answer's body is not wanted.
    pub head_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    Unauthorized,
    NotFound,
    MethodNotAllowed,
    TooLong,
}

/// What is sent back.
pub(super) struct Answer {
    pub status: Status,
    pub kind: &'static str,
    pub body: Vec<u8>,
    /// Of the scripts and styles that may run in the page.
    pub nonce: Option<String>,
}

/// Reads a request from the bytes that have come; `None` until its head is whole.
///
/// # Errors
/// What to answer instead.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Request>, Status> {
    let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else {
        return if bytes.len() >= MAX_HEAD { Err(Status::TooLong) } else { Ok(None) };
    };
    if end > MAX_HEAD {
        return Err(Status::TooLong);
    }
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| Status::BadRequest)?;
    let mut lines = head.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let &[method, target, version] = &words[..] else { return Err(Status::BadRequest) };
    if !target.starts_with('/') || !version.starts_with("HTTP/1.") {
        return Err(Status::BadRequest);
    }
    if !["GET", "HEAD"].contains(&method) {
        return Err(Status::MethodNotAllowed);
    }
    let mut token = None;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Status::BadRequest)?;
        if name.eq_ignore_ascii_case("authorization") {
            token = value.trim().strip_prefix("Bearer ").map(|token| token.trim().to_owned());
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let in_query = query.split('&').find_map(|pair| pair.strip_prefix("token="));
    let token = token.or_else(|| in_query.map(str::to_owned));
    Ok(Some(Request { path: path.to_owned(), token, head_only: method == "HEAD" }))
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::Unauthorized => "401 Unauthorized",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::TooLong => "431 Request Header Fields Too Large",
        }
    }
}

impl Answer {
    pub fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: Status::Ok, kind, body: body.into(), nonce: None }
    }

    pub fn error(status: Status) -> Self {
        let hint = match status {
            Status::Unauthorized => {
                "the token is missing or not this run's: open the address that the run has printed\n"
            }
            _ => "",
        };
        let body = format!("{}\n{hint}", status.line());
        Self { status, kind: "text/plain; charset=utf-8", body: body.into(), nonce: None }
    }

    pub fn bytes(&self, head_only: bool) -> Vec<u8> {
        let code = self.nonce.as_ref().map_or("'none'".to_owned(), |nonce| format!("'nonce-{nonce}'"));
        let mut bytes = format!(
            "HTTP/1.1 {}\r\n\
             Content-Type: {}\r\n\
             Content-Length: {}\r\n\
             Connection: close\r\n\
             Cache-Control: no-store\r\n\
             Content-Security-Policy: default-src 'none'; script-src {code}; style-src {code}; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n\
             Referrer-Policy: no-referrer\r\n\
             X-Content-Type-Options: nosniff\r\n",
            self.status.line(),
            self.kind,
            self.body.len(),
        );
        if self.status == Status::MethodNotAllowed {
            bytes += "Allow: GET, HEAD\r\n";
        }
        if self.status == Status::Unauthorized {
            bytes += "WWW-Authenticate: Bearer\r\n";
        }
        bytes += "\r\n";
        let mut bytes = bytes.into_bytes();
        if !head_only {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_come_in_the_query_or_a_header() {
        let parse = |text: &str| parse(text.as_bytes());
        let request = |path: &str, token: Option<&str>, head_only| {
            Ok(Some(Request { path: path.into(), token: token.map(str::to_owned), head_only }))
        };
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), request("/", None, false));
        assert_eq!(parse("GET /a?x=1&token=ab HTTP/1.1\r\n\r\n"), request("/a", Some("ab"), false));
        assert_eq!(parse("HEAD /a HTTP/1.0\r\nauthorization: Bearer ab\r\n\r\n"), request("/a", Some("ab"), true));
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\n"), Ok(None));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for (text, status) in [
            ("POST / HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET http://other/ HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET /\r\n\r\n", Status::BadRequest),
            ("GET / HTTP/2\r\n\r\n", Status::BadRequest),
            ("GET / HTTP/1.1\r\nnonsense\r\n\r\n", Status::BadRequest),
            ("LFRG\u{0}\u{0}\r\n\r\n", Status::BadRequest),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(status), "{text}");
        }
        assert_eq!(parse(&[b'a'; MAX_HEAD]), Err(Status::TooLong));
        assert_eq!(parse(&[&[b'a'; MAX_HEAD + 1][..], b"\r\n\r\n"].concat()), Err(Status::TooLong));
    }

    #[test]
    fn a_page_may_run_its_own_script_and_nothing_else() {
        let text = |answer: Answer, head| String::from_utf8(answer.bytes(head)).unwrap();
        let page = text(Answer { nonce: Some("n1".into()), ..Answer::new("text/html", "<p>") }, false);
        assert!(page.contains("default-src 'none'; script-src 'nonce-n1'; style-src 'nonce-n1';"));
        assert!(page.ends_with("\r\n\r\n<p>") && page.contains("Content-Length: 3\r\n"));
        let head = text(Answer::new("text/html", "<p>"), true);
        assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 3\r\n"));
        assert!(text(Answer::error(Status::MethodNotAllowed), true).contains("Allow: GET, HEAD\r\n"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_or_waited_for(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let _ = parse(&[b"GET /".as_slice(), &bytes, b"\r\n\r\n"].concat());
        }
    }
}
