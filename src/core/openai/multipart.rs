//! The parts of a form, `multipart/form-data` (RFC 7578), in a body that is here whole.

/// Parts of a form at most, and bytes of the head of one.
const MAX_PARTS: usize = 32;
const MAX_HEAD: usize = 4 << 10;
/// Characters of a boundary at most, by RFC 2046.
const MAX_BOUNDARY: usize = 70;

/// A field of a form.
#[derive(Debug, PartialEq, Eq)]
pub struct FormPart<'a> {
    pub name: String,
    /// The name that the client has for the file; `None`: the field is no file.
    pub file_name: Option<String>,
    pub bytes: &'a [u8],
}

/// Returns the boundary between parts that a `Content-Type` names; `None`: it is not that of a form.
pub fn boundary(content_type: &str) -> Option<String> {
    let (kind, rest) = content_type.split_once(';')?;
    let (_, boundary) = parameters(rest)?.into_iter().find(|(name, _)| name == "boundary")?;
    let is_form = kind.trim().eq_ignore_ascii_case("multipart/form-data");
    (is_form && (1..=MAX_BOUNDARY).contains(&boundary.len())).then_some(boundary)
}

/// Returns the parts of a body, in their order.
///
/// # Errors
/// The reason: the body is cut off, is no form, or has too many parts.
pub fn parts<'a>(body: &'a [u8], boundary: &str) -> Result<Vec<FormPart<'a>>, String> {
    let line = format!("\r\n--{boundary}");
    let line = line.as_bytes();
    // Nothing need be before the first boundary.
    let first = body.strip_prefix(&line[2..]).or_else(|| Some(split(body, line)?.1));
    let mut rest = first.ok_or("it does not have the boundary that its Content-Type names")?;
    let mut parts = Vec::new();
    while !rest.starts_with(b"--") {
        if parts.len() == MAX_PARTS {
            return Err(format!("it has more than {MAX_PARTS} fields"));
        }
        let part = rest.strip_prefix(b"\r\n").ok_or("a boundary is not the whole of its line")?;
        let (part, behind) = split(part, line).ok_or("it is cut off")?;
        parts.push(read(part)?);
        rest = behind;
    }
    Ok(parts)
}

/// Reads a part: its head, an empty line and its bytes.
fn read(part: &[u8]) -> Result<FormPart<'_>, String> {
    let start = &part[..part.len().min(MAX_HEAD)];
    let (head, _) =
        split(start, b"\r\n\r\n").ok_or_else(|| format!("a field has no head of up to {MAX_HEAD} bytes"))?;
    let bytes = &part[head.len() + 4..];
    let head = std::str::from_utf8(head).map_err(|error| format!("the head of a field is not UTF-8: {error}"))?;
    let line = |name: &str| {
        let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    };
    if let Some(encoding) = line("content-transfer-encoding")
        && !["binary", "7bit", "8bit"].iter().any(|plain| encoding.eq_ignore_ascii_case(plain))
    {
        return Err("a field has a Content-Transfer-Encoding: send its bytes as they are".to_owned());
    }
    let (_, rest) = line("content-disposition").and_then(|value| value.split_once(';')).unwrap_or_default();
    let (mut name, mut file_name) = (None, None);
    for (key, value) in parameters(rest).unwrap_or_default() {
        match key.as_str() {
            "name" => name = Some(value),
            "filename" => file_name = Some(value),
            _ => {}
        }
    }
    let name = name.ok_or("a field has no name in its Content-Disposition")?;
    Ok(FormPart { name, file_name, bytes })
}

/// The text before the first `separator`, and that behind it.
fn split<'a>(text: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut from = 0;
    loop {
        // Separators begin with the end of a line, which sound has less often than others.
        let at = from + text[from..].iter().position(|byte| *byte == b'\r')?;
        if let Some(behind) = text[at..].strip_prefix(separator) {
            return Some((&text[..at], behind));
        }
        from = at + 1;
    }
}

/// The parameters `name=value; other="a; b"` of a header, with names in lower case; `None`: they are cut off.
fn parameters(mut rest: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches([';', ' ', '\t']);
        if rest.is_empty() {
            return Some(found);
        }
        let (name, behind) = rest.split_once('=')?;
        let mut value = String::new();
        rest = match behind.strip_prefix('"') {
            Some(quoted) => {
                let mut letters = quoted.chars();
                loop {
                    match letters.next()? {
                        '"' => break letters.as_str(),
                        '\\' => value.push(letters.next()?),
                        letter => value.push(letter),
                    }
                }
            }
            None => {
                let end = behind.find(';').unwrap_or(behind.len());
                value.push_str(behind[..end].trim_end());
                &behind[end..]
            }
        };
        found.push((name.trim_end().to_ascii_lowercase(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_is_that_of_a_form() {
        let found = |text: &str| boundary(text).unwrap_or_default();
        assert_eq!(found("multipart/form-data; boundary=a-1"), "a-1");
        assert_eq!(found("Multipart/Form-Data;charset=utf-8; Boundary=\"a; \\\"b\" "), "a; \"b");
        for other in
            ["application/json", "multipart/mixed; boundary=a", "multipart/form-data; boundary=", "x; boundary=\"a"]
        {
            assert_eq!(boundary(other), None, "{other}");
        }
        assert_eq!(boundary(&format!("multipart/form-data; boundary={}", "a".repeat(71))), None);
    }

    #[test]
    fn parts_have_the_bytes_between_boundaries() {
        let body = b"before\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a;b.wav\"\r\n\
            Content-Type: audio/wav\r\n\r\n\r\n-\r\n--a\r\r\n--b\r\ncontent-disposition:form-data;name=model\r\n\r\n\r\n--b--\r\nbehind";
        let file_name = Some("a;b.wav".to_owned());
        let file = FormPart { name: "file".to_owned(), file_name, bytes: b"\r\n-\r\n--a\r" };
        let model = FormPart { name: "model".to_owned(), file_name: None, bytes: b"" };
        assert_eq!(parts(body, "b").unwrap(), [file, model]);
        assert_eq!(parts(&body[8..], "b").unwrap().len(), 2);
        assert!(parts(b"--b--", "b").unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_with_a_form_is_said() {
        let field = "\r\n--b\r\nContent-Disposition: form-data; name=a\r\n\r\n1";
        let whole = |text: &str| format!("{text}\r\n--b--");
        for (body, expected) in [
            (String::new(), "the boundary"),
            ("a--b".to_owned(), "the boundary"),
            (field.to_owned(), "cut off"),
            (whole(field).trim_end_matches("--").to_owned(), "not the whole of its line"),
            (whole(&field.replace("name=a", "x=a")), "no name"),
            (whole(&field.replace("name=a", "name=\"a")), "no name"),
            (whole(&field.replace("\r\n\r\n", "\r\n")), "no head"),
            (whole(&field.replace("form-data", &"x".repeat(MAX_HEAD))), "no head"),
            (whole(&field.replace("Content-D", "Content-Transfer-Encoding: base64\r\nContent-D")), "as they are"),
            (whole(&field.repeat(MAX_PARTS + 1)), "more than 32"),
        ] {
            let error = parts(body.as_bytes(), "b").unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        assert_eq!(parts(whole(&field.repeat(MAX_PARTS)).as_bytes(), "b").unwrap().len(), MAX_PARTS);
    }
}
