//! The length of a text in a JSON object, found without parsing the object.

/// Returns the bytes of the text that an object has under `key`, once it is read; `None`: it has no text there, or writes its keys
/// in another way.
pub fn text_len(object: &[u8], key: &str) -> Option<u64> {
    let (mut at, mut depth) = (0, 0u64);
    while let Some(&byte) = object.get(at) {
        match byte {
            b'"' => {
                let begin = at;
                at = string(object, begin)?.1;
                let colon = at + num_blanks(&object[at..]);
                // Only the object's own keys, and no values.
                if depth != 1 || object.get(colon) != Some(&b':') {
                    continue;
                }
                let value = colon + 1 + num_blanks(&object[colon + 1..]);
                if object[begin + 1..at - 1] == *key.as_bytes() {
                    return (object.get(value) == Some(&b'"')).then(|| string(object, value))?.map(|(len, _)| len);
                }
                at = value;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns how many bytes the string that begins here has once it is read, and where it ends.
fn string(json: &[u8], begin: usize) -> Option<(u64, usize)> {
    let (mut at, mut len) = (begin + 1, 0u64);
    loop {
        let run = json.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        (at, len) = (at + run, len + run as u64);
        if json[at] == b'"' {
            return Some((len, at + 1));
        }
        if *json.get(at + 1)? != b'u' {
            (at, len) = (at + 2, len + 1);
            continue;
        }
        let digits = std::str::from_utf8(json.get(at + 2..at + 6)?).ok()?;
        len += match u16::from_str_radix(digits, 16).ok()? {
            ..0x80 => 1,
            // Each half of a pair stands for two of four bytes.
            0x80..0x800 | 0xd800..0xe000 => 2,
            _ => 3,
        };
        at += 6;
    }
}

fn num_blanks(json: &[u8]) -> usize {
    json.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::text_len;

    #[test]
    fn what_has_no_text_has_no_length() {
        for (object, len) in [
            (r#"{"text": "a\n\u00e9\ud83d\ude00"}"#, Some(8)),
            (r#"{"a": "text", "text" : "", "b": 1}"#, Some(0)),
            (r#"{"text": 1}"#, None),
            (r#"{"a": {"text": "x"}}"#, None),
            (r#"["text", "x"]"#, None),
            (r#"{"text": "x"#, None),
            (r#"{"text": "\u12"#, None),
            (r#"{"text""#, None),
            ("", None),
        ] {
            assert_eq!(text_len(object.as_bytes(), "text"), len, "{object}");
        }
    }

    proptest! {
        #[test]
        fn lengths_are_those_of_texts_that_are_parsed(text in "[\\PC\\n\\t\"\\\\]{0,30}", other in "[\\PC\"\\\\]{0,20}") {
            let (text_json, other_json) = (json!(text).to_string(), json!(other).to_string());
            let object = format!(
                "{{\"a\": {other_json}, \"b\": [\"text\", {{\"text\": {other_json}}}], \"text\": {text_json}}}"
            );
            let escaped: String = object.encode_utf16().map(|unit| match unit {
                ..0x80 => char::from(unit as u8).to_string(),
                _ => format!("\\u{unit:04x}"),
            }).collect();
            for object in [object, escaped] {
                prop_assert_eq!(text_len(object.as_bytes(), "text"), Some(text.len() as u64));
            }
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b':'), Just(b'{'), any::<u8>()], 0..40)) {
            let _ = text_len(&bytes, "text");
        }
    }
}
