//! Paths as `meta/info.json` writes them: Python format strings such as `data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet`.

use std::path::{Component, Path, PathBuf};

/// A path with places for numbers and names.
#[derive(Clone, Debug, PartialEq)]
pub struct PathTemplate(Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    /// A field, and the digits that its number is filled up to.
    Field(String, usize),
}

impl PathTemplate {
    /// # Errors
    /// The reason: a brace that is not closed, a format that is not read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let close = rest[open..].find('}').ok_or_else(|| format!("{text:?} has an unclosed brace"))? + open;
            pieces.push(Piece::Text(rest[..open].to_owned()));
            let inside = &rest[open + 1..close];
            let (name, format) = inside.split_once(':').unwrap_or((inside, ""));
            let digits = format.strip_suffix('d').unwrap_or(format);
            let is_known = digits.is_empty() || digits.starts_with('0');
            let width = if digits.is_empty() { Some(0) } else { digits.parse().ok() };
            match width.filter(|width| is_known && *width <= 32) {
                Some(width) => pieces.push(Piece::Field(name.to_owned(), width)),
                None => return Err(format!("{text:?} has the format {format:?}, which is not supported")),
            }
            rest = &rest[close + 1..];
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    /// Returns the path for these numbers and this name of a video, below the set's folder.
    ///
    /// # Errors
    /// The reason: a field without a value, or a path that leads out of the set.
    pub fn fill(&self, numbers: &[(&str, u64)], video_key: &str) -> Result<PathBuf, String> {
        let mut path = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => path += text,
                Piece::Field(name, _) if name == "video_key" => path += video_key,
                Piece::Field(name, width) => {
                    let number = numbers.iter().find(|(known, _)| known == name).map(|(_, number)| *number);
                    let number = number.ok_or_else(|| format!("has the unknown placeholder {{{name}}}"))?;
                    path += &format!("{number:0width$}");
                }
            }
        }
        is_inner(&path).map_err(|()| format!("leads to {path:?}, which is not in the set"))?;
        Ok(PathBuf::from(path))
    }
}

/// # Errors
/// The path is absolute or goes up.
pub fn is_inner(path: &str) -> Result<(), ()> {
    let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if is_plain && !path.is_empty() { Ok(()) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_as_python_does() {
        let template = PathTemplate::parse("videos/{video_key}/chunk-{chunk_index:03d}/f{file_index:d}.mp4").unwrap();
        let path = template.fill(&[("chunk_index", 7), ("file_index", 1234)], "observation.images.top").unwrap();
        assert_eq!(path, Path::new("videos/observation.images.top/chunk-007/f1234.mp4"));
        let error = template.fill(&[("chunk_index", 7)], "a").unwrap_err();
        assert!(error.contains("{file_index}"), "{error}");
        assert!(PathTemplate::parse("a{b").unwrap_err().contains("unclosed"));
        assert!(PathTemplate::parse("a{b:>8}").unwrap_err().contains(">8"));
        for way_out in ["../{video_key}", "/etc/{video_key}"] {
            assert!(PathTemplate::parse(way_out).unwrap().fill(&[], "a").unwrap_err().contains("not in the set"));
        }
        assert!(template.fill(&[("chunk_index", 7), ("file_index", 1)], "../../a").is_err());
    }
}
