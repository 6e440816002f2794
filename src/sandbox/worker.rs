//! One decode worker, seen from who started it. Nothing it says is believed unchecked.

use super::restrict::MAX_MEMORY;
use super::wire::{Reply, Request, SIZES, What, receive, send};
use image::RgbImage;
use loongforge_core::data::audio::{Samples, max_decode_seconds};
use loongforge_core::data::{Limits, MAX_DECODE_SECONDS, MAX_VIDEO_BYTES, SampledFrames};
use loongforge_core::transport::LentMemory;
use loongforge_torch::device::ENVIRONMENT;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

/// Seconds on a core for the frames of one clip: their number is bounded where they are decoded, and takes a minute or two.
const MAX_CLIP_SECONDS: f64 = 300.0;
/// The most frames of a clip: more than any file has.
const MAX_FRAMES: usize = 1 << 20;
/// The time between two looks at a worker that does not answer.
const LOOK: Duration = Duration::from_millis(250);
/// Looks at a worker that neither answers nor computes after which it is given up: a minute. Looks are counted, since the clock goes on
/// while all processes are stopped.
const MAX_IDLE_LOOKS: u32 = 240;
/// The part of the memory for files and of that for pixels that is kept from one file to the next.
const KEPT_BYTES: usize = 64 << 20;
/// The environment that the program's libraries are found by.
const KEPT: &str = "LD_LIBRARY_PATH";

/// A process that decodes; it ends with this.
pub struct Worker {
    process: Child,
    stream: BufReader<Watched>,
    /// The memory in which files and frames are put.
    memory: LentMemory,
    stderr: ChildStderr,
    /// Files that it was sent.
    pub num_served: u64,
}

/// The contents of a decoded file.
#[derive(Default)]
pub struct Found {
    pub frames: Vec<RgbImage>,
    /// The frames of a clip that they are.
    pub taken: Option<SampledFrames>,
    /// Samples of sound.
    pub samples: Samples,
}

/// Says what a file came to.
pub enum Answer {
    /// The answer of the decoder.
    Decoded(Result<Found, String>),
    /// It was stopped for the time it took.
    TooSlow(String),
    /// The worker is gone, or says what makes no sense.
    Lost(String),
}

