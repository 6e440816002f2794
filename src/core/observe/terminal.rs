//! Small pictures in a terminal, one character for two pixels one above the other. The cursor is not moved.

use std::io::IsTerminal;

use image::imageops::{FilterType, resize};
use image::{GrayImage, RgbImage};

/// Gray levels of the 256-color palette: 232 (black) to 255 (white).
const NUM_GRAYS: u32 = 24;
/// The characters from the lightest to the darkest.
const RAMP: &[u8] = b" .:-=+*#%@";

/// Says how pictures are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Half blocks in gray colors.
    Blocks,
    /// Plain ASCII, dark pixels as dense characters.
    Ascii,
}

impl Style {
    /// Returns the style for this stream: ASCII where it is not a terminal, or `NO_COLOR` is set, or the terminal is `dumb`.
    pub fn of(stream: &impl IsTerminal) -> Self {
        if has_color(stream) { Style::Blocks } else { Style::Ascii }
    }
}

/// Returns whether colors may be written to a stream: it is a terminal that knows them, and `NO_COLOR` is not set.
pub fn has_color(stream: &impl IsTerminal) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value: std::ffi::OsString| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !set("NO_COLOR") && !dumb
}

/// Returns the picture as lines, at most `max_columns` wide.
pub fn render(picture: &RgbImage, max_columns: u32, style: Style) -> Vec<String> {
    let gray: GrayImage = image::imageops::grayscale(picture);
    let columns = gray.width().min(max_columns.max(1));
    let scale = f64::from(columns) / f64::from(gray.width().max(1));
    let height = ((f64::from(gray.height()) * scale).round() as u32).max(2).next_multiple_of(2);
    let gray = if gray.dimensions() == (columns, height) {
        gray
    } else {
        resize(&gray, columns, height, FilterType::Triangle)
    };
    (0..height / 2)
        .map(|row| {
            let pairs = (0..columns).map(|x| (gray.get_pixel(x, 2 * row).0[0], gray.get_pixel(x, 2 * row + 1).0[0]));
            match style {
                Style::Blocks => blocks(pairs),
                Style::Ascii => ascii(pairs),
            }
        })
        .collect()
}

/// Makes text of data or of a model safe for a terminal: nothing in it moves the cursor or changes colors.
pub fn safe(text: &str) -> String {
    let plain = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    text.chars().map(plain).collect()
}

/// Puts texts to the right of a picture's lines, in the middle of its height.
pub fn beside(picture: &[String], texts: &[String]) -> String {
    let first = picture.len().saturating_sub(texts.len()) / 2;
    let lines = picture.len().max(texts.len());
    let line = |index: usize| {
        let text = index.checked_sub(first).and_then(|index| texts.get(index));
        let picture = picture.get(index).map_or("", String::as_str);
        format!("  {picture}{}{}\n", if text.is_some() { "   " } else { "" }, text.map_or("", String::as_str))
    };
    (0..lines).map(line).collect()
}

fn blocks(pairs: impl Iterator<Item = (u8, u8)>) -> String {
    let level = |value: u8| 232 + u32::from(value) * (NUM_GRAYS - 1) / 255;
    let mut line = String::new();
    let mut last = None;
    for (upper, lower) in pairs {
        let colors = (level(upper), level(lower));
        if last != Some(colors) {
            line += &format!("\x1b[38;5;{};48;5;{}m", colors.0, colors.1);
            last = Some(colors);
        }
        line.push('▀');
    }
    line + "\x1b[0m"
}

fn ascii(pairs: impl Iterator<Item = (u8, u8)>) -> String {
    pairs
        .map(|(upper, lower)| {
            let ink = 255 - (usize::from(upper) + usize::from(lower)) / 2;
            char::from(RAMP[ink * (RAMP.len() - 1) / 255])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    #[test]
    fn ink_is_dense_and_paper_is_blank() {
        let picture = RgbImage::from_fn(4, 4, |x, y| Rgb([if x == 1 && y < 2 { 0 } else { 255 }; 3]));
        assert_eq!(render(&picture, 60, Style::Ascii), [" @  ", "    "]);
        let lines = render(&picture, 60, Style::Blocks);
        assert_eq!(lines[0], "\x1b[38;5;255;48;5;255m▀\x1b[38;5;232;48;5;232m▀\x1b[38;5;255;48;5;255m▀▀\x1b[0m");
    }

    #[test]
    fn wide_pictures_are_reduced_and_keep_their_shape() {
        let picture = RgbImage::new(120, 40);
        let lines = render(&picture, 60, Style::Ascii);
        assert_eq!((lines.len(), lines[0].len()), (10, 60));
        assert_eq!(render(&RgbImage::new(1, 1), 60, Style::Ascii).len(), 1);
        assert_eq!(render(&RgbImage::new(300, 1), 0, Style::Ascii).len(), 1);
    }

    #[test]
    fn texts_of_others_do_nothing_to_a_terminal() {
        assert_eq!(safe("a\x1b[31m\nb\u{9b}2J\t\r"), "a\u{fffd}[31m\nb\u{fffd}2J\t\u{fffd}");
    }

    #[test]
    fn texts_stand_in_the_middle() {
        let picture = ["aa".to_owned(), "bb".to_owned(), "cc".to_owned()];
        assert_eq!(beside(&picture, &["read 1".to_owned()]), "  aa\n  bb   read 1\n  cc\n");
        assert_eq!(beside(&[], &["x".to_owned()]), "     x\n");
    }
}
