//! Cleans prompts as Wan's pipeline does, which calls ftfy and Python's `html.unescape`: mended text, straight quotes, entities
//! written out, single spaces.
//!
//! These parts of what those two do are left out: texts of other alphabets that were read in the wrong encoding, bytes that were lost on
//! the way, composition of accents (NFC), and entities that are not in Latin-1 or common punctuation.

use super::mojibake::{mended, of_windows};

/// The names of the characters from U+00A0 to U+00FF.
const LATIN: [&str; 96] = [
    "nbsp", "iexcl", "cent", "pound", "curren", "yen", "brvbar", "sect", "uml", "copy", "ordf", "laquo", "not", "shy",
    "reg", "macr", "deg", "plusmn", "sup2", "sup3", "acute", "micro", "para", "middot", "cedil", "sup1", "ordm",
    "raquo", "frac14", "frac12", "frac34", "iquest", "Agrave", "Aacute", "Acirc", "Atilde", "Auml", "Aring", "AElig",
    "Ccedil", "Egrave", "Eacute", "Ecirc", "Euml", "Igrave", "Iacute", "Icirc", "Iuml", "ETH", "Ntilde", "Ograve",
    "Oacute", "Ocirc", "Otilde", "Ouml", "times", "Oslash", "Ugrave", "Uacute", "Ucirc", "Uuml", "Yacute", "THORN",
    "szlig", "agrave", "aacute", "acirc", "atilde", "auml", "aring", "aelig", "ccedil", "egrave", "eacute", "ecirc",
    "euml", "igrave", "iacute", "icirc", "iuml", "eth", "ntilde", "ograve", "oacute", "ocirc", "otilde", "ouml",
    "divide", "oslash", "ugrave", "uacute", "ucirc", "uuml", "yacute", "thorn", "yuml",
];
const NAMED: [(&str, char); 17] = [
    ("amp", '&'),
    ("lt", '<'),
    ("gt", '>'),
    ("quot", '"'),
    ("apos", '\''),
    ("ndash", '–'),
    ("mdash", '—'),
    ("lsquo", '‘'),
    ("rsquo", '’'),
    ("sbquo", '‚'),
    ("ldquo", '“'),
    ("rdquo", '”'),
    ("bdquo", '„'),
    ("hellip", '…'),
    ("bull", '•'),
    ("trade", '™'),
    ("euro", '€'),
];

/// Returns the text as the model is given it.
pub(super) fn cleaned(text: &str) -> String {
    let plain = unescaped(&unescaped(&plain(&mended(text))));
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a text with straight quotes, letters in place of ligatures and wide forms, and no control characters.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\u{2bc}' | '\u{2018}'..='\u{201b}' => out.push('\''),
            '\u{201c}'..='\u{201f}' => out.push('"'),
            'ﬀ' => out.push_str("ff"),
            'ﬁ' => out.push_str("fi"),
            'ﬂ' => out.push_str("fl"),
            'ﬃ' => out.push_str("ffi"),
            'ﬄ' => out.push_str("ffl"),
            'ﬅ' | 'ﬆ' => out.push_str("st"),
            'Ĳ' => out.push_str("IJ"),
            'ĳ' => out.push_str("ij"),
            '\u{ff01}'..='\u{ff5e}' => out.extend(char::from_u32(u32::from(letter) - 0xfee0)),
            '\u{0}'..='\u{8}' | '\u{b}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{feff}' => {}
            '\u{206a}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}' => {}
            letter => out.push(letter),
        }
    }
    out
}

/// Writes named entities and numbers of characters out as the characters.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        let entity = rest[at + 1..].split_once(';').map(|(entity, _)| entity).filter(|entity| entity.len() <= 8);
        match entity.and_then(|entity| Some((entity, letter_of(entity)?))) {
            Some((entity, letter)) => {
                out.push(letter);
                rest = &rest[at + entity.len() + 2..];
            }
            None => {
                out.push('&');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

/// Returns the character of an entity without its `&` and `;`.
fn letter_of(entity: &str) -> Option<char> {
    if let Some(number) = entity.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        // As browsers do.
        return u8::try_from(code).ok().and_then(of_windows).or_else(|| char::from_u32(code));
    }
    let latin = || LATIN.iter().zip('\u{a0}'..).find(|(name, _)| **name == entity).map(|(_, letter)| letter);
    NAMED.iter().find(|(name, _)| *name == entity).map(|(_, letter)| *letter).or_else(latin)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected texts are what ftfy 6.3 and `html.unescape` make of them.
    #[test]
    fn texts_are_cleaned_as_by_the_pipeline() {
        for (text, want) in [
            ("  a\n\tb  ", "a b"),
            ("x &amp;lt; y &#65;&#x42; &nbsp;z", "x < y AB z"),
            ("R&D; & &unknown; &", "R&D; & &unknown; &"),
            ("&eacute;t&eacute; &mdash; &#128;5", "été — €5"),
            ("itâ€™s a catâ€¦", "it's a cat…"),
            ("â€œhiâ€\u{9d} Itâ\u{80}\u{99}s", "\"hi\" It's"),
            ("cafÃ© naÃ¯ve 12Â°C Ã\u{a0} la Â«xÂ»", "café naïve 12°C à la «x»"),
            ("ðŸ˜€ smile â€“ and â€” â‚¬5", "😀 smile – and — €5"),
            ("ÃƒÂ©", "é"),
            ("ﬁne “quotes” ’s ＡＢＣ", "fine \"quotes\" 's ABC"),
            (" a\u{7}b", "ab"),
            ("L’été Ã©", "L'été é"),
            // Text that is as it should be.
            (
                "THÉ Â POINT, SÃO PAULO, Ångström, Äpfel, ça va à 12° «bien»",
                "THÉ Â POINT, SÃO PAULO, Ångström, Äpfel, ça va à 12° «bien»",
            ),
        ] {
            assert_eq!(cleaned(text), want, "{text}");
        }
    }
}
