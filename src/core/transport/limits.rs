//! Limits of what an edge carries.

/// Maximum number of parcels in flight on one edge, whatever their size: limits the mailbox.
pub const MAX_PARCELS: usize = 256;
/// Maximum number of tensors in a parcel: features and their DeepStack levels.
pub const MAX_TENSORS: usize = 8;
/// Maximum number of dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
