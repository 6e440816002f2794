//! Glob patterns for parameter and module names.

/// Returns whether `pattern` matches all of `text`: `*` is any text, dots included, `?` one character.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last `*` stands, and what it has swallowed so far; no backtracking further than that is needed.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((at, swallowed)) = star else { return false };
                star = Some((at, swallowed + 1));
                (p, t) = (at + 1, swallowed + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn stars_match_any_text() {
        assert!(glob("*", "") && glob("a*c", "abbc") && glob("*.mlp.*", "model.layers.3.mlp.up_proj.weight"));
        assert!(glob("*a*b", "xaaxab") && glob("layers.?", "layers.3") && glob("exact", "exact"));
        assert!(!glob("a*c", "abbcd") && !glob("layers.?", "layers.13") && !glob("", "x") && !glob("*.b", "a.c"));
    }

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name, want) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("*.inv_freq", "model.rotary.inv_freq", true),
            ("model.layers.61.*", "model.layers.61.x.y", true),
            ("model.layers.61.*", "model.layers.6.x", false),
            ("a*a", "a", false),
            ("*b*c", "abxbc", true),
            ("*", "", true),
        ] {
            assert_eq!(glob(pattern, name), want, "{pattern} {name}");
        }
    }
}
