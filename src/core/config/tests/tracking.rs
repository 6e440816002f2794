//! Tests of the keys `log.wandb`, `log.mlflow` and `watch.otlp`.

use super::*;

#[test]
fn sections_without_keys_take_their_defaults() {
    let bench = Bench::new(&format!("{GOOD}log: {{ wandb: {{}}, mlflow: {{ tags: {{ team: vision }} }} }}\n"));
    let log = bench.load(&[]).config.log;
    assert_eq!(log.wandb.unwrap(), Wandb::default());
    let mlflow = log.mlflow.unwrap();
    assert_eq!((mlflow.experiment.as_str(), mlflow.tags["team"].as_str()), ("loongforge", "vision"));
    let config = bench.load(&["watch.otlp.endpoint=127.0.0.1:4318", "log.wandb=null"]).config;
    let otlp = config.watch.otlp.unwrap();
    assert_eq!(
        (otlp.endpoint.to_string(), otlp.every, otlp.traces),
        ("127.0.0.1:4318".into(), TimeSpan::from_secs(10), true)
    );
    assert!(config.log.wandb.is_none());
}

#[test]
fn names_that_others_would_refuse_are_refused_here() {
    for (section, words) in [
        (
            "log: { wandb: { project: a/b } }",
            &["LF0104", "`log.wandb.project`: W&B does not accept the project name \"a/b\""][..],
        ),
        ("log: { wandb: { group: ' ' } }", &["LF0104", "`log.wandb.group` is empty"]),
        ("log: { wandb: { projct: a } }", &["LF0102", "did you mean `project`?"]),
        ("log: { mlflow: { experiment: '' } }", &["LF0104", "`log.mlflow.experiment` is empty"]),
        ("log: { mlflow: { tags: { a/b: c } } }", &["LF0104", "\"a/b\" is not a valid tag name"]),
        ("log: { format: yaml }", &["LF0103", "expected `text` or `json`"]),
        ("watch: { otlp: { endpoint: /run/otlp } }", &["LF0104", "`watch.otlp.endpoint`: expected HOST:PORT"]),
        (
            "watch: { otlp: { endpoint: 'h:4318', every: 10ms } }",
            &["LF0104", "`watch.otlp.every`: must be at least 1s"],
        ),
        ("checkpoint: { upload: /mnt/runs }", &["LF0104", "`checkpoint.upload` is not the URL of an object store"]),
        ("checkpoint: { upload: 's3://k:s@b/runs' }", &["LF0104", "`checkpoint.upload` contains credentials"]),
        ("checkpoint: { upload_keep_last: 2 }", &["LF0111", "requires `checkpoint.upload`"]),
        ("watch: { profile: { first: 1 } }", &["LF0104", "`watch.profile.first`: must be at least 2, found `1`"]),
        ("watch: { profile: { steps: 0 } }", &["LF0104", "`watch.profile.steps`: must be at least 1, found `0`"]),
        ("watch: { profile: { first: 1000000 } }", &["LF0104", "step 1000000 is to be recorded, but the run has only"]),
        ("watch: { listen: null, otlp: { endpoint: 'h:4318' } }", &["LF0111", "`watch.listen: null`"]),
    ] {
        let bench = Bench::new(&format!("{GOOD}{section}\n"));
        let report = bench.load_with(&[], &[]).expect_err(section).to_string();
        words.iter().for_each(|word| assert!(report.contains(word), "{section}: {word} is not in\n{report}"));
    }
}
