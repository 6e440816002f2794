//! Cores that actors share: each runs at full speed while there are cores for all, otherwise all are slowed alike, and
//! somewhat more than that, since they take each other's caches.

use super::event;

/// The jobs that run on one machine (egalitarian processor sharing, as a fair scheduler approximates it).
pub(super) struct Cores {
    cores: f64,
    /// Share of the speed that is lost for each job that a core has beyond one.
    loss: f64,
    /// Jobs in the order of their start: rank, cores that it uses, seconds that its job still needs at full speed.
    running: Vec<(u32, f64, f64)>,
    since: f64,
    /// The stamp of the wake-up that counts; earlier ones are void.
    stamp: u32,
}

/// Seconds that are none: rounding leaves so much of a finished job.
const NOTHING: f64 = 1e-12;

impl Cores {
    /// Shares `cores` cores. `loss`: what actors lose beside, for each time that they want more cores than there are.
    pub fn new(cores: f64, loss: f64) -> Self {
        Self { cores, loss, running: Vec::new(), since: 0.0, stamp: 0 }
    }

    /// Begins a job; when to look again, with the stamp to pass to [`Cores::finished`].
    pub fn start(&mut self, now: f64, rank: u32, threads: f64, seconds: f64) -> (f64, u32) {
        self.settle(now);
        self.running.push((rank, threads, seconds));
        self.wake_up()
    }

    /// Jobs that have ended by now, and when to look again; nothing where the stamp is void.
    pub fn finished(&mut self, now: f64, stamp: u32, ended: &mut Vec<u32>) -> Option<(f64, u32)> {
        if stamp != self.stamp {
            return None;
        }
        self.settle(now);
        self.running.retain(|&(rank, _, left)| {
            let ends = left <= NOTHING.max(now * f64::EPSILON * 4.0);
            if ends {
                ended.push(rank);
            }
            !ends
        });
        (!self.running.is_empty()).then(|| self.wake_up())
    }

    fn speed(&self) -> f64 {
        let wanted: f64 = self.running.iter().map(|&(_, threads, _)| threads).sum();
        let share = wanted / self.cores;
        if share > 1.0 { 1.0 / share / (1.0 + self.loss * (share - 1.0)) } else { 1.0 }
    }

    fn settle(&mut self, now: f64) {
        let done = (now - self.since) * self.speed();
        self.running.iter_mut().for_each(|(_, _, left)| *left -= done);
        self.since = now;
    }

    fn wake_up(&mut self) -> (f64, u32) {
        self.stamp = (self.stamp + 1) % event::MOST;
        let least = self.running.iter().map(|&(_, _, left)| left).fold(f64::INFINITY, f64::min);
        (self.since + least.max(0.0) / self.speed(), self.stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_jobs_on_two_cores_take_turns() {
        let mut cores = Cores::new(2.0, 0.0);
        cores.start(0.0, 7, 1.0, 2.0);
        cores.start(0.0, 8, 1.0, 1.0);
        let (time, stamp) = cores.start(0.0, 9, 1.0, 2.0);
        assert_eq!(time, 1.5);
        let mut ended = Vec::new();
        // 0.5 + 1.0 · 2/3 were done of each; then two jobs of one second each have a core each.
        let (time, stamp) = cores.finished(1.5, stamp, &mut ended).unwrap();
        assert_eq!((ended.clone(), time), (vec![8], 2.5));
        assert!(cores.finished(2.5, stamp, &mut ended).is_none());
        assert_eq!(ended, [8, 7, 9]);
    }

    #[test]
    fn sharing_costs_something() {
        let mut cores = Cores::new(1.0, 0.1);
        cores.start(0.0, 1, 1.0, 1.0);
        let (time, _) = cores.start(0.0, 2, 1.0, 1.0);
        assert!((time - 2.0 * 1.1).abs() < 1e-9, "{time}");
    }

    #[test]
    fn a_void_wake_up_changes_nothing() {
        let mut cores = Cores::new(1.0, 0.0);
        let (_, void) = cores.start(0.0, 1, 1.0, 1.0);
        let (time, stamp) = cores.start(0.5, 2, 1.0, 0.25);
        let mut ended = Vec::new();
        assert!(cores.finished(1.0, void, &mut ended).is_none() && ended.is_empty());
        let (last, _) = cores.finished(time, stamp, &mut ended).unwrap();
        assert_eq!((time, last, ended), (1.0, 1.25, vec![2]));
    }
}
