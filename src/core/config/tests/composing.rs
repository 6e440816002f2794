//! Runs of several files.

use super::*;

/// Returns a run of four files: a foundation and an optimizer from groups, a base, and the run's own.
fn composed() -> Bench {
    let defaults = "\
defaults:
  - base
  - models/qwen3@model.foundation: small
  - optim: adam
  - _self_
";
    let bench = Bench::new(&format!("{defaults}{GOOD}"));
    bench.file("base.yaml", "log: { level: debug }\ntrain: { lr: 1.0 }\n");
    bench.file("models/qwen3/small.yaml", "freeze: true\n");
    bench.file("models/qwen3/large.yaml", "defaults: [small]\nrecompute: all\n");
    bench.file("optim/adam.yaml", "# @package train.optimizer\nweight_decay: 0.0\n");
    bench.file("optim/sharp.yaml", "# @package _global_\ntrain: { optimizer: { eps: 1e-6 }, lr: 9.0 }\n");
    bench
}

#[test]
fn defaults_are_composed_and_chosen_from_the_command_line() {
    let bench = composed();
    let config = bench.load(&[]).config;
    assert_eq!(config.model.foundation.freeze, Some(true));
    assert_eq!(config.log.level, Level::Debug);
    assert_eq!((config.train.optimizer.weight_decay, config.train.lr), (0.0, 1e-5));
    let config = bench.load(&["models/qwen3@model.foundation=large", "optim=sharp"]).config;
    assert_eq!((config.model.foundation.freeze, config.model.foundation.recompute), (Some(true), Recompute::All));
    assert_eq!((config.train.optimizer.eps, config.train.optimizer.weight_decay, config.train.lr), (1e-6, 0.1, 1e-5));
    let config =
        bench.load(&["~optim", "+models/qwen3@model.image_encoder=large", "~models/qwen3@model.foundation"]).config;
    assert_eq!(config.train.optimizer.weight_decay, 0.1);
    assert_eq!((config.model.image_encoder.recompute, config.model.foundation.freeze), (Recompute::All, None));
}

/// Returns [`GOOD`] without a model of its own, under a `defaults` list.
fn built_in(defaults: &str) -> Bench {
    let text = GOOD.replace("{ load: MODEL, weights: random }", "{ tokenizer: MODEL, weights: random }");
    Bench::new(&format!("defaults: [{defaults}, _self_]\n{text}"))
}

#[test]
fn built_in_models_need_no_files() {
    let config = built_in("models/qwen3: qwen3_0_6b").load(&["model.config.num_hidden_layers=2"]).config;
    assert_eq!(
        (&config.model.config["model_type"], &config.model.config["num_hidden_layers"]),
        (&"qwen3".into(), &2.into())
    );
    let bench = built_in(
        "models/image_encoder: qwen2_5_vit, models/image_projector@model.image_projector: mlp, models/llama3@model.foundation: llama3_8b",
    );
    let model = bench.load(&[]).config.model;
    let types = model
        .parts()
        .map(|(_, part)| part.config.get("model_type").and_then(|name| name.as_str()).unwrap_or_default().to_owned());
    assert_eq!(types, ["qwen2_5_vl", "mlp", "", "", "", "", "", "llama"]);
    let model = bench.load(&["models/image_encoder=qwen3_vit"]).config.model;
    assert_eq!(model.image_encoder.config["model_type"], "qwen3_vl");
    assert!(!model.image_encoder.config.contains_key("window_size"));
}

#[test]
fn a_file_of_the_users_goes_before_a_built_in_one() {
    let bench = built_in("models/llama3@model.foundation: llama3_8b");
    bench.file("models/llama3/llama3_8b.yaml", "config: { model_type: mine }\n");
    assert_eq!(bench.load(&[]).config.model.foundation.config["model_type"], "mine");
    bench.file("models/llama3/tiny.yaml", "defaults: [llama3_70b]\nconfig: { num_hidden_layers: 1 }\n");
    let config = bench.load(&["models/llama3@model.foundation=tiny"]).config.model.foundation.config;
    assert_eq!((&config["num_hidden_layers"], &config["hidden_size"]), (&1.into(), &8192.into()));
}

#[test]
fn what_is_not_built_in_says_what_is() {
    let text = built_in("models/llama3@model.foundation: llama3_9b").errors(&[]);
    for part in
        ["no option `llama3_9b` in the group `models/llama3`", "did you mean `llama3_8b`?", "has llama3_70b, llama3_8b"]
    {
        assert!(text.contains(part), "{text}");
    }
    let text = built_in("models/lama3@model.foundation: llama3_8b").errors(&[]);
    assert!(text.contains("no group `models/lama3`") && text.contains("did you mean `models/llama3`?"), "{text}");
}

#[test]
fn self_says_where_the_file_itself_comes() {
    let bench = Bench::new(&format!("defaults: [_self_, base, {{optional gone: x}}]\n{GOOD}"));
    bench.file("base.yaml", "train: { lr: 1.0 }\n");
    assert_eq!(bench.load(&[]).config.train.lr, 1.0);
    bench.file("vlm.yaml", &format!("defaults: [base]\n{GOOD}"));
    assert_eq!(bench.load(&[]).config.train.lr, 1e-5);
}

#[test]
fn an_inner_list_can_be_overridden_from_outside() {
    let bench = Bench::new(&format!("defaults: [stack, {{override inner@model.image_encoder: b}}]\n{GOOD}"));
    bench.file("stack.yaml", "defaults: [{inner@model.image_encoder: a}]\n");
    bench.file("inner/a.yaml", "recompute: none\n").file("inner/b.yaml", "recompute: all\n");
    assert_eq!(bench.load(&[]).config.model.image_encoder.recompute, Recompute::All);
}

#[test]
fn what_cannot_be_composed_says_what_there_is() {
    let bench = composed();
    let text = bench.errors(&["models/qwen3@model.foundation=smal"]);
    for part in
        ["LF0106", "no option `smal` in the group `models/qwen3`", "did you mean `small`?", "has large, qwen3_0_6b"]
    {
        assert!(text.contains(part), "{text}");
    }
    let text = bench.errors(&["models/qwen@model.foundation=small"]);
    for part in ["no group `models/qwen@model.foundation`", "did you mean `models/qwen3@model.foundation`?", "`+models"]
    {
        assert!(text.contains(part), "{text}");
    }
    bench.file("base.yaml", "defaults: [other]\n").file("other.yaml", "defaults: [base]\n");
    let text = bench.errors(&[]);
    assert!(text.contains("is circular: vlm.yaml -> base.yaml -> other.yaml -> base.yaml"), "{text}");
    assert!(text.contains("other.yaml:1:12"), "{text}");
    bench.file("base.yaml", "defaults: {a: b}\n");
    assert!(bench.errors(&[]).contains("`defaults` must be a list"));
    bench.file("vlm.yaml", &format!("defaults: [nogroup: x, [], {{a: 1, b: 2}}]\n{GOOD}"));
    let text = bench.errors(&[]);
    assert!(
        text.contains("no group `nogroup`") && text.contains("not an entry") && text.contains("3 errors"),
        "{text}"
    );
}

#[test]
fn a_mistake_in_an_included_file_names_that_file() {
    let bench = composed();
    bench.file("models/qwen3/small.yaml", "# comment\nfreze: true\n");
    let text = bench.errors(&[]);
    for part in ["unknown key `model.foundation.freze`", "models/qwen3/small.yaml:2:1", "did you mean `freeze`?"] {
        assert!(text.contains(part), "{text}");
    }
}
