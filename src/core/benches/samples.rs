//! Measures how many samples one data actor delivers: small PNGs read, decoded, cut into patches and tokenized on one thread.
//! `cargo bench -p loongforge-core --bench samples`

use loongforge_core::config::{Data, Phase};
use loongforge_core::data::digits::{Digits, MODEL, compose, write_model};
use loongforge_core::data::{Dataset, Processor, ProcessorOptions};
use std::time::{Duration, Instant};

const NUM_TRAIN: usize = 2000;
const SPELL: Duration = Duration::from_secs(2);

/// Returns whether the smallest size is enough, to see that it runs: `LOONGFORGE_QUICK=1`.
fn quick() -> bool {
    std::env::var_os("LOONGFORGE_QUICK").is_some()
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, digits) = (folder.path().join("model"), folder.path().join("digits"));
    write_model(&model, &MODEL).expect("the quick start's model");
    compose(&digits, &Digits { seed: 1, num_train: if quick() { 20 } else { NUM_TRAIN }, num_held_out: 1 })
        .expect("the quick start's pictures");
    let file = serde_json::json!({ "path": digits.join("train.jsonl"), "format": "messages" });
    let data = serde_json::json!({ "train": [file], "shuffle": true, "pack": { "max_tokens": 2048 } });
    let data: Data = serde_json::from_value(data).expect("a data section");
    let config = std::fs::read_to_string(model.join("config.json")).expect("it was written");
    let config = serde_json::from_str(&config).expect("JSON");
    let processor = Processor::open(&model, &config, &ProcessorOptions::new(&data, Phase::Sft)).expect("a processor");
    let dataset = Dataset::open(&data, processor, 3).expect("the pictures just made");
    for _ in 0..3 {
        let (start, mut samples, mut tokens, mut patches) = (Instant::now(), 0u64, 0, 0);
        while start.elapsed() < SPELL {
            let sample = dataset.sample(samples).expect("good samples");
            tokens += sample.input_ids.len();
            patches += sample.media.iter().map(|item| item.grid.num_cells()).sum::<usize>();
            samples += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let rate = |count: f64| count / seconds;
        println!(
            "{:8.0} samples/s {:10.0} tokens/s {:10.0} patches/s",
            rate(samples as f64),
            rate(tokens as f64),
            rate(patches as f64)
        );
    }
}
