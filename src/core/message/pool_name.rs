//! Names of pools.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// The name of a pool of actors, unique within a run: `encoder`, `audio`, `foundation`.
///
/// It is a word of at most [`PoolName::MAX_LEN`] lower-case letters, digits and `_` that begins with a letter, so that it can be a
/// config key, part of a file name and a metric label. It is `Copy`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolName([u8; PoolName::MAX_LEN]);

/// The text is not a valid name of a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a valid pool name: use at most {max} lower-case letters, digits and `_`, starting with a letter",
    max = PoolName::MAX_LEN
)]
pub struct BadPoolName(pub String);

impl PoolName {
    /// Maximum length of a name in bytes.
    pub const MAX_LEN: usize = 23;

    pub const SCHEDULER: Self = Self::fixed("scheduler");
    pub const DATA: Self = Self::fixed("data");
    /// The pool of the towers without a pool of their own.
    pub const ENCODER: Self = Self::fixed("encoder");
    pub const FOUNDATION: Self = Self::fixed("foundation");
    /// The pool of the high-noise transformer, if a run trains one for high and one for low noise.
    pub const FOUNDATION_HIGH: Self = Self::fixed("foundation_high");
    /// The pool of the low-noise transformer.
    pub const FOUNDATION_LOW: Self = Self::fixed("foundation_low");

    const fn fixed(name: &str) -> Self {
        let mut bytes = [0; Self::MAX_LEN];
        let mut index = 0;
        while index < name.len() {
            bytes[index] = name.as_bytes()[index];
            index += 1;
        }
        Self(bytes)
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&byte| byte == 0).unwrap_or(Self::MAX_LEN);
        std::str::from_utf8(&self.0[..len]).expect("a name is ASCII")
    }
}

impl FromStr for PoolName {
    type Err = BadPoolName;

    fn from_str(name: &str) -> Result<Self, BadPoolName> {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
        match begins && name.len() <= Self::MAX_LEN && name.bytes().all(is_part) {
            true => Ok(Self::fixed(name)),
            false => Err(BadPoolName(name.chars().take(80).collect())),
        }
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for PoolName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for PoolName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for PoolName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PoolName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{decode, encode};

    #[test]
    fn a_name_is_one_word() {
        for name in ["encoder", "a", "audio_2", "foundation_of_high_nois"] {
            let pool: PoolName = name.parse().unwrap();
            assert_eq!((pool.as_str(), format!("{pool:?}")), (name, name.to_owned()));
            assert_eq!(decode::<PoolName>(&encode(&pool).unwrap()).unwrap(), pool);
        }
        for name in ["", "2", "_a", "Audio", "a-b", "a/b", "tür", "foundation_of_high_noise"] {
            assert_eq!(name.parse::<PoolName>(), Err(BadPoolName(name.to_owned())));
            assert!(serde_json::from_value::<PoolName>(name.into()).is_err());
        }
    }
}
