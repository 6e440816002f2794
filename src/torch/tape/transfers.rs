//! Copies between a device and the host, one after the other, on a thread of their own beside the computation.
//!
//! On CUDA the thread has a stream of its own and the host's buffers are pinned. On a CPU the host tier is other memory of the same
//! machine: it serves only to try out a plan, with a throttle in place of a bus.
//!
//! Stop: a drop lets the queue run empty and joins the thread. Whoever asked and has gone misses nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};

use crate::native::{CopyStream, Mark, NativeError, is_dry_run, pinned, uncounted};

/// Copies that wait at once; whoever asks for more waits.
const QUEUE: usize = 256;

/// Bytes of the copies by which the bandwidth is first measured.
const PROBE: i64 = 8 << 20;

/// Bytes a second that a dry run assumes of a link without a throttle: a half of what PCIe 4.0 has with 16 lanes.
const DRY_BANDWIDTH: f64 = 16e9;

/// Bytes from which on a copy is still under way in a dry run when the next operation begins; smaller ones have arrived.
const DRY_AT_ONCE: i64 = 1 << 20;

type Copied = Result<(Tensor, Tensor), NativeError>;

struct Job {
    from: Tensor,
    to: Tensor,
    after: Mark,
    done: flume::Sender<Copied>,
}

/// The queue and its thread.
pub struct Transfers {
    jobs: Option<flume::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    device: Device,
    /// The host's buffers that are free, by their size.
    free: RefCell<BTreeMap<i64, Vec<Tensor>>>,
    moved: Arc<Moved>,
    throttle: Option<f64>,
}

#[derive(Default)]
struct Moved {
    bytes: AtomicU64,
    nanos: AtomicU64,
}

/// A copy that was asked for.
pub struct Transfer {
    done: flume::Receiver<Copied>,
    /// True if the copy lasts until somebody waits, as a large one does in a dry run: what waits for room in a run is to be counted.
    takes_long: bool,
}

impl Transfer {
    /// Waits for the end of the copy: what it was from and what it went to.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait(self) -> Copied {
        self.done.recv().expect("the thread of transfers answers")
    }

    /// Returns whether it is over; in a dry run a large copy is over only when somebody waits.
    pub fn is_done(&self) -> bool {
        !self.takes_long && !self.done.is_empty()
    }
}

impl Transfers {
    /// `throttle`: bytes a second, not more.
    ///
    /// # Errors
    /// The device has no stream to give, or a first copy fails.
    pub fn new(device: Device, throttle: Option<f64>) -> Result<Transfers, NativeError> {
        let (jobs, queue) = flume::bounded::<Job>(QUEUE);
        let moved = Arc::new(Moved::default());
        let counts = moved.clone();
        let thread = std::thread::Builder::new().name("transfers".into()).spawn(move || {
            let stream = CopyStream::enter(device);
            let mut free_at = Instant::now();
            for job in queue {
                let start = Instant::now();
                let bytes = job.from.numel() as u64;
                let Job { from, mut to, after, done } = job;
                let copied = match &stream {
                    Ok(stream) => copy(stream, &after, &from, &mut to).map(|()| (from, to)),
                    Err(error) => Err(NativeError::Stream { message: error.to_string() }),
                };
                if let Some(throttle) = throttle {
                    free_at = free_at.max(start) + Duration::from_secs_f64(bytes as f64 / throttle);
                    std::thread::sleep(free_at.saturating_duration_since(Instant::now()));
                }
                counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                counts.nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                let _ = done.send(copied);
            }
        });
        let thread = thread.map_err(|error| NativeError::Stream { message: error.to_string() })?;
        let transfers =
            Transfers { jobs: Some(jobs), thread: Some(thread), device, free: RefCell::default(), moved, throttle };
        transfers.probe(throttle)?;
        Ok(transfers)
    }

    /// The first copies tell the bandwidth; pages are touched for the first time in the very first.
    fn probe(&self, throttle: Option<f64>) -> Result<(), NativeError> {
        let bytes = throttle.map_or(PROBE, |throttle| PROBE.min((throttle / 100.0) as i64 + 1));
        let here = Tensor::zeros([bytes], (Kind::Uint8, self.device));
        for _ in 0..2 {
            self.moved.bytes.store(0, Ordering::Relaxed);
            self.moved.nanos.store(0, Ordering::Relaxed);
            let (_, there) = self.to_host(here.shallow_clone(), false)?.wait()?;
            self.give_back(self.to_device(there, false)?.wait()?.0);
        }
        Ok(())
    }

    /// Returns the bytes a second of all copies so far.
    pub fn bandwidth(&self) -> f64 {
        if is_dry_run() {
            return self.throttle.unwrap_or(DRY_BANDWIDTH);
        }
        let (bytes, nanos) = (self.moved.bytes.load(Ordering::Relaxed), self.moved.nanos.load(Ordering::Relaxed));
        bytes as f64 / (nanos.max(1) as f64 * 1e-9)
    }

    /// Returns the number of bytes that were copied so far, both ways.
    pub fn moved_bytes(&self) -> u64 {
        self.moved.bytes.load(Ordering::Relaxed)
    }

