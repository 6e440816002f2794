//! Weights into parameters, and tensors or rows of them on their own.
//!
//! Where memory and file agree in layout, bytes are read into the parameter itself, by several readers; a conversion
//! goes through each reader's small buffer. Only parameters on a GPU, transposed pieces and packed tensors go through
//! a tensor of at most `STAGE` bytes.

use super::checkpoint::Checkpoint;
use super::compare::{LoadOptions, compare_part, is_optional, may_grow};
use super::dtype::{Dtype, to_f32};
use super::error::WeightsError;
use super::file::TensorFileError;
use super::layout::pieces_in;
use super::origin::Origin;
use super::packed::{Fp8, Int4, from_e8m0, unpack_mxfp4};
use super::parallel::{Job, run};
use super::stored::{Source, Stored, TensorPlace};
use crate::native::bytes_mut;
use crate::params::{Init, ParamId, ParamSpec, ParamStore, Region, Rounding, StoredTensor};
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// Bytes of a tensor that is read before it is copied to where it belongs.
const STAGE: i64 = 64 << 20;

/// Fills every parameter of `params` from the weights in `folder`.
///
/// # Errors
/// Fails as [`load_weights_from`] does, and where the folder's files cannot be opened.
pub fn load_weights(params: &ParamStore, folder: &Path) -> Result<(), WeightsError> {
    load_weights_from(params, &Origin::whole(Checkpoint::open(folder)?), &LoadOptions::default())
}

/// Fills every parameter of `params` for which there is a folder, converting types, unpacking what is packed.
///
/// Headers are compared first: nothing is loaded unless every name and shape fits. Other tensors in the folder do not matter here, since
/// other pools own it: see [`compare_weights`](super::compare_weights).
///
/// # Errors
/// A file cannot be read, or tensors do not fit: one error names all of them.
pub fn load_weights_from(params: &ParamStore, origin: &Origin, options: &LoadOptions) -> Result<(), WeightsError> {
    let find = |name: &str| origin.find(name).map(|(_, stored)| stored);
    let is_loaded = |id: &ParamId| !options.keep_rounded || !params.spec(*id).held.rounding.is_some();
    let pieces: Vec<_> = params.ids().filter(is_loaded).map(|id| (id, pieces_in(params.spec(id), &find))).collect();
    compare_part(pieces.iter().flat_map(|(_, pieces)| pieces), origin, options)?;
    let _no_grad = tch::no_grad_guard();
    // All at once, or a unit at a time where a rank keeps slices only, or a weight that is held in another way.
    let together = |left: ParamId, right: ParamId| {
        if [left, right].iter().any(|id| params.frozen_unit_of(*id).is_some()) {
            return false;
        }
        let here = [left, right].map(|id| params.is_here(id));
        here == [true; 2] || (here == [false; 2] && params.unit_of(left) == params.unit_of(right))
    };
    pieces.chunk_by(|left, right| together(left.0, right.0)).try_for_each(|part| load(params, part, origin, options))
}

/// Fills these parameters from their pieces.
fn load(
    params: &ParamStore,
    pieces: &[(ParamId, Vec<StoredTensor>)],
    origin: &Origin,
    options: &LoadOptions,
) -> Result<(), WeightsError> {
    let mut reads = Reads::default();
    for (id, pieces) in pieces {
        reads.add(params, *id, pieces, origin, options)?;
    }
    reads.read()?;
    check_distinct(params, pieces)?;
    reads.grow()?;
    reads.land(params);
    Ok(())
}

/// The parts of a checkpoint that are read, and the tensors that they are read into.
#[derive(Default)]
struct Reads<'a> {
    /// Parts that lie in the file as in memory, from this element on: they are read in place.
    direct: Vec<(Tensor, &'a Checkpoint, &'a TensorPlace, i64)>,
    /// Parts that are read into memory of their own and copied.
    staged: Vec<(Tensor, &'a Checkpoint, &'a Stored, Region)>,
    /// Rows that the file does not have: they become the mean of those that it has.
    grown: Vec<(Tensor, &'a Checkpoint, &'a Stored)>,
    /// Whole values of parameters of which this rank keeps a slice, or that it holds in another way.
    landed: Vec<(ParamId, Tensor)>,
    /// The scale of each number of weights that are held as float8, as a file of float8 has it, or 0.
    scales: BTreeMap<ParamId, Tensor>,
}

