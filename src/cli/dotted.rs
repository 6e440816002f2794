//! `--train.lr 2e-5`, as torchtitan and others have it, for `train.lr=2e-5`.

use std::ffi::OsString;

/// The words of a command line in which options whose name has a dot, as none of ours has, are overrides.
pub fn overrides(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut words, mut all) = (words.peekable(), Vec::new());
    while let Some(word) = words.next() {
        let text = word.to_str().and_then(|text| text.strip_prefix("--")).filter(|text| is_key(text));
        let Some(text) = text else {
            all.push(word);
            continue;
        };
        let is_value = |next: &OsString| !next.to_string_lossy().starts_with("--");
        all.push(match (text.contains('='), words.next_if(|next| !text.contains('=') && is_value(next))) {
            (true, _) => text.into(),
            (false, Some(value)) => [text.as_ref(), "=".as_ref(), value.as_os_str()].into_iter().collect(),
            (false, None) => format!("{text}=true").into(),
        });
    }
    all
}

fn is_key(text: &str) -> bool {
    let name = text.split('=').next().unwrap_or_default();
    let is_word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    name.contains('.') && name.split('.').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotted_options_are_overrides_and_others_are_left_alone() {
        let of = |line: &str| overrides(line.split(' ').map(OsString::from)).join(" ".as_ref()).into_string().unwrap();
        assert_eq!(of("run a.yaml --train.lr 2e-5 --resume"), "run a.yaml train.lr=2e-5 --resume");
        assert_eq!(of("run a.yaml --train.lr=2e-5 --log.jsonl"), "run a.yaml train.lr=2e-5 log.jsonl=true");
        let ours = "launch a.yaml --image x.io/y:1 --hosts=a.b,c.d --out ./a.b -- --.. --a..b";
        assert_eq!(of(ours), ours);
    }
}
