//! Tests that run what is written: scripts by bash with stand-ins for Slurm and ssh, manifests by a YAML reader.

#[path = "../../../tests/support/must.rs"]
mod must;

use super::*;
use loongforge_core::message::PoolName;
use loongforge_core::schedule::{PoolSize, PoolSizes};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn job() -> JobSpec {
    JobSpec {
        name: "vlm".into(),
        file: "my run.yaml".into(),
        overrides: vec!["train.lr=1e-5".into(), "run.name=it's".into()],
        pools: PoolSizes::of_roles(1, 4, 8),
        gpus_per_node: 4,
        port: 6001,
        tls: Tls::Folder("certs".into()),
        cpus: 6,
        memory: Some(40 << 30),
        partition: Some("gpu".into()),
        account: Some("lab 1".into()),
        time: None,
        output: None,
        srun: vec!["container-image=registry.example/loongforge:1".into(), "--container-mounts=/my data:/data".into()],
        config: "run: { name: \"it's\" }\n# a comment: kept\n".into(),
        namespace: Some("train".into()),
        image: Some("registry.example/loongforge:1".into()),
        image_pull_secret: Some("pull".into()),
        claim: Some("runs".into()),
        shm: 8 << 30,
        node_selector: vec![("pool".into(), "h100".into())],
        env: vec![("NCCL_DEBUG".into(), "INFO".into())],
        hosts: vec!["me@a".into(), "b".into(), "c".into()],
        program: "loongforge".into(),
    }
}

/// Runs a script with stand-ins; what they were called with, in no order, and the script's exit code.
fn play(script: &str, scheduler_ends_with: u8) -> (Vec<String>, i32) {
    // Others end before the scheduler does.
    play_with(script, &format!("sleep 0.3; exit {scheduler_ends_with}"))
}

/// Works like [`play`] with this script of the scheduler.
fn play_with(script: &str, scheduler: &str) -> (Vec<String>, i32) {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, format!("#!/bin/bash\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let log = |name: &str| format!("echo \"{name} $*\" >> \"$LOG\"\n");
    let program = format!("{}case \"$*\" in *scheduler*) {scheduler};; esac\n", log("loongforge"));
    write("loongforge", &program);
    write("scontrol", &log("scontrol"));
    write("srun", &format!("{}while [[ $1 == --* ]]; do shift; done; exec \"$@\"\n", log("srun")));
    write("ssh", &format!("{}for last; do :; done; exec bash -c \"$last\"\n", log("ssh")));
    fs::write(dir.path().join("job"), script).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let status = Command::new("bash")
        .arg(dir.path().join("job"))
        .current_dir(dir.path())
        .envs([("PATH", path.as_str()), ("SLURM_JOB_ID", "7")])
        .env("LOG", dir.path().join("log"))
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    let text = fs::read_to_string(dir.path().join("log")).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    (lines, status.code().unwrap())
}

fn has_bash() -> bool {
    let has = Path::new("/bin/bash").exists();
    if !has {
        must::skip("bash", "there is no /bin/bash");
    }
    has
}

#[test]
fn a_slurm_job_starts_every_pool_and_is_queued_again_after_a_loss() {
    if !has_bash() {
        return;
    }
    let script = slurm(&job()).unwrap();
    let lines = [
        "#SBATCH hetjob",
        "#SBATCH --nodes=2",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --partition=gpu",
        "#SBATCH --account='lab 1'",
        "#SBATCH --cpus-per-task=6",
        "#SBATCH --mem=163840M",
        "#SBATCH --output=%x-%j.log",
    ];
    for line in lines {
        assert!(script.lines().any(|found| found == line), "{line}\n{script}");
    }
    // Of a plugin for containers, for instance.
    let options = "--container-image=registry.example/loongforge:1 --'container-mounts=/my data:/data'";
    for group in 0..2 {
        let begin = format!("srun --het-group={group} {options} --kill-on-bad-exit=");
        assert_eq!(script.lines().filter(|line| line.starts_with(&begin)).count(), 1, "{script}");
    }
    let spaced = slurm(&JobSpec { name: "my run".into(), ..job() }).unwrap();
    assert!(spaced.contains("\n#SBATCH --job-name='my run'\n") && script.contains("\n#SBATCH --job-name=vlm\n"));
    for (code, requeued) in [(0, false), (2, false), (3, false), (4, true), (75, true)] {
        let (lines, ended_with) = play(&script, code);
        assert_eq!(ended_with, i32::from(code));
        assert_eq!(lines.contains(&"scontrol requeue 7".to_owned()), requeued);
        let said =
            |text: &str| lines.iter().filter(|line| line.starts_with("loongforge") && line.contains(text)).count();
        for role in ["scheduler", "data", "encoder", "foundation"] {
            assert_eq!(said(&format!("--role {role} ")), 1, "{role}: {lines:#?}");
        }
        assert_eq!(said("run my run.yaml train.lr=1e-5 run.name=it's --role"), 4);
        assert_eq!(said(":6001 --tls certs"), 3);
        assert_eq!(said(":6001 --resume --tls certs"), 1);
        assert_eq!(lines.iter().filter(|line| line.starts_with("srun --het-group=")).count(), 2);
    }
}