impl<'a> Reads<'a> {
    /// Adds what is read of the pieces of one parameter.
    fn add(
        &mut self,
        params: &ParamStore,
        id: ParamId,
        pieces: &[StoredTensor],
        origin: &'a Origin,
        options: &LoadOptions,
    ) -> Result<(), WeightsError> {
        let (mut spec, mut leaf) = (params.spec(id).clone(), params.leaf(id).detach());
        if !params.is_here(id) {
            if !pieces.iter().any(|piece| origin.find(&piece.name).is_some()) {
                return Ok(());
            }
            if spec.is_rounded_by_whole_rows() {
                spec = spec.whole();
            }
            leaf = self.landing(id, &spec, &leaf);
        }
        for piece in pieces.iter().filter(|piece| !piece.repeats) {
            let Some((checkpoint, stored)) = origin.find(&piece.name) else {
                let left = is_optional(&piece.name, options) || !origin.covers(&piece.name);
                assert!(left, "{} was compared", piece.name);
                continue;
            };
            // What other ranks hold of the piece is not read here.
            for mut part in spec.piece_parts(piece) {
                let mut view = spec.part_view(piece, &part, &leaf);
                if stored.shape != piece.shape {
                    assert!(may_grow(piece, &stored.shape, options), "{} was compared", piece.name);
                    let (start, len) = part.stored[0];
                    let known = (stored.shape[0] - start).clamp(0, len);
                    self.grown.push((view.narrow(0, known, len - known), checkpoint, stored));
                    view = view.narrow(0, 0, known);
                    part.stored[0].1 = known;
                }
                if let Some(all) = self.scales.get(&id).filter(|_| !piece.transposed)
                    && let Some(of_file) = checkpoint.scales(stored)?
                    && let [(start, len), ..] = part.stored[..]
                {
                    let of_part = spec.part_view(piece, &part, all).narrow(-1, 0, 1);
                    of_part.shallow_clone().copy_(&of_file.narrow(0, start, len).unsqueeze(1));
                }
                let first = first_element(&part.stored, &stored.shape).filter(|_| !piece.is_integer);
                match (&stored.source, first) {
                    (Source::Plain(place), Some(first)) if view.device() == Device::Cpu && view.is_contiguous() => {
                        self.direct.push((view, checkpoint, place, first));
                    }
                    _ => self.staged.push((view, checkpoint, stored, part.stored)),
                }
            }
        }
        Ok(())
    }

    /// Returns memory for the whole of a parameter that is held in another form than it is read. A rounded weight is rounded once.
    fn landing(&mut self, id: ParamId, spec: &ParamSpec, leaf: &Tensor) -> Tensor {
        let kind = if spec.held.rounding.is_some() { Kind::Float } else { leaf.kind() };
        let leaf = Tensor::zeros(spec.shape.as_slice(), (kind, leaf.device()));
        self.landed.push((id, leaf.shallow_clone()));
        if spec.held.rounding == Rounding::Float8 {
            let (rows, options) = (&leaf.size()[..spec.shape.len() - 1], (Kind::Float, Device::Cpu));
            let of_rows = Tensor::zeros([rows, &[1]].concat(), options);
            self.scales.insert(id, of_rows.expand(leaf.size(), false));
        }
        leaf
    }

    /// Reads all that the files have.
    fn read(&mut self) -> Result<(), WeightsError> {
        let to = |tensor: &Tensor| Dtype::of(tensor.kind()).expect("a parameter's kind is a file's type");
        let jobs = self.direct.iter_mut().map(|(view, checkpoint, place, first)| {
            let (to, (file, info)) = (to(view), checkpoint.place(place));
            let offset = *first as u64 * info.dtype.bits() / 8;
            Job { file, info, offset, to, target: bytes_mut(view) }
        });
        run(jobs.collect())?;
        for (view, checkpoint, stored, region) in &self.staged {
            checkpoint.copy_into(stored, region, view)?;
        }
        Ok(())
    }

    /// Fills rows that the files do not have.
    fn grow(&mut self) -> Result<(), WeightsError> {
        for (new, checkpoint, stored) in self.grown.iter_mut().filter(|(new, ..)| new.numel() > 0) {
            let mean = checkpoint.read(stored, new.kind())?.mean_dim([0i64].as_slice(), false, Kind::Double);
            new.copy_(&mean.expand_as(new));
        }
        Ok(())
    }

