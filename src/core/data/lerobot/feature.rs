//! The features of a set: what every frame of it has.

use image::RgbImage;

/// Axes with more entries are no channels of a picture.
const MAX_CHANNELS: usize = 4;

/// The type of a feature's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dtype {
    Float32,
    Float64,
    Int64,
    Bool,
    /// Whole numbers of this type, which are read and not written.
    Int(String),
    String,
    /// Pictures as PNG in the Parquet files.
    Image,
    /// Frames of videos.
    Video,
    /// A type of this name, which is not read: depth, sound, sentences of several speakers.
    Other(String),
}

/// The values that every frame has under a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Feature {
    /// The name, for example `observation.state`, `action`, `observation.images.front`.
    pub key: String,
    pub dtype: Dtype,
    /// Sizes of the axes; of pictures and videos rows, columns, channels.
    pub shape: Vec<usize>,
    /// Names of the entries of the last axis, or of a picture's axes; may be empty.
    pub names: Vec<String>,
}

/// The value of a feature in one frame.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Numbers, or truth values as 0 and 1, row-major.
    Numbers(&'a [f32]),
    /// Whole numbers with all their digits, row-major.
    Whole(&'a [i64]),
    /// Numbers of float64 with all their digits, row-major.
    Reals(&'a [f64]),
    Picture(&'a RgbImage),
    Text(&'a str),
}

impl Feature {
    /// Returns a vector of float32 with these names of its entries.
    pub fn vector(key: &str, names: &[&str]) -> Self {
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        Self { key: key.to_owned(), dtype: Dtype::Float32, shape: vec![names.len()], names }
    }

    /// Pictures of rows × columns, as PNG.
    pub fn images(key: &str, rows: usize, columns: usize) -> Self {
        Self::of_pictures(key, rows, columns, Dtype::Image)
    }

    /// Pictures of rows × columns, as H.264 video.
    pub fn video(key: &str, rows: usize, columns: usize) -> Self {
        Self::of_pictures(key, rows, columns, Dtype::Video)
    }

    fn of_pictures(key: &str, rows: usize, columns: usize, dtype: Dtype) -> Self {
        let names = ["height", "width", "channels"].map(str::to_owned).to_vec();
        Self { key: key.to_owned(), dtype, shape: vec![rows, columns, 3], names }
    }

    /// Numbers of one frame.
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns rows and columns of its pictures; `None` where the shape is not one of pictures. Where no names tell the axes apart, channels
    /// are the short one, at the end or the begin.
    pub fn picture_size(&self) -> Option<[usize; 2]> {
        let &[first, second, third] = self.shape.as_slice() else { return None };
        let axis = |name: &str| self.names.iter().position(|axis| axis == name).filter(|&at| at < 3);
        match (axis("height"), axis("width")) {
            (Some(rows), Some(columns)) => Some([self.shape[rows], self.shape[columns]]),
            _ if third <= MAX_CHANNELS => Some([first, second]),
            _ if first <= MAX_CHANNELS => Some([second, third]),
            _ => None,
        }
    }

    /// Returns whether its values are numbers or truth values.
    pub fn is_numbers(&self) -> bool {
        matches!(self.dtype, Dtype::Float32 | Dtype::Float64 | Dtype::Int64 | Dtype::Bool | Dtype::Int(_))
    }
}

impl Dtype {
    /// Returns the type that `meta/info.json` has this word for.
    pub(super) fn read(word: &str, is_depth: bool) -> Self {
        match word {
            "image" | "video" if is_depth => Self::Other(format!("{word} of depth")),
            "image" => Self::Image,
            "video" => Self::Video,
            "float32" => Self::Float32,
            "float64" => Self::Float64,
            "int64" => Self::Int64,
            "bool" => Self::Bool,
            "string" => Self::String,
            "int8" | "int16" | "int32" | "uint8" | "uint16" | "uint32" => Self::Int(word.to_owned()),
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns the word that `meta/info.json` has for it.
    pub fn name(&self) -> &str {
        match self {
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Int64 => "int64",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Image => "image",
            Self::Video => "video",
            Self::Int(name) | Self::Other(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_have_the_size_that_the_axes_say() {
        let size = |shape: &[usize], names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            Feature { shape: shape.to_vec(), names, ..Feature::images("top", 1, 1) }.picture_size()
        };
        assert_eq!(Feature::video("top", 32, 48).picture_size(), Some([32, 48]));
        assert_eq!(size(&[3, 32, 48], &["channels", "height", "width"]), Some([32, 48]));
        assert_eq!(size(&[48, 32, 3], &["width", "height", "rgb"]), Some([32, 48]));
        assert_eq!((size(&[32, 48, 3], &[]), size(&[3, 32, 48], &[])), (Some([32, 48]), Some([32, 48])));
        assert_eq!(
            (size(&[32, 48], &["height", "width"]), size(&[32, 48, 64], &[]), size(&[], &[])),
            (None, None, None)
        );
    }
}
