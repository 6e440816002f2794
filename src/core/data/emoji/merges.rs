//! Byte pair encoding learned from texts (Sennrich et al. 2016): the pair of neighbors that is met most often becomes one
//! symbol, again and again.

use std::collections::{BTreeMap, HashMap};

use crate::data::tiktoken::byte_letters;

/// Returns at most `count` merges in their order, in the letters of byte-level tokenizers; of pairs met equally often the one of the
/// older symbols goes first. Pairs that are met once are not merged, and no merge crosses words: a space begins one.
pub fn learn_merges<'a>(texts: impl Iterator<Item = &'a str>, count: usize) -> Vec<[String; 2]> {
    let mut spelling: Vec<String> = byte_letters().map(String::from).into();
    let mut counts: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
    for word in texts.flat_map(words) {
        *counts.entry(word.bytes().map(u32::from).collect()).or_default() += 1;
    }
    let mut words: Vec<(Vec<u32>, u64)> = counts.into_iter().collect();
    let mut merges = Vec::new();
    for _ in 0..count {
        let mut pairs: HashMap<(u32, u32), u64> = HashMap::new();
        for (word, count) in &words {
            word.windows(2).for_each(|pair| *pairs.entry((pair[0], pair[1])).or_default() += count);
        }
        // Of a maximum no order of the map is seen.
        let best = pairs.into_iter().max_by_key(|&(pair, count)| (count, std::cmp::Reverse(pair)));
        let Some((pair, _)) = best.filter(|&(_, count)| count > 1) else { break };
        let symbol = spelling.len() as u32;
        words.iter_mut().for_each(|(word, _)| join(word, pair, symbol));
        let (left, right) = (spelling[pair.0 as usize].clone(), spelling[pair.1 as usize].clone());
        spelling.push(format!("{left}{right}"));
        merges.push([left, right]);
    }
    merges
}

fn join(word: &mut Vec<u32>, pair: (u32, u32), symbol: u32) {
    let (mut from, mut to) = (0, 0);
    while from < word.len() {
        let is_pair = word[from] == pair.0 && word.get(from + 1) == Some(&pair.1);
        word[to] = if is_pair { symbol } else { word[from] };
        from += if is_pair { 2 } else { 1 };
        to += 1;
    }
    word.truncate(to);
}

/// Letters, digits or other signs in a row, each with the space before it.
fn words(text: &str) -> Vec<&str> {
    let kind = |c: char| match c {
        c if c.is_alphabetic() => 0,
        c if c.is_numeric() => 1,
        _ => 2,
    };
    let (mut found, mut start, mut last) = (Vec::new(), 0, None);
    for (at, c) in text.char_indices() {
        let begins = c == ' ' || last.is_some_and(|last| last != ' ' && kind(last) != kind(c));
        if begins && at > start {
            found.push(&text[start..at]);
            start = at;
        }
        last = Some(c);
    }
    found.extend((start < text.len()).then(|| &text[start..]));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_pair_is_joined_first() {
        // "ab" 3 times, " ab" twice of them; "cd" once stays apart.
        let merges = learn_merges(["ab cd", "x ab ab"].into_iter(), 10);
        assert_eq!(merges, [["a", "b"], ["Ġ", "ab"]].map(|pair| pair.map(str::to_owned)));
        assert_eq!(learn_merges(["aaaa aaaa"].into_iter(), 1), [["a", "a"].map(str::to_owned)]);
    }

    #[test]
    fn words_begin_at_spaces_and_where_the_kind_changes() {
        assert_eq!(words("man: bald, 10 o'clock"), ["man", ":", " bald", ",", " 10", " o", "'", "clock"]);
        assert!(words("").is_empty());
    }
}