    /// Hands whole parameters to the store, which keeps of them what this rank holds.
    fn land(&self, params: &ParamStore) {
        for (id, whole) in &self.landed {
            match self.scales.get(id) {
                Some(scales) => params.set_scaled(*id, whole, &scales.select(-1, 0)),
                None if params.spec(*id).is_rounded_by_whole_rows() => params.set_whole(*id, whole),
                None => params.set(*id, whole),
            }
        }
    }
}

/// Checks that whole numbers that are looked up (`Init::Distinct`, as the experts of a token) are in their range.
///
/// # Errors
/// The name of the first parameter with one that is not.
fn check_distinct(params: &ParamStore, pieces: &[(ParamId, Vec<StoredTensor>)]) -> Result<(), WeightsError> {
    for (id, pieces) in pieces {
        let Init::Distinct(below, _) = params.spec(*id).init else { continue };
        let values = params.leaf(*id).detach();
        let fits = values.numel() == 0
            || values.min().double_value(&[]) >= 0.0 && values.max().double_value(&[]) < below as f64;
        if let (false, Some(piece)) = (fits, pieces.first()) {
            return Err(WeightsError::OutOfRange { name: piece.name.clone(), below });
        }
    }
    Ok(())
}

/// Returns where a region begins in the elements of a tensor of this shape, if it lies in one run.
fn first_element(region: &Region, shape: &[i64]) -> Option<i64> {
    let whole_rows = region.iter().zip(shape).skip(1).all(|(&(start, len), size)| start == 0 && len == *size);
    let row: i64 = shape.iter().skip(1).product();
    whole_rows.then(|| region.first().map_or(0, |(start, _)| start * row))
}

impl Checkpoint {
    /// Reads rows `[start, start + len)` of a tensor's first dimension onto the CPU, `[len, …]`, and nothing else of the file. Plain
    /// floats and packed values are converted to `kind`; other types must be asked for as they are.
    ///
    /// # Errors
    /// It cannot be read.
    ///
    /// # Panics
    /// There are no such rows, or no such conversion.
    pub fn read_rows(&self, stored: &Stored, start: i64, len: i64, kind: Kind) -> Result<Tensor, TensorFileError> {
        let [rows, row_shape @ ..] = stored.shape.as_slice() else { panic!("rows of a scalar") };
        assert!(start >= 0 && len >= 0 && start + len <= *rows, "rows {start}+{len} of {rows}");
        let shape = [&[len], row_shape].concat();
        self.read_part(stored, start, &shape, kind)
    }

