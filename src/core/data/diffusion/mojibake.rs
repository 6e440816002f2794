//! Mends text that was UTF-8 and was read as Windows-1252 or Latin-1 (`â€™` for `’`): only sequences that hardly occur otherwise.

/// Windows-1252 from 0x80 to 0x9F; `\u{0}` where it has nothing.
const WINDOWS: [char; 32] = [
    '€', '\0', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\0', 'Ž', '\0', '\0', '‘', '’', '“', '”', '•',
    '–', '—', '˜', '™', 'š', '›', 'œ', '\0', 'ž', 'Ÿ',
];
/// Text that was read wrongly several times over is mended as often.
const MAX_TIMES: usize = 4;

/// Returns the character of a byte from 0x80 to 0x9F.
pub(super) fn of_windows(byte: u8) -> Option<char> {
    WINDOWS.get(usize::from(byte.checked_sub(0x80)?)).copied().filter(|letter| *letter != '\0')
}

/// Returns the text in which characters that were read in a wrong encoding are as they were meant.
pub(super) fn mended(text: &str) -> String {
    let mut text = text.to_owned();
    for _ in 0..MAX_TIMES {
        let better = mended_once(&text);
        if better == text {
            break;
        }
        text = better;
    }
    text
}

fn mended_once(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    while at < letters.len() {
        let (letter, len) = meant(&letters[at..]).unwrap_or((letters[at], 1));
        out.push(letter);
        at += len;
    }
    out
}

/// Returns the character that the first of these letters stand for, and the number of these letters.
fn meant(letters: &[char]) -> Option<(char, usize)> {
    let len = match letters {
        ['Â' | 'Ã', ..] => 2,
        // These begin words as well: a letter behind one is a letter.
        ['Ä' | 'Å', next, ..] if !next.is_alphabetic() => 2,
        ['â', ..] | ['ï', '»' | '¼' | '½', ..] => 3,
        ['ð', 'Ÿ' | '\u{9f}', ..] => 4,
        _ => return None,
    };
    let bytes: Vec<u8> = letters.get(..len)?.iter().map(|letter| byte_of(*letter)).collect::<Option<_>>()?;
    let text = std::str::from_utf8(&bytes).ok()?;
    Some((text.chars().next()?, len))
}

/// Returns the byte above 0x7F that was read as this character.
fn byte_of(letter: char) -> Option<u8> {
    let windows = WINDOWS.iter().position(|other| *other == letter && letter != '\0').map(|at| 0x80 + at as u8);
    windows.or_else(|| u8::try_from(u32::from(letter)).ok().filter(|byte| *byte >= 0x80))
}
