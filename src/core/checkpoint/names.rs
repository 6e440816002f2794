//! The manifest's name and version.

pub use crate::files::MANIFEST;

/// Version of the manifest and of what engines write besides weights. Manifests of version 1 have no hash of their own.
pub const FORMAT_VERSION: u64 = 2;
