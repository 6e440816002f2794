//! Names of a model's tensors as people want to see them: repeated layers in one line.

use std::collections::{BTreeMap, BTreeSet};

/// Numbers in braces that are listed before only the ends are.
const MAX_LISTED: usize = 6;

/// Names that differ in whole-number segments only, as one: `model.layers.{0..27}.mlp.up_proj.weight`, with their number.
/// Entries whose `key` differs are never put together.
pub fn collapse<'a, K: Ord + Clone>(entries: impl IntoIterator<Item = (&'a str, K)>) -> Vec<(String, K, usize)> {
    let mut groups: BTreeMap<(String, K), Vec<Vec<u64>>> = BTreeMap::new();
    for (name, key) in entries {
        let (template, numbers) = split(name);
        groups.entry((template, key)).or_default().push(numbers);
    }
    let line =
        |((template, key), numbers): ((String, K), Vec<Vec<u64>>)| (fill(&template, &numbers), key, numbers.len());
    groups.into_iter().map(line).collect()
}

/// Returns the name with `\0` for its whole-number segments, and these.
fn split(name: &str) -> (String, Vec<u64>) {
    let mut numbers = Vec::new();
    let segments = name.split('.').map(|segment| match segment.parse() {
        Ok(number) if segment.bytes().all(|byte| byte.is_ascii_digit()) => {
            numbers.push(number);
            "\0".to_owned()
        }
        _ => segment.escape_debug().to_string(),
    });
    (segments.collect::<Vec<_>>().join("."), numbers)
}

fn fill(template: &str, numbers: &[Vec<u64>]) -> String {
    let mut parts = template.split('\0');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for (index, part) in parts.enumerate() {
        let values: BTreeSet<u64> = numbers.iter().map(|numbers| numbers[index]).collect();
        name.push_str(&range(&values));
        name.push_str(part);
    }
    name
}

fn range(values: &BTreeSet<u64>) -> String {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return String::new() };
    let count = values.len();
    if count == 1 {
        return first.to_string();
    }
    if last - first + 1 == count as u64 {
        return format!("{{{first}..{last}}}");
    }
    if count <= MAX_LISTED {
        return format!("{{{}}}", values.iter().map(u64::to_string).collect::<Vec<_>>().join(","));
    }
    format!("{{{count} of {first}..{last}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_put_together() {
        let names: Vec<String> = (0..28).map(|layer| format!("model.layers.{layer}.mlp.up.weight")).collect();
        let entries = names.iter().map(|name| (name.as_str(), 1)).chain([("model.norm.weight", 2), ("a.7.b", 3)]);
        let found = collapse(entries.chain([("a.9.b", 3), ("a.7.b", 4)]));
        let want = [
            ("a.{7,9}.b".to_owned(), 3, 2),
            ("a.7.b".to_owned(), 4, 1),
            ("model.layers.{0..27}.mlp.up.weight".to_owned(), 1, 28),
            ("model.norm.weight".to_owned(), 2, 1),
        ];
        assert_eq!(found, want);
        let sparse: Vec<String> = (0..20).map(|layer| format!("{}.x", layer * 3)).collect();
        assert_eq!(collapse(sparse.iter().map(|name| (name.as_str(), ()))), [("{20 of 0..57}.x".to_owned(), (), 20)]);
    }
}
