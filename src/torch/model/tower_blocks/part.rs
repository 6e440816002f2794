//! A piece of a model with the parameters it uses, as a segment of a tape needs them.

use std::rc::Rc;

use crate::params::{ParamId, ParamStore, Scope};

pub(in crate::model) struct Part<T> {
    pub part: Rc<T>,
    pub ids: Vec<ParamId>,
}

impl<T> Part<T> {
    /// Builds the piece on the parameters under `prefix`, and notes which it takes.
    pub fn new(params: &ParamStore, prefix: impl Into<String>, build: impl FnOnce(&Scope<'_>) -> T) -> Part<T> {
        let scope = Scope::new(params, prefix);
        Part { part: Rc::new(build(&scope)), ids: scope.into_ids() }
    }
}
