//! Tests of checkpoints, evaluations and samples that are made every so many epochs.

use super::*;

#[test]
fn checkpoints_evaluations_and_samples_may_go_by_the_epochs_of_a_run() {
    let bench = Bench::new(&GOOD.replace("steps: 10", "epochs: 2.5"));
    let eval = format!("eval={{path: {}/d.jsonl, every_epochs: 0.25, patience: 3}}", bench.dir.path().display());
    let config = bench.load(&["checkpoint.every_epochs=1", &eval]).config;
    assert_eq!((config.checkpoint.every_epochs, config.checkpoint.every_steps), (Some(1.0), 0));
    assert!(config.eval.is_some_and(|eval| eval.is_during_run() && eval.every_epochs == Some(0.25)));
    let sample = format!("sample={{prompts: {}/d.jsonl, every_epochs: 0.5}}", bench.dir.path().display());
    let sample = bench.load(&[&sample]).config.sample.unwrap();
    assert_eq!((sample.every_epochs, sample.every_steps), (Some(0.5), 0));
    // Steps beside epochs are the most that a run takes.
    bench.load(&["checkpoint.every_epochs=1", "train.steps=3"]);
    // Checkpoints are written, also where the last step is not saved.
    let config = bench.load(&["checkpoint={at_end: false, every_epochs: 1}", &eval]).config;
    assert_eq!(config.unsaved(), None);
}

#[test]
fn epochs_between_checkpoints_are_those_of_the_run_and_stand_alone() {
    let [by_steps, by_epochs] = ["steps: 10", "epochs: 2.5"].map(|long| Bench::new(&GOOD.replace("steps: 10", long)));
    let eval = format!("eval={{path: {}/d.jsonl, every_steps: 5, every_epochs: 1}}", by_epochs.dir.path().display());
    let sample = format!("sample={{prompts: {}/d.jsonl, every_epochs: 1}}", by_steps.dir.path().display());
    for (bench, change, wanted) in [
        (&by_steps, "checkpoint.every_epochs=1", "`checkpoint.every_epochs` requires `train.epochs`"),
        (&by_epochs, "checkpoint.every_epochs=0", "`checkpoint.every_epochs`: must be above 0"),
        (&by_steps, "checkpoint={every_steps: 5, every_epochs: 1}", "both `checkpoint.every_epochs` and"),
        (&by_epochs, eval.as_str(), "both `eval.every_epochs` and `eval.every_steps` are set"),
        (&by_steps, sample.as_str(), "`sample.every_epochs` requires `train.epochs`"),
    ] {
        let text = bench.errors(&[change]);
        assert!(text.contains(wanted) && text.ends_with("\n1 error in the config"), "{change}: {text}");
    }
}
