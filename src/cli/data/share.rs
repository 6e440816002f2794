//! The part of a job that this process does, from an option or the cluster's environment.

use super::UsageError;
use clap::Args;
use loongforge_core::data::tools::Share;

#[derive(Args)]
pub struct ShareArgs {
    /// Process part i of n, counted from 0, as `i/n`; `auto`: from the Slurm array; `auto/n`: index from Slurm or Kubernetes
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
}

impl ShareArgs {
    /// Returns this process's share of the work: all of it without `--shard`.
    ///
    /// # Errors
    /// Fails if `--shard` is no share, or `auto` and the variables of a job array are not set.
    pub fn get(&self) -> Result<Share, UsageError> {
        let Some(text) = &self.shard else { return Ok(Share::WHOLE) };
        read(text, |name| std::env::var(name).ok()).map_err(|reason| UsageError(format!("--shard {text}: {reason}")))
    }
}

fn read(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Share, String> {
    let Some(rest) = text.strip_prefix("auto") else { return text.parse() };
    let number = |name: &str| variable(name).and_then(|value| value.trim().parse::<u64>().ok());
    let index = match (number("SLURM_ARRAY_TASK_ID"), number("JOB_COMPLETION_INDEX")) {
        (Some(id), _) => {
            let first = number("SLURM_ARRAY_TASK_MIN").unwrap_or(0);
            id.saturating_sub(first) / number("SLURM_ARRAY_TASK_STEP").unwrap_or(1).max(1)
        }
        (None, Some(index)) => index,
        (None, None) => return Err("neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set".to_owned()),
    };
    let num = match rest.strip_prefix('/') {
        Some(num) => num.to_owned(),
        None if rest.is_empty() => number("SLURM_ARRAY_TASK_COUNT")
            .map(|num| num.to_string())
            .ok_or("SLURM_ARRAY_TASK_COUNT is not set: write auto/n, where n is the number of processes")?,
        None => return Err("must be auto, auto/n or i/n".to_owned()),
    };
    format!("{index}/{num}").parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_part() {
        let with = |text: &str, set: &[(&str, &str)]| {
            read(text, |name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(with("2/5", &[]), Ok(Share { index: 2, num: 5 }));
        let slurm = [
            ("SLURM_ARRAY_TASK_ID", "7"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
            ("SLURM_ARRAY_TASK_MIN", "1"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
        ];
        assert_eq!(with("auto", &slurm), Ok(Share { index: 3, num: 4 }));
        assert_eq!(with("auto/8", &[("JOB_COMPLETION_INDEX", "0")]), Ok(Share { index: 0, num: 8 }));
        for (text, set, part) in [
            ("auto", &[][..], "neither"),
            ("auto", &[("JOB_COMPLETION_INDEX", "0")], "auto/n"),
            ("auto/2", &[("JOB_COMPLETION_INDEX", "2")], "2/2"),
            ("autox", &[("JOB_COMPLETION_INDEX", "0")], "must be auto"),
            ("5/5", &[], "the last 4/5"),
        ] {
            let error = with(text, set).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
