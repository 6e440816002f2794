//! Tests of diffusion runs before they begin: the predicted memory, the planned tokens, and refusals.

use crate::diffusion::{Captioned, EDIT, QWEN_IMAGE, WAN};
use loongforge::compose::Composition;
use loongforge::core::config;
use loongforge::core::data::{Dataset, InProcess, ProcessorOptions};
use loongforge::core::message::{SampleMeta, Tower};
use loongforge::estimate::memory::forecast;
use loongforge::preflight::Asked;
use std::fs;
use std::process::Command;
use std::sync::Arc;

/// Returns the composition of a run with these overrides, and its first samples.
fn composed(captioned: &Captioned, own: &[String], num_samples: u64) -> (Composition, Vec<SampleMeta>) {
    let loaded = config::load(&captioned.folder("run.yaml"), own, std::iter::empty()).unwrap();
    let composition = Composition::new(loaded.config).unwrap();
    let config = composition.config();
    let maker =
        composition.folder().maker(&ProcessorOptions::of_run(config, &config.data), Arc::new(InProcess)).unwrap();
    let dataset = Dataset::open(&config.data, maker, config.run.seed).unwrap();
    let samples = (0..num_samples).map(|at| dataset.sample(at).unwrap().meta).collect();
    (composition, samples)
}

/// The dry run of a model that reads weights of tokens and no tokens.
#[test]
fn memory_of_a_run_with_masks_is_predicted() {
    let captioned = Captioned::new(WAN, true);
    captioned.add_masks();
    let (composition, samples) = composed(&captioned, &["data.masks=true".to_owned()], 8);
    let found = forecast(composition.config(), composition.folder(), &samples).unwrap();
    assert!(found.iter().all(|actor| actor.memory.total() > 0), "{found:?}");
    assert!(found.iter().any(|actor| actor.kind == "foundation"), "{found:?}");
}

/// The values of pictures within a text are not taken for tokens, of which the plan and the dry run know no more than their number.
#[test]
fn a_text_tower_that_is_shown_pictures_is_planned_and_predicted_by_its_tokens() {
    let captioned = Captioned::new(QWEN_IMAGE, false);
    captioned.add_edits();
    let mut own = captioned.keys(EDIT);
    let short = ["device=cpu", "train.global_batch_size=1", "train.steps=2", "train.warmup_steps=0"];
    own.extend(short.map(str::to_owned));
    let (composition, samples) = composed(&captioned, &own, 1);
    let text = *samples[0].items.iter().find(|item| item.tower == Tower::Text).unwrap();
    assert!(text.grid.h == text.num_features && text.grid.num_cells() > 1000 * text.num_features as usize, "{text:?}");

    let output = Command::new(env!("CARGO_BIN_EXE_loongforge"))
        .arg("plan")
        .arg(captioned.folder("run.yaml"))
        .args(&own)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(&format!(", {} tokens, ", text.num_features)), "{text:?}: {said} {output:?}");

    let predicted = forecast(composition.config(), composition.folder(), &samples).unwrap();
    let predicted = predicted.iter().find(|actor| actor.kind == "encoder").unwrap();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let steps = captioned.run("counted", &own, None);
    let (_, counted) = steps[1].timings.iter().find(|(actor, _)| *actor == predicted.actor).unwrap();
    let share = predicted.memory.total() as f64 / counted.memory.total() as f64;
    assert!((0.5..2.0).contains(&share), "{predicted:?}, counted {:?}", counted.memory);
}

#[test]
fn a_reader_that_could_read_nothing_is_refused_before_a_run() {
    let captioned = Captioned::new(QWEN_IMAGE, false);
    let at = |name: &str| captioned.folder(name).display().to_string();
    let records = fs::read_to_string(at("train.jsonl")).unwrap();
    fs::write(at("answered.jsonl"), records.replace("\"prompt\":", "\"answer\":\"1\",\"prompt\":")).unwrap();
    let blind = concat!(env!("CARGO_MANIFEST_DIR"), "/src/torch/tests/fixtures/llama3-tied-3layers");
    let refusal = |prompts: &str, reader: &str| {
        let own = [
            format!("eval={{path: {}, every_steps: 4, reader: {{load: {reader}}}}}", at("train.jsonl")),
            format!("sample={{prompts: {}, max_prompts: 3, steps: 2}}", at(prompts)),
        ];
        let loaded = config::load(&captioned.folder("run.yaml"), &own, std::iter::empty()).unwrap();
        let asked = Asked { device: true, weights: true, alone: true };
        let run = Composition::unsettled(loaded.config).unwrap();
        run.preflight(asked).map(drop).map_err(|error| error.to_string())
    };
    let error = refusal("train.jsonl", blind).unwrap_err();
    assert!(error.contains("eval.reader: no prompt of") && error.contains("has an `answer`"), "{error}");
    let error = refusal("answered.jsonl", blind).unwrap_err();
    assert!(error.contains("llama3-tied-3layers sees no pictures"), "{error}");
    // Where it is missing, samples are made and not read.
    assert_eq!(refusal("answered.jsonl", &at("gone")), Ok(()));
}
