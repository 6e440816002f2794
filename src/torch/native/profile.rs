//! Records what this process computes between two moments, by libtorch's own profiler (Kineto).

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use loongforge_core::files::if_there;

use super::error::{NativeError, last_error};
use super::ffi;

/// Records operators of all threads of the process, and kernels of its GPUs, until it is stopped or dropped.
pub struct Profiler {
    /// The channel to the profiler's thread, which takes the path of the trace.
    end: Option<flume::Sender<PathBuf>>,
    thread: Option<JoinHandle<Result<Profile, NativeError>>>,
}

/// Calls of one operator or kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub calls: u64,
    /// An operator's time includes the operators that it calls.
    pub nanoseconds: u64,
}

/// The profiler's record: calls and time by name.
#[derive(Debug, Default)]
pub struct Profile {
    pub operators: BTreeMap<String, Spent>,
    /// Kernels, copies and fills on GPUs.
    pub kernels: BTreeMap<String, Spent>,
}

/// libtorch has one for a process.
static IS_RECORDING: AtomicBool = AtomicBool::new(false);

/// Frees the place of the one that records.
struct Recording;

impl Drop for Recording {
    fn drop(&mut self) {
        IS_RECORDING.store(false, Ordering::Release);
    }
}

impl Profiler {
    /// Starts a profiler; `None` where another one records already.
    ///
    /// # Errors
    /// libtorch's profiler cannot be started.
    pub fn start(gpu: bool) -> Result<Option<Profiler>, NativeError> {
        if IS_RECORDING.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let (end, ended) = flume::bounded::<PathBuf>(1);
        let (begun, has_begun) = flume::bounded(1);
        // On a thread of its own: libtorch begins and ends it on one, and an actor's has the allocation record where libtorch wants it.
        let recording = Recording;
        let record = move || {
            let _recording = recording;
            start(gpu)?;
            let _ = begun.send(());
            match ended.recv() {
                Ok(trace) => stop(&trace),
                Err(_) => {
                    discard();
                    Ok(Profile::default())
                }
            }
        };
        let thread = std::thread::Builder::new().name("profile".into()).spawn(record);
        let thread = thread.map_err(|error| NativeError::Profile { message: error.to_string() })?;
        let mut profiler = Profiler { end: Some(end), thread: Some(thread) };
        match has_begun.recv() {
            Ok(()) => Ok(Some(profiler)),
            Err(_) => Err(profiler.join().expect_err("it says when it has begun")),
        }
    }

    /// Writes a trace in Chrome's format, which ui.perfetto.dev shows, and returns what was recorded. Work that GPUs have yet to do is
    /// not in it.
    ///
    /// # Errors
    /// libtorch's profiler cannot be stopped, or the file cannot be written.
    pub fn stop(mut self, trace: &Path) -> Result<Profile, NativeError> {
        self.end.iter().for_each(|end| drop(end.send(trace.to_owned())));
        self.join()
    }

    fn join(&mut self) -> Result<Profile, NativeError> {
        self.end = None;
        let ended = self.thread.take().map(JoinHandle::join);
        ended
            .and_then(Result::ok)
            .unwrap_or_else(|| Err(NativeError::Profile { message: "its thread panicked".into() }))
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.join();
        }
    }
}

/// Starts libtorch's profiler, on the thread where it will be stopped.
fn start(gpu: bool) -> Result<(), NativeError> {
    // SAFETY: a flag alone goes in; nobody else records.
    match unsafe { ffi::lf_profile_start(gpu) } {
        0 => Ok(()),
        _ => Err(NativeError::Profile { message: last_error() }),
    }
}

/// Stops libtorch's profiler, and discards its record.
fn discard() {
    // SAFETY: without a path nothing is written and nobody is told.
    unsafe { ffi::lf_profile_stop(std::ptr::null(), std::ptr::null_mut(), None) };
}

/// Stops libtorch's profiler, and writes its record to `trace`.
fn stop(trace: &Path) -> Result<Profile, NativeError> {
    let failed = |message: String| NativeError::Profile { message: format!("{}: {message}", trace.display()) };
    let path = cleared(trace).inspect_err(|_| discard()).map_err(|error| failed(error.to_string()))?;
    let mut profile = Profile::default();
    // SAFETY: the path ends with NUL; `see` gets the profile, which outlives the call.
    let status = unsafe { ffi::lf_profile_stop(path.as_ptr(), (&raw mut profile).cast(), Some(see)) };
    match status {
        0 if trace.is_file() => Ok(profile),
        0 => Err(failed("it was not written".into())),
        _ => Err(failed(last_error())),
    }
}

/// Removes a file that is there already, which would hide that none was written. Returns its path for C.
fn cleared(trace: &Path) -> io::Result<CString> {
    let path = CString::new(trace.as_os_str().as_bytes())?;
    if_there(fs::remove_file(trace)).map(|_| path)
}

unsafe extern "C" fn see(to: *mut c_void, name: *const c_char, nanoseconds: i64, is_kernel: bool) {
    // SAFETY: `to` is the profile of `stop`, and `name` ends with NUL; both live during the call.
    let (profile, name) = unsafe { (&mut *to.cast::<Profile>(), CStr::from_ptr(name)) };
    let of = if is_kernel { &mut profile.kernels } else { &mut profile.operators };
    let spent = of.entry(name.to_string_lossy().into_owned()).or_default();
    spent.calls += 1;
    spent.nanoseconds += nanoseconds.max(0) as u64;
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{IS_RECORDING, Profiler};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn operators_of_all_threads_are_counted_and_traced() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.json");
        let multiply = || {
            Tensor::ones([64, 64], (Kind::Float, Device::Cpu))
                .matmul(&Tensor::ones([64, 64], (Kind::Float, Device::Cpu)))
        };
        let profiler = Profiler::start(false).unwrap().unwrap();
        assert!(Profiler::start(false).unwrap().is_none(), "one at a time");
        let _ = multiply();
        std::thread::spawn(move || drop(multiply())).join().unwrap();
        let profile = profiler.stop(&trace).unwrap();
        let product = profile.operators["aten::mm"];
        assert!(product.calls >= 2 && product.nanoseconds > 0, "{product:?}");
        assert!(profile.kernels.is_empty());
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
        let events = written["traceEvents"].as_array().unwrap();
        assert!(events.iter().any(|event| event["name"] == "aten::mm"));

        // While others compute it is begun and ended, again and again.
        let is_over = Arc::new(AtomicBool::new(false));
        let compute = |is_over: Arc<AtomicBool>| {
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = multiply();
                }
            }
        };
        let busy = [(); 2].map(|()| std::thread::spawn(compute(is_over.clone())));
        for _ in 0..20 {
            let profile = Profiler::start(false).unwrap().unwrap().stop(&trace).unwrap();
            assert!(profile.kernels.is_empty());
        }
        is_over.store(true, Ordering::Relaxed);
        busy.into_iter().for_each(|thread| thread.join().unwrap());

        // One that is dropped makes room for the next, and one that cannot write says so.
        drop(Profiler::start(false).unwrap().unwrap());
        let next = Profiler::start(false).unwrap().unwrap();
        let error = next.stop(&folder.path().join("missing/trace.json")).unwrap_err();
        assert!(error.to_string().contains("missing/trace.json"), "{error}");
        // A folder in the trace's place cannot be removed; the recording has ended all the same.
        let error = Profiler::start(false).unwrap().unwrap().stop(folder.path()).unwrap_err();
        assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
        drop(Profiler::start(false).unwrap().unwrap());
        assert!(!IS_RECORDING.load(Ordering::Acquire));
    }
}
