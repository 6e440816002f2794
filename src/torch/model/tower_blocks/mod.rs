//! The parts that vision and audio towers share: the block, its norms and rotations, and the recording of a branch.

mod block;
mod branch;
mod divided;
mod norm;
mod part;
mod rope;

pub(super) use block::{Attention, Mlp};
pub use block::{BlockConfig, MlpNames};
pub(super) use branch::beside;
pub(super) use divided::Divided;
pub(super) use norm::Norm;
pub use norm::TowerNorm;
pub(super) use part::Part;
pub(super) use rope::Rotation;
pub use rope::{AxialOrder, AxialRope};