/// scancel signals all processes of a step, and a step is over when its first process is.
#[test]
fn the_shell_of_an_encoder_waits_for_it_when_both_are_asked_to_stop() {
    if !has_bash() {
        return;
    }
    let script = slurm(&job()).unwrap();
    let shell = script.lines().find(|line| line.contains("--role encoder")).unwrap();
    let (_, words) = shell.trim_end_matches(" &").split_once(" bash ").unwrap();
    let stopped = "loongforge() { kill -TERM $$; sleep 0.3; return 3; }; loongforge run";
    let words = words.replacen("loongforge run", stopped, 1);
    let status = Command::new("bash").args(["-c", &format!("join=a; exec bash {words}")]).status().unwrap();
    assert_eq!(status.code(), Some(3));
}

/// The system announces the end of a job's time by the one, and scancel sends the other.
#[test]
fn a_slurm_job_is_queued_again_when_its_time_ends_and_not_when_it_is_canceled() {
    if !has_bash() {
        return;
    }
    let script = slurm(&job()).unwrap();
    for (signal, code, requeued) in [("USR1", 3, true), ("TERM", 3, false), ("TERM", 4, false), ("USR1", 0, false)] {
        let sent = format!("\nsignaled=1\n(sleep 0.5; kill -{signal} $$) &\n");
        let signaled = script.replacen("\nsignaled=1\n", &sent, 1);
        assert_ne!(signaled, script);
        let scheduler = format!("trap 'exit {code}' TERM; for i in {{1..400}}; do sleep 0.05; done");
        let (lines, ended_with) = play_with(&signaled, &scheduler);
        assert_eq!((ended_with, lines.contains(&"scontrol requeue 7".to_owned())), (code, requeued), "{signal}");
    }
}

/// The scheduler ends early, such as one whose config is wrong, or whose host cannot be reached.
#[test]
fn a_scheduler_that_ends_before_it_is_waited_for_has_a_code() {
    if !has_bash() {
        return;
    }
    for (script, code) in [(slurm(&job()).unwrap(), 75), (ssh(&job()).unwrap(), 2)] {
        let late = script.replacen("wait $scheduler;", "sleep 1; wait $scheduler;", 1);
        assert_ne!(late, script);
        let (lines, ended_with) = play_with(&late, &format!("exit {code}"));
        assert_eq!((ended_with, lines.contains(&"scontrol requeue 7".to_owned())), (code, code == 75));
    }
}

/// ssh takes a signal for itself, and ignores SIGINT behind `&`: the key goes to the scheduler's terminal.
#[test]
fn a_script_that_is_stopped_types_it_to_the_scheduler() {
    if !has_bash() {
        return;
    }
    let script = ssh(&job()).unwrap();
    let stopped = script.replacen("\nsignaled=1\n", "\nsignaled=1\n(sleep 0.5; kill -TERM $$) &\n", 1);
    // The scheduler may end before the trap does.
    let slow = stopped.replacen(" >&3' INT", " >&3; sleep 1' INT", 1);
    assert!(stopped != script && slow != stopped);
    for script in [stopped, slow] {
        let (_, ended_with) = play_with(&script, "IFS= read -rN1 -t 20 key; [[ $key == $'\\003' ]] && exit 3; exit 1");
        assert_eq!(ended_with, 3);
    }
}

