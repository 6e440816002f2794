//! Values written as text with a unit or as a choice: sizes, durations, devices, thread counts.
//!
//! A bare number where a unit is needed is an error: `64` says neither bytes nor mebibytes.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Address;

/// A number of bytes, written `64MiB`, `1.5GiB`, `500kB` or `100B`.
///
/// ```
/// use loongforge_core::config::Size;
///
/// assert_eq!("64MiB".parse::<Size>(), Ok(Size::from_mib(64)));
/// assert!("64".parse::<Size>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

/// A time span, written `60s`, `500ms`, `5m` or `2h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(Duration);

/// The device that tensors live on: `cpu`, `cuda` (each actor takes the next GPU) or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// CUDA where it can be used, else the CPU.
    #[default]
    Auto,
    Cpu,
    /// `Some(n)` pins every actor to GPU `n`.
    Cuda(Option<u32>),
}

/// Intra-operation threads of one actor: `auto` or a positive number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    #[default]
    Auto,
    Count(usize),
}

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Units in microseconds, the finest step a time span keeps.
const TIME_UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

impl Size {
    /// Creates a size of this many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Creates a size of this many MiB (2^20 bytes).
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl TimeSpan {
    /// Creates a span of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// Returns the span as the standard library's type.
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_with_unit(text, &SIZE_UNITS, "a size with a unit, such as `64MiB`").map(Self)
    }
}

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let micros = parse_with_unit(text, &TIME_UNITS, "a time span with a unit, such as `60s`")?;
        Ok(Self(Duration::from_micros(micros)))
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let index = text.strip_prefix("cuda:").filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
        match (text, index.and_then(|n| n.parse().ok())) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda(None)),
            (_, Some(index)) => Ok(Self::Cuda(Some(index))),
            _ => Err("expected `auto`, `cpu`, `cuda` or `cuda:N`".to_owned()),
        }
    }
}

impl FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<usize>()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count @ 1..=1024)) => Ok(Self::Count(count)),
            _ => Err("expected `auto` or a number from 1 to 1024".to_owned()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_unit(f, self.0, &SIZE_UNITS, "B")
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not above seconds: `60s` is what people write and compare.
        write_with_unit(f, self.0.as_micros() as u64, &TIME_UNITS[2..], "s")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

fn parse_with_unit(text: &str, units: &[(&str, u64)], wanted: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim_start());
    let names = || units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    if number.is_empty() {
        return Err(format!("expected {wanted}"));
    }
    if unit.is_empty() {
        return Err(format!("a bare number needs a unit here; expected {wanted}"));
    }
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("unknown unit `{unit}`; units are {}", names()));
    };
    let too_large = || format!("`{text}` is too large");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*scale).ok_or_else(too_large);
    }
    let value = number.parse::<f64>().map_err(|_| format!("expected {wanted}"))? * *scale as f64;
    // Above 2^53 a fraction cannot be represented exactly any more.
    if value <= 9_007_199_254_740_992.0 { Ok(value.round() as u64) } else { Err(too_large()) }
}

/// Writes the unit that gives the smallest whole number, so that it reads back the same.
fn write_with_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)], zero: &str) -> fmt::Result {
    let exact = units.iter().filter(|(_, scale)| value != 0 && value.is_multiple_of(*scale));
    match exact.min_by_key(|(_, scale)| value / scale) {
        Some((unit, scale)) => write!(f, "{}{unit}", value / scale),
        None => write!(f, "0{zero}"),
    }
}

macro_rules! text_value {
    ($type:ident, $format:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
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
                json_schema!({ "type": "string", "format": $format })
            }
        }
    };
}

text_value!(Size, "size");
text_value!(TimeSpan, "duration");
text_value!(Device, "device");
text_value!(Address, "address");

impl Serialize for Threads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => serializer.serialize_u64(*count as u64),
        }
    }
}

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Threads {
    fn schema_name() -> Cow<'static, str> {
        "Threads".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"], "format": "threads" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_read_back_what_they_write() {
        for text in ["64MiB", "1GiB", "500kB", "7B", "0B", "3TB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for text in ["60ms", "60s", "90s", "250us", "0s"] {
            assert_eq!(text.parse::<TimeSpan>().unwrap().to_string(), text);
        }
        assert_eq!("1.5KiB".parse::<Size>().unwrap().bytes(), 1536);
        assert_eq!("1h".parse::<TimeSpan>().unwrap().to_string(), "3600s");
    }

    #[test]
    fn units_are_required_and_known() {
        assert!("64".parse::<Size>().unwrap_err().contains("needs a unit"));
        assert!("64mb".parse::<Size>().unwrap_err().contains("unknown unit `mb`"));
        assert!("-1s".parse::<TimeSpan>().unwrap_err().contains("such as `60s`"));
        assert!("99999999999TiB".parse::<Size>().unwrap_err().contains("too large"));
        assert!("1.2.3MiB".parse::<Size>().is_err());
    }

    #[test]
    fn devices_and_threads() {
        assert_eq!("cuda:3".parse(), Ok(Device::Cuda(Some(3))));
        assert!("cuda:".parse::<Device>().is_err());
        assert!("gpu".parse::<Device>().is_err());
        assert_eq!("auto".parse(), Ok(Threads::Auto));
        assert_eq!(serde_json::from_str::<Threads>("2").unwrap(), Threads::Count(2));
        assert!("0".parse::<Threads>().is_err());
    }
}
