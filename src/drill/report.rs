//! The results of a drill.

use super::traces::Traces;
use loongforge_actors::drill::Injected;
use std::fmt;

pub struct Report {
    pub injected: Vec<Injected>,
    pub twin: Traces,
    pub faulty: Traces,
    pub has_ended_well: bool,
}

impl Report {
    /// Returns whether all of these are equal: every loss to the bit, the samples of every step, and the weights and optimizer state at
    /// the end.
    pub fn is_identical(&self) -> bool {
        let has_weights = !self.twin.files.is_empty();
        self.has_ended_well && self.first_difference().is_none() && has_weights && self.has_same_files()
    }

    /// Returns whether some fault was injected, or none was asked for: else the runs are equal whatever faults do.
    pub fn is_drilled(&self) -> bool {
        self.injected.is_empty() || self.injected.iter().any(|injected| injected.count > 0)
    }

    /// Returns the first step whose loss or samples are others.
    fn first_difference(&self) -> Option<usize> {
        let (ours, theirs) = (&self.faulty.steps, &self.twin.steps);
        let differs = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs);
        differs.or_else(|| (ours.len() != theirs.len()).then(|| ours.len().min(theirs.len())))
    }

    fn has_same_files(&self) -> bool {
        self.faulty.files == self.twin.files
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "injected")?;
        for injected in &self.injected {
            writeln!(f, "  {:>6} ×  {}", injected.count, injected.fault)?;
        }
        let (twin, faulty) = (self.twin.seconds, self.faulty.seconds);
        let (lost, median) = (faulty - twin, self.twin.median());
        writeln!(f, "steps     {} of {}", self.faulty.steps.len(), self.twin.steps.len())?;
        // A run is never the same time twice.
        let lost = match lost > median {
            true => format!("lost {lost:.2} s, {:.1} steps", lost / median),
            false => "lost within noise (less than a step)".to_owned(),
        };
        writeln!(f, "time      {faulty:.2} s; {twin:.2} s without faults; {lost}")?;
        writeln!(f, "efficiency {:.1} % of the fault-free run", 100.0 * (twin / faulty).min(1.0))?;
        match self.first_difference() {
            None => writeln!(f, "losses    identical, and so are the samples of every step")?,
            Some(step) => writeln!(f, "losses    DIFFER from step {step} on")?,
        }
        let count = self.twin.files.len();
        match (self.has_same_files(), count) {
            (_, 0) => writeln!(f, "weights   not compared: {} has no checkpoint", self.twin.dir.display())?,
            (true, _) => writeln!(f, "weights   identical: {count} files of weights and optimizer state")?,
            (false, _) => writeln!(f, "weights   DIFFER")?,
        }
        let verdict = match (self.is_identical(), self.is_drilled()) {
            (true, true) => "the faults changed nothing",
            (true, false) => "NO fault was injected, so nothing was tested: name actors and steps of this run",
            (false, _) => "the faults CHANGED the run",
        };
        write!(f, "{verdict}: {} and {}", self.faulty.dir.display(), self.twin.dir.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_actors::drill::Script;
    use std::collections::BTreeMap;

    fn traces(losses: &[f64], hash: &str) -> Traces {
        Traces {
            dir: "runs/a".into(),
            steps: losses.iter().map(|loss| (loss.to_bits(), "00".to_owned())).collect(),
            step_ms: vec![100.0; losses.len()],
            seconds: 0.1 * losses.len() as f64,
            files: BTreeMap::from([("model.safetensors".to_owned(), hash.to_owned())]),
        }
    }

    #[test]
    fn less_than_nothing_is_never_lost() {
        // Two steps of the same length.
        let took = |seconds| Traces { step_ms: vec![1000.0; 2], seconds, ..traces(&[2.0, 1.0], "a") };
        let report = |seconds| {
            let (injected, has_ended_well) = (Vec::new(), true);
            Report { injected, twin: took(2.0), faulty: took(seconds), has_ended_well }.to_string()
        };
        assert!(report(1.5).contains("lost within noise") && !report(1.5).contains("lost -"), "{}", report(1.5));
        assert!(report(4.0).contains("lost 2.00 s, 2.0 steps"), "{}", report(4.0));
    }

    #[test]
    fn a_drill_without_faults_proves_nothing() {
        let script: Script = "encoder/7: kill at step 1".parse().unwrap();
        let report = |counts: &[u64]| Report {
            injected: counts.iter().map(|&count| Injected { fault: script.faults[0].clone(), count }).collect(),
            twin: traces(&[2.0, 1.0], "a"),
            faulty: traces(&[2.0, 1.0], "a"),
            has_ended_well: true,
        };
        for (counts, is_drilled, words) in [
            (&[0, 0][..], false, "NO fault was injected"),
            (&[0, 1], true, "changed nothing"),
            (&[], true, "changed nothing"),
        ] {
            let report = report(counts);
            assert!(report.is_drilled() == is_drilled && report.to_string().contains(words), "{report}");
        }
    }

    #[test]
    fn every_difference_counts() {
        let report = |faulty, has_ended_well| Report {
            injected: Vec::new(),
            twin: traces(&[2.0, 1.0], "a"),
            faulty,
            has_ended_well,
        };
        assert!(report(traces(&[2.0, 1.0], "a"), true).is_identical());
        for (faulty, words) in [
            (traces(&[2.0, 1.5], "a"), "DIFFER from step 1"),
            (traces(&[2.0], "a"), "DIFFER from step 1"),
            (traces(&[2.0, 1.0], "b"), "weights   DIFFER"),
        ] {
            let report = report(faulty, true);
            assert!(!report.is_identical() && report.to_string().contains(words), "{report}");
        }
        assert!(!report(traces(&[2.0, 1.0], "a"), false).is_identical());
    }
}
