//! The messages between a program and its decode workers. Lengths come from a process that may have been taken over by a hostile file:
//! each is held against what was asked before anything is allocated.

use loongforge_core::config::AudioLimits;
use loongforge_core::data::audio::Segment;
use loongforge_core::data::media::{Sampling, Stretch};
use loongforge_core::data::{Limits, SampledFrames};
use loongforge_core::message::{decode, encode};
use loongforge_core::transport::LentSizes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// The sizes of the memory that both have: the largest file, and the largest frame that comes back.
pub const SIZES: LentSizes = LentSizes { to_child: 256 << 20, to_parent: 512 << 20 };
/// The largest size of one message, without the bytes that follow it.
const MAX_MESSAGE: u32 = 4 << 20;

/// A file to decode; its bytes are in the memory that both have.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub what: What,
    pub limits: Limits,
    pub num_bytes: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum What {
    Picture,
    Clip {
        fps: Option<f64>,
        sampling: Sampling,
    },
    /// Single frames of an MP4 file.
    Stretch(Stretch),
    /// A segment of sound, of so many samples a second.
    Sound {
        rate: u32,
        limits: AudioLimits,
        segment: Segment,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The first word, with the parts of the sandbox that this system lacks.
    Ready { missing: Vec<String> },
    /// The next frame; its pixels are in the memory that both have. The next frame of a clip is made when a byte has come back.
    Frame { width: u32, height: u32 },
    /// The whole sound; its samples, four bytes each, are in the memory that both have.
    Sound { num_samples: usize },
    /// The last reply, with the frames that were sampled or the reason why the file is not decoded.
    Done(Result<Option<SampledFrames>, String>),
}

/// Writes a message: its length as a little-endian `u32`, then its bytes. The writer is not flushed.
///
/// # Errors
/// Fails if the other end is gone.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = encode(message).map_err(io::Error::other)?;
    to.write_all(&(bytes.len() as u32).to_le_bytes())?;
    to.write_all(&bytes)
}

/// # Errors
/// The other end is gone, or says what is no message.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes")));
    }
    let mut bytes = vec![0; len as usize];
    from.read_exact(&mut bytes)?;
    decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
