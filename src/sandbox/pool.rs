//! A pool of as many workers as there are threads that decode at a time. One is started when a picture finds none free.

use super::wire::What;
use super::worker::{Answer, Found, Worker};
use image::RgbImage;
use loongforge_core::config::AudioLimits;
use loongforge_core::data::audio::{Samples, Segment};
use loongforge_core::data::media::{Sampling, Stretch, Video};
use loongforge_core::data::{InProcess, Limits, MediaDecoder};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A decoder whose work is done in other processes.
pub struct Sandbox {
    program: PathBuf,
    /// The seconds that a file may take, with drills.
    drill: Option<f64>,
    warn: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<State>,
}

enum State {
    /// The state before anything was decoded.
    New,
    /// Workers that have nothing to do.
    Idle(Vec<Worker>),
    /// The system cannot start a worker.
    Absent,
}

impl Sandbox {
    /// `program` is this program; nothing is started before the first picture. `warn` is told, once, of what this system
    /// lacks: without processes pictures are decoded in this one.
    pub fn new(program: impl Into<PathBuf>, warn: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { program: program.into(), drill: None, warn: Box::new(warn), state: Mutex::new(State::New) }
    }

    /// Workers in which files may ask for something bad to be done, and which have so many seconds for each: for tests.
    pub fn with_drill(self, seconds: f64) -> Self {
        Self { drill: Some(seconds), ..self }
    }

    /// Returns a worker with nothing to do; `None`: there are none here.
    fn take(&self) -> io::Result<Option<Worker>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Absent => return Ok(None),
            State::Idle(workers) => {
                if let Some(worker) = workers.pop() {
                    return Ok(Some(worker));
                }
            }
            // Others wait for the verdict.
            State::New => match self.start() {
                Ok((worker, missing)) => {
                    if !missing.is_empty() {
                        let missing = missing.join(", ");
                        (self.warn)(&format!(
                            "decode workers run with fewer restrictions: this system lacks {missing}"
                        ));
                    }
                    *state = State::Idle(Vec::new());
                    return Ok(Some(worker));
                }
                Err(error) => {
                    (self.warn)(&format!(
                        "cannot start a decode worker, so pictures are decoded in this process: {error}"
                    ));
                    *state = State::Absent;
                    return Ok(None);
                }
            },
        }
        drop(state);
        self.start().map(|(worker, _)| Some(worker))
    }

    fn start(&self) -> io::Result<(Worker, Vec<String>)> {
        Worker::start(&self.program, self.drill.is_some())
    }

    fn put_back(&self, worker: Worker) {
        if let State::Idle(workers) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            workers.push(worker);
        }
    }

    /// `None`: this process is to decode it.
    fn ask(&self, what: impl Fn() -> What, bytes: &[u8], limits: &Limits) -> Option<Result<Found, String>> {
        let failed = |error: io::Error| Some(Err(format!("cannot start a decode worker: {error}")));
        let mut worker = match self.take() {
            Ok(worker) => worker?,
            Err(error) => return failed(error),
        };
        loop {
            let is_fresh = worker.num_served == 0;
            let reason = match worker.ask(what(), bytes, limits, self.drill) {
                Answer::Decoded(answer) => {
                    self.put_back(worker);
                    return Some(answer);
                }
                Answer::TooSlow(reason) => return Some(Err(reason)),
                Answer::Lost(reason) => reason,
            };
            if is_fresh {
                return Some(Err(reason));
            }
            // A file before this one may be to blame: whether a sample is bad depends on its bytes alone.
            worker = match self.start() {
                Ok((worker, _)) => worker,
                Err(error) => return failed(error),
            };
        }
    }
}

impl MediaDecoder for Sandbox {
    fn picture(&self, bytes: &[u8], limits: &Limits) -> Result<RgbImage, String> {
        match self.ask(|| What::Picture, bytes, limits) {
            Some(answer) => answer.map(|mut found| found.frames.pop().expect("a picture is one frame")),
            None => InProcess.picture(bytes, limits),
        }
    }

    fn clip(&self, bytes: &[u8], fps: Option<f64>, limits: &Limits, sampling: &Sampling) -> Result<Video, String> {
        match self.ask(|| What::Clip { fps, sampling: sampling.clone() }, bytes, limits) {
            Some(answer) => {
                let found = answer?;
                Ok(found.taken.expect("a clip says which frames").video(found.frames))
            }
            None => InProcess.clip(bytes, fps, limits, sampling),
        }
    }

    fn stretch(&self, bytes: &[u8], stretch: &Stretch, limits: &Limits) -> Result<Vec<RgbImage>, String> {
        match self.ask(|| What::Stretch(stretch.clone()), bytes, limits) {
            Some(answer) => {
                let frames = answer?.frames;
                match frames.len() == stretch.num_taken() {
                    true => Ok(frames),
                    false => Err("its decoder did not return the requested frames".to_owned()),
                }
            }
            None => InProcess.stretch(bytes, stretch, limits),
        }
    }

    fn sound(&self, bytes: &[u8], rate: u32, limits: &AudioLimits, segment: Segment) -> Result<Samples, String> {
        match self.ask(|| What::Sound { rate, limits: *limits, segment }, bytes, &Limits::NONE) {
            Some(answer) => answer.map(|found| found.samples),
            None => InProcess.sound(bytes, rate, limits, segment),
        }
    }
}
