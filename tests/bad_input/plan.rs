//! `loongforge plan`: what it says of steps, memory and time, and what it refuses.

use crate::fixture::Fixture;

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
    // Nothing of nothing, and no number below it.
    for word in ["-0.0", " 0 units", "busy: ;", "waits for \n", " 1 packs", " 1 units", "1 data actors"] {
        assert!(!text.contains(word), "{word:?} is in\n{text}");
    }
}

#[test]
fn a_plan_tells_packs_and_memory() {
    let fixture = Fixture::new();
    let said = fixture.succeeds(&["plan", "run.yaml"]);
    let words = [
        "run `test`: 1 data actor, 1 encoder actor, 1 foundation actor; 2 steps of 8 samples, packs of at most 128 tokens",
        "data: 40 samples, 0.40 epochs",
        "step 0: ",
        "step 1: ",
        "of 8 media items, consumed 8 samples",
        "pack 0.0 on foundation/0",
        "peak tensor memory in these steps, from a dry run: for each kind of actor, the one that needs the most",
        "parameters   gradients   optimizer activations     buffers         sum    resident",
        "\n  encoder  ",
        "\n  foundation  ",
    ];
    assert_says(&said.out, &words);
    let two = fixture.succeeds(&["plan", "run.yaml", "pools.foundation.replicas=2", "pools.encoder.replicas=3"]);
    assert_says(&two.out, &["foundation replicas: the slowest has 1.", "encoders: the slowest has", "on foundation/1"]);
}

#[test]
fn a_packed_stream_is_planned_and_simulated() {
    let fixture = Fixture::new();
    let stream = ["data.pack.mode=stream", "data.pack.look_ahead=16", "train.global_batch_size=3"];
    let said = fixture.succeeds(&[&["plan", "run.yaml"], &stream[..]].concat());
    assert_says(&said.out, &["2 steps of 3 packs", "step 1: 3 packs"]);
    let said = fixture.succeeds(&[&["plan", "run.yaml", "--simulate", "--device", "H200"], &stream[..]].concat());
    assert_says(&said.out, &["simulated 45 steps", "tokens/s", "bound   ", "foundation  x 1"]);
}

#[test]
fn a_simulation_is_drawn_repeated_and_saved() {
    let fixture = Fixture::new();
    let simulate = ["plan", "run.yaml", "--simulate", "--device", "h200", "--jitter", "0.1"];
    let drawn = [&simulate[..], &["--gantt", "steps.svg", "--save-costs", "costs.json"]].concat();
    let first = fixture.succeeds(&drawn);
    assert!(fixture.read("steps.svg").starts_with("<svg"));
    // The same seed and the same costs: the same report.
    let costs = ["plan", "run.yaml", "--simulate", "--costs", "costs.json", "--jitter", "0.1", "--cores", "1e9"];
    assert_eq!(fixture.succeeds(&simulate).out, first.out);
    assert!(fixture.succeeds(&costs).out.contains("simulated 45 steps"));
    let layouts = fixture.succeeds(&[&simulate[..], &["--devices", "4"]].concat());
    assert_says(&layouts.out, &["layouts of 4 devices, best first", "colocated", "separate"]);
}

#[test]
fn what_a_simulation_cannot_go_by_is_named() {
    let fixture = Fixture::new();
    let simulate = |more: &[&str], words: &[&str]| {
        fixture.fails(&[&["plan", "run.yaml", "--simulate"], more].concat(), 2, words);
    };
    simulate(&[], &["--calibrate RUN_DIR, --costs FILE or --device GPU"]);
    simulate(&["--device", "X1"], &["the peak performance of `X1` is not known"]);
    simulate(&["--device", "H200", "--gantt", "steps.png"], &["`steps.png` must end in .svg or .html"]);
    simulate(&["--device", "H200", "--law", "poisson"], &["unknown law `poisson`, expected sft, vlm, longtail"]);
    fixture.fails(&["plan", "run.yaml", "--device", "H200"], 2, &["--simulate"]);
    assert!(!fixture.path("steps.png").exists());
}
