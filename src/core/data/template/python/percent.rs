//! `"…" % …`, which minijinja has for numbers only: a filter in the template's source.

pub(super) const FILTER: &str = "loongforge_format";

/// Returns the source with `"…" % value` written as a filter. A text that is not written there, but is a variable's, is not formatted.
pub(in crate::data::template) fn with_format_filter(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(*open)).min() {
        result.push_str(&rest[..start]);
        rest = &rest[start..];
        let len = if rest.starts_with("{#") { rest.find("#}").map(|at| at + 2) } else { tag_len(rest) };
        let Some(len) = len else { break };
        let tag = &rest[..len];
        match tag.starts_with("{#") {
            true => result.push_str(tag),
            false => rewrite(tag, &mut result),
        }
        rest = &rest[len..];
        let words = tag.trim_start_matches("{%").trim_start_matches(['-', '+']).trim_start();
        if words.starts_with("raw") && tag.starts_with("{%") {
            let end = rest.find("endraw").unwrap_or(rest.len());
            result.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    result + rest
}

fn tag_len(text: &str) -> Option<usize> {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let (mut at, mut depth) = (2, 0usize);
    while at < text.len() {
        let here = &text[at..];
        match here.as_bytes()[0] {
            b'"' | b'\'' => at += string_len(here)?,
            // A dict in `{{ }}` ends in `}` too.
            b'{' => (depth, at) = (depth + 1, at + 1),
            b'}' if depth > 0 => (depth, at) = (depth - 1, at + 1),
            _ if here.starts_with(close) => return Some(at + 2),
            _ => at += here.chars().next().map_or(1, char::len_utf8),
        }
    }
    None
}

/// Returns the length of a literal with its quotes.
fn string_len(text: &str) -> Option<usize> {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            byte if byte == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn rewrite(tag: &str, result: &mut String) {
    let mut at = 0;
    while at < tag.len() {
        let here = &tag[at..];
        let len = match here.as_bytes()[0] {
            b'"' | b'\'' => string_len(here).unwrap_or(here.len()),
            _ => here.chars().next().map_or(1, char::len_utf8),
        };
        result.push_str(&here[..len]);
        at += len;
        if len < 2 || !matches!(here.as_bytes()[0], b'"' | b'\'') {
            continue;
        }
        let behind = &tag[at..];
        let operand = behind.trim_start().strip_prefix('%').filter(|operand| !operand.starts_with('}'));
        if let Some(operand) = operand {
            let operand = operand.trim_start();
            let len = operand_len(operand);
            result.push_str(&format!("|{FILTER}("));
            rewrite(&operand[..len], result);
            result.push(')');
            at = tag.len() - operand.len() + len;
        }
    }
}

/// Returns the length of a name, a literal or a bracket with the calls, attributes and filters behind it.
fn operand_len(text: &str) -> usize {
    let mut at = text.len() - text.trim_start_matches('-').len();
    let mut expects_name = true;
    while at < text.len() {
        let here = &text[at..];
        let byte = here.as_bytes()[0];
        let is_word = byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        at += match byte {
            b'"' | b'\'' if expects_name => string_len(here).unwrap_or(here.len()),
            b'(' | b'[' | b'{' if expects_name || byte != b'{' => bracket_len(here),
            b'.' | b'|' => 1,
            _ if is_word && expects_name => {
                let end = here.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                end.unwrap_or(here.len())
            }
            _ => break,
        };
        expects_name = matches!(byte, b'.' | b'|');
    }
    at
}

fn bracket_len(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0usize);
    while at < text.len() {
        let here = &text[at..];
        match here.as_bytes()[0] {
            b'"' | b'\'' => {
                at += string_len(here).unwrap_or(here.len());
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        at += here.chars().next().map_or(1, char::len_utf8);
        if depth == 0 {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_formatted_and_numbers_are_not() {
        for (source, expected) in [
            ("{{ '%s' % a.b(1)|upper }}", "{{ '%s'|loongforge_format(a.b(1)|upper) }}"),
            ("{{ \"%d%%\" % (n, '%') + 'x' }}", "{{ \"%d%%\"|loongforge_format((n, '%')) + 'x' }}"),
            ("{% set x = '%s' % -1 %}", "{% set x = '%s'|loongforge_format(-1) %}"),
            ("{% if n % 2 == 'a' %}", "{% if n % 2 == 'a' %}"),
            ("{% set x = 'a' %}{{ {'a': '}}'} }}%}", "{% set x = 'a' %}{{ {'a': '}}'} }}%}"),
            ("{% raw %}{{ '%s' % 1 }}{% endraw %}{# '%s' % 1 #}", "{% raw %}{{ '%s' % 1 }}{% endraw %}{# '%s' % 1 #}"),
            ("{{ '%s' % '%s' % 1", "{{ '%s' % '%s' % 1"),
        ] {
            assert_eq!(with_format_filter(source), expected);
        }
    }
}
