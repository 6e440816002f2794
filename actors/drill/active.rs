//! The faults that are active: steps and time start and end them.

use super::script::{Fault, FaultRule, Script, Span};
use loongforge_core::message::ActorId;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// The faults of a run, shared by everything that makes them.
pub struct Active {
    faults: Vec<(FaultRule, Mutex<Course>)>,
    /// Faults that happen once between two actors, and have.
    done: Mutex<BTreeSet<(usize, ActorId, ActorId)>>,
    /// Steps that are done.
    steps: watch::Sender<u64>,
}

#[derive(Default)]
struct Course {
    since: Option<Instant>,
    is_over: bool,
    /// The number of times that it has happened.
    count: u64,
}

impl Active {
    /// Begins the script before the first step.
    pub fn new(script: &Script) -> Self {
        let faults = script.faults.iter().map(|fault| (fault.clone(), Mutex::default())).collect();
        let active = Self { faults, done: Mutex::default(), steps: watch::Sender::new(0) };
        active.advance(0);
        active
    }

    /// Records that this many steps are done.
    pub fn advance(&self, steps: u64) {
        for (fault, course) in &self.faults {
            let mut course = lock(course);
            if fault.from_step <= steps && course.since.is_none() {
                course.since = Some(Instant::now());
            }
            if let Some(Span::Steps(count)) = fault.span {
                course.is_over |= steps >= fault.from_step + count;
            }
        }
        self.steps.send_replace(steps);
    }

    /// Returns a receiver that is told whenever another step is done.
    pub fn steps(&self) -> watch::Receiver<u64> {
        self.steps.subscribe()
    }

    /// Returns the active faults between two actors, with their numbers.
    pub fn between(&self, from: ActorId, to: ActorId) -> impl Iterator<Item = (usize, &Fault)> {
        let covers = move |(_, (fault, _)): &(usize, &(FaultRule, Mutex<Course>))| fault.target.covers(from, to);
        let goes_on = |(_, (fault, course)): &(usize, &(FaultRule, Mutex<Course>))| goes_on(fault, &lock(course));
        self.faults.iter().enumerate().filter(covers).filter(goes_on).map(|(index, (fault, _))| (index, &fault.verb))
    }

    /// Returns whether nothing gets from one actor to the other now.
    pub fn is_partitioned(&self, from: ActorId, to: ActorId) -> bool {
        let mut faults = self.between(from, to).filter(|(_, verb)| **verb == Fault::Partition);
        faults.next().map(|(index, _)| self.happened_once(index)).is_some()
    }

    /// Returns true the first time it is called for these two.
    pub fn is_first(&self, index: usize, from: ActorId, to: ActorId) -> bool {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).insert((index, from, to))
    }

    /// Notes that a fault has had its effect once more.
    pub fn happened(&self, index: usize) {
        lock(&self.faults[index].1).count += 1;
    }

    fn happened_once(&self, index: usize) {
        lock(&self.faults[index].1).count = 1;
    }

    /// Returns each fault, and how often it has occurred.
    pub fn counts(&self) -> impl Iterator<Item = (&FaultRule, u64)> {
        self.faults.iter().map(|(fault, course)| (fault, lock(course).count))
    }
}

fn goes_on(fault: &FaultRule, course: &Course) -> bool {
    let in_time = |since: Instant| match fault.span {
        Some(Span::Time(span)) => since.elapsed() < span,
        _ => true,
    };
    !course.is_over && course.since.is_some_and(in_time)
}

fn lock(course: &Mutex<Course>) -> MutexGuard<'_, Course> {
    course.lock().unwrap_or_else(PoisonError::into_inner)
}
