//! The columns of samples that policies read beside their tokens.

use tch::Kind;

use crate::model::columns::{Column, RowCount, token_columns};

/// The columns of a policy's samples beside those of their tokens.
pub(in crate::model) const ACTIONS: &str = "actions";
pub(in crate::model) const WEIGHTS: &str = "action_weights";
pub(in crate::model) const STATE: &str = "state";

/// Returns a column of so many rows a sample, each of the sizes `after`.
pub(in crate::model) fn fixed_rows(name: &'static str, kind: Kind, rows: i64, after: Vec<i64>) -> Column {
    Column { name, kind, before: Vec::new(), after, rows: RowCount::Fixed(rows as u32), uncounted: None }
}

/// Returns the columns that all policies read: tokens, and `horizon` actions of `action_dim` numbers each with their weights.
pub(in crate::model) fn action_columns(horizon: i64, action_dim: i64) -> Vec<Column> {
    let of_actions = |name| fixed_rows(name, Kind::Float, horizon, vec![action_dim]);
    token_columns().into_iter().chain([ACTIONS, WEIGHTS].map(of_actions)).collect()
}

/// Returns the column of a state of so many numbers.
pub(in crate::model) fn state_column(state_dim: i64) -> Column {
    fixed_rows(STATE, Kind::Float, 1, vec![state_dim])
}
