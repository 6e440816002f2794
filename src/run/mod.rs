//! A run: composed from a config, its roles given engines, and what it shows and keeps while it goes on.

pub mod compose;
pub mod encode;
pub mod engines;
pub mod families;
pub(crate) mod former_packs;
pub(crate) mod nonfinite;
pub(crate) mod packs;
pub(crate) mod poison_items;
pub(crate) mod policy;
mod publication;
pub(crate) mod report;
pub(crate) mod snapshots;
pub(crate) mod uploads;
