//! Many reads at once: blocks of files into slices of memory, straight where the types are equal, through a small buffer
//! of each reader where they are converted.

use super::dtype::{Dtype, convert};
use super::file::{TensorFile, TensorFileError};
use super::header::TensorInfo;
use crate::native::bytes_mut;
use loongforge_core::threads::with_threads;
use std::sync::Mutex;
use tch::{Device, Tensor};

/// Bytes of a read: enough to be one long transfer, little enough to stay in a core's cache while it is converted.
const BLOCK: usize = 4 << 20;
/// Bytes of a converted read.
const CONVERTED_BLOCK: usize = 512 << 10;
/// Readers: more do not help one disk.
const MAX_READERS: usize = 8;

/// A contiguous part of a stored tensor, and the memory that gets it.
pub(super) struct Job<'a> {
    pub file: &'a TensorFile,
    pub info: &'a TensorInfo,
    /// Bytes from the tensor's begin.
    pub offset: u64,
    /// The type of the target; conversion is between plain floats.
    pub to: Dtype,
    pub target: &'a mut [u8],
}

/// Memory of a contiguous CPU tensor that gets elements of a stored one, converted between plain floats.
pub struct Filling<'a> {
    pub file: &'a TensorFile,
    pub name: String,
    /// The first element of the stored tensor.
    pub first: i64,
    pub memory: Tensor,
}

/// Reads all at once.
///
/// # Errors
/// The first read that failed; the memory holds anything then.
///
/// # Panics
/// A file has no tensor of the name, or not so many elements.
pub fn fill(mut all: Vec<Filling<'_>>) -> Result<(), TensorFileError> {
    let jobs = all.iter_mut().map(|filling| {
        let info = &filling.file.tensors()[&filling.name];
        let to = Dtype::of(filling.memory.kind()).expect("a type of files");
        let offset = filling.first as u64 * info.dtype.bits() / 8;
        Job { file: filling.file, info, offset, to, target: bytes_mut(&mut filling.memory) }
    });
    run(jobs.collect())
}

/// Does all jobs in the order of the files' bytes.
///
/// # Errors
/// The first read that failed; the targets hold anything then.
pub(super) fn run(jobs: Vec<Job<'_>>) -> Result<(), TensorFileError> {
    let mut jobs: Vec<Job<'_>> = jobs.into_iter().flat_map(split).collect();
    jobs.sort_by_key(|job| (job.file.path(), job.info.start + job.offset));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let num_readers = cores.min(MAX_READERS).min(jobs.len());
    let queue = Mutex::new((jobs.into_iter(), Ok(())));
    with_threads(num_readers, || read(&queue));
    queue.into_inner().expect("no reader panics").1
}

impl TensorFile {
    /// Reads one tensor onto the CPU, in the file's shape `[…]` and type; `None` where the file has no such name.
    ///
    /// # Errors
    /// It cannot be read, or libtorch has no such type.
    pub fn read(&self, name: &str) -> Result<Option<Tensor>, TensorFileError> {
        let Some(info) = self.header.tensors.get(name) else { return Ok(None) };
        let wrong = || TensorFileError::Dtype { path: self.path.clone(), name: name.to_owned(), dtype: info.dtype };
        let kind = info.dtype.kind().ok_or_else(wrong)?;
        let mut tensor = Tensor::empty(info.shape.as_slice(), (kind, Device::Cpu));
        let target = bytes_mut(&mut tensor);
        run(vec![Job { file: self, info, offset: 0, to: info.dtype, target }])?;
        Ok(Some(tensor))
    }
}

type Queue<'a> = Mutex<(std::vec::IntoIter<Job<'a>>, Result<(), TensorFileError>)>;

fn read(queue: &Queue<'_>) {
    let mut buffer = Vec::new();
    let next = || {
        let mut queue = queue.lock().expect("no reader panics");
        if queue.1.is_ok() { queue.0.next() } else { None }
    };
    while let Some(job) = next() {
        if let Err(error) = one(job, &mut buffer) {
            queue.lock().expect("no reader panics").1 = Err(error);
        }
    }
}

fn one(job: Job<'_>, buffer: &mut Vec<u8>) -> Result<(), TensorFileError> {
    let from = job.info.dtype;
    if from == job.to {
        return job.file.read_at(job.info, job.offset, job.target);
    }
    buffer.resize(job.target.len() / job.to.bytes() * from.bytes(), 0);
    job.file.read_at(job.info, job.offset, buffer)?;
    convert(from, job.to, buffer, job.target);
    Ok(())
}

fn split(job: Job<'_>) -> Vec<Job<'_>> {
    let Job { file, info, mut offset, to, target } = job;
    let (same, from_bytes) = (info.dtype == to, info.dtype.bytes());
    let block = if same { BLOCK } else { CONVERTED_BLOCK / from_bytes * to.bytes() };
    let mut parts = Vec::new();
    for target in target.chunks_mut(block) {
        let read = if same { target.len() } else { target.len() / to.bytes() * from_bytes };
        parts.push(Job { file, info, offset, to, target });
        offset += read as u64;
    }
    parts
}