    /// Copies bytes `[N]` of the device to a buffer of the host, after what this thread has asked of the device so far.
    /// The copy's source must not change until its end. `integers`: the bytes are integers, which a dry run has to copy,
    /// since it computes with them.
    ///
    /// # Errors
    /// The device failed.
    pub fn to_host(&self, from: Tensor, integers: bool) -> Result<Transfer, NativeError> {
        let to = self.host_buffer(from.numel() as i64);
        self.ask(from, to, integers)
    }

    /// Copies a buffer of the host to new memory of the device. `integers` as for [`Transfers::to_host`]. `[N]`, bytes.
    ///
    /// # Errors
    /// The device failed.
    pub fn to_device(&self, from: Tensor, integers: bool) -> Result<Transfer, NativeError> {
        // Made on this thread: it is of this thread's stream, on which it will be read and freed.
        let to = Tensor::empty(from.size(), (Kind::Uint8, self.device));
        self.ask(from, to, integers)
    }

    /// Copies bytes of the host to memory of the device, which nobody reads until the end. Both are `[N]`, bytes.
    ///
    /// # Errors
    /// The device failed.
    pub fn copy(&self, from: Tensor, to: Tensor) -> Result<Transfer, NativeError> {
        self.ask(from, to, false)
    }

    fn ask(&self, from: Tensor, mut to: Tensor, integers: bool) -> Result<Transfer, NativeError> {
        if is_dry_run() {
            if integers {
                to.copy_(&from);
            }
            let takes_long = from.numel() as i64 >= DRY_AT_ONCE;
            let (done, received) = flume::bounded(1);
            let _ = done.send(Ok((from, to)));
            return Ok(Transfer { done: received, takes_long });
        }
        let after = Mark::of(if from.device() == Device::Cpu { &to } else { &from })?;
        let (done, received) = flume::bounded(1);
        let jobs = self.jobs.as_ref().expect("it is taken by the drop");
        jobs.send(Job { from, to, after, done }).expect("the thread of transfers runs until the drop");
        Ok(Transfer { done: received, takes_long: false })
    }

    /// Returns a buffer of the host `[bytes]`, pinned where the device is a GPU; [`Transfers::give_back`] takes it again.
    pub fn host_buffer(&self, bytes: i64) -> Tensor {
        let size = buffer_size(bytes);
        let free = self.free.borrow_mut().get_mut(&size).and_then(Vec::pop);
        let buffer = free.unwrap_or_else(|| {
            // On a CPU, too, it is memory that is not the device's.
            let buffer = uncounted(|| Tensor::empty([size], (Kind::Uint8, Device::Cpu)));
            if self.device == Device::Cpu { buffer } else { pinned(&buffer) }
        });
        buffer.narrow(0, 0, bytes)
    }

    /// A buffer of the host that is no longer needed. `[N]`, bytes.
    pub fn give_back(&self, buffer: Tensor) {
        let size = buffer_size(buffer.numel() as i64);
        let whole = buffer.as_strided([size], [1], Some(0));
        self.free.borrow_mut().entry(size).or_default().push(whole);
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn copy(stream: &CopyStream, after: &Mark, from: &Tensor, to: &mut Tensor) -> Result<(), NativeError> {
    stream.wait_for(after)?;
    let copied = to.f_copy_(from).map(|_| ());
    copied.map_err(|error| NativeError::Stream { message: error.to_string() })?;
    stream.synchronize()
}

/// Returns one of eight sizes between two powers of two, so that buffers fit again when the sizes of micro-batches vary.
fn buffer_size(bytes: i64) -> i64 {
    let step = (bytes.max(64) as u64).next_power_of_two() as i64 / 16;
    (bytes + step - 1) / step * step
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Transfers, buffer_size};

    #[test]
    fn bytes_go_and_come_back() {
        let transfers = Transfers::new(Device::Cpu, None).unwrap();
        let bytes: Vec<Tensor> = (0..40).map(|i| Tensor::full([1000 + i], i, (Kind::Uint8, Device::Cpu))).collect();
        let there: Vec<_> = bytes.iter().map(|bytes| transfers.to_host(bytes.shallow_clone(), true).unwrap()).collect();
        for (bytes, there) in bytes.iter().zip(there) {
            let (from, host) = there.wait().unwrap();
            assert_ne!(from.data_ptr(), host.data_ptr());
            let (host, back) = transfers.to_device(host, true).unwrap().wait().unwrap();
            assert_eq!(&back, bytes);
            transfers.give_back(host);
        }
        assert!(transfers.bandwidth() > 0.0);
    }

    #[test]
    fn a_throttle_is_what_is_measured() {
        let transfers = Transfers::new(Device::Cpu, Some(1e6)).unwrap();
        let bytes = transfers.bandwidth();
        assert!(bytes <= 1.01e6, "{bytes}");
    }

    #[test]
    fn buffers_are_used_again() {
        let transfers = Transfers::new(Device::Cpu, None).unwrap();
        let buffer = transfers.host_buffer(5000);
        let address = buffer.data_ptr();
        transfers.give_back(buffer);
        assert_eq!(transfers.host_buffer(4900).data_ptr(), address);
        assert!((1..100_000).all(|bytes| (bytes..=bytes + bytes / 7 + 64).contains(&buffer_size(bytes))));
        assert!((1..100_000).all(|bytes| buffer_size(buffer_size(bytes)) == buffer_size(bytes)));
    }
}
