//! Wire format of control messages. The only file that uses postcard (ADR 0001: bincode is unmaintained).

use serde::{Serialize, de::DeserializeOwned};

/// A message could not be encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[error("control message: {0}")]
pub struct CodecError(#[from] postcard::Error);

/// Serializes `message` for a frame.
///
/// # Errors
/// Fails only if a type cannot be expressed in postcard, which is a bug.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    Ok(postcard::to_allocvec(message)?)
}

/// Decodes what [`encode`] wrote.
///
/// # Errors
/// Fails if the bytes are not exactly one message of this type.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (message, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(message) } else { Err(postcard::Error::DeserializeBadEncoding.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Command, Commit, StepId};

    #[test]
    fn a_message_comes_back_as_it_was() {
        let message = Command::Commit(Commit { step: StepId(7), clip_scale: 0.5, learning_rate: 1e-4 });
        let bytes = encode(&message).unwrap();
        assert_eq!(decode::<Command>(&bytes).unwrap(), message);
    }

    #[test]
    fn torn_and_overlong_bytes_are_refused() {
        let mut bytes = encode(&Command::Abort { step: StepId(300) }).unwrap();
        assert!(decode::<Command>(&bytes[..bytes.len() - 1]).is_err());
        bytes.push(0);
        assert!(decode::<Command>(&bytes).is_err());
    }
}
