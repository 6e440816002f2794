//! The memory that one operation holds for its backward, as blocks that can go to the host and come back.

use tch::{Device, Kind, Tensor};

use super::transfers::{Transfer, Transfers};
use crate::native::{NativeError, SavedTensors, storage};

/// Says where the tensors are listed.
pub(super) enum Source {
    Graph(SavedTensors),
    List(Vec<Option<Tensor>>),
}

/// Tensors and the memory of theirs that nobody else needs: what others share stays where it is and does not count.
pub(super) struct Held {
    source: Source,
    blocks: Vec<Block>,
}

struct Block {
    bytes: i64,
    device: Device,
    views: Vec<View>,
    place: BlockLocation,
}

impl Block {
    fn has_integers(&self) -> bool {
        self.views.iter().any(|view| {
            matches!(view.kind, Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int | Kind::Int64 | Kind::Bool)
        })
    }
}

enum BlockLocation {
    Here,
    Leaving(Transfer),
    There(Tensor),
    Returning(Transfer),
}

/// Describes how a tensor of the list lies in its block.
struct View {
    index: usize,
    kind: Kind,
    size: Vec<i64>,
    stride: Vec<i64>,
    offset: i64,
}

impl Source {
    fn len(&self) -> usize {
        match self {
            Source::Graph(saved) => saved.len(),
            Source::List(list) => list.len(),
        }
    }

    fn get(&self, index: usize) -> Option<Tensor> {
        match self {
            Source::Graph(saved) => saved.get(index),
            Source::List(list) => list[index].as_ref().map(Tensor::shallow_clone),
        }
    }

    fn set(&mut self, index: usize, tensor: Option<Tensor>) {
        match self {
            Source::Graph(saved) => saved.set(index, tensor.as_ref()),
            Source::List(list) => list[index] = tensor,
        }
    }
}

impl Held {
    /// The slots in whose memory (`slots`, by its address) tensors lie are the operation's own: what else reads them has
    /// done so by the time of the backward, or holds them for itself.
    pub fn new(source: Source, slots: &[i64]) -> Held {
        let mut found: Vec<(i64, i64, Block)> = Vec::new();
        for index in 0..source.len() {
            let Some(tensor) = source.get(index) else { continue };
            let memory = storage(&tensor);
            // Flash attention's state of random numbers is of a kind that tch does not know, and of a few bytes: it stays.
            let Ok(kind) = tensor.f_kind() else { continue };
            if memory.bytes == 0 {
                continue;
            }
            let view = View { index, kind, size: tensor.size(), stride: tensor.stride(), offset: memory.offset };
            match found.iter_mut().find(|(address, ..)| *address == memory.address) {
                Some((_, _, block)) => block.views.push(view),
                None => {
                    let device = tensor.device();
                    let block = Block { bytes: memory.bytes, device, views: vec![view], place: BlockLocation::Here };
                    found.push((memory.address, memory.users, block));
                }
            }
        }
        let own = found.into_iter().filter(|(address, users, block)| {
            let whole = block.views.iter().all(|view| block.bytes % view.kind.elt_size_in_bytes() as i64 == 0);
            whole && (slots.contains(address) || *users <= block.views.len() as i64)
        });
        Held { blocks: own.map(|(_, _, block)| block).collect(), source }
    }

    /// Returns the bytes of its own memory, wherever that is.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes as u64).sum()
    }

    /// Begins to move everything to the host.
    ///
    /// # Errors
    /// The device failed, or the host has no memory.
    pub fn leave(&mut self, transfers: &Transfers) -> Result<(), NativeError> {
        let _guard = tch::no_grad_guard();
        for block in &mut self.blocks {
            let first = self.source.get(block.views[0].index).expect("it is here");
            let width = first.kind().elt_size_in_bytes() as i64;
            let flat = first.as_strided([block.bytes / width], [1], Some(0)).view_dtype(Kind::Uint8);
            block.views.iter().for_each(|view| self.source.set(view.index, None));
            block.place = BlockLocation::Leaving(transfers.to_host(flat, block.has_integers())?);
        }
        Ok(())
    }

    /// Returns whether all that is leaving has left.
    pub fn has_left(&self) -> bool {
        self.blocks.iter().all(|block| match &block.place {
            BlockLocation::Leaving(transfer) => transfer.is_done(),
            _ => true,
        })
    }

    /// Waits until all that is leaving has left, and frees its memory on the device.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait_left(&mut self) -> Result<(), NativeError> {
        for block in &mut self.blocks {
            block.place = match std::mem::replace(&mut block.place, BlockLocation::Here) {
                BlockLocation::Leaving(transfer) => BlockLocation::There(transfer.wait()?.1),
                other => other,
            };
        }
        Ok(())
    }

    /// Begins to bring back what has left.
    ///
    /// # Errors
    /// The device failed, or has no memory.
    pub fn come_back(&mut self, transfers: &Transfers) -> Result<(), NativeError> {
        for block in &mut self.blocks {
            block.place = match std::mem::replace(&mut block.place, BlockLocation::Here) {
                BlockLocation::There(host) => {
                    BlockLocation::Returning(transfers.to_device(host, block.has_integers())?)
                }
                other => other,
            };
        }
        Ok(())
    }

    /// Waits until all is back, and puts it where it was.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait_back(&mut self, transfers: &Transfers) -> Result<(), NativeError> {
        let _guard = tch::no_grad_guard();
        for block in &mut self.blocks {
            match std::mem::replace(&mut block.place, BlockLocation::Here) {
                BlockLocation::Returning(transfer) => {
                    let (host, flat) = transfer.wait()?;
                    debug_assert_eq!(flat.device(), block.device);
                    transfers.give_back(host);
                    for view in &block.views {
                        let whole = flat.view_dtype(view.kind);
                        let tensor = whole.as_strided(&view.size, &view.stride, Some(view.offset));
                        self.source.set(view.index, Some(tensor));
                    }
                }
                other => block.place = other,
            }
        }
        Ok(())
    }

    /// Returns the tensors. Panics where some are away.
    pub fn into_source(self) -> Source {
        assert!(self.blocks.iter().all(|block| matches!(block.place, BlockLocation::Here)), "tensors are away");
        self.source
    }
}

#[cfg(test)]
mod tests {
    use super::{Held, Source};
    use crate::native::{Arg, Op};
    use tch::{Device, Kind, Tensor};

    #[test]
    fn what_tch_does_not_know_stays_where_it_is() {
        const UINT64: i64 = 29;
        let zeros = Op::find("aten::zeros", "").unwrap();
        let state = zeros.call(&[Arg::Ints(&[2]), Arg::Int(UINT64)]).unwrap().remove(0);
        assert!(state.f_kind().is_err());
        let x = Tensor::zeros([4], (Kind::Float, Device::Cpu));
        let held = Held::new(Source::List(vec![Some(state), None, Some(x)]), &[]);
        assert_eq!((held.blocks.len(), held.bytes()), (1, 16));
    }
}