#[test]
fn ranks_go_round_the_hosts() {
    if !has_bash() {
        return;
    }
    let (lines, ended_with) = play(&ssh(&job()).unwrap(), 3);
    assert_eq!(ended_with, 3);
    let on = |host: &str, role: &str| {
        let of_host = |line: &&String| line.starts_with("ssh ") && line.contains(&format!(" {host} "));
        lines.iter().filter(of_host).filter(|line| line.contains(&format!("--role {role} "))).count()
    };
    assert_eq!((on("me@a", "scheduler"), on("me@a", "data"), on("me@a", "encoder")), (1, 1, 4));
    assert_eq!((on("b", "foundation"), on("c", "foundation")), (4, 4));
    assert_eq!(
        lines.iter().filter(|line| line.starts_with("loongforge") && line.contains("--join a:6001")).count(),
        14
    );
    assert_eq!(ssh(&JobSpec { hosts: Vec::new(), ..job() }), Err(JobError::NoHosts));
}

#[test]
fn a_jobset_has_a_job_a_pool() {
    let text = jobset(&job()).unwrap();
    let (config, set) = text.split_once("\n---\n").unwrap();
    let read = |text: &str| -> serde_json::Value {
        serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    };
    let (config, manifest) = (read(config), read(set));
    assert_eq!((&config["kind"], &config["metadata"]["name"]), (&"ConfigMap".into(), &"vlm-config".into()));
    assert_eq!(config["data"]["run.yaml"], job().config);
    assert_eq!(manifest["metadata"], serde_json::json!({ "name": "vlm", "namespace": "train" }));
    let jobs = manifest["spec"]["replicatedJobs"].as_array().unwrap();
    let shape = |job: &serde_json::Value| {
        let spec = &job["template"]["spec"];
        (job["name"].clone(), spec["completions"].clone(), spec["backoffLimit"].clone())
    };
    let wanted = [("scheduler", 1, 0), ("data", 1, 1000), ("foundation", 2, 0), ("encoder", 4, 1000)];
    let wanted = wanted.map(|(name, count, backoff)| (name.into(), count.into(), backoff.into()));
    assert_eq!(jobs.iter().map(shape).collect::<Vec<_>>(), wanted);
    let container = |at: usize| &jobs[at]["template"]["spec"]["template"]["spec"]["containers"][0];
    let join = "vlm-scheduler-0-0.vlm:6001";
    let tls = ["--tls", "/etc/loongforge/tls"];
    let words = ["loongforge", "run", "/etc/loongforge/config/run.yaml", "--role"];
    let command = |rest: &[&str]| serde_json::json!([&words[..], rest, &tls[..]].concat());
    assert_eq!(container(0)["command"], command(&["scheduler", "--join", "0.0.0.0:6001", "--resume"]));
    assert_eq!(container(3)["command"], command(&["encoder", "--join", join]));
    // Ranks of a node are one pod's processes, a GPU each.
    assert_eq!(container(2)["command"], command(&["foundation", "--join", join, "--ranks", "4"]));
    assert_eq!(container(2)["resources"]["limits"]["nvidia.com/gpu"], 4);
    assert_eq!(container(2)["resources"]["requests"], serde_json::json!({ "cpu": "24", "memory": "163840Mi" }));
    assert_eq!(container(3)["resources"]["limits"]["nvidia.com/gpu"], 1);
    assert!(container(1)["resources"]["limits"].is_null());
    assert_eq!(container(2)["volumeMounts"].as_array().unwrap().len(), 4);
    assert_eq!(container(0)["readinessProbe"]["tcpSocket"]["port"], 6001);
    assert!((0..4).all(|at| container(at)["workingDir"] == "/runs" && container(at)["env"][2]["value"] == "INFO"));
    let pod = |at: usize| &jobs[at]["template"]["spec"]["template"]["spec"];
    assert_eq!(pod(2)["nodeSelector"], serde_json::json!({ "pool": "h100" }));
    assert_eq!(pod(0)["imagePullSecrets"][0]["name"], "pull");
    assert!(pod(0)["nodeSelector"].is_null() && pod(0)["tolerations"].is_null());
}

