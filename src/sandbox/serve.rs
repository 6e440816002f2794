//! `loongforge decode-worker`: decodes what comes over its standard input, a socket, until that ends. Its standard output is
//! memory that it has in common with who started it: pixels go there.

use super::drill;
use super::restrict::restrict;
use super::wire::{MAX_FRAME_BYTES, Reply, Request, What, receive, send};
use image::RgbImage;
use loongforge_core::data::{Decoder, InProcess, Taken, decode_clip};
use loongforge_core::transport::BorrowedMemory;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Of the memory for files, what is kept from one to the next.
const KEPT_BYTES: usize = 4 << 20;

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
    let mut memory = BorrowedMemory::open(io::stdout().as_fd().try_clone_to_owned()?, MAX_FRAME_BYTES)?;
    std::panic::set_hook(Box::new(|_| {}));
    let missing = restrict(stream.as_raw_fd())?;
    let (mut from, mut to) = (BufReader::new(&stream), BufWriter::new(&stream));
    send(&mut to, &Reply::Ready { missing })?;
    to.flush()?;
    let mut bytes = Vec::new();
    loop {
        let request: Request = match receive(&mut from) {
            Ok(request) => request,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        // As much memory for this file as for the one before it.
        bytes = if bytes.capacity() > KEPT_BYTES { Vec::new() } else { bytes };
        bytes.clear();
        (&mut from).take(request.num_bytes).read_to_end(&mut bytes)?;
        let mut lost = None;
        let mut give = |frame: RgbImage| {
            memory
                .write(frame.as_raw())
                .map_err(|_| format!("takes more than {} MiB of memory to decode", MAX_FRAME_BYTES >> 20))?;
            let (width, height) = frame.dimensions();
            let given = send(&mut to, &Reply::Frame { width, height }).and_then(|()| match &request.what {
                What::Picture => Ok(()),
                What::Clip { .. } => to.flush().and_then(|()| from.read_exact(&mut [0])),
            });
            given.map_err(|error| lost.insert(error).to_string())
        };
        let done = catch_unwind(AssertUnwindSafe(|| match drill.then(|| drill::of(&bytes)).flatten() {
            Some(deed) => Err(deed()),
            None => decoded(&request, &bytes, &mut give),
        }));
        if let Some(error) = lost {
            return Err(error);
        }
        send(&mut to, &Reply::Done(done.unwrap_or_else(|panic| Err(panicked(&*panic)))))?;
        to.flush()?;
    }
}

fn decoded(
    request: &Request,
    bytes: &[u8],
    give: &mut dyn FnMut(RgbImage) -> Result<(), String>,
) -> Result<Option<Taken>, String> {
    match &request.what {
        What::Picture => InProcess.picture(bytes, &request.limits).and_then(give).map(|()| None),
        What::Clip { fps, sampling } => decode_clip(bytes, *fps, &request.limits, sampling, give).map(Some),
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the program failed on it, please report this: {}", text.unwrap_or("no message"))
}
