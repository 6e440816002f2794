//! Tests of the suggestions for keys and values that this program does not have.

use super::*;

#[test]
fn what_other_trainers_and_habit_call_a_key_leads_to_it() {
    let bench = Bench::new(GOOD);
    for (text, meant) in [
        ("tensor_parallel=2", "did you mean `pools.foundation.tensor_parallel`?"),
        ("report_to=wandb", "did you mean `log.wandb`? (or log.mlflow;"),
        ("early_stopping_patience=3", "did you mean `eval.patience`?"),
        ("early_stopping_threshold=0.01", "did you mean `eval.min_delta`?"),
        ("+checkpoint.interval=3", "did you mean `checkpoint.every_steps`?"),
        ("+checkpoint.folder=x", "did you mean `dir`?"),
        ("+eval={path: d.jsonl, every: 3}", "did you mean `every_steps`?"),
        ("+sample={prompts: d.jsonl, every: 3}", "did you mean `every_steps`?"),
        ("+eval={path: d.jsonl, samples: 3}", "did you mean `max_samples`?"),
        ("+training={steps: 3}", "did you mean `train`?"),
        ("resume_from_checkpoint=x", "`--resume=CHECKPOINT` from that one"),
        ("+log.wandb={mode: offline}", "a run is always written to files"),
        ("data.train=[{path: d.jsonl, split: test}]", "name it in the path, as `hf://datasets/ORG/NAME/SPLIT`"),
        ("+eval={path: d.jsonl, metrics: [wer]}", "did you mean `scores`?"),
        ("+metrics={wandb: true}", "did you mean `log`?"),
        ("num_layers=4", "`model.overrides` changes keys of it"),
        ("+train.seed=3", "did you mean `run.seed`?"),
        ("+train.gradient_clipping=1", "did you mean `train.clip_grad`?"),
        ("+data.val_split=0.1", "did you mean `data.val_size`? (a number of samples"),
        ("+train.scheduler=cosine", "did you mean `train.schedule`?"),
        ("+train.early_stopping=3", "did you mean `eval.patience`?"),
        ("+train.grpo.num_generations=8", "there is no reinforcement learning: `train.preference`"),
    ] {
        let text = bench.errors(&[text]);
        assert!(text.contains("LF0102") && text.contains(meant), "{text}");
    }
}

#[test]
fn a_word_in_place_of_a_section_leads_to_the_key_that_takes_it() {
    let bench = Bench::new(GOOD);
    let on = bench.errors(&["log.wandb=true"]);
    assert!(on.contains("found `true`") && on.contains("`{}` is a map in which every key has its default"), "{on}");
    let needed = bench.errors(&["run=true"]);
    assert!(needed.contains("found `true`") && !needed.contains("every key has its default"), "{needed}");
    let method = bench.errors(&["+train.preference={loss: grpo}"]);
    assert!(method.contains("there is no reinforcement learning") && !method.contains("did you mean"), "{method}");
    for (text, found, meant) in [
        ("train.optimizer=adamw_torch", "found `adamw_torch`", Some("did you mean `train.optimizer.type`?")),
        ("train.loss=orpo", "found `orpo`", Some("did you mean `train.preference.loss`?")),
        ("train.optimizer=x", "found `x`", None),
        ("train.optimizer=true", "found `true`", None),
    ] {
        let text = bench.errors(&[text]);
        assert!(text.contains("expected a map of keys") && text.contains(found), "{text}");
        assert_eq!(text.contains("did you mean"), meant.is_some(), "{text}");
        assert!(meant.is_none_or(|meant| text.contains(meant)), "{text}");
    }
}
