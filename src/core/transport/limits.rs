//! Bounds on what an edge carries.

/// Parcels that may be in flight on one edge, whatever their size: bounds the mailbox.
pub const MAX_PARCELS: usize = 256;
/// Tensors of a parcel: features and their DeepStack levels.
pub const MAX_TENSORS: usize = 8;
/// Dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
