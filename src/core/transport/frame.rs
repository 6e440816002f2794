//! Frames of control messages in a byte stream: `magic, version, length, crc32c`, then the message.
//!
//! Works on bytes only; sockets are in [`super::link`]. Fields are little-endian. Magic and version never change place, so that
//! every version of loongforge can identify the other.

use crate::message::{CodecError, decode, encode};
use serde::{Serialize, de::DeserializeOwned};

/// Version of the protocols over sockets and shared memory; both ends must have the same.
pub const PROTOCOL_VERSION: u16 = 10;

/// Maximum length of a message: a plan of tens of thousands of samples is far below it.
pub const MAX_FRAME: usize = 16 << 20;

const MAGIC: [u8; 4] = *b"LFRG";
const HEADER: usize = 14;

/// A frame could not be written or read. The stream cannot be used further.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the peer is not a loongforge actor: its first bytes are {0:02x?}")]
    NotLoongforge([u8; 4]),
    #[error("the peer uses protocol version {theirs}, this loongforge {ours}; use the same build for all actors")]
    OtherVersion { theirs: u16, ours: u16 },
    #[error("a message of {len} bytes exceeds the limit of {MAX_FRAME}")]
    TooLong { len: usize },
    #[error("a message of {len} bytes arrived corrupt (crc32c {found:08x}, should be {expected:08x})")]
    Corrupt { len: usize, found: u32, expected: u32 },
    #[error("the stream ended inside a message, after {got} bytes of it")]
    Torn { got: usize },
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Returns the CRC32C of bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Returns the frame of one message.
///
/// # Errors
/// Returns `TooLong` or `Codec`.
pub fn frame<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let payload = encode(message)?;
    let len = payload.len();
    if len > MAX_FRAME {
        return Err(FrameError::TooLong { len });
    }
    let mut frame = Vec::with_capacity(HEADER + len);
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    frame.extend_from_slice(&(len as u32).to_le_bytes());
    frame.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
    frame.extend_from_slice(&payload);
    Ok(frame)
}

/// Reads exactly one frame.
///
/// # Errors
/// Returns any of the errors.
pub fn unframe<T: DeserializeOwned>(frame: Vec<u8>) -> Result<T, FrameError> {
    let got = frame.len();
    let mut unframer = Unframer { buffer: frame };
    let message = unframer.next()?.ok_or(FrameError::Torn { got })?;
    unframer.end()?;
    Ok(message)
}

/// Splits the bytes of a stream into messages as they arrive.
#[derive(Default)]
pub struct Unframer {
    /// Append what was read from the stream.
    pub buffer: Vec<u8>,
}

impl Unframer {
    /// Returns the next message, or `None` until more bytes arrive.
    ///
    /// # Errors
    /// Returns any error except `Torn`. Wrong bytes are reported as soon as possible, not only when a frame is complete.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let known = self.buffer.len().min(MAGIC.len());
        if self.buffer[..known] != MAGIC[..known] {
            let mut said = [0; 4];
            said[..known].copy_from_slice(&self.buffer[..known]);
            return Err(FrameError::NotLoongforge(said));
        }
        let Some(version) = self.field(4) else { return Ok(None) };
        let theirs = u16::from_le_bytes(version);
        if theirs != PROTOCOL_VERSION {
            return Err(FrameError::OtherVersion { theirs, ours: PROTOCOL_VERSION });
        }
        let (Some(len), Some(expected)) = (self.field(6), self.field(10)) else { return Ok(None) };
        let (len, expected) = (u32::from_le_bytes(len) as usize, u32::from_le_bytes(expected));
        if len > MAX_FRAME {
            return Err(FrameError::TooLong { len });
        }
        let Some(payload) = self.buffer.get(HEADER..HEADER + len) else { return Ok(None) };
        let found = crc32c::crc32c(payload);
        if found != expected {
            return Err(FrameError::Corrupt { len, found, expected });
        }
        let message = decode(payload)?;
        self.buffer.drain(..HEADER + len);
        Ok(Some(message))
    }

    /// Handles the end of the stream.
    ///
    /// # Errors
    /// Returns `Torn` if the stream ended inside a frame.
    pub fn end(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() { Ok(()) } else { Err(FrameError::Torn { got: self.buffer.len() }) }
    }

    fn field<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.buffer.get(at..at + N)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Message = (u64, String, Vec<u8>);

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_wait_for_more(bytes in prop::collection::vec(any::<u8>(), 0..200), genuine: bool) {
            let mut unframer = Unframer::default();
            if genuine {
                unframer.buffer.extend_from_slice(&MAGIC);
                unframer.buffer.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
            }
            unframer.buffer.extend_from_slice(&bytes);
            let got = unframer.next::<Message>();
            prop_assert!(!matches!(got, Ok(Some(_))));
        }

        #[test]
        fn messages_come_back_however_the_stream_is_cut(
            messages in prop::collection::vec(any::<Message>(), 1..8),
            cut in 1usize..50,
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|message| frame(message).unwrap()).collect();
            let (mut unframer, mut got) = (Unframer::default(), Vec::new());
            for piece in stream.chunks(cut) {
                unframer.buffer.extend_from_slice(piece);
                while let Some(message) = unframer.next::<Message>().unwrap() {
                    got.push(message);
                }
            }
            prop_assert!(unframer.end().is_ok());
            prop_assert_eq!(got, messages);
        }

        #[test]
        fn one_flipped_bit_is_seen(message: Message, place: prop::sample::Index, bit in 0u8..8) {
            let mut unframer = Unframer { buffer: frame(&message).unwrap() };
            let place = place.index(unframer.buffer.len());
            unframer.buffer[place] ^= 1 << bit;
            let got = unframer.next::<Message>();
            // A longer length waits for bytes that never come, and then the end is torn.
            prop_assert!(got.is_err() || (matches!(got, Ok(None)) && unframer.end().is_err()));
        }
    }

    #[test]
    fn one_frame_is_one_frame() {
        let bytes = frame(&7u64).unwrap();
        assert_eq!(unframe::<u64>(bytes.clone()).unwrap(), 7);
        for wrong in [[&bytes[..], b"L"].concat(), bytes[..bytes.len() - 1].to_vec(), Vec::new()] {
            assert!(unframe::<u64>(wrong).is_err());
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |buffer: Vec<u8>| Unframer { buffer }.next::<Message>().unwrap_err().to_string();
        assert!(error(b"GET / HTTP/1.1".to_vec()).contains("not a loongforge actor"));
        assert!(error(b"G".to_vec()).contains("not a loongforge actor"));
        let mut other = frame(&7u64).unwrap();
        other[4] = 99;
        assert!(error(other).contains(&format!("version 99, this loongforge {PROTOCOL_VERSION}")));
        let mut long = frame(&7u64).unwrap();
        long[6..10].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(error(long).contains("exceeds the limit"));
        assert!(matches!(frame(&vec![0u8; MAX_FRAME + 1]), Err(FrameError::TooLong { .. })));
    }
}
