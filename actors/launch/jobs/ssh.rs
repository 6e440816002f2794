//! A script that starts the processes over ssh, for machines without a job queue.

use super::spec::WAIT;
use super::{JobError, JobSpec};
use loongforge_core::message::{ActorId, PoolName, Role};
use loongforge_core::text::shell_word;
use std::fmt::Write;

/// Returns the script, to be run anywhere that can reach the hosts. The scheduler and data actors are on the first host; ranks are
/// assigned to the hosts in order, `gpus_per_node` to each, and round-robin if there are more.
///
/// # Errors
/// Fails if there are no hosts.
pub fn ssh(job: &JobSpec) -> Result<String, JobError> {
    let first = job.hosts.first().ok_or(JobError::NoHosts)?;
    // `user@host` is for ssh alone.
    let join = format!("{}:{}", first.rsplit('@').next().unwrap_or(first), job.port);
    let mut text = format!(
        "#!/bin/bash\n\
         # loongforge over ssh: the same folder, program and certificates on every host. Ctrl-C shuts the run down cleanly.\n\
         set -u\n\
         remote() {{ ssh -o BatchMode=yes -o ServerAliveInterval=15 \"$1\" \"cd $(printf %q \"$PWD\") && $2\"; }}\n\n\
         # What is written to this is typed at the scheduler's terminal: a signal would end ssh alone.\n\
         keys=$(mktemp -d) || exit 1\n\
         mkfifo \"$keys/fifo\" || exit 1\n\
         ssh -tt -o BatchMode=yes {} \"cd $(printf %q \"$PWD\") && \"{} < \"$keys/fifo\" &\n\
         scheduler=$!\n\
         exec 3> \"$keys/fifo\"\n\
         rm -r \"$keys\"\n\
         trap 'signaled=1; printf \"\\003\" >&3' INT TERM\n",
        shell_word(first),
        shell_word(&job.command(Role::Scheduler, PoolName::SCHEDULER, &join)),
    );
    let mut start = |host: &str, actor: ActorId, env: &str| {
        let command = format!("{env}{}", job.command(actor.role, actor.pool, &join));
        let _ = writeln!(text, "remote {} {} &", shell_word(host), shell_word(&command));
    };
    for _ in 0..job.pools.data {
        start(first, ActorId::data(0), "");
    }
    let compute = job.pools.compute_actors();
    for (at, actor) in compute.enumerate() {
        let per_host = job.gpus_per_node.max(1) as usize;
        let host = &job.hosts[at / per_host % job.hosts.len()];
        // The place in the pool goes by the host, not by who arrives first.
        let mut env = format!("RANK={} WORLD_SIZE={} ", actor.index, job.pools.of(actor.pool));
        if job.gpus_per_node > 0 {
            let _ = write!(env, "CUDA_VISIBLE_DEVICES={} ", at % per_host);
        }
        start(host, actor, &env);
    }
    text += WAIT;
    text += "exit $code\n";
    Ok(text)
}
