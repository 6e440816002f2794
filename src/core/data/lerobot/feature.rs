//! The features of a set: what every frame of it has.

use image::RgbImage;

/// The type of a feature's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Float32,
    Float64,
    Int32,
    Int64,
    Bool,
    String,
    /// Pictures as PNG in the Parquet files.
    Image,
    /// Frames of videos.
    Video,
}

/// What every frame has under a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Feature {
    /// For example `observation.state`, `action`, `observation.images.front`.
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
    /// Of a feature of numbers or of truth values (0 and 1), row-major.
    Numbers(&'a [f32]),
    Picture(&'a RgbImage),
    Text(&'a str),
}

impl Feature {
    /// A vector of float32 with these names of its entries.
    pub fn vector(key: &str, names: &[&str]) -> Self {
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        Self { key: key.to_owned(), dtype: Dtype::Float32, shape: vec![names.len()], names }
    }

    /// Pictures of rows × columns, as PNG or as H.264 video.
    pub fn pictures(key: &str, rows: usize, columns: usize, as_video: bool) -> Self {
        let names = ["height", "width", "channels"].map(str::to_owned).to_vec();
        let dtype = if as_video { Dtype::Video } else { Dtype::Image };
        Self { key: key.to_owned(), dtype, shape: vec![rows, columns, 3], names }
    }
}

impl Dtype {
    /// The word that `meta/info.json` has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Image => "image",
            Self::Video => "video",
        }
    }

    pub(super) const ALL: [Self; 8] = [
        Self::Float32,
        Self::Float64,
        Self::Int32,
        Self::Int64,
        Self::Bool,
        Self::String,
        Self::Image,
        Self::Video,
    ];
}