impl Worker {
    /// Starts `program`; also, what this system lacks to restrict it.
    ///
    /// # Errors
    /// It cannot be started, or does not say that it is ready.
    pub fn start(program: &Path, drill: bool) -> io::Result<(Self, Vec<String>)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (memory, lent) = LentMemory::create("loongforge-pixels", SIZES)?;
        let mut command = Command::new(program);
        command.arg0("loongforge").arg("decode-worker").args(drill.then_some("--drill"));
        command.env_clear().envs(ENVIRONMENT).envs(std::env::var_os(KEPT).map(|value| (KEPT, value))).current_dir("/");
        // A group of its own: a key that is pressed to stop the run is not for it.
        command.stdin(OwnedFd::from(theirs)).stdout(lent).stderr(Stdio::piped()).process_group(0);
        let mut process = command.spawn()?;
        // It holds the worker's end of the socket, which is to end with the worker.
        drop(command);
        let stderr = process.stderr.take().expect("it is piped");
        fcntl_setfl(&stderr, OFlags::NONBLOCK)?;
        ours.set_read_timeout(Some(LOOK))?;
        ours.set_write_timeout(Some(LOOK))?;
        let watched = Watched::new(ours, &process);
        let mut worker = Self { process, stream: BufReader::new(watched), memory, stderr, num_served: 0 };
        worker.stream.get_mut().begin(MAX_CLIP_SECONDS);
        match receive(&mut worker.stream) {
            Ok(Reply::Ready { missing }) => Ok((worker, missing)),
            Ok(other) => Err(io::Error::other(format!("it sent {other:?} instead of being ready"))),
            Err(error) => Err(io::Error::other(worker.cause(error))),
        }
    }

    /// Has a file decoded, for which there are `seconds` on a core, or as many as are usual. Any answer but `Decoded` is its
    /// last.
    pub fn ask(&mut self, what: What, bytes: &[u8], limits: &Limits, seconds: Option<f64>) -> Answer {
        self.num_served += 1;
        let (is_clip, usual, max_samples) = match &what {
            What::Picture => (false, MAX_DECODE_SECONDS, None),
            What::Clip { .. } | What::Stretch(_) => (true, MAX_CLIP_SECONDS, None),
            What::Sound { rate, limits, segment } => (
                false,
                max_decode_seconds(limits, *segment),
                Some((limits.max_seconds * f64::from(*rate)).ceil() as usize),
            ),
        };
        let seconds = seconds.unwrap_or(usual);
        self.stream.get_mut().begin(seconds);
        if self.memory.give(bytes).is_none() {
            return Answer::Decoded(Err(format!("is a file of more than {} MiB", SIZES.to_child >> 20)));
        }
        let request = Request { what, limits: *limits, num_bytes: bytes.len() };
        let answer = self.tell(&request).and_then(|()| self.found(is_clip, max_samples, limits));
        let largest = |found: &Found| {
            let frame = found.frames.first().map_or(0, |frame| frame.as_raw().len());
            frame.max(size_of_val(found.samples.as_slice()))
        };
        let most = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok().map(largest));
        if bytes.len().max(most.unwrap_or(0)) > KEPT_BYTES {
            self.memory.keep(KEPT_BYTES);
        }
        if self.stream.get_mut().was_too_slow() {
            return Answer::TooSlow(format!("takes more than {seconds} s to decode"));
        }
        answer.map_or_else(|error| Answer::Lost(self.cause(error)), Answer::Decoded)
    }

    fn tell(&mut self, request: &Request) -> io::Result<()> {
        // In one piece, so that it is woken once.
        let mut message = Vec::new();
        send(&mut message, request)?;
        self.stream.get_mut().write_all(&message)
    }

    /// `max_samples`: sound is expected, of so many samples at most.
    fn found(
        &mut self,
        is_clip: bool,
        max_samples: Option<usize>,
        limits: &Limits,
    ) -> io::Result<Result<Found, String>> {
        let nonsense = |what: &str| io::Error::new(ErrorKind::InvalidData, what);
        let (mut found, mut num_bytes) = (Found::default(), 0);
        loop {
            match receive(&mut self.stream)? {
                Reply::Frame { width, height } => {
                    limits.check_size(width, height).map_err(|reason| nonsense(&reason))?;
                    let len = u64::from(width) * u64::from(height) * 3;
                    num_bytes += len;
                    let max_frames = if is_clip { MAX_FRAMES } else { usize::from(max_samples.is_none()) };
                    if found.frames.len() == max_frames || num_bytes > MAX_VIDEO_BYTES {
                        return Err(nonsense("more frames than requested"));
                    }
                    let pixels = self
                        .memory
                        .take(len as usize)
                        .ok_or_else(|| nonsense("a frame that does not fit into the buffer"))?;
                    if is_clip {
                        self.stream.get_mut().write_all(&[1])?;
                    }
                    found.frames.push(RgbImage::from_raw(width, height, pixels).expect("a buffer of that size"));
                }
                Reply::Sound { num_samples } => {
                    if !found.samples.is_empty() || max_samples.is_none_or(|most| num_samples > most) {
                        return Err(nonsense("more sound than requested"));
                    }
                    found.samples = Samples::empty();
                    let taken = self.memory.take_floats(num_samples, &mut found.samples);
                    taken.ok_or_else(|| nonsense("sound that does not fit into the buffer"))?;
                }
                Reply::Done(Ok(taken)) => {
                    let num_frames = found.frames.len();
                    let makes_sense = match &taken {
                        None if max_samples.is_some() => {
                            !found.samples.is_empty() && found.samples.iter().all(|sample| sample.is_finite())
                        }
                        None => !is_clip && num_frames == 1,
                        Some(taken) => is_clip && num_frames > 0 && num_frames == taken.indices.len(),
                    };
                    found.taken = taken;
                    return if makes_sense { Ok(Ok(found)) } else { Err(nonsense("frames or samples are missing")) };
                }
                Reply::Done(Err(reason)) => return Ok(Err(reason)),
                Reply::Ready { .. } => return Err(nonsense("a second ready message")),
            }
        }
    }

    /// Returns the reason why the worker is gone, and kills it if it is not.
    fn cause(&mut self, error: io::Error) -> String {
        let is_gone =
            matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
        if !is_gone {
            // What it was going to say is not waited for.
            let _ = self.process.kill();
        }
        let ended = self.process.wait();
        if !is_gone {
            return format!("its decoder broke the protocol ({error})");
        }
        let mut said = Vec::new();
        let _ = self.stderr.read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        if said.contains("memory allocation of") || said.contains("bad_alloc") {
            return format!("takes more than {} MiB of memory to decode", MAX_MEMORY >> 20);
        }
        match ended.map(|status| (status.signal(), status.code())) {
            Ok((Some(signal), _)) => format!("its decoder crashed (signal {signal})"),
            Ok((_, Some(code))) => format!("its decoder exited with code {code}: {}", said.trim()),
            _ => "its decoder exited".to_owned(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The socket to a worker: waiting for it ends where it computes for too long, or does nothing.
struct Watched {
    stream: UnixStream,
    pid: Pid,
    /// The file in which the system says how long it has been on a core.
    clock: Option<File>,
    /// Seconds on a core at which it is to be stopped, and those at the last look.
    until: f64,
    seen: f64,
    /// The number of looks at this file, and those in a row at which it did nothing.
    looks: u32,
    idle: u32,
}

impl Watched {
    fn new(stream: UnixStream, process: &Child) -> Self {
        let clock = File::open(format!("/proc/{}/schedstat", process.id())).ok();
        Self { stream, pid: Pid::from_child(process), clock, until: f64::INFINITY, seen: 0.0, looks: 0, idle: 0 }
    }

    /// Lets the worker compute for so many seconds from now on.
    fn begin(&mut self, seconds: f64) {
        self.seen = self.on_core();
        self.until = self.seen + seconds;
        (self.looks, self.idle) = (0, 0);
        // In case that we die: nobody else would stop it.
        let maximum = getrlimit(Resource::Cpu).maximum;
        let current = Some((self.until as u64 + 2).min(maximum.unwrap_or(u64::MAX)));
        let _ = prlimit(Some(self.pid), Resource::Cpu, Rlimit { current, maximum });
    }

    /// Seconds; where nobody knows, it is taken to compute whenever it is waited for.
    fn on_core(&self) -> f64 {
        let mut text = [0; 64];
        let nanos = self.clock.as_ref().and_then(|clock| {
            let len = clock.read_at(&mut text, 0).ok()?;
            std::str::from_utf8(&text[..len]).ok()?.split_whitespace().next()?.parse::<u64>().ok()
        });
        nanos.map_or(self.seen + LOOK.as_secs_f64(), |nanos| nanos as f64 / 1e9)
    }

    /// Returns whether the worker was too slow, for an answer that came late or not at all.
    fn was_too_slow(&mut self) -> bool {
        if self.looks > 0 {
            self.seen = self.on_core();
        }
        self.seen > self.until
    }

    /// Looks at the worker after a wait without an answer.
    fn look(&mut self) -> io::Result<()> {
        let now = self.on_core();
        self.idle = if now - self.seen > 1e-3 { 0 } else { self.idle + 1 };
        self.seen = now;
        self.looks += 1;
        if now > self.until || self.idle > MAX_IDLE_LOOKS {
            return Err(io::Error::new(ErrorKind::InvalidInput, "its decoder does not respond"));
        }
        Ok(())
    }

    fn patiently<T>(&mut self, mut attempt: impl FnMut(&mut UnixStream) -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt(&mut self.stream) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => self.look()?,
                done => return done,
            }
        }
    }
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.read(buffer))
    }
}

impl Write for Watched {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
