//! A heterogeneous Slurm job with one component per pool.

use super::spec::WAIT;
use super::{JobError, JobSpec};
use loongforge_core::message::{PoolName, Role};
use loongforge_core::text::shell_word;
use std::fmt::Write;

/// The part of the script that follows the scheduler's end.
const END: &str = "\
# 3: stopped with a checkpoint, 4: too few actors are left, 75: a transient error. All resume from the last checkpoint.
case $code in 3) again=$warned;; 4|75) again=1;; *) again=;; esac
[ -z \"$again\" ] || [ -n \"$canceled\" ] || scontrol requeue \"$SLURM_JOB_ID\"
code_is_final $code || echo \"loongforge ended with $code\" >&2
exit $code
";

/// Returns the batch script.
///
/// # Errors
/// Fails if a pool does not fill its nodes.
pub fn slurm(job: &JobSpec) -> Result<String, JobError> {
    let mut pools = job.compute_pools(|_| true)?;
    // The batch script runs on the first component: the scheduler and the data actors live with the foundation.
    pools.sort_by_key(|pool| pool.role != Role::Foundation);
    let mut text = format!(
        "#!/bin/bash\n\
         # loongforge: {} processes. Submit with: sbatch FILE\n\
         # SIGUSR1 comes two minutes before the end: the run then writes a checkpoint and is queued again. scancel is final.\n\
         #SBATCH --job-name={}\n\
         #SBATCH --requeue\n\
         #SBATCH --open-mode=append\n\
         #SBATCH --signal=B:USR1@120\n\
         #SBATCH --output={}\n",
        job.processes(),
        shell_word(&job.name),
        shell_word(job.output.as_deref().unwrap_or("%x-%j.log")),
    );
    for (at, pool) in pools.iter().enumerate() {
        if at > 0 {
            text += "#SBATCH hetjob\n";
        }
        let _ = writeln!(text, "# {}", pool.name);
        let _ = writeln!(text, "#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}", pool.nodes, pool.per_node);
        // Slurm gives a task one core unless told otherwise.
        let _ = writeln!(text, "#SBATCH --cpus-per-task={}", job.cpus);
        if let Some(memory) = job.memory {
            let _ = writeln!(text, "#SBATCH --mem={}M", (memory >> 20) * u64::from(pool.per_node));
        }
        if job.gpus_per_node > 0 {
            let _ = writeln!(text, "#SBATCH --gpus-per-node={}", pool.per_node);
        }
        let options = [("partition", &job.partition), ("account", &job.account), ("time", &job.time)];
        for (name, value) in options.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            let _ = writeln!(text, "#SBATCH --{name}={}", shell_word(value));
        }
    }
    let join = "\"$join\"";
    let _ = write!(
        text,
        "\nset -u\n\
         # Each step below has the ranks of one pool: a process's place is its SLURM_PROCID, its GPU its SLURM_LOCALID.\n\
         # Steps do not inherit this since Slurm 22.05.\n\
         export SRUN_CPUS_PER_TASK={}\n\
         join=$(hostname -f):{}\n\
         code_is_final() {{ [ \"$1\" -eq 0 ] || [ \"$1\" -eq 2 ] || [ \"$1\" -eq 5 ]; }}\n\n\
         {} &\n\
         scheduler=$!\n\
         # A signal to this script is for the scheduler: it shuts the run down cleanly.\n\
         warned= canceled=\n\
         trap 'signaled=1; warned=1; kill -TERM $scheduler' USR1\n\
         trap 'signaled=1; canceled=1; kill -TERM $scheduler' TERM\n",
        job.cpus,
        job.port,
        job.command(Role::Scheduler, PoolName::SCHEDULER, join),
    );
    for _ in 0..job.pools.data {
        let _ = writeln!(text, "{} &", job.command(Role::Data, PoolName::DATA, join));
    }
    for (at, pool) in pools.iter().enumerate() {
        let mut options = if pools.len() > 1 { format!(" --het-group={at}") } else { String::new() };
        options.extend(job.srun.iter().map(|option| format!(" --{}", shell_word(option.trim_start_matches('-')))));
        let command = job.command(pool.role, pool.name, "\"$0\"");
        // An encoder that dies comes back alone, and Slurm must not end the others for it; the foundation is a gang. What asks it to stop
        // comes to its shell too, which waits for it.
        if pool.role == Role::Encoder {
            let again = format!(
                "trap : TERM; until {command}; do code=$?; case $code in 2|3|5) exit $code;; esac; \
                 echo \"encoder ended with $code; it is started again\" >&2; sleep 5; done"
            );
            let _ = writeln!(text, "srun{options} --kill-on-bad-exit=0 bash -c {} {join} &", shell_word(&again));
        } else {
            let _ = writeln!(text, "srun{options} --kill-on-bad-exit=1 bash -c {} {join} &", shell_word(&command));
        }
    }
    text += WAIT;
    text += END;
    Ok(text)
}
