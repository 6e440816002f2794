//! Sizes of pictures and numbers of their pixels, as a config writes them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Rows and columns of a picture in pixels, written `480x832`: 480 rows of 832 pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSize {
    pub rows: u32,
    pub columns: u32,
}

/// A number of pixels, written as it is or as the product of rows and columns: `399360`, `480x832`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Area(u64);

/// A number above 0, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shift {
    /// The shift follows from the number of the picture's tokens.
    Auto,
    By(f64),
}

const MAX_SIDE: u32 = 65536;

impl Area {
    /// Creates an area of this many pixels; rows and columns are not kept.
    pub const fn new(pixels: u64) -> Self {
        Self(pixels)
    }

    /// Returns the area as a number of pixels.
    pub const fn pixels(self) -> u64 {
        self.0
    }
}

impl FromStr for FrameSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let side = |text: &str| text.trim().parse().ok().filter(|side| (1..=MAX_SIDE).contains(side));
        let sides = text.split_once('x').and_then(|(rows, columns)| Some((side(rows)?, side(columns)?)));
        let (rows, columns) = sides.ok_or("expected rows and columns, such as `480x832`")?;
        Ok(Self { rows, columns })
    }
}

impl FromStr for Area {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || "expected a number of pixels above 0, or rows and columns, such as `480x832`".to_owned();
        match text.parse::<FrameSize>() {
            Ok(size) => Ok(Self(u64::from(size.rows) * u64::from(size.columns))),
            Err(_) => text.trim().parse().ok().filter(|pixels| *pixels > 0).map(Self).ok_or_else(wanted),
        }
    }
}

impl FromStr for Shift {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = || text.parse().ok().filter(|shift: &f64| shift.is_finite() && *shift > 0.0);
        match text {
            "auto" => Ok(Self::Auto),
            _ => number().map(Self::By).ok_or_else(|| "expected `auto` or a number above 0".to_owned()),
        }
    }
}

impl fmt::Display for FrameSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.rows, self.columns)
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::By(shift) => write!(f, "{shift}"),
        }
    }
}

/// A value that a config writes as text or as a number.
macro_rules! text_or_number {
    ($type:ident, $format:literal, $number:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                // A journal does not say which of the two it has: it has what is written above, text.
                if !deserializer.is_human_readable() {
                    return String::deserialize(deserializer)?.parse().map_err(de::Error::custom);
                }
                let value = serde_json::Value::deserialize(deserializer)?;
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": ["string", $number], "format": $format })
            }
        }
    };
}

pub(super) use text_or_number;

text_or_number!(FrameSize, "frame_size", "string");
text_or_number!(Area, "area", "integer");
text_or_number!(Shift, "shift", "number");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_areas_and_shifts_read_back_what_they_write() {
        let size: FrameSize = "480x832".parse().unwrap();
        assert_eq!((size.rows, size.columns, size.to_string().as_str()), (480, 832, "480x832"));
        assert_eq!("480x832".parse(), Ok(Area(399_360)));
        assert_eq!(serde_json::from_str::<Area>("399360").unwrap(), Area(399_360));
        assert_eq!(serde_json::from_str::<Shift>("2.5").unwrap(), Shift::By(2.5));
        assert_eq!("auto".parse(), Ok(Shift::Auto));
        for value in ["0x5", "5", "ax5", "5x5x5", "99999x1"] {
            assert!(value.parse::<FrameSize>().unwrap_err().contains("480x832"), "{value}");
        }
        assert!("0".parse::<Area>().is_err() && "-1".parse::<Shift>().is_err() && "0".parse::<Shift>().is_err());
        let text = serde_json::to_string(&(Area(7), Shift::By(3.0), Shift::Auto, size)).unwrap();
        let read: (Area, Shift, Shift, FrameSize) = serde_json::from_str(&text).unwrap();
        assert_eq!(read, (Area(7), Shift::By(3.0), Shift::Auto, size));
    }
}
