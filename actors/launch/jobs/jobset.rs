//! A Kubernetes JobSet: an elastic encoder job and a gang foundation job around a scheduler, and a ConfigMap with the
//! run's config.

use super::spec::{Pool, pool_words};
use super::{JobError, JobSpec, Tls};
use loongforge_core::message::{PoolName, Role};
use loongforge_core::text::shell_word;
use serde_json::{Value, json};

/// The paths at which the secret with certificates, the config and the claim are mounted.
const TLS: &str = "/etc/loongforge/tls";
const CONFIG: &str = "/etc/loongforge/config";
const RUNS: &str = "/runs";
/// The key of the config in its ConfigMap.
const FILE: &str = "run.yaml";
/// The bytes that Kubernetes takes of a ConfigMap, with room for the rest of it.
const MAX_CONFIG: usize = 1_000_000;

/// Returns the manifests: a ConfigMap and a JobSet.
///
/// # Errors
/// Fails for a name that Kubernetes does not accept, no image or claim, a config that is too large, or a pool that does not fill
/// its nodes.
pub fn jobset(job: &JobSpec) -> Result<String, JobError> {
    expect_name(&job.name)?;
    job.namespace.as_deref().map_or(Ok(()), expect_name)?;
    let image = job.image.as_deref().ok_or(JobError::NoImage)?;
    let claim = job.claim.as_deref().ok_or(JobError::NoClaim)?;
    if job.config.len() > MAX_CONFIG {
        return Err(JobError::ConfigTooLarge { bytes: job.config.len() });
    }
    let one = |role, name, num_ranks| Pool { role, name, num_ranks, nodes: num_ranks, per_node: 1 };
    // Ranks of the foundation that share a node share a pod, so that NVLink and shared memory are theirs; encoders come
    // back alone.
    let shares_pod = |role: Role| role == Role::Foundation && job.gpus_per_node > 0;
    let mut pools = vec![one(Role::Scheduler, PoolName::SCHEDULER, 1), one(Role::Data, PoolName::DATA, job.pools.data)];
    let mut compute = job.compute_pools(shares_pod)?;
    compute.sort_by_key(|pool| pool.role != Role::Foundation);
    pools.extend(compute);
    let gang = pools.iter().filter(|pool| matches!(pool.role, Role::Scheduler | Role::Foundation));
    let gang: Vec<String> = gang.map(job_name).collect();
    let jobs: Vec<Value> = pools.iter().map(|pool| replicated_job(job, image, claim, pool)).collect();
    let named = |name: String| match &job.namespace {
        Some(namespace) => json!({ "name": name, "namespace": namespace }),
        None => json!({ "name": name }),
    };
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": named(config_name(job)), "data": { FILE: job.config },
    });
    let set = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": named(job.name.clone()),
        "spec": {
            "network": { "enableDNSHostnames": true, "publishNotReadyAddresses": true },
            // Workers start when the scheduler listens.
            "startupPolicy": { "startupPolicyOrder": "InOrder" },
            // The run is done when its scheduler is.
            "successPolicy": { "operator": "All", "targetReplicatedJobs": ["scheduler"] },
            "failurePolicy": {
                "maxRestarts": 20,
                "rules": [
                    // Wrong config, or numbers that are not finite: another try would end in the same way.
                    { "name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"] },
                    // A gang: all begin again from the last checkpoint.
                    { "name": "gang", "action": "RestartJobSet", "targetReplicatedJobs": gang },
                ],
            },
            "replicatedJobs": jobs,
        },
    });
    let yaml = |value: &Value| serde_saphyr::to_string(value).map_err(|error| JobError::Yaml(error.to_string()));
    Ok(format!(
        "# loongforge: {} processes. Submit with: kubectl apply -f FILE\n\
         # Paths in the config start at {RUNS}, where the claim {claim} is mounted: model, data and run.dir are there.\n\
         # More or fewer encoders while it runs: change parallelism and completions of their pool's job together.\n\
         {}---\n{}",
        job.processes(),
        yaml(&config)?,
        yaml(&set)?
    ))
}

fn config_name(job: &JobSpec) -> String {
    format!("{}-config", job.name)
}

/// Names the job of a pool within the set.
fn job_name(pool: &Pool) -> String {
    pool.name.as_str().replace('_', "-")
}

fn replicated_job(job: &JobSpec, image: &str, claim: &str, pool: &Pool) -> Value {
    // A pod of these that dies comes back without the others.
    let alone = matches!(pool.role, Role::Data | Role::Encoder);
    json!({
        "name": job_name(pool),
        "replicas": 1,
        "template": { "spec": {
            "completionMode": "Indexed",
            "completions": pool.nodes,
            "parallelism": pool.nodes,
            "backoffLimit": if alone { 1000 } else { 0 },
            "podFailurePolicy": { "rules": [
                // 2: wrong config or usage, 5: loss or gradient not finite.
                { "action": "FailJob", "onExitCodes": { "containerName": "loongforge", "operator": "In", "values": [2, 5] } },
                // A node that is drained is nobody's fault.
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
            ] },
            "template": { "spec": pod(job, image, claim, pool) },
        } },
    })
}

