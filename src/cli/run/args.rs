//! The arguments of `loongforge run`.

use crate::cli::part::PartArgs;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  loongforge run my.yaml                                  train, all actors as threads of this process
  loongforge run my.yaml train.lr=1e-5 run.name=second    change values
  loongforge run my.yaml --resume                         resume from the last checkpoint, or start
  loongforge run my.yaml --resume=runs/my/checkpoints/step-00000500
  loongforge run my.yaml --processes                      one process per actor
  loongforge run my.yaml --role encoder --join /tmp/run.sock
  loongforge run my.yaml --role encoder --join head:6001 --tls certs
  torchrun --no-python --nnodes 2 --nproc-per-node 8 loongforge run my.yaml --role auto --tls certs

Exit codes: 0 done; 1 failed; 2 wrong config or usage, or another run uses the folder;
3 stopped on request, resume with --resume; 4 lost a process that the run needs, resume with --resume;
5 loss or gradient not finite too often: see nonfinite-step-N.json in the run's folder; 75 not all processes of the run
joined, or an object store does not answer: start again";

/// The value that `--resume` without a checkpoint stands for.
const NEWEST: &str = "auto";

/// The checkpoint that `--resume` means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumeFrom {
    /// The newest one of the run; the run begins anew where it has none.
    Newest,
    /// The one at this path or URL, or the newest one of the run there.
    Named(String),
}

impl ResumeFrom {
    /// Returns whether it is a certain checkpoint, wherever the run itself stands.
    pub fn is_named(&self) -> bool {
        matches!(self, Self::Named(_))
    }
}

impl From<String> for ResumeFrom {
    fn from(word: String) -> Self {
        if word == NEWEST { Self::Newest } else { Self::Named(word) }
    }
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Config of the run
    pub(super) file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    pub(super) overrides: Vec<String>,
    /// Resume from the newest checkpoint of the run's last attempt, or from this one (a path, a name as step-00000500, or a run folder)
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, default_missing_value = NEWEST, require_equals = true)]
    pub(super) resume: Option<ResumeFrom>,
    /// Resume without verifying the hashes of the checkpoint's files
    #[arg(long, requires = "resume")]
    pub(super) trust: bool,
    /// Refuse to resume if settings differ from those of the checkpoint
    #[arg(long, requires = "resume")]
    pub(super) strict: bool,
    /// Delete the existing run in this folder and start over; it is kept until the new run has taken its first step
    #[arg(long, conflicts_with = "resume")]
    pub(super) overwrite: bool,
    /// Run each actor in its own process instead of a thread
    #[arg(long, conflicts_with_all = ["role", "join"])]
    pub(super) processes: bool,
    #[command(flatten)]
    pub(super) part: PartArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    #[test]
    fn resume_without_a_checkpoint_means_the_newest() {
        let resume = |words: &[&str]| {
            let words = ["run", "a.yaml"].iter().chain(words);
            let matches = RunArgs::augment_args(Command::new("run")).try_get_matches_from(words).unwrap();
            RunArgs::from_arg_matches(&matches).unwrap().resume
        };
        assert_eq!(resume(&[]), None);
        for word in ["--resume", "--resume=auto"] {
            assert_eq!(resume(&[word]), Some(ResumeFrom::Newest));
        }
        let named = resume(&["--resume=runs/my"]).unwrap();
        assert!(named.is_named() && !ResumeFrom::Newest.is_named());
        assert_eq!(named, ResumeFrom::Named("runs/my".to_owned()));
    }
}
