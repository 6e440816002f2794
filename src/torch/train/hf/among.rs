//! Weights and other tensors of a pool whose parameters are split among ranks, into files of whole tensors: every rank
//! gives its parts, one tensor at a time, and one rank writes.

use super::error::WeightsError;
use super::save::{Entry, Target, Writer, deal_among, dtype_of, order, sized_of};
use super::shards::Shards;
use crate::comm::Mesh;
use crate::native::NativeError;
use crate::params::{ParamId, ParamStore, StoredTensor};
use crate::train::peft::merged_among;
use crate::train::shares::gather_piece;
use loongforge_core::message::SavedFile;
use std::collections::{BTreeMap, btree_map};
use tch::{Kind, Tensor};

/// This rank among those that hold the parts of one copy of the parameters, and how many they are; `None` of a rank with
/// another copy. Experts are spread over several replicas, of which the first ones count.
pub(crate) fn writer_of(mesh: &Mesh) -> Option<(usize, usize)> {
    let (tp, ep) = (mesh.tp.world(), mesh.ep.world());
    (mesh.data.rank() < ep).then(|| (mesh.data.rank() * tp + mesh.tp.rank(), ep * tp))
}

/// Works like [`save_weights`](super::save_weights) from the parts that the ranks of `mesh` hold, each of which calls
/// it; they write the files in turns. The files that this rank has written.
///
/// # Errors
/// A file cannot be written, or a rank is gone.
pub fn save_weights_among(
    params: &ParamStore,
    mesh: &Mesh,
    to: Target<'_>,
    shards: &Shards,
) -> Result<Vec<SavedFile>, WeightsError> {
    let Some((rank, ranks)) = writer_of(mesh) else { return Ok(Vec::new()) };
    let own = params.ids().filter(|id| !params.spec(*id).is_copy);
    let own = own.filter(|id| params.spec(*id).pieces.first().is_none_or(|piece| shards.of.has(&piece.name)));
    let pieces = own.flat_map(|id| params.spec(id).pieces.iter().map(move |piece| (id, piece)));
    let all: Vec<(ParamId, &StoredTensor)> = pieces.collect();
    let entry = |(id, piece): &(ParamId, &StoredTensor)| {
        let dtype = dtype_of(params.spec(*id), piece, params.leaf(*id).kind());
        Entry { name: shards.of.in_file(&piece.name).to_owned(), dtype, shape: piece.shape.clone() }
    };
    let files = deal_among(&sized_of(params, &all), shards);
    let (mut saved, mut failed) = (Vec::new(), None);
    for (index, (file, _)) in files.into_iter().enumerate() {
        let pieces: Vec<(ParamId, &StoredTensor)> = file.into_iter().map(|index| all[index]).collect();
        let entries: Vec<Entry> = pieces.iter().map(entry).collect();
        // Pieces of one parameter come one after the other or in turns with few others.
        let mut values: BTreeMap<ParamId, Tensor> = BTreeMap::new();
        let mut tensor = |index: usize| {
            let (id, piece) = pieces[index];
            if values.len() > 4 && !values.contains_key(&id) {
                values.clear();
            }
            let value = match values.entry(id) {
                btree_map::Entry::Occupied(known) => known.into_mut(),
                btree_map::Entry::Vacant(place) => place.insert(merged_among(params, id, mesh)?),
            };
            let whole = gather_piece(params.spec(id), piece, value, mesh);
            whole.map(|whole| if piece.is_integer { whole.to_kind(Kind::Int64) } else { whole })
        };
        let writes = index % ranks == rank && failed.is_none();
        let target = writes.then(|| (to, shards.name(index)));
        match write_among(&entries, &[("format", "pt")], target, &mut tensor) {
            Ok(file) => saved.extend(file),
            Err(error @ WeightsError::Native(_)) => return Err(error),
            // Other ranks wait for this one's parts of the files that are left.
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(saved), Err)
}

/// Writes a file, where this rank has a place and name for it, of tensors that all ranks make together.
///
/// # Errors
/// Fails as [`save_weights_among`] does.
pub(crate) fn write_among(
    entries: &[Entry],
    notes: &[(&str, &str)],
    target: Option<(Target<'_>, String)>,
    tensor: &mut dyn FnMut(usize) -> Result<Tensor, NativeError>,
) -> Result<Option<SavedFile>, WeightsError> {
    let writer = target.map(|(to, name)| Writer::create(entries, notes, to, &name));
    // A rank that cannot write goes on to give its parts: others would wait for them.
    let (mut writer, mut failed) = match writer {
        Some(Ok(writer)) => (Some(writer), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    for index in order(entries) {
        let tensor = tensor(index)?;
        if let Some(Err(error)) = writer.as_mut().map(|writer| writer.write_tensor(&tensor)) {
            (writer, failed) = (None, Some(error));
        }
    }
    match failed {
        Some(error) => Err(error),
        None => writer.map(Writer::finish).transpose(),
    }
}
