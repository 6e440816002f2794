//! A Kubernetes JobSet: an elastic encoder job and a gang foundation job around a scheduler.

use super::spec::quote;
use super::{JobError, JobSpec, Tls};
use loongforge_core::message::Role;
use std::fmt::Write;

/// Where the secret with certificates is mounted, and the run's folder.
const TLS: &str = "/etc/loongforge/tls";
const RUNS: &str = "/runs";

/// The manifest.
///
/// # Errors
/// A name that Kubernetes does not take, no image, or a pool that does not fill its nodes.
pub fn jobset(job: &JobSpec) -> Result<String, JobError> {
    expect_name(&job.name)?;
    job.namespace.as_deref().map_or(Ok(()), expect_name)?;
    let image = job.image.as_deref().ok_or(JobError::NoImage)?;
    job.compute_pools()?;
    let namespace = job.namespace.as_ref().map_or(String::new(), |name| format!("  namespace: {name}\n"));
    let mut text = format!(
        "# loongforge: {} data, {} encoder and {} foundation processes. Submit with: kubectl apply -f FILE\n\
         # More or fewer encoders while it runs: change parallelism and completions of the encoder job together.\n\
         apiVersion: jobset.x-k8s.io/v1alpha2\n\
         kind: JobSet\n\
         metadata:\n  name: {}\n{namespace}\
         spec:\n\
         \x20 network: {{ enableDNSHostnames: true, publishNotReadyAddresses: true }}\n\
         \x20 startupPolicy: {{ startupPolicyOrder: InOrder }}\n\
         \x20 # The run is done when its scheduler is.\n\
         \x20 successPolicy: {{ operator: All, targetReplicatedJobs: [scheduler] }}\n\
         \x20 failurePolicy:\n\
         \x20   maxRestarts: 20\n\
         \x20   rules:\n\
         \x20   # Wrong config, or numbers that are not finite: another try would end in the same way.\n\
         \x20   - {{ action: FailJobSet, onJobFailureReasons: [PodFailurePolicy] }}\n\
         \x20   # A gang: all begin again from the last checkpoint.\n\
         \x20   - {{ action: RestartJobSet, targetReplicatedJobs: [scheduler, foundation] }}\n\
         \x20 replicatedJobs:\n",
        job.pools.data, job.pools.encoder, job.pools.foundation, job.name,
    );
    let pools = job.pools;
    let jobs = [
        (Role::Scheduler, 1, false),
        (Role::Data, pools.data, true),
        (Role::Foundation, pools.foundation, false),
        (Role::Encoder, pools.encoder, true),
    ];
    for (role, count, alone) in jobs.into_iter().filter(|(_, count, _)| *count > 0) {
        replicated_job(&mut text, job, image, role, count, alone);
    }
    Ok(text)
}

/// `alone`: a pod that dies comes back without the others.
fn replicated_job(text: &mut String, job: &JobSpec, image: &str, role: Role, count: u32, alone: bool) {
    let join = format!("{0}-scheduler-0-0.{0}:{1}", job.name, job.port);
    let at = if role == Role::Scheduler { format!("0.0.0.0:{}", job.port) } else { join.clone() };
    let mut words = vec![job.program.clone(), "run".into(), job.file.clone()];
    words.extend(job.overrides.iter().cloned());
    words.extend(["--role".into(), role.name().into(), "--join".into(), at]);
    if role == Role::Scheduler {
        words.push("--resume".into());
    }
    words.extend(match job.tls {
        Tls::Folder(_) => vec!["--tls".into(), TLS.into()],
        Tls::Insecure => vec!["--insecure-allow-plaintext".into()],
    });
    let command = words.iter().map(|word| yaml(word)).collect::<Vec<_>>().join(", ");
    let compute = matches!(role, Role::Encoder | Role::Foundation);
    let resources = match (compute, job.gpus_per_node) {
        (true, 1..) => "            resources: { limits: { nvidia.com/gpu: 1 } }\n",
        _ => "",
    };
    let backoff = if alone { 1000 } else { 0 };
    let _ = write!(
        text,
        "  - name: {role}\n\
         \x20   replicas: 1\n\
         \x20   template:\n\
         \x20     spec:\n\
         \x20       completionMode: Indexed\n\
         \x20       completions: {count}\n\
         \x20       parallelism: {count}\n\
         \x20       backoffLimit: {backoff}\n\
         \x20       podFailurePolicy:\n\
         \x20         rules:\n\
         \x20         # 2: wrong config or usage, 5: loss or gradient not finite.\n\
         \x20         - {{ action: FailJob, onExitCodes: {{ containerName: loongforge, operator: In, values: [2, 5] }} }}\n\
         \x20         # A node that is drained is nobody's fault.\n\
         \x20         - {{ action: Ignore, onPodConditions: [{{ type: DisruptionTarget, status: \"True\" }}] }}\n\
         \x20       template:\n\
         \x20         spec:\n\
         \x20           restartPolicy: Never\n\
         \x20           terminationGracePeriodSeconds: 60\n\
         \x20           containers:\n\
         \x20           - name: loongforge\n\
         \x20             image: {}\n\
         \x20             command: [{command}]\n\
         \x20             env:\n\
         \x20             - {{ name: LOONGFORGE_ROLE, value: {role} }}\n\
         \x20             - {{ name: LOONGFORGE_JOIN, value: {} }}\n",
        yaml(image),
        yaml(&join),
    );
    text.push_str(&resources.replace("            resources", "              resources"));
    let (mut mounts, mut volumes) = (Vec::new(), Vec::new());
    if let Tls::Folder(secret) = &job.tls {
        mounts.push(format!("{{ name: tls, mountPath: {TLS}, readOnly: true }}"));
        volumes.push(format!("{{ name: tls, secret: {{ secretName: {}, defaultMode: 0400 }} }}", yaml(secret)));
    }
    if let Some(claim) = &job.claim {
        mounts.push(format!("{{ name: runs, mountPath: {RUNS} }}"));
        volumes.push(format!("{{ name: runs, persistentVolumeClaim: {{ claimName: {} }} }}", yaml(claim)));
    }
    if !mounts.is_empty() {
        let list =
            |items: &[String], indent: &str| items.iter().map(|item| format!("{indent}- {item}\n")).collect::<String>();
        let _ = write!(text, "              volumeMounts:\n{}", list(&mounts, "              "));
        let _ = write!(text, "            volumes:\n{}", list(&volumes, "            "));
    }
}

/// A scalar that YAML takes for text.
fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Names of Kubernetes are DNS labels, and pods' names have a suffix.
fn expect_name(text: &str) -> Result<(), JobError> {
    let fits = (1..=40).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if fits { Ok(()) } else { Err(JobError::Name { text: quote(text) }) }
}
