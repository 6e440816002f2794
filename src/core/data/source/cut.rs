//! Long texts cut into pieces, each a sample: by bytes, of as many as are sure to fit.

/// Places of a data set at which its bytes a token are measured, and bytes that are looked at there.
pub const NUM_PROBES: usize = 32;
const PROBE_BYTES: usize = 2048;
/// A shorter text says little.
const MIN_PROBE_BYTES: usize = 64;
/// Tokens that may stand around a text.
const MARGIN: usize = 2;
/// Sets how far back a cut moves to lie between words, in bytes; a quarter of a piece at most.
const SEARCH: usize = 64;

/// A text or a piece of one.
#[derive(Debug, PartialEq, Eq)]
pub struct TextPiece {
    pub text: String,
    /// It begins the text.
    pub begins: bool,
    /// It ends the text.
    pub ends: bool,
}

/// The tokens of a document, or of a piece of one.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenPiece {
    pub ids: Vec<i64>,
}

impl TokenPiece {
    /// Returns piece `index` of as many as are needed for at most `max_tokens` each: all alike but for one token.
    pub fn of(mut ids: Vec<i64>, index: u64, max_tokens: u64) -> Self {
        let (len, num) = (ids.len() as u128, u128::from(num_token_pieces(ids.len() as u64, max_tokens)));
        let at = |index: u64| (len * u128::from(index) / num) as usize;
        ids.truncate(at(index + 1));
        Self { ids: ids.split_off(at(index)) }
    }
}

/// Pieces of a document of `num_tokens`, of at most `max_tokens` each.
pub fn num_token_pieces(num_tokens: u64, max_tokens: u64) -> u64 {
    num_tokens.div_ceil(max_tokens.max(1)).max(1)
}

impl TextPiece {
    /// Returns piece `index` of `num`.
    pub fn of(text: &str, index: u64, num: u64) -> Self {
        let (from, to) = (cut(text, index as usize, num as usize), cut(text, index as usize + 1, num as usize));
        Self { text: text[from..to].to_owned(), begins: index == 0, ends: index + 1 == num }
    }
}

/// Returns the most bytes of a piece of at most `max_tokens` tokens, from texts all over the data set: the fewest bytes a token, at least
/// 1, as many fit surely. `num_tokens` counts the tokens of a text.
pub fn piece_bytes(texts: impl Iterator<Item = String>, max_tokens: usize, num_tokens: &dyn Fn(&str) -> usize) -> u64 {
    let ratios = texts.filter(|text| text.len() >= MIN_PROBE_BYTES).map(|text| {
        let probe = &text[..text.floor_char_boundary(PROBE_BYTES)];
        probe.len() as f64 / num_tokens(probe).max(1) as f64
    });
    let least = ratios.fold(f64::INFINITY, f64::min);
    // Other places may have a few more tokens.
    let bytes_per_token = if least.is_finite() { (least * 0.9).max(1.0) } else { 1.0 };
    (max_tokens.saturating_sub(MARGIN).max(1) as f64 * bytes_per_token) as u64
}

/// Returns the number of pieces of a text of `num_bytes`.
pub fn num_pieces(num_bytes: u64, piece_bytes: u64) -> u64 {
    // A cut between words makes a piece longer by a quarter at most.
    if num_bytes <= piece_bytes { 1 } else { num_bytes.div_ceil((piece_bytes / 5 * 4).max(1)) }
}

/// Returns where piece `index` of `num` begins: at an equal share, moved back to a gap between words if one is near.
fn cut(text: &str, index: usize, num: usize) -> usize {
    if index == 0 || index >= num {
        return if index == 0 { 0 } else { text.len() };
    }
    let at = text.floor_char_boundary(text.len() / num * index + text.len() % num * index / num);
    // Only as far back as the piece that begins there may grow.
    let search = SEARCH.min((text.len() / num / 4).saturating_sub(4));
    let from = text.floor_char_boundary(at - search);
    text[from..at].rfind(char::is_whitespace).map_or(at, |offset| from + offset)
}
