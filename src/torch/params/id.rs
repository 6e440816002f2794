//! The index of a parameter in its store.

/// The index of a parameter in its store's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamId(pub(super) u32);

impl ParamId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Elements: 64 bytes of float32, a cache line and every vector width.
pub(super) const ALIGN: i64 = 16;
