//! A decoder whose layers are split among ranks, each a thread of this process with its part of the weights and of the keys and
//! values: the first is the thread that asks, the others wait for what it asks.

use anyhow::{Context, Result, anyhow};
use flume::{Receiver, Sender};
use loongforge_torch::comm::ProcessGroup;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::model::{Continued, Decoder, DecoderConfig, Decoding, DecodingRanks, Prompt, generate_among};
use loongforge_torch::params::{ParallelRank, ParamStore};
use loongforge_torch::train::load_weights;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tch::{Device, Kind};
use tempfile::TempDir;

/// The time that a rank waits for another one within an answer.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A rank's decoder on its parameters.
pub struct DecoderPart {
    pub decoder: Decoder,
    pub params: Rc<ParamStore>,
}

/// The prompts that all ranks are asked.
struct Job {
    prompts: Vec<Prompt>,
    decodings: Vec<Decoding>,
}

/// The first rank's way to the others, which end with it.
pub struct Ranks {
    own: DecodingRanks,
    others: Vec<Sender<Job>>,
    /// Ranks are in step between two answers. One that failed within an answer leaves them out of step.
    in_step: Cell<bool>,
    /// The folder in which ranks meet.
    _meeting: TempDir,
}

/// The values that a rank's thread begins with.
#[derive(Clone)]
struct Start {
    whole: DecoderConfig,
    weights: PathBuf,
    kind: Kind,
    place: ParallelRank,
    store: PathBuf,
    device: Device,
}

impl Ranks {
    /// Loads the parts of `whole` from the folder `weights`, one onto each of `devices`; the first is returned.
    ///
    /// # Errors
    /// The decoder cannot be split into as many parts, a part cannot be loaded, or a rank does not come.
    pub fn start(whole: &DecoderConfig, weights: &Path, kind: Kind, devices: &[Device]) -> Result<(DecoderPart, Self)> {
        let folder = tempfile::tempdir().context("cannot create a folder for the ranks to meet in")?;
        let start = |rank: usize| Start {
            whole: whole.clone(),
            weights: weights.to_owned(),
            kind,
            place: ParallelRank { tp: devices.len(), tp_rank: rank, ..ParallelRank::default() },
            store: folder.path().join("store"),
            device: devices[rank],
        };
        whole.divided(&start(0).place).map_err(|error| anyhow!("--tensor-parallel: {error}"))?;
        let (loaded, are_loaded) = flume::bounded(devices.len());
        let threads = std::thread::available_parallelism().map_or(1, usize::from) / devices.len();
        let other = |rank: usize| -> Result<Sender<Job>> {
            let ((jobs, queue), start, loaded) = (flume::bounded(1), start(rank), loaded.clone());
            let run = move || {
                set_intra_op_threads(threads.max(1));
                follow(&start, &loaded, &queue);
            };
            std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn(run)
                .context("cannot start the thread of a rank")?;
            Ok(jobs)
        };
        let others = (1..devices.len()).map(other).collect::<Result<Vec<_>>>()?;
        let (first, loaded_here) = (start(0), start(0).load()?);
        // Nobody waits for one that has not loaded its part, or has panicked while it did.
        drop(loaded);
        for _ in &others {
            are_loaded.recv().context("a rank has ended")??;
        }
        Ok((loaded_here, Self { own: first.join()?, others, in_step: Cell::new(true), _meeting: folder }))
    }

    /// Returns whether a rank has failed within an answer, so that none can be made any more.
    pub fn have_failed(&self) -> bool {
        !self.in_step.get()
    }

    /// Continues each prompt on all ranks; `hear` is told here.
    ///
    /// # Errors
    /// A rank has ended or did not answer in time, now or before.
    pub fn continue_each(
        &self,
        decoder: &Decoder,
        prompts: &[Prompt],
        decodings: &[Decoding],
        hear: &mut dyn FnMut(usize, Continued) -> bool,
    ) -> Result<()> {
        if !self.in_step.replace(false) {
            return Err(anyhow!("a rank of the model failed before: start the program again"));
        }
        for other in &self.others {
            let job = Job { prompts: prompts.iter().map(Prompt::share).collect(), decodings: decodings.to_vec() };
            other.send(job).map_err(|_| anyhow!("a rank of the model has ended"))?;
        }
        generate_among(std::slice::from_ref(decoder), &self.own, prompts, &decodings.iter().collect::<Vec<_>>(), hear)?;
        self.in_step.set(true);
        Ok(())
    }
}

impl Start {
    fn load(&self) -> Result<DecoderPart> {
        let params = ParamStore::new(self.whole.divided_specs(&self.place)?, self.kind, self.device);
        load_weights(&params, &self.weights)?;
        params.set_trainable(false);
        Ok(DecoderPart { decoder: Decoder::new(&self.whole.divided(&self.place)?, &params), params: Rc::new(params) })
    }

    fn join(&self) -> Result<DecodingRanks> {
        let ParallelRank { tp, tp_rank, .. } = self.place;
        let group = ProcessGroup::join(&self.store, "decoding", tp_rank, tp, TIMEOUT, self.device)?;
        Ok(DecodingRanks::new(group, self.whole.vocab_size))
    }
}

/// Runs a rank other than the first until the queue has ended. An error that it meets shows only in that it ends.
fn follow(start: &Start, loaded: &Sender<Result<()>>, queue: &Receiver<Job>) {
    let part = match start.load() {
        Ok(part) => part,
        Err(error) => return drop(loaded.send(Err(error))),
    };
    if loaded.send(Ok(())).is_err() {
        return;
    }
    let Ok(ranks) = start.join() else { return };
    while let Ok(Job { prompts, decodings }) = queue.recv() {
        let decodings: Vec<&Decoding> = decodings.iter().collect();
        if generate_among(std::slice::from_ref(&part.decoder), &ranks, &prompts, &decodings, &mut |_, _| true).is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
