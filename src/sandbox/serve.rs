//! `loongforge decode-worker`: decodes what it is asked for over its standard input, a socket, until that ends. Its standard
//! output is memory that it has in common with who started it: files come and pixels go there.

use super::drill;
use super::restrict::restrict;
use super::wire::{Reply, Request, SIZES, What, receive, send};
use image::RgbImage;
use loongforge_core::data::{
    Decoded, InProcess, MediaDecoder, SampledFrames, decode_clip, decode_rgb_into, decode_stretch,
};
use loongforge_core::transport::BorrowedMemory;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Serves until whoever started this process is gone. With `drill`, files may ask for something bad to be done.
pub fn serve(drill: bool) -> ExitCode {
    match work(drill) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(drill: bool) -> io::Result<()> {
    let stream = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut memory = BorrowedMemory::open(io::stdout().as_fd().try_clone_to_owned()?, SIZES)?;
    std::panic::set_hook(Box::new(|_| {}));
    let missing = restrict(stream.as_raw_fd())?;
    let (mut from, mut to) = (BufReader::new(&stream), BufWriter::new(&stream));
    send(&mut to, &Reply::Ready { missing })?;
    to.flush()?;
    loop {
        let request: Request = match receive(&mut from) {
            Ok(request) => request,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let (bytes, room) = memory.parts(request.num_bytes)?;
        let done = catch_unwind(AssertUnwindSafe(|| match drill.then(|| drill::of(bytes)).flatten() {
            Some(deed) => Ok(Err(deed())),
            None => decode(&request, bytes, room, &mut from, &mut to),
        }));
        send(&mut to, &Reply::Done(done.unwrap_or_else(|panic| Ok(Err(panicked(&*panic))))?))?;
        to.flush()?;
    }
}

/// Puts frames into `room`, one after the other, or the samples of sound, and says so.
fn decode(
    request: &Request,
    bytes: &[u8],
    room: &mut [u8],
    from: &mut impl Read,
    to: &mut impl Write,
) -> io::Result<Result<Option<SampledFrames>, String>> {
    let limits = &request.limits;
    match &request.what {
        What::Picture => {
            let placed = decode_rgb_into(bytes, limits, room).and_then(|decoded| match decoded {
                Decoded::InRoom { width, height } => Ok((width, height)),
                Decoded::Picture(picture) => place(&picture, room),
            });
            Ok(match placed {
                Ok((width, height)) => {
                    send(to, &Reply::Frame { width, height })?;
                    Ok(None)
                }
                Err(reason) => Err(reason),
            })
        }
        What::Sound { rate, limits, segment } => {
            let placed = InProcess.sound(bytes, *rate, limits, *segment).and_then(|samples| {
                let limit = SIZES.to_parent >> 20;
                let room = room.get_mut(..size_of_val(samples.as_slice()));
                let room = room.ok_or_else(|| format!("takes more than {limit} MiB as decoded samples"))?;
                room.chunks_exact_mut(4)
                    .zip(samples.iter())
                    .for_each(|(to, sample)| to.copy_from_slice(&sample.to_le_bytes()));
                Ok(samples.len())
            });
            Ok(match placed {
                Ok(num_samples) => {
                    send(to, &Reply::Sound { num_samples })?;
                    Ok(None)
                }
                Err(reason) => Err(reason),
            })
        }
        What::Clip { fps, sampling } => {
            each_frame(room, from, to, |take| decode_clip(bytes, *fps, limits, sampling, take))
        }
        What::Stretch(stretch) => each_frame(room, from, to, |take| decode_stretch(bytes, stretch, limits, take)),
    }
}

/// Takes the frames, one after the other.
type Take<'a> = dyn FnMut(RgbImage) -> Result<(), String> + 'a;

/// Sends the frames that `decode` gives, each when the one before was taken.
fn each_frame(
    room: &mut [u8],
    from: &mut impl Read,
    to: &mut impl Write,
    decode: impl FnOnce(&mut Take<'_>) -> Result<SampledFrames, String>,
) -> io::Result<Result<Option<SampledFrames>, String>> {
    let mut lost = None;
    let done = decode(&mut |frame| {
        let (width, height) = place(&frame, room)?;
        let said = send(to, &Reply::Frame { width, height }).and_then(|()| to.flush());
        // Until the other end has taken it.
        let taken = said.and_then(|()| from.read_exact(&mut [0]));
        taken.map_err(|error| lost.insert(error).to_string())
    });
    lost.map_or(Ok(done.map(Some)), Err)
}

fn place(picture: &RgbImage, room: &mut [u8]) -> Result<(u32, u32), String> {
    let pixels = picture.as_raw();
    let limit = SIZES.to_parent >> 20;
    let room = room.get_mut(..pixels.len()).ok_or_else(|| format!("takes more than {limit} MiB as RGB"))?;
    room.copy_from_slice(pixels);
    Ok(picture.dimensions())
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the program panicked on it; this is a bug, please report it: {}", text.unwrap_or("no message"))
}
