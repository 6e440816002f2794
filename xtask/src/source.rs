//! Just enough of Rust's syntax to find paths and words: comments and literals blanked out, the rest left in place.

/// The same text with comments, strings and characters replaced by spaces; offsets and lines stay.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_or_comment_end(bytes, at);
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // Only whole comments and literals were blanked, so what is left is still UTF-8.
    String::from_utf8(code).expect("blanking keeps text valid")
}

/// Returns where the comment or literal that starts at `at` ends; `at` itself where none starts.
fn literal_or_comment_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let after_word = at > 0 && is_word(bytes[at - 1]);
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    if rest[0] == b'"' {
        return quoted_end(bytes, at, b'"');
    }
    if rest[0] == b'r' && (!after_word || matches!(bytes[at - 1], b'b' | b'c')) {
        let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
        if rest.get(1 + hashes) == Some(&b'"') {
            let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
            let body = at + 2 + hashes;
            return find(&bytes[body..], &close).map_or(bytes.len(), |end| body + end + close.len());
        }
    }
    // 'x' and '\n' are characters; 'a without a closing quote is a lifetime.
    if rest[0] == b'\'' {
        if rest.get(1) == Some(&b'\\') {
            return quoted_end(bytes, at, b'\'');
        }
        let char_len = match rest.get(1) {
            Some(byte) if *byte >= 0xf0 => 4,
            Some(byte) if *byte >= 0xe0 => 3,
            Some(byte) if *byte >= 0xc0 => 2,
            _ => 1,
        };
        if rest.get(1 + char_len) == Some(&b'\'') {
            return at + char_len + 2;
        }
    }
    at
}

fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let (mut depth, mut end) = (0, at);
    while end < bytes.len() {
        if bytes[end..].starts_with(b"/*") {
            depth += 1;
            end += 2;
        } else if bytes[end..].starts_with(b"*/") {
            depth -= 1;
            end += 2;
            if depth == 0 {
                return end;
            }
        } else {
            end += 1;
        }
    }
    end
}

fn quoted_end(bytes: &[u8], at: usize, quote: u8) -> usize {
    let mut end = at + 1;
    while end < bytes.len() {
        match bytes[end] {
            b'\\' => end += 2,
            byte if byte == quote => return end + 1,
            _ => end += 1,
        }
    }
    bytes.len()
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || byte >= 0x80
}

/// Offsets of `word` as a whole word.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = at.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
        !before && !bytes.get(at + word.len()).is_some_and(|after| is_word(*after))
    })
}

/// Offsets where the crate `name` starts a path (`use name…`, `name::…`, `extern crate name`).
pub fn crate_uses<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    words(code, name).filter(move |at| {
        let before = code[..*at].trim_end();
        let after = code[at + name.len()..].trim_start();
        let imported = ["use", "extern crate", "use ::"].iter().any(|word| before.ends_with(word));
        imported || (after.starts_with("::") && !is_inner(before))
    })
}

/// Returns whether a path element follows `before`, so that what comes next is not the start of the path.
fn is_inner(before: &str) -> bool {
    let Some(outer) = before.strip_suffix("::") else {
        return false;
    };
    outer.as_bytes().last().is_some_and(|byte| is_word(*byte) || *byte == b'>')
}

/// The first element after every `crate::`, with its offset; `crate::{a::X, b}` gives `a` and `b`.
pub fn crate_rooms(code: &str) -> Vec<(usize, String)> {
    let mut rooms = Vec::new();
    for at in words(code, "crate") {
        let Some(path) = skip(code, at + "crate".len(), "::") else {
            continue;
        };
        if let Some(group) = skip(code, path, "{") {
            rooms.extend(group_heads(code, group));
        } else {
            rooms.extend(word_at(code, path));
        }
    }
    rooms
}

/// The first words of the items of a braced group that starts at `at`, at its own depth only.
fn group_heads(code: &str, at: usize) -> Vec<(usize, String)> {
    let mut heads = Vec::from_iter(word_at(code, at));
    let mut depth = 0;
    for (offset, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => break,
            b'}' => depth -= 1,
            b',' if depth == 0 => heads.extend(word_at(code, offset + 1)),
            _ => {}
        }
    }
    heads
}

/// The offset after `token`, if that comes next after white space.
fn skip(code: &str, at: usize, token: &str) -> Option<usize> {
    let rest = code[at..].trim_start();
    rest.starts_with(token).then(|| code.len() - rest.len() + token.len())
}

fn word_at(code: &str, at: usize) -> Option<(usize, String)> {
    let rest = code[at..].trim_start();
    let len = rest.bytes().take_while(|byte| is_word(*byte)).count();
    (len > 0).then(|| (code.len() - rest.len(), rest[..len].to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(text: &str) -> Vec<String> {
        crate_rooms(&code_only(text)).into_iter().map(|(_, room)| room).collect()
    }

    #[test]
    fn comments_and_literals_are_blanked_in_place() {
        let text = "a /* b /* c */ d */ e // f\n'g' \"h\\\" i\" r#\"j \" k\"# 'l m 'é' '\\'' b\"n\" br\"o\\\" p";
        let code = code_only(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.matches('\n').count(), 1);
        let left: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(left, ["a", "e", "'l", "m", "b", "b", "p"]);
    }

    #[test]
    fn rooms_of_plain_grouped_and_inline_paths() {
        assert_eq!(rooms("use crate::config::Run;"), ["config"]);
        assert_eq!(
            rooms("use crate::{\n  config::{Run, load}, // crate::no\n  data,\n  message::Id as I,\n};"),
            ["config", "data", "message"]
        );
        assert_eq!(rooms("pub(crate) fn f(x: crate :: data::X) { crate::engine::go() }"), ["data", "engine"]);
        assert_eq!(rooms("let s = \"crate::data\"; my_crate::data::x()"), Vec::<String>::new());
    }

    #[test]
    fn a_crate_is_used_where_its_name_starts_a_path() {
        let uses = |text: &str| crate_uses(text, "actix").count();
        assert_eq!(uses("use actix::Actor;"), 1);
        assert_eq!(uses("use actix;"), 1);
        assert_eq!(uses("use ::actix::Actor;"), 1);
        assert_eq!(uses("extern crate actix;"), 1);
        assert_eq!(uses("fn f() -> actix::Addr<A> { todo!() }"), 1);
        assert_eq!(uses("use crate::actix::X; mod actix; actix_rt::spawn(); let actix = 1;"), 0);
    }
}
