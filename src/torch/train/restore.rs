//! A pool's state from a checkpoint of any layout: a rank reads what it owns, where that lies in one run of the file straight
//! into the optimizer's memory.

use super::ema::EMA;
use super::hf::{Checkpoint, Dtype, Filling, LoadOptions, Origin, TensorFile, fill, load_weights_from};
use super::peft::has_adapter;
use super::placed::StateSlice;
use super::state::StateError;
use super::state_files::{file_name, state_files};
use super::train_state::TrainState;
use crate::params::{Cut, ParamSpec, Shard};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tch::{Device, Tensor};

/// Reads back what [`save_state`](super::save_state) wrote, bit for bit: the optimizer, adapters, and where `weights` says so the
/// weights, but for those that are rounded: a checkpoint has them in another type. Without `weights` the pool has the base of adapters
/// already, which a checkpoint does not hold, and reads the trained parameters.
///
/// # Errors
/// Files are missing, torn or of another model.
pub fn load_state(state: &mut TrainState, folder: &Path, pool_name: &str, weights: bool) -> Result<(), StateError> {
    let params = state.params().clone();
    if weights {
        let options = LoadOptions { keep_rounded: true, ..LoadOptions::default() };
        load_weights_from(&params, &Origin::whole(Checkpoint::open(folder)?), &options)?;
    }
    let Some(optimizer) = state.optimizer_mut() else { return Ok(()) };
    let files = StateFiles::open(folder, pool_name)?;
    let first = params.trained_ids().next().and_then(|id| {
        let (suffix, _) = *optimizer.state_of(&params, id).first()?;
        Some(format!("{}.{suffix}", params.spec(id).name))
    });
    optimizer.num_steps = files.num_steps(first.as_deref())?;
    let _no_grad = tch::no_grad_guard();
    let mut direct = Vec::new();
    for id in params.trained_ids() {
        let (part, _) = params.owned_range(id);
        let spec = params.spec(id);
        for (suffix, slice) in optimizer.state_of(&params, id) {
            let name = format!("{}.{suffix}", spec.name);
            let file = files.find_like(&name, suffix == EMA, &slice, spec)?;
            if !part.is_empty() {
                direct.extend(files.read_slice((file, name), &slice, spec, &part)?);
            }
        }
        if !weights || has_adapter(&params) {
            let name = format!("{}.value", spec.name);
            params.set_whole(id, &files.find(&name)?.read(&name)?.ok_or_else(|| files.missing(&name))?);
        }
    }
    Ok(fill(direct)?)
}

/// The files that a pool's state is read from.
struct StateFiles {
    /// The pool's first file, which messages name.
    path: PathBuf,
    files: Vec<TensorFile>,
}

impl StateFiles {
    /// # Errors
    /// A file is torn, or there is none.
    fn open(folder: &Path, pool_name: &str) -> Result<Self, StateError> {
        let files = (0..).map(|part| folder.join(file_name(pool_name, part)));
        let files = files.take_while(|path| path.exists() || path.ends_with(file_name(pool_name, 0)));
        // A pool may hold what others held when the checkpoint was made.
        let mut paths: Vec<PathBuf> = files.collect();
        let others = other_files(folder, &paths);
        if !others.is_empty() {
            paths.retain(|path| path.exists());
        }
        let files = paths.iter().chain(&others).map(|path| TensorFile::open(path)).collect::<Result<_, _>>()?;
        Ok(Self { path: folder.join(file_name(pool_name, 0)), files })
    }

    fn missing(&self, name: &str) -> StateError {
        StateError::Missing { path: self.path.clone(), name: name.to_owned() }
    }

    /// # Errors
    /// No file has the tensor.
    fn find(&self, name: &str) -> Result<&TensorFile, StateError> {
        let found = self.files.iter().find(|file| file.tensors().contains_key(name));
        found.ok_or_else(|| self.missing(name))
    }

    /// Returns the number of steps that the optimizer has taken, as noted in the file that has the tensor `first` of the state.
    fn num_steps(&self, first: Option<&str>) -> Result<u64, StateError> {
        let of_pool = first.map_or(Ok(&self.files[0]), |name| self.find(name))?;
        let num_steps = of_pool.note("num_steps").and_then(|steps| steps.parse().ok());
        num_steps.ok_or_else(|| self.missing("num_steps"))
    }

    /// Finds the file of a tensor of the state, which is of a type and a shape that `slice` of the optimizer's can take.
    ///
    /// # Errors
    /// There is none, or it is of another optimizer or another model.
    fn find_like(
        &self,
        name: &str,
        is_average: bool,
        slice: &StateSlice<'_>,
        spec: &ParamSpec,
    ) -> Result<&TensorFile, StateError> {
        let no_ema = |error| if is_average { StateError::NoEma { path: self.path.clone() } } else { error };
        let file = self.find(name).map_err(no_ema)?;
        let (path, name, info) = (file.path().to_owned(), name.to_owned(), &file.tensors()[name]);
        let (found, wanted) = (info.dtype, Dtype::of(slice.tensor.kind()).expect("a type of files"));
        if found != wanted && !(found.is_plain_float() && wanted.is_plain_float()) {
            return Err(StateError::OtherOptimizer { path, name, found, wanted });
        }
        let wanted = slice.shape(spec.whole_shape());
        if info.shape != wanted {
            return Err(StateError::Shape { path, name, found: info.shape.clone(), wanted });
        }
        Ok(file)
    }

