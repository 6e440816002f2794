//! A rendered conversation with its pictures and videos put in place of their markers.

use super::error::DataError;
use super::media::{Expansion, Markers, MediaKind, Piece, Run};
use crate::message::Tower;

/// A marker in a rendered text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerSpan {
    pub start: usize,
    pub end: usize,
    pub kind: MediaKind,
}

/// Returns the markers in a text, in order.
pub fn find(text: &str, markers: &Markers) -> Vec<MarkerSpan> {
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(place) = next(text, at, markers) {
        at = place.end;
        places.push(place);
    }
    places
}

fn next(text: &str, from: usize, markers: &Markers) -> Option<MarkerSpan> {
    let candidates = |kind: MediaKind| {
        let words = &markers.of(kind).words;
        words.iter().filter(|word| !word.is_empty()).filter_map(move |word| {
            let start = from + text[from..].find(word.as_str())?;
            Some(MarkerSpan { start, end: start + word.len(), kind })
        })
    };
    // The longest of those that begin first.
    MediaKind::ALL.into_iter().flat_map(candidates).min_by_key(|place| (place.start, usize::MAX - place.end))
}

/// Checks that a text has a marker for each picture and video, in their order.
///
/// # Errors
/// It has others: the template lost one, or a text forged one.
pub fn check(places: &[MarkerSpan], expected: impl Iterator<Item = MediaKind> + Clone) -> Result<(), DataError> {
    if places.iter().map(|place| place.kind).eq(expected.clone()) {
        return Ok(());
    }
    let made = places.iter().map(|place| place.kind);
    let has = |wanted: MediaKind| expected.clone().chain(made.clone()).any(|kind| kind == wanted);
    let others: Vec<MediaKind> = [MediaKind::Audio, MediaKind::Context].into_iter().filter(|kind| has(*kind)).collect();
    let count = |kinds: &mut dyn Iterator<Item = MediaKind>| {
        let mut counts = [0; MediaKind::ALL.len()];
        kinds.for_each(|kind| counts[kind as usize] += 1);
        let of = |kind: MediaKind| match counts[kind as usize] {
            1 => format!("1 {}", kind.name().trim_end_matches('s')),
            count => format!("{count} {}", kind.name()),
        };
        let sight = format!("{} and {}", of(MediaKind::Image), of(MediaKind::Video));
        others.iter().fold(sight, |said, kind| format!("{said} and {}", of(*kind)))
    };
    let (given, made) = (count(&mut expected.clone()), count(&mut made.clone()));
    Err(DataError::Line(format!("the sample has {given}, but the chat template made placeholders for {made}")))
}

/// A text with its markers replaced, up to the first for which there is nothing. One placeholder token stands for a whole
/// run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expanded {
    pub text: String,
    /// The length of the part of the old text that it covers, in bytes.
    pub covers: usize,
    /// The place where the replacement of each marker begins.
    pub begins: Vec<usize>,
    /// The runs in order, one for each placeholder token.
    pub runs: Vec<Run>,
    /// The end of each marker in the old text, and of its replacement in the new one.
    ends: Vec<(usize, usize)>,
}

impl Expanded {
    /// `placeholder` is the token, as text, that features of a tower replace.
    pub fn new<'a>(
        text: &str,
        places: &[MarkerSpan],
        expansions: &[Expansion],
        placeholder: impl Fn(Tower) -> &'a str,
    ) -> Self {
        // What follows a marker that is not replaced is left out, and so is the marker.
        let covers = places.get(expansions.len()).map_or(text.len(), |place| place.start);
        let mut expanded = Self { text: String::with_capacity(covers), covers, ..Self::default() };
        let mut at = 0;
        let mut counts = [0; MediaKind::ALL.len()];
        for (place, expansion) in places.iter().zip(expansions) {
            expanded.text.push_str(&text[at..place.start]);
            expanded.begins.push(expanded.text.len());
            for piece in &expansion.pieces {
                match piece {
                    Piece::Text(piece) => expanded.text.push_str(piece),
                    Piece::Number(first) => {
                        expanded.text.push_str(&(first + counts[place.kind as usize]).to_string());
                    }
                    Piece::Run(run) => {
                        expanded.text.push_str(placeholder(run.tower));
                        expanded.runs.push(*run);
                    }
                }
            }
            counts[place.kind as usize] += 1;
            at = place.end;
            expanded.ends.push((at, expanded.text.len()));
        }
        expanded.text.push_str(&text[at..covers]);
        expanded
    }

    /// Returns where a place of the old text outside of markers is in the new one.
    pub fn place(&self, old: usize) -> usize {
        let before = self.ends.partition_point(|(end, _)| *end <= old);
        let (end, new_end) = before.checked_sub(1).map_or((0, 0), |index| self.ends[index]);
        new_end + old - end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markers() -> Markers {
        let words = |words: &[&str]| (words.iter().map(|&word| word.to_owned()).collect(), String::new());
        Markers::vision(words(&["<i>"]), words(&["[<v>]", "<v>"]))
    }

    #[test]
    fn markers_become_runs_and_places_move_with_them() {
        let text = "a<i>b[<v>]c<v>";
        let places = find(text, &markers());
        assert_eq!(
            places.iter().map(|place| &text[place.start..place.end]).collect::<Vec<_>>(),
            ["<i>", "[<v>]", "<v>"]
        );
        check(&places, [MediaKind::Image, MediaKind::Video, MediaKind::Video].into_iter()).unwrap();
        let run = |len: usize| Piece::Run(Run::new(1, 1, len));
        let expansion = |pieces| Expansion { media: vec![], pieces };
        let expansions = [
            expansion(vec![run(2)]),
            expansion(vec![Piece::Number(0), Piece::Text(":".into()), run(3), Piece::Text("2:".into()), run(4)]),
            expansion(vec![Piece::Number(0), run(5)]),
        ];
        let expanded = Expanded::new(text, &places, &expansions, |_| "<i>");
        assert_eq!(expanded.text, "a<i>b0:<i>2:<i>c1<i>");
        assert_eq!(expanded.runs.iter().map(|run| run.len()).collect::<Vec<_>>(), [2, 3, 4, 5]);
        for (old, new) in [(0, 0), (1, 1), (4, 4), (5, 5), (10, 15), (11, 16), (14, 20)] {
            assert_eq!(expanded.place(old), new, "{old}");
        }
        assert_eq!((expanded.covers, expanded.begins.as_slice()), (14, &[1, 5, 16][..]));
        let first = Expanded::new(text, &places, &expansions[..1], |_| "<i>");
        assert_eq!((first.text.as_str(), first.covers, first.runs.len()), ("a<i>b", 5, 1));
        assert_eq!(Expanded::new(text, &places, &[], |_| "<i>").text, "a");
    }

    #[test]
    fn missing_and_forged_markers_are_counted() {
        let error = check(&find("<i>", &markers()), [MediaKind::Video].into_iter()).unwrap_err().to_string();
        assert!(error.contains("0 pictures and 1 video,") && error.contains("for 1 picture and 0 videos"), "{error}");
    }
}