fn pod(job: &JobSpec, image: &str, claim: &str, pool: &Pool) -> Value {
    let gpus = if is_compute(pool.role) { pool.per_node.min(job.gpus_per_node) } else { 0 };
    let mut mounts = vec![
        json!({ "name": "config", "mountPath": CONFIG, "readOnly": true }),
        json!({ "name": "runs", "mountPath": RUNS }),
    ];
    let mut volumes = vec![
        json!({ "name": "config", "configMap": { "name": config_name(job) } }),
        json!({ "name": "runs", "persistentVolumeClaim": { "claimName": claim } }),
    ];
    if let Tls::Folder(secret) = &job.tls {
        mounts.push(json!({ "name": "tls", "mountPath": TLS, "readOnly": true }));
        volumes.push(json!({ "name": "tls", "secret": { "secretName": secret, "defaultMode": 0o400 } }));
    }
    if is_compute(pool.role) {
        // A pod has 64 MiB of shared memory otherwise, which NCCL and edges between its processes exceed.
        mounts.push(json!({ "name": "shm", "mountPath": "/dev/shm" }));
        volumes.push(json!({ "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": bytes(job.shm) } }));
    }
    let mut container = json!({
        "name": "loongforge",
        "image": image,
        "command": command(job, pool),
        "workingDir": RUNS,
        "env": environment(job, pool),
        "resources": resources(job, pool, gpus),
        "volumeMounts": mounts,
    });
    if pool.role == Role::Scheduler {
        container["readinessProbe"] =
            json!({ "tcpSocket": { "port": job.port }, "periodSeconds": 2, "failureThreshold": 150 });
    }
    let mut pod = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": volumes,
    });
    if !job.node_selector.is_empty() && is_compute(pool.role) {
        pod["nodeSelector"] = job.node_selector.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    }
    if gpus > 0 {
        // Nodes with GPUs are often kept for pods that say so.
        pod["tolerations"] = json!([{ "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" }]);
    }
    if let Some(secret) = &job.image_pull_secret {
        pod["imagePullSecrets"] = json!([{ "name": secret }]);
    }
    pod
}

fn is_compute(role: Role) -> bool {
    matches!(role, Role::Encoder | Role::Foundation)
}

/// Returns where the scheduler is, as its pod's name in the set's own domain.
fn join(job: &JobSpec) -> String {
    format!("{0}-scheduler-0-0.{0}:{1}", job.name, job.port)
}

fn command(job: &JobSpec, pool: &Pool) -> Vec<String> {
    let at = if pool.role == Role::Scheduler { format!("0.0.0.0:{}", job.port) } else { join(job) };
    let words = [&job.program, "run", &format!("{CONFIG}/{FILE}"), "--role", pool.role.name()];
    let mut words: Vec<String> = words.map(str::to_owned).into();
    words.extend(pool_words(pool.role, pool.name));
    words.extend(["--join".into(), at]);
    if pool.role == Role::Scheduler {
        words.push("--resume".into());
    }
    if pool.per_node > 1 {
        words.extend(["--ranks".into(), pool.per_node.to_string()]);
    }
    words.extend(match job.tls {
        Tls::Folder(_) => vec!["--tls".into(), TLS.into()],
        Tls::Insecure => vec!["--insecure-allow-plaintext".into()],
    });
    words
}

fn environment(job: &JobSpec, pool: &Pool) -> Value {
    let mut own = vec![("LOONGFORGE_ROLE".to_owned(), pool.role.name().to_owned())];
    if pool.name.as_str() != pool.role.name() {
        own.push(("LOONGFORGE_POOL".to_owned(), pool.name.to_string()));
    }
    own.push(("LOONGFORGE_JOIN".to_owned(), join(job)));
    own.iter().chain(&job.env).map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

/// Returns the resources of a pod. Cores and memory are requested, so that no pod is evicted for what its neighbors take, and not
/// limited: a step that takes more for a moment is not killed.
fn resources(job: &JobSpec, pool: &Pool, gpus: u32) -> Value {
    let (cpus, memory) = match pool.role {
        Role::Scheduler => (1, 2 << 30),
        Role::Data => (job.cpus, 8 << 30),
        _ => (job.cpus * pool.per_node, job.memory.unwrap_or(32 << 30) * u64::from(pool.per_node)),
    };
    let mut resources = json!({ "requests": { "cpu": cpus.to_string(), "memory": bytes(memory) } });
    if gpus > 0 {
        resources["limits"] = json!({ "nvidia.com/gpu": gpus });
    }
    resources
}

/// Returns a quantity of bytes as Kubernetes writes it.
fn bytes(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{}Mi", bytes >> 20),
        _ => bytes.to_string(),
    }
}

/// Names of Kubernetes are DNS labels, and pods' names have a suffix.
fn expect_name(text: &str) -> Result<(), JobError> {
    let fits = (1..=40).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if fits { Ok(()) } else { Err(JobError::Name { text: shell_word(text) }) }
}
