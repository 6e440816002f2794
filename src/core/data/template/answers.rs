//! The parts of a text that a template marks as the assistant's, by `{% generation %}`.

use std::ops::Range;

/// The marks around the assistant's text while a template is rendered: noncharacters, which texts do not have.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';
pub(super) const ANSWER_FILTER: &str = "loongforge_answer";

/// Implements the filter of that name.
pub(super) fn mark(text: String) -> String {
    format!("{BEGIN}{text}{END}")
}

/// Makes `{% generation %}` a filter block, which takes and trims space around it alike.
pub(super) fn with_answer_filter(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // `{%}` opens a tag and does not close it.
        let Some(len) = rest[start + 2..].find("%}").map(|len| len + 2) else { break };
        let tag = &rest[start + 2..start + len];
        let name = tag.trim_matches(|c: char| matches!(c, '-' | '+') || c.is_whitespace());
        let block = match name {
            "generation" => Some(format!("filter {ANSWER_FILTER}")),
            "endgeneration" => Some("endfilter".to_owned()),
            _ => None,
        };
        match block {
            Some(block) => {
                result.push_str(&rest[..start + 2]);
                result.push_str(&tag.replace(name, &format!(" {block} ")));
                result.push_str("%}");
            }
            None => result.push_str(&rest[..start + len + 2]),
        }
        rest = &rest[start + len + 2..];
    }
    result + rest
}

/// Returns a text without the marks, and what stood between them.
pub(super) fn take_marks(marked: &str) -> (String, Vec<Range<usize>>) {
    let (mut text, mut ranges, mut begin) = (String::with_capacity(marked.len()), Vec::new(), None);
    for letter in marked.chars() {
        match letter {
            BEGIN => begin = begin.or(Some(text.len())),
            END => ranges.extend(begin.take().map(|begin| begin..text.len())),
            letter => text.push(letter),
        }
    }
    (text, ranges)
}
