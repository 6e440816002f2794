//! Finds message boundaries in a byte stream, for proxies.

use super::wire::{PACKET_HEADER, PACKET_LEN, PACKET_MAGIC};

const FRAME_HEADER: usize = 14;
const FRAME_LEN: usize = 6;
const FRAME_MAGIC: &[u8] = b"LFRG";

/// Returns the length of the frame or packet that begins here; `None` if more bytes are needed.
///
/// # Errors
/// Fails if the bytes are neither, such as encrypted ones.
pub fn envelope_len(bytes: &[u8]) -> Result<Option<usize>, NoEnvelope> {
    let known = bytes.len().min(4);
    if bytes[..known] == FRAME_MAGIC[..known] && bytes.len() < 4 {
        return Ok(None);
    }
    if bytes.starts_with(FRAME_MAGIC) {
        let Some(len) = bytes.get(FRAME_LEN..FRAME_LEN + 4) else { return Ok(None) };
        return Ok(Some(FRAME_HEADER + u32::from_le_bytes(len.try_into().expect("they are four")) as usize));
    }
    if bytes[..known] == PACKET_MAGIC[..known] {
        let Some(len) = bytes.get(PACKET_LEN..PACKET_LEN + 8) else { return Ok(None) };
        return Ok(Some(PACKET_HEADER + u64::from_le_bytes(len.try_into().expect("they are eight")) as usize));
    }
    Err(NoEnvelope)
}

/// The bytes are not a loongforge frame or packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a loongforge message")]
pub struct NoEnvelope;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::frame;

    #[test]
    fn frames_are_told_from_what_is_none() {
        let bytes = frame(&(7_u64, "abc")).unwrap();
        assert_eq!(envelope_len(&bytes), Ok(Some(bytes.len())));
        assert!((0..10).all(|len| envelope_len(&bytes[..len]) == Ok(None)));
        assert_eq!(envelope_len(b"\x16\x03\x01"), Err(NoEnvelope));
        assert_eq!(envelope_len(b"LFWR\x03\0"), Ok(None));
    }
}
