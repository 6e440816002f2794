//! Mean absolute errors of a policy's actions at held-out frames, and of those that need no policy.

use loongforge_core::data::policy::Compared;

/// The sources of actions: the policy, and baselines.
const WAYS: [&str; 3] = ["the policy", "the last action again", "the current state"];

/// Sums over the numbers of actions that were recorded within an episode.
#[derive(Default)]
pub struct ActionErrors {
    /// The sums of each source of actions; the last one only where states have as many numbers as actions.
    sums: [f64; WAYS.len()],
    counts: [u64; WAYS.len()],
}

impl ActionErrors {
    /// Adds a chunk of predicted actions, beside what doing as before, and staying where it is, would have missed.
    pub fn add(&mut self, Compared { actions, recorded, last, state }: &Compared) {
        let width = last.len();
        let is_position = state.len() == width;
        for at in (0..recorded.is_pad.len()).filter(|&at| !recorded.is_pad[at]) {
            let row = at * width..(at + 1) * width;
            let ways = [&actions[row.clone()], last.as_slice(), if is_position { state } else { &[] }];
            for (way, guess) in ways.into_iter().enumerate() {
                let errors =
                    recorded.values[row.clone()].iter().zip(guess).map(|(truth, guess)| f64::from(guess - truth).abs());
                self.sums[way] += errors.sum::<f64>();
                self.counts[way] += guess.len() as u64;
            }
        }
    }

    /// Returns the mean error of each way to act, by its name; none where nothing was compared.
    pub fn means(&self) -> Vec<(String, f64)> {
        let all = WAYS.iter().zip(self.sums.iter().zip(self.counts));
        all.filter(|(_, (_, count))| *count > 0)
            .map(|(way, (sum, count))| ((*way).to_owned(), sum / count as f64))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::data::lerobot::Window;

    #[test]
    fn errors_are_means_over_steps_of_the_episode() {
        let mut errors = ActionErrors::default();
        assert!(errors.means().is_empty());
        let recorded = Window { values: vec![1.0, 2.0, 3.0, 4.0, 9.0, 9.0], is_pad: vec![false, false, true] };
        let compared = Compared {
            actions: vec![1.5, 2.0, 3.0, 4.5, 0.0, 0.0],
            recorded,
            last: vec![1.0, 2.0],
            state: vec![1.0, 2.0, 3.0],
        };
        errors.add(&compared);
        assert_eq!(errors.means(), [("the policy".to_owned(), 0.25), ("the last action again".to_owned(), 1.0)]);
        errors.add(&Compared { state: vec![1.0, 1.0], ..compared });
        assert_eq!(errors.means()[0].1, 0.25);
        assert_eq!(errors.means()[2], ("the current state".to_owned(), (0.0 + 1.0 + 2.0 + 3.0) / 4.0));
    }
}
