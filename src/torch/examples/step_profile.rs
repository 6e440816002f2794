//! Describes where the time of a training step of a decoder goes: forward and backward of every kind of operation, and
//! the update.
//!
//!     cargo run --release -p loongforge-torch --example step_profile -- CONFIG.json [f32|bf16] [DOCUMENT LENGTHS…]
//!
//! CONFIG.json is a Hugging Face `config.json`; weights are random. Set `OMP_NUM_THREADS`.

use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use loongforge_torch::model::{Decoder, ModelConfig, Targets, TextBatch, TextOptions};
use loongforge_torch::native::sum_of_squares;
use loongforge_torch::nn::Mask;
use loongforge_torch::params::ParamStore;
use loongforge_torch::tape::{Execution, Policy};
use loongforge_torch::train::{AdamW, AdamWConfig};
use tch::{Device, Kind, Tensor};

const STEPS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("the path of a config.json is missing")?;
    let kind = if args.next().as_deref() == Some("bf16") { Kind::BFloat16 } else { Kind::Float };
    let mut lens: Vec<usize> = args.map(|word| word.parse()).collect::<Result<_, _>>()?;
    if lens.is_empty() {
        lens = vec![690];
    }
    let config =
        ModelConfig::from_hf(&serde_json::from_slice(&std::fs::read(path)?)?)?.decoder().expect("a decoder").clone();
    let params = ParamStore::new(Decoder::specs(&config), kind, Device::Cpu);
    params.init_random(1);
    let params = Rc::new(params);
    let decoder = Decoder::new(&config, &params);
    let optimizer = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };
    let mut optimizer = AdamW::new(&params, optimizer)?;
    let mut grads = params.new_grad();

    let tokens: usize = lens.iter().sum();
    let batch = batch(config.vocab_size, &lens);
    let labels = Vec::<i64>::try_from(batch.input_ids.roll(-1, 0))?;
    let options =
        TextOptions { feature_tensors: Vec::new(), train_features: false, policy: Policy::Keep, keep_routing: false };
    println!("{} M parameters, {kind:?}, documents of {lens:?}", params.num_elements() / 1_000_000);

    for step in 0..STEPS {
        let mut spent: BTreeMap<String, [Duration; 2]> = BTreeMap::new();
        let begin = Instant::now();
        let targets = Targets {
            labels: labels.clone(),
            weights: None,
            scale: 1.0 / tokens as f64,
            evaluates: false,
            answers: None,
            noise: None,
        };
        let text = decoder.tape(&batch, Some(&targets), &options);
        let names: Vec<String> = text.tape.names().map(kind_of).collect();
        let mut run = Execution::new(Rc::new(text.tape), params.clone(), Vec::new());
        for name in &names {
            let begin = Instant::now();
            run.forward_step()?;
            spent.entry(name.clone()).or_default()[0] += begin.elapsed();
        }
        let forward = begin.elapsed();
        let loss = text.loss.ok_or("a loss")?;
        run.seed(loss, Tensor::from(1f64));
        for name in names.iter().rev() {
            let begin = Instant::now();
            run.backward_step(Some(&mut grads))?;
            spent.entry(name.clone()).or_default()[1] += begin.elapsed();
        }
        let backward = begin.elapsed();
        let norm = sum_of_squares(grads.flat()).sqrt();
        let normed = begin.elapsed();
        if !optimizer.step(grads.flat(), (1.0 / norm).min(1.0), 1e-3, true)? {
            grads.zero();
        }
        let all = begin.elapsed();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "step {step}: forward {:.0} ms, backward {:.0}, norm {:.0}, update {:.0}; {:.0} tokens/s; loss {:.3}",
            ms(forward),
            ms(backward - forward),
            ms(normed - backward),
            ms(all - normed),
            tokens as f64 / all.as_secs_f64(),
            run.value(loss).double_value(&[])
        );
        if step + 1 == STEPS {
            for (name, [forward, backward]) in spent {
                println!("  {name:20} {:9.1} {:9.1}", ms(forward), ms(backward));
            }
        }
    }
    Ok(())
}

/// Returns documents of these lengths, of random tokens.
fn batch(vocab_size: i64, lens: &[usize]) -> TextBatch {
    let tokens: usize = lens.iter().sum();
    let positions: Vec<i64> = lens.iter().flat_map(|len| 0..*len as i64).collect();
    let ends = lens.iter().scan(0, |end, len| {
        *end += len;
        Some(*end)
    });
    TextBatch {
        input_ids: Tensor::randint(vocab_size, [tokens as i64], (Kind::Int64, Device::Cpu)),
        position_ids: Tensor::from_slice(&positions),
        cu_seqlens: std::iter::once(0).chain(ends).collect(),
        mask: Mask::Causal,
        feature_rows: Vec::new(),
        row: None,
        past: None,
        shared: None,
    }
}

/// Returns the name without the layer's number.
fn kind_of(name: &str) -> String {
    name.split(' ').filter(|word| word.parse::<usize>().is_err()).collect::<Vec<_>>().join(" ")
}
