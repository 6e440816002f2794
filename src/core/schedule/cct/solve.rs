//! Chooses a plan for a tape under a budget.
//!
//! The best choice is a knapsack problem with queues, for which no algorithm is known that is both exact and fast. The search
//! starts from every plan that keeps the last operations and treats all others alike, and then changes operations one at a time and
//! in pairs as long as that is faster. It uses no external randomness: equal input gives equal plans.

use super::course::{Choice, Course, Link, Operation};

/// The choice for every operation, and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    pub choices: Vec<Choice>,
    pub budget: u64,
    pub course: Course,
}

/// No plan fits in the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("activations need at least {needed} bytes, but the budget is {budget}")]
pub struct NoPlan {
    /// The smallest budget for which there is a plan.
    pub needed: u64,
    pub budget: u64,
}

/// Maximum number of simulations per search.
const MAX_COURSES: usize = 20_000;

/// Up to this many operations, every pair is tried; above it, some pairs, in a fixed pseudo-random order.
const ALL_PAIRS: usize = 12;

/// Up to this many operations, every plan is tried.
const ALL_PLANS: usize = 5;

struct Search<'a> {
    operations: &'a [Operation],
    budget: u64,
    link: Option<&'a Link>,
    courses: usize,
}

/// Returns the fastest plan found. It is never slower than recomputing everything, if that fits in the budget, nor than keeping
/// everything.
///
/// # Errors
/// Fails if no plan fits in the budget.
pub fn solve(operations: &[Operation], budget: u64, link: Option<&Link>) -> Result<MemoryPlan, NoPlan> {
    let mut search = Search { operations, budget, link, courses: 0 };
    let starts = search.starts();
    let num_starts = starts.len();
    let mut best: Option<MemoryPlan> = None;
    for (done, start) in (1..).zip(starts) {
        let found = search.climb(start, MAX_COURSES * done / num_starts);
        if best.as_ref().is_none_or(|best| found.course.seconds < best.course.seconds * (1.0 - 1e-9)) {
            best = Some(found);
        }
    }
    best.ok_or_else(|| NoPlan { needed: least_budget(operations, link.is_some()), budget })
}

impl Search<'_> {
    /// Returns the best plan of each way to treat all operations but the last ones alike, and the plan with the least memory.
    fn starts(&mut self) -> Vec<MemoryPlan> {
        let others = if self.link.is_some() { &Choice::ALL[..] } else { &Choice::ALL[..2] };
        let count = self.operations.len();
        let mut starts = Vec::new();
        for &other in others {
            let mut best = None;
            for kept in 0..=count {
                let choice = |index| if index + kept >= count { Choice::Keep } else { other };
                self.consider(&(0..count).map(choice).collect::<Vec<_>>(), &mut best);
            }
            starts.extend(best);
        }
        let (mut frugal, has_link) = (None, self.link.is_some());
        self.consider(
            &self.operations.iter().map(|operation| least(operation, has_link)).collect::<Vec<_>>(),
            &mut frugal,
        );
        starts.extend(frugal);
        starts
    }

    /// Changes one operation or two while that helps, up to a total number of simulations.
    fn climb(&mut self, start: MemoryPlan, max_courses: usize) -> MemoryPlan {
        let free: Vec<usize> = (0..self.operations.len()).filter(|&index| !self.operations[index].fixed).collect();
        let mut best = Some(start);
        if free.len() <= ALL_PLANS {
            self.try_changes(&free, &mut best);
        }
        let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
        loop {
            let seconds = |best: &Option<MemoryPlan>| best.as_ref().map_or(0.0, |plan| plan.course.seconds);
            let before = seconds(&best);
            for &index in &free {
                self.try_changes(&[index], &mut best);
            }
            if free.len() <= ALL_PAIRS {
                for (at, &one) in free.iter().enumerate() {
                    free[at + 1..].iter().for_each(|&other| self.try_changes(&[one, other], &mut best));
                }
            } else {
                for _ in 0..4 * free.len() {
                    let mut draw = || {
                        dice ^= dice << 13;
                        dice ^= dice >> 7;
                        dice ^= dice << 17;
                        free[(dice % free.len() as u64) as usize]
                    };
                    let (one, other) = (draw(), draw());
                    if one != other {
                        self.try_changes(&[one, other], &mut best);
                    }
                }
            }
            if self.courses >= max_courses || seconds(&best) >= before * (1.0 - 1e-6) {
                return best.expect("it began with one");
            }
        }
    }

    /// Tries all choices of these operations, with all others as in `best`.
    fn try_changes(&mut self, indices: &[usize], best: &mut Option<MemoryPlan>) {
        let Some(mut choices) = best.as_ref().map(|plan| plan.choices.clone()) else { return };
        for code in 0..4usize.pow(indices.len() as u32) {
            let tried = indices.iter().enumerate().map(|(at, &index)| (index, Choice::ALL[code >> (2 * at) & 3]));
            tried.for_each(|(index, choice)| choices[index] = choice);
            self.consider(&choices, best);
        }
    }

    /// Takes these choices as `best` if they are better. Choices of fixed operations are corrected.
    fn consider(&mut self, choices: &[Choice], best: &mut Option<MemoryPlan>) {
        self.courses += 1;
        let fixed = |(operation, &choice): (&Operation, &Choice)| if operation.fixed { Choice::Keep } else { choice };
        let choices: Vec<Choice> = self.operations.iter().zip(choices).map(fixed).collect();
        let Some(course) = Course::of(self.operations, &choices, self.budget, self.link) else { return };
        let better = best.as_ref().is_none_or(|best| {
            // As quick with less to do is better, too.
            let work = |choices: &[Choice]| choices.iter().map(|choice| *choice as usize).sum::<usize>();
            let (now, then) = (course.seconds, best.course.seconds);
            now < then * (1.0 - 1e-9) || (now <= then && work(&choices) < work(&best.choices))
        });
        if better {
            *best = Some(MemoryPlan { choices, budget: self.budget, course });
        }
    }
}

/// Returns the choice with the least memory.
fn least(operation: &Operation, has_link: bool) -> Choice {
    match (operation.fixed, has_link) {
        (true, _) => Choice::Keep,
        (false, true) if operation.inputs < operation.kept => Choice::OffloadInputs,
        (false, true) => Choice::Offload,
        (false, false) if operation.inputs < operation.kept => Choice::Recompute,
        (false, false) => Choice::Keep,
    }
}

/// Returns the smallest budget for which there is a plan.
fn least_budget(operations: &[Operation], has_link: bool) -> u64 {
    let choices: Vec<Choice> = operations.iter().map(|operation| least(operation, has_link)).collect();
    let (mut below, mut needed) = (0, 0);
    for (operation, choice) in operations.iter().zip(choices) {
        needed = needed.max(below + operation.kept.max(operation.inputs));
        if !choice.is_moved() {
            below += choice.bytes(operation);
        }
    }
    needed
}