    /// Reads a whole tensor as [`Checkpoint::read_rows`] does, in the shape `[…]` that the file has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, stored: &Stored, kind: Kind) -> Result<Tensor, TensorFileError> {
        self.read_part(stored, 0, &stored.shape, kind)
    }

    fn read_part(&self, stored: &Stored, start: i64, shape: &[i64], kind: Kind) -> Result<Tensor, TensorFileError> {
        let row: i64 = stored.shape.iter().skip(1).product();
        if let Source::Plain(place) = &stored.source {
            let (file, info) = self.place(place);
            let to = Dtype::of(kind).expect("a file's type");
            let mut tensor = Tensor::empty(shape, (kind, Device::Cpu));
            let offset = (start * row) as u64 * info.dtype.bits() / 8;
            run(vec![Job { file, info, offset, to, target: bytes_mut(&mut tensor) }])?;
            return Ok(tensor);
        }
        if let Source::PlainFp8 { weight, .. } = &stored.source {
            let (file, info) = self.place(weight);
            let mut tensor = Tensor::empty(shape, (Kind::Float8e4m3fn, Device::Cpu));
            file.read_at(info, (start * row) as u64, bytes_mut(&mut tensor))?;
            let values = tensor.to_kind(Kind::Float);
            let scaled = match self.scales(stored)? {
                Some(scales) => {
                    let of_rows: Vec<i64> = (0..shape.len()).map(|dim| if dim == 0 { shape[0] } else { 1 }).collect();
                    values * scales.narrow(0, start, shape[0]).view(of_rows.as_slice())
                }
                None => values,
            };
            return Ok(scaled.to_kind(kind));
        }
        let last = *stored.shape.last().expect("packed tensors have dimensions");
        // Packed rows are those of the last dimension.
        let rows_each = if last == 0 { 0 } else { row / last };
        let (first, count) = match stored.shape.len() {
            1 => (0, 1),
            _ => ((start * rows_each) as usize, (shape[0] * rows_each) as usize),
        };
        let mut values = vec![0f32; shape.iter().product::<i64>() as usize];
        self.unpack(stored, first, count, &mut values)?;
        Ok(Tensor::from_slice(&values).view(shape).to_kind(kind))
    }

    /// Unpacks `count` rows of the last dimension, from `first` on.
    fn unpack(&self, stored: &Stored, first: usize, count: usize, out: &mut [f32]) -> Result<(), TensorFileError> {
        let cols = *stored.shape.last().expect("packed tensors have dimensions") as usize;
        match &stored.source {
            Source::Plain(_) | Source::PlainFp8 { .. } => unreachable!("plain tensors are not unpacked"),
            Source::Fp8 { weight, scale, block } => {
                let rows = stored.shape[stored.shape.len() - 2] as usize;
                let weight = self.bytes(weight, first * cols, count * cols)?;
                let packing = Fp8 { matrix: [rows, cols], block: *block };
                packing.unpack(&weight, &self.floats(scale)?, first, out);
            }
            Source::Int4 { packed, scale, zero_point } => {
                let scale_cols = *self.place(scale).1.shape.last().expect("scales have two dimensions") as usize;
                let packing = Int4 { num_cols: cols, group: cols / scale_cols };
                let packed = self.bytes(packed, first * packing.row_bytes(), count * packing.row_bytes())?;
                let zero_point = zero_point.as_ref().map(|place| self.all_bytes(place)).transpose()?;
                packing.unpack(&packed, &self.floats(scale)?, zero_point.as_deref(), first, out);
            }
            Source::Mxfp4 { blocks, scales } => {
                let scales = self.bytes(scales, first * cols / 32, count * cols / 32)?;
                unpack_mxfp4(&self.bytes(blocks, first * cols / 2, count * cols / 2)?, &scales, out);
            }
        }
        Ok(())
    }

    /// Returns the scales of FP8 that has one or one for each row: `[rows]`, float32. `None` of everything else.
    fn scales(&self, stored: &Stored) -> Result<Option<Tensor>, TensorFileError> {
        let Source::PlainFp8 { scale: Some(scale), .. } = &stored.source else { return Ok(None) };
        let scales = Tensor::from_slice(&self.floats(scale)?);
        Ok(Some(scales.expand([*stored.shape.first().unwrap_or(&1)], false)))
    }

    /// Fills `view` with a region of the stored tensor, by rows that fit into `STAGE`.
    fn copy_into(&self, stored: &Stored, region: &Region, view: &Tensor) -> Result<(), TensorFileError> {
        let bytes = |elements: i64| elements * view.kind().elt_size_in_bytes() as i64;
        // Whole numbers are read as such, and converted by the copy.
        let kind = match stored.dtype {
            Dtype::I64 => Kind::Int64,
            Dtype::I32 => Kind::Int,
            _ => view.kind(),
        };
        let Some(&(first, rows)) = region.first() else {
            view.shallow_clone().copy_(&self.read(stored, kind)?);
            return Ok(());
        };
        let step = (STAGE / bytes(stored.shape[1..].iter().product()).max(1)).max(1);
        let mut start = 0;
        while start < rows {
            let len = step.min(rows - start);
            let read = self.read_rows(stored, first + start, len, kind)?;
            let columns = (1..).zip(&region[1..]);
            let read = columns.fold(read, |read, (dim, &(start, len))| read.narrow(dim, start, len));
            view.narrow(0, start, len).copy_(&read);
            start += len;
        }
        Ok(())
    }

    fn bytes(&self, place: &TensorPlace, offset: usize, len: usize) -> Result<Vec<u8>, TensorFileError> {
        let (file, info) = self.place(place);
        let mut bytes = vec![0; len];
        file.read_at(info, offset as u64, &mut bytes)?;
        Ok(bytes)
    }

    fn all_bytes(&self, place: &TensorPlace) -> Result<Vec<u8>, TensorFileError> {
        self.bytes(place, 0, self.place(place).1.len as usize)
    }

    fn floats(&self, place: &TensorPlace) -> Result<Vec<f32>, TensorFileError> {
        let (dtype, bytes) = (self.place(place).1.dtype, self.all_bytes(place)?);
        Ok(match dtype {
            Dtype::F8_E8M0 => bytes.into_iter().map(from_e8m0).collect(),
            _ => to_f32(dtype, &bytes),
        })
    }
}
