//! A rank's place in its pool, and the groups that it communicates in: values that the pool owns, never globals.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use loongforge_core::config::{Axis, Layout, RankCoords};
use tch::Device;

use super::ProcessGroup;
use crate::native::NativeError;

/// All groups of one rank. Along an axis of size 1 a group is of this rank alone, and its collectives do nothing.
pub struct Mesh {
    layout: Layout,
    place: RankCoords,
    /// Ranks that split every layer.
    pub tp: Rc<ProcessGroup>,
    /// Ranks that split a pack's tokens.
    pub cp: Rc<ProcessGroup>,
    /// The stages of a replica, in order.
    pub pp: Rc<ProcessGroup>,
    /// The ranks that have the same part of every replica.
    pub dp: Rc<ProcessGroup>,
    /// Ranks with the same parameters, over replicas and context: gradients are summed here.
    pub data: Rc<ProcessGroup>,
    /// Ranks over which experts are spread, out of `data`.
    pub ep: Rc<ProcessGroup>,
    /// Ranks with the same experts, out of `data`.
    pub expert_data: Rc<ProcessGroup>,
    /// Ranks that hold the parts of one copy of the model.
    pub model: Rc<ProcessGroup>,
    /// All ranks of one replica; rank 0 is its leader.
    pub replica: Rc<ProcessGroup>,
    /// All ranks of the pool.
    pub world: Rc<ProcessGroup>,
}

impl Mesh {
    /// Returns a pool of one rank.
    pub fn single() -> Mesh {
        let one = || Rc::new(ProcessGroup::single());
        Mesh {
            layout: Layout::default(),
            place: Layout::default().place(0),
            tp: one(),
            cp: one(),
            pp: one(),
            dp: one(),
            data: one(),
            ep: one(),
            expert_data: one(),
            model: one(),
            replica: one(),
            world: one(),
        }
    }

    /// Joins the other ranks of pool `name` through the file `store`; see [`ProcessGroup::gloo`].
    ///
    /// # Errors
    /// A rank does not come in time.
    pub fn join(store: &Path, name: &str, layout: Layout, rank: usize, timeout: Duration) -> Result<Mesh, NativeError> {
        Mesh::join_on(store, name, layout, rank, timeout, Device::Cpu)
    }

    /// Works like [`Mesh::join`], of tensors on `device`, which is this rank's own; see [`ProcessGroup::join`].
    ///
    /// # Errors
    /// Fails as [`Mesh::join`] does, and where there is no such device.
    pub fn join_on(
        store: &Path,
        name: &str,
        layout: Layout,
        rank: usize,
        timeout: Duration,
        device: Device,
    ) -> Result<Mesh, NativeError> {
        // Groups of one kind are disjoint and every rank joins the kinds in the same order: nobody waits in a circle.
        Mesh::of(layout, rank, |kind, index, ranks| {
            let name = format!("{name}.{kind}.{}", ranks[0]);
            ProcessGroup::join(store, &name, index, ranks.len(), timeout, device)
        })
    }

    /// Returns one rank of a pool in a dry run: the others are not there.
    pub fn dry(layout: Layout, rank: usize) -> Mesh {
        let found = Mesh::of(layout, rank, |_, index, ranks| Ok(ProcessGroup::dry(index, ranks.len())));
        found.expect("nobody has to come")
    }

    /// `join`: a kind of group, this rank's index among its ranks, and these.
    fn of(
        layout: Layout,
        rank: usize,
        join: impl Fn(&str, usize, &[usize]) -> Result<ProcessGroup, NativeError>,
    ) -> Result<Mesh, NativeError> {
        let place = layout.place(rank);
        let join = |kind: &str, ranks: Vec<usize>| {
            let index = ranks.iter().position(|&other| other == rank).expect("a rank is of its own group");
            join(kind, index, &ranks).map(Rc::new)
        };
        let along = |axes: &[Axis]| layout.group(place, axes);
        Ok(Mesh {
            layout,
            place,
            tp: join("tp", along(&[Axis::Tp]))?,
            cp: join("cp", along(&[Axis::Cp]))?,
            pp: join("pp", along(&[Axis::Pp]))?,
            dp: join("dp", along(&[Axis::Dp]))?,
            data: join("data", along(&[Axis::Dp, Axis::Cp]))?,
            ep: join("ep", layout.expert_group(place))?,
            expert_data: join("expert_data", layout.expert_replicas(place))?,
            model: join("model", along(&[Axis::Pp, Axis::Tp]))?,
            replica: join("replica", along(&[Axis::Pp, Axis::Cp, Axis::Tp]))?,
            world: join("world", (0..layout.ranks()).collect())?,
        })
    }

    /// Returns the sizes of all axes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns this rank's coordinate on each axis.
    pub fn place(&self) -> RankCoords {
        self.place
    }

    /// Returns this rank's number among all ranks of the layout.
    pub fn rank(&self) -> usize {
        self.layout.rank(self.place)
    }

    /// Returns whether tokens and features come to this rank.
    pub fn is_leader(&self) -> bool {
        self.replica.rank() == 0
    }

    /// Returns whether this rank has the pipeline's first stage, with the embedding.
    pub fn is_first_stage(&self) -> bool {
        self.place.pp == 0
    }
}
