//! loongforge
