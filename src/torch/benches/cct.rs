//! B8: steps of a decoder under budgets for activations, against keeping everything and computing everything again.
//!
//! On a CPU the host tier is other memory of the same machine behind a throttle, as a bus would be. Steps of all kinds are
//! taken in turn, so that the machine's moods meet them alike; printed are medians, and the plan's own forecast.
//!
//! `cargo bench -p loongforge-torch --bench cct -- [TOKENS] [STEPS]`

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use loongforge_core::numbers::median;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::model::{Decoder, ModelConfig, Targets, TextBatch, TextOptions};
use loongforge_torch::nn::Mask;
use loongforge_torch::params::{GradBuffer, ParamStore};
use loongforge_torch::tape::{Execution, MemoryPlanner, Policy, Transfers};
use serde_json::json;
use tch::{Device, Kind, Tensor};

struct Model {
    decoder: Decoder,
    params: Rc<ParamStore>,
    grads: GradBuffer,
    tokens: i64,
}

impl Model {
    fn step(&mut self, policy: Policy, planner: Option<&mut MemoryPlanner>) -> (f64, f64) {
        let ids: Vec<i64> = (0..self.tokens).map(|at| at * 31 % 1000).collect();
        let batch = TextBatch {
            input_ids: Tensor::from_slice(&ids),
            position_ids: Tensor::arange(self.tokens, (Kind::Int64, Device::Cpu)),
            cu_seqlens: vec![0, self.tokens as usize],
            mask: Mask::Causal,
            feature_rows: Vec::new(),
            row: None,
            past: None,
            shared: None,
        };
        let targets = Targets {
            labels: ids.iter().map(|id| (id + 1) % 1000).collect(),
            weights: None,
            scale: 1.0 / self.tokens as f64,
            evaluates: false,
            answers: None,
            noise: None,
        };
        let options = TextOptions { feature_tensors: Vec::new(), train_features: false, policy, keep_routing: false };
        let made = self.decoder.tape(&batch, Some(&targets), &options);
        let (tape, loss) = (Rc::new(made.tape), made.loss.expect("targets were given"));
        let start = Instant::now();
        let mut planner = planner;
        let mut run = match &mut planner {
            Some(planner) => {
                planner.execution(tape, self.params.clone(), vec![], self.tokens, 1).unwrap_or_else(|e| panic!("{e}"))
            }
            None => Execution::new(tape, self.params.clone(), vec![]),
        };
        run.forward().expect("there is no other rank");
        run.seed(loss, Tensor::ones_like(run.value(loss)));
        self.grads.zero();
        run.backward(Some(&mut self.grads)).expect("a backward");
        let seconds = start.elapsed().as_secs_f64();
        if let Some(planner) = planner {
            planner.learn(&run, self.tokens);
        }
        (seconds, run.value(loss).double_value(&[]))
    }
}

fn main() {
    let numbers: Vec<i64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (tokens, steps) = (*numbers.first().unwrap_or(&1024), *numbers.get(1).unwrap_or(&7) as usize);
    set_intra_op_threads(1);
    let config = json!({
        "model_type": "qwen3", "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1536,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64
    });
    let config = ModelConfig::from_hf(&config).expect("a config").decoder().expect("a decoder").clone();
    let params = Rc::new(ParamStore::new(Decoder::specs(&config), Kind::Float, Device::Cpu));
    params.init_random(1);
    let (decoder, grads) = (Decoder::new(&config, &params), params.new_grad());
    let mut model = Model { decoder, params, grads, tokens };

    // What all of it takes, and how quickly the link must be to hide it all: out during the forward, back during the
    // backward.
    let mut all = MemoryPlanner::new(u64::MAX / 2, None);
    let (mut step_seconds, mut loss) = (f64::INFINITY, 0.0);
    for _ in 0..4 {
        let (seconds, found) = model.step(Policy::Keep, Some(&mut all));
        (step_seconds, loss) = (step_seconds.min(seconds), found);
    }
    let bytes = all.peak();
    let free = 2.0 * bytes as f64 / (0.3 * step_seconds);
    println!(
        "{tokens} tokens, 8 layers of 512: activations {:.1} MiB, step {:.0} ms",
        bytes as f64 / 1048576.0,
        step_seconds * 1e3
    );

    let mut planners: BTreeMap<String, MemoryPlanner> = BTreeMap::new();
    for (name, bandwidth) in [("free", free), ("a quarter", free / 4.0), ("a sixteenth", free / 16.0)] {
        let transfers = Rc::new(Transfers::new(Device::Cpu, Some(bandwidth)).expect("a thread for transfers"));
        for percent in [50, 25] {
            let name = format!("budget {percent} %, link {name} ({:.0} MB/s)", bandwidth / 1e6);
            planners.insert(name, MemoryPlanner::new(bytes * percent / 100, Some(transfers.clone())));
        }
    }
    let mut seconds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for round in 0..steps + 3 {
        let mut note = |name: &str, (taken, found): (f64, f64)| {
            assert_eq!(found, loss, "{name}: the loss");
            if round >= 3 {
                seconds.entry(name.to_owned()).or_default().push(taken);
            }
        };
        note("keep all", model.step(Policy::Keep, None));
        note("recompute all", model.step(Policy::Recompute, None));
        for (name, planner) in &mut planners {
            note(name, model.step(Policy::Keep, Some(planner)));
        }
    }
    let median = |name: &str| median(&mut seconds[name].clone());
    let (keep, again) = (median("keep all"), median("recompute all"));
    println!("{:<46} {:>8} {:>8} {:>11} {:>10}", "", "ms", "÷ keep", "÷ recompute", "peak MiB");
    for name in seconds.keys() {
        let peak =
            planners.get(name).map_or(String::new(), |planner| format!("{:.1}", planner.peak() as f64 / 1048576.0));
        let taken = median(name);
        println!("{name:<46} {:>8.1} {:>8.3} {:>11.3} {peak:>10}", taken * 1e3, taken / keep, taken / again);
    }
}