/// Kubernetes refuses a set whose rules name a job that it does not have.
#[test]
fn two_transformers_are_of_the_gang() {
    let foundations = [PoolName::FOUNDATION_HIGH, PoolName::FOUNDATION_LOW].map(|name| PoolSize { name, actors: 4 });
    let pools = PoolSizes { foundations: foundations.into(), ..PoolSizes::of_roles(1, 4, 8) };
    let text = jobset(&JobSpec { pools, ..job() }).unwrap();
    let (_, set) = text.split_once("\n---\n").unwrap();
    let manifest: serde_json::Value = serde_saphyr::from_str(set).unwrap_or_else(|error| panic!("{error}\n{set}"));
    let spec = &manifest["spec"];
    let names = spec["replicatedJobs"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap());
    let names: Vec<&str> = names.collect();
    assert_eq!(names, ["scheduler", "data", "foundation-high", "foundation-low", "encoder"]);
    let gang = serde_json::json!(["scheduler", "foundation-high", "foundation-low"]);
    assert_eq!(spec["failurePolicy"]["rules"][1]["targetReplicatedJobs"], gang);
}

#[test]
fn an_encoder_pool_of_its_own_name_is_a_part_of_every_job() {
    let mut pools = PoolSizes::of_roles(1, 4, 8);
    pools.encoders.insert(0, PoolSize { name: "audio".parse().unwrap(), actors: 4 });
    let job = JobSpec { pools, ..job() };
    let (script, remote) = (slurm(&job).unwrap(), ssh(&job).unwrap());
    // The foundation's component is the first, and each encoder pool has one.
    assert_eq!(script.matches("#SBATCH hetjob\n").count(), 2, "{script}");
    for (text, count) in [(&script, 1), (&remote, 4)] {
        assert_eq!(text.matches(" --role encoder --pool audio --join ").count(), count, "{text}");
        assert_eq!(text.matches(" --role encoder --join ").count(), count, "{text}");
        assert!(!text.contains("--pool encoder"), "{text}");
    }
    let text = jobset(&job).unwrap();
    let (_, set) = text.split_once("\n---\n").unwrap();
    let manifest: serde_json::Value = serde_saphyr::from_str(set).unwrap_or_else(|error| panic!("{error}\n{set}"));
    let jobs = manifest["spec"]["replicatedJobs"].as_array().unwrap();
    let names: Vec<&str> = jobs.iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["scheduler", "data", "foundation", "audio", "encoder"]);
    let container = &jobs[3]["template"]["spec"]["template"]["spec"]["containers"][0];
    let command = container["command"].as_array().unwrap();
    assert_eq!(command[3..7], ["--role", "encoder", "--pool", "audio"]);
    assert_eq!(container["env"][1], serde_json::json!({ "name": "LOONGFORGE_POOL", "value": "audio" }));
}

#[test]
fn what_cannot_be_placed_is_refused() {
    let uneven = JobSpec { pools: PoolSizes::of_roles(1, 2, 6), ..job() };
    for uneven in [slurm(&uneven), jobset(&uneven)] {
        assert!(uneven.unwrap_err().to_string().contains("6 ranks do not fill nodes of 4 GPUs"));
    }
    // Encoders share a node in Slurm alone: a pod has one.
    let encoders = JobSpec { pools: PoolSizes::of_roles(1, 6, 4), ..job() };
    assert!(slurm(&encoders).unwrap_err().to_string().contains("6 ranks do not fill nodes of 4 GPUs"));
    assert!(jobset(&encoders).unwrap().contains("completions: 6"));
    assert!(matches!(jobset(&JobSpec { name: "My_run".into(), ..job() }), Err(JobError::Name { .. })));
    assert_eq!(jobset(&JobSpec { image: None, ..job() }), Err(JobError::NoImage));
    assert_eq!(jobset(&JobSpec { claim: None, ..job() }), Err(JobError::NoClaim));
    let large = JobSpec { config: "x".repeat(2_000_000), ..job() };
    assert_eq!(jobset(&large), Err(JobError::ConfigTooLarge { bytes: 2_000_000 }));
}
