//! Byte format of a packet.

use super::WireError;
use crate::transport::PROTOCOL_VERSION;
use bytes::Bytes;

pub const MAGIC: [u8; 4] = *b"LFWR";
/// The position of the length of the contents.
pub const LEN: usize = 7;
/// Magic, version, kind, length, number, acknowledged, two checksums.
pub const HEADER: usize = 4 + 2 + 1 + 8 + 8 + 8 + 4 + 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PacketKind {
    /// A packet without contents: the end lives, what it has received, and the number of its last message.
    Pulse = 0,
    /// A message that may be lost.
    Loose = 1,
    Message = 2,
    /// The last message.
    Farewell = 3,
    Greeting = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: PacketKind,
    pub len: u64,
    pub number: u64,
    /// All up to this number were received.
    pub acknowledged: u64,
    contents: u32,
}

/// A packet but for what it acknowledges.
#[derive(Clone, Debug)]
pub struct Packet {
    pub kind: PacketKind,
    pub number: u64,
    pub contents: Bytes,
    checksum: u32,
}

impl Packet {
    /// Makes a packet with the checksum of its contents.
    pub fn new(kind: PacketKind, number: u64, contents: Bytes) -> Self {
        let checksum = crc32c::crc32c(&contents);
        Self { kind, number, contents, checksum }
    }

    /// Returns its header on the wire `key`.
    pub fn header(&self, acknowledged: u64, key: u128) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[6] = self.kind as u8;
        bytes[7..15].copy_from_slice(&(self.contents.len() as u64).to_le_bytes());
        bytes[15..23].copy_from_slice(&self.number.to_le_bytes());
        bytes[23..31].copy_from_slice(&acknowledged.to_le_bytes());
        bytes[31..35].copy_from_slice(&self.checksum.to_le_bytes());
        let crc = checksum(&bytes, key);
        bytes[35..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

fn checksum(header: &[u8; HEADER], key: u128) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&key.to_le_bytes()), &header[..35])
}

impl Header {
    /// # Errors
    /// It is none, or not of the wire `key`.
    pub fn read(bytes: &[u8; HEADER], key: u128) -> Result<Self, WireError> {
        fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            bytes[at..at + N].try_into().expect("it is that long")
        }
        let is_whole = u32::from_le_bytes(field(bytes, 35)) == checksum(bytes, key);
        let theirs = u16::from_le_bytes(field(bytes, 4));
        if bytes[..4] == MAGIC && theirs != PROTOCOL_VERSION && is_whole {
            return Err(WireError::OtherVersion { theirs, ours: PROTOCOL_VERSION });
        }
        // One wrong byte of the magic is damage; nothing like it is something else.
        if bytes.iter().zip(&MAGIC).filter(|(byte, magic)| byte != magic).count() > 1 {
            return Err(WireError::NotAPacket);
        }
        if !is_whole {
            return Err(WireError::Corrupt);
        }
        let kinds =
            [PacketKind::Pulse, PacketKind::Loose, PacketKind::Message, PacketKind::Farewell, PacketKind::Greeting];
        let kind = kinds.into_iter().find(|&kind| kind as u8 == bytes[6]).ok_or(WireError::NotAPacket)?;
        Ok(Self {
            kind,
            len: u64::from_le_bytes(field(bytes, 7)),
            number: u64::from_le_bytes(field(bytes, 15)),
            acknowledged: u64::from_le_bytes(field(bytes, 23)),
            contents: u32::from_le_bytes(field(bytes, 31)),
        })
    }

    /// # Errors
    /// These are not its contents.
    pub fn expect(&self, contents: &[u8]) -> Result<(), WireError> {
        if crc32c::crc32c(contents) == self.contents { Ok(()) } else { Err(WireError::Corrupt) }
    }
}

#[cfg(test)]
mod bytes_of_a_packet {
    use super::*;
    use proptest::prelude::*;

    fn hear(bytes: &[u8], key: u128) -> Result<Header, WireError> {
        let header = Header::read(bytes[..HEADER].try_into().unwrap(), key)?;
        header.expect(&bytes[HEADER..])?;
        Ok(header)
    }

    proptest! {
        #[test]
        fn come_back_and_one_flipped_bit_is_seen(
            contents in prop::collection::vec(any::<u8>(), 0..60),
            number: u64,
            acknowledged: u64,
            key: u128,
            place: prop::sample::Index,
            bit in 0_u8..8,
        ) {
            let packet = Packet::new(PacketKind::Message, number, contents.clone().into());
            let mut bytes = packet.header(acknowledged, key).to_vec();
            bytes.extend(&contents);
            let header = hear(&bytes, key).unwrap();
            prop_assert_eq!((header.kind, header.number, header.acknowledged), (PacketKind::Message, number, acknowledged));
            prop_assert_eq!(header.len as usize, contents.len());
            prop_assert_eq!(hear(&bytes, key.wrapping_add(1)), Err(WireError::Corrupt));
            let at = place.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(hear(&bytes, key), Err(WireError::Corrupt));
        }
    }

    #[test]
    fn other_words_are_named() {
        let mut bytes = [0; HEADER];
        bytes[..14].copy_from_slice(b"GET / HTTP/1.1");
        assert_eq!(Header::read(&bytes, 0), Err(WireError::NotAPacket));
    }
}
