//! `[ … ]`, `[[ … ]]` and `test …`, where all that they compare is in the script.

use super::value::Word;

/// Returns the result of a command that is a condition; `None`: it is not known here. A variable that the script does not set is empty.
pub(super) fn holds(words: &[Word]) -> Option<bool> {
    if words.iter().any(|word| word.unknown) {
        return None;
    }
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    let inner = match texts.as_slice() {
        ["[", inner @ .., "]"] | ["[[", inner @ .., "]]"] | ["test", inner @ ..] => inner,
        ["true"] => return Some(true),
        ["false"] => return Some(false),
        _ => return None,
    };
    match inner {
        ["!", rest @ ..] => test(rest).map(|holds| !holds),
        rest => test(rest),
    }
}

fn test(words: &[&str]) -> Option<bool> {
    let numbers = |a: &str, b: &str| Some((a.parse::<i64>().ok()?, b.parse::<i64>().ok()?));
    match words {
        ["-n"] => Some(false),
        ["-z"] => Some(true),
        ["-n", text] => Some(!text.is_empty()),
        ["-z", text] => Some(text.is_empty()),
        [text] => Some(!text.is_empty()),
        [a, "=" | "==", b] => Some(a == b),
        [a, "!=", b] => Some(a != b),
        [a, "-eq", b] => numbers(a, b).map(|(a, b)| a == b),
        [a, "-ne", b] => numbers(a, b).map(|(a, b)| a != b),
        [a, "-gt", b] => numbers(a, b).map(|(a, b)| a > b),
        [a, "-ge", b] => numbers(a, b).map(|(a, b)| a >= b),
        [a, "-lt", b] => numbers(a, b).map(|(a, b)| a < b),
        [a, "-le", b] => numbers(a, b).map(|(a, b)| a <= b),
        _ => None,
    }
}