    /// Reads the elements `part` of a parameter's state into the optimizer's memory. Returns what is still to be read, straight into
    /// that memory.
    ///
    /// # Errors
    /// The file is torn.
    fn read_slice<'a>(
        &self,
        (file, name): (&'a TensorFile, String),
        slice: &StateSlice<'_>,
        spec: &ParamSpec,
        part: &Range<i64>,
    ) -> Result<Vec<Filling<'a>>, StateError> {
        let info = &file.tensors()[&name];
        // Blocks are of parameters that are not cut.
        let part = slice.range(part);
        let shard = spec.shard.as_ref().filter(|_| slice.block == 1);
        let mut own = slice.tensor.narrow(0, slice.at, part.end - part.start);
        let runs = runs(&info.shape, shard, &part).filter(|_| info.dtype.is_plain_float());
        let Some(runs) = runs else {
            let whole = file.read(&name)?.ok_or_else(|| self.missing(&name))?;
            let held = shard.map_or_else(|| whole.shallow_clone(), |shard| shard.take(&whole));
            own.copy_(&held.reshape([-1]).narrow(0, part.start, own.size()[0]));
            return Ok(Vec::new());
        };
        let is_here = own.device() == Device::Cpu;
        let memory = if is_here { own.shallow_clone() } else { Tensor::empty(own.size(), (own.kind(), Device::Cpu)) };
        let filling = |run: Run| {
            let memory = memory.narrow(0, run.at, run.len);
            Filling { file, name: name.clone(), first: run.first, memory }
        };
        let fillings: Vec<Filling<'a>> = runs.into_iter().map(filling).collect();
        if is_here {
            return Ok(fillings);
        }
        fill(fillings)?;
        own.copy_(&memory);
        Ok(Vec::new())
    }
}

/// Returns the files of other pools' states in a checkpoint, sorted.
fn other_files(folder: &Path, own: &[PathBuf]) -> Vec<PathBuf> {
    let mut others = state_files(folder).unwrap_or_default();
    others.retain(|path| !own.contains(path));
    others
}

/// Elements that lie one after the other both in a file and in memory.
struct Run {
    /// The first of them in the file's tensor, and in memory.
    first: i64,
    at: i64,
    len: i64,
}

/// Returns where the elements `part` of what a rank holds of a tensor of this shape lie; `None` where it is cut along
/// rows, so that every row would be a run.
fn runs(shape: &[i64], shard: Option<&Shard>, part: &Range<i64>) -> Option<Vec<Run>> {
    let row: i64 = shape.iter().skip(1).product();
    let ranges = match shard.map(|shard| shard.cuts.as_slice()) {
        None | Some([]) => vec![(0, shape.first().copied().unwrap_or(1))],
        Some([Cut { dim: 0, ranges }]) => ranges.clone(),
        Some(_) => return None,
    };
    let mut runs = Vec::new();
    let mut held = 0;
    for (start, len) in ranges {
        let (from, to) = (part.start.max(held), part.end.min(held + len * row));
        if from < to {
            runs.push(Run { first: start * row + from - held, at: from - part.start, len: to - from });
        }
        held += len * row;
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs name, element by element, what the shard takes of the whole.
    #[test]
    fn runs_are_the_parts_of_shards() {
        let whole = Tensor::arange(24, (tch::Kind::Int64, Device::Cpu)).view([6, 4]);
        let cut = |ranges: &[(i64, i64)]| Shard {
            cuts: vec![Cut { dim: 0, ranges: ranges.to_vec() }],
            ..Shard::whole(&[6, 4])
        };
        for shard in [None, Some(cut(&[(2, 3)])), Some(cut(&[(1, 1), (4, 2)])), Some(cut(&[(0, 2), (3, 1), (5, 1)]))] {
            let held = shard.as_ref().map_or_else(|| whole.shallow_clone(), |shard| shard.take(&whole));
            let held = Vec::<i64>::try_from(held.contiguous().view([-1])).unwrap();
            for (start, end) in (0..=held.len()).flat_map(|start| (start..=held.len()).map(move |end| (start, end))) {
                let mut found = vec![-1; end - start];
                for run in runs(&[6, 4], shard.as_ref(), &(start as i64..end as i64)).unwrap() {
                    (0..run.len).for_each(|nth| found[(run.at + nth) as usize] = run.first + nth);
                }
                assert_eq!(found, held[start..end], "{shard:?}");
            }
        }
        let columns = Shard { cuts: vec![Cut { dim: 1, ranges: vec![(0, 2)] }], ..cut(&[]) };
        assert!(runs(&[6, 4], Some(&columns), &(0..12)).is_none());
    }
}
