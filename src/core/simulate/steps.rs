//! The steps of a simulation that are in flight.

use super::step::Step;
use std::collections::VecDeque;

/// Steps between their plans and their ends, which follow one another.
pub(super) struct Steps {
    first: u64,
    in_flight: VecDeque<Step>,
}

impl Steps {
    /// Begins with no step in flight; `first` is planned next.
    pub fn new(first: u64) -> Self {
        Self { first, in_flight: VecDeque::new() }
    }

    /// Returns the first step that has not ended.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the first step that is not planned.
    pub fn next_plan(&self) -> u64 {
        self.first + self.in_flight.len() as u64
    }

    /// Takes the plan of the next step.
    pub fn begin(&mut self, step: Step) {
        self.in_flight.push_back(step);
    }

    /// Ends the first step. Panics where none is in flight.
    pub fn end(&mut self) -> Step {
        let step = self.in_flight.pop_front().expect("a step in flight ends");
        self.first += 1;
        step
    }

    /// Returns a step that is in flight; `None`: it is not planned yet, or has ended.
    pub fn find(&self, step: u64) -> Option<&Step> {
        self.in_flight.get(step.checked_sub(self.first)? as usize)
    }

    /// Returns a step that is in flight. Panics where it is not.
    pub fn get(&self, step: u64) -> &Step {
        self.find(step).expect("a step in flight")
    }

    /// Returns a step that is in flight, to change it. Panics where it is not.
    pub fn get_mut(&mut self, step: u64) -> &mut Step {
        &mut self.in_flight[(step - self.first) as usize]
    }

    /// Returns all that are in flight, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Step> {
        self.in_flight.iter()
    }
}
