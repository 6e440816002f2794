//! Times training steps of tiny diffusion transformers, forward, backward and AdamW, on one thread in float32, and of packs of
//! samples of several sizes. `benches/dit.py` times diffusers.
//!
//! `cargo bench -p loongforge-torch --bench dit -- [STEPS] [tiled]`; `tiled` is `run.products`.

use std::rc::Rc;
use std::time::Instant;

use loongforge_core::config::Products;
use loongforge_core::message::{Grid, ItemMeta, SampleId, Sigma, Target, Tower};
use loongforge_core::numbers::median;
use loongforge_torch::comm::ProcessGroup;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::model::{
    Columns, FoundationModel, MicroBatch, ModelConfig, NoisePurpose, SampleRow, with_values,
};
use loongforge_torch::native::set_products;
use loongforge_torch::params::ParamStore;
use loongforge_torch::tape::{Execution, Policy};
use loongforge_torch::train::{AdamWConfig, Lanes, TrainState};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

const WARM_UP: usize = 5;
const ADAMW: AdamWConfig = AdamWConfig { betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.01 };

/// A model and the samples of a step: frames, rows and columns in patches, and rows of text.
struct Case {
    name: &'static str,
    transformer: Value,
    samples: Vec<([u32; 3], u32)>,
}

fn cases() -> Vec<Case> {
    let qwen = json!({"_class_name": "QwenImageTransformer2DModel", "num_attention_heads": 4, "attention_head_dim": 16,
        "axes_dims_rope": [4, 6, 6], "in_channels": 4, "out_channels": 1, "patch_size": 2, "joint_attention_dim": 32,
        "num_layers": 4});
    let wan = json!({"_class_name": "WanTransformer3DModel", "num_attention_heads": 3, "attention_head_dim": 24,
        "ffn_dim": 192, "in_channels": 3, "out_channels": 1, "text_dim": 32, "freq_dim": 64, "num_layers": 4});
    let sizes = [[1, 4, 4], [1, 4, 12], [1, 8, 8], [1, 6, 20], [1, 12, 12]];
    let mixed = (0..32).map(|at| (sizes[at % sizes.len()], 4 + (at % 7) as u32)).collect();
    vec![
        Case {
            name: "A: Qwen-Image, 32 pictures of 48 tokens",
            transformer: qwen.clone(),
            samples: vec![([1, 4, 12], 8); 32],
        },
        Case { name: "B: Wan I2V, 16 clips of 180 tokens", transformer: wan, samples: vec![([5, 6, 6], 4); 16] },
        Case { name: "A, 32 pictures of 16 to 144 tokens", transformer: qwen, samples: mixed },
    ]
}

/// The inputs of a step.
struct Step {
    batch: MicroBatch,
    features: Vec<Vec<Tensor>>,
}

impl Case {
    fn model(&self) -> ModelConfig {
        let config = json!({"model_type": "loongforge_diffusion", "text_rows": 8, "transformer": self.transformer,
            "vae": {"_class_name": "PixelLatents", "channels": 1},
            "text_encoder": {"model_type": "umt5", "vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 24, "num_layers": 1,
                "num_heads": 2}});
        ModelConfig::from_hf(&config).unwrap_or_else(|error| panic!("{error}"))
    }

    fn step(&self, model: &dyn FoundationModel) -> Step {
        let has_condition = self.transformer["in_channels"] == json!(3);
        let row = |(at, ([t, h, w], text)): (usize, &([u32; 3], u32))| {
            let grid = Grid { t: *t, h: *h, w: *w };
            let latent = ItemMeta {
                tower: Tower::Vae,
                grid: Grid { t: *t, h: 2 * h, w: 2 * w },
                num_features: grid.num_cells() as u32,
            };
            let text = ItemMeta { tower: Tower::Text, grid: Grid { t: *text, h: 1, w: 1 }, num_features: *text };
            SampleRow {
                id: SampleId(at as u64),
                num_tokens: grid.num_cells(),
                num_targets: 1,
                target: Some(Target { grid, sigma: Sigma::new((at as f32 + 0.5) / self.samples.len() as f32) }),
                items: vec![latent; 1 + usize::from(has_condition)].into_iter().chain([text]).collect(),
                purpose: NoisePurpose::Training,
            }
        };
        let samples: Vec<SampleRow> = self.samples.iter().enumerate().map(row).collect();
        let count = |tower: Tower| -> i64 {
            let items = samples.iter().flat_map(|row| &row.items);
            items.filter(|item| item.tower == tower).map(|item| i64::from(item.num_features)).sum()
        };
        let num_features: Vec<i64> = model.inputs().iter().map(|input| count(input.tower)).collect();
        let ends = samples.iter().scan(0, |end, row| {
            *end += row.num_tokens;
            Some(*end)
        });
        let batch = MicroBatch {
            columns: Columns::to_come(model.columns()),
            cu_seqlens: std::iter::once(0).chain(ends).collect(),
            loss_scale: 1.0 / samples.len() as f64,
            feature_grads: false,
            constant_features: Default::default(),
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
            samples: samples.into(),
            num_features,
        };
        let rows = |width, rows| vec![Tensor::randn([rows, width], (Kind::Float, Device::Cpu))];
        let widths = model.inputs().iter().map(|input| input.width);
        let features = widths.zip(&batch.num_features).map(|(width, count)| rows(width, *count)).collect();
        Step { batch, features }
    }
}

fn main() {
    let quick = std::env::var_os("LOONGFORGE_QUICK").is_some();
    let steps = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(if quick { 1 } else { 30 });
    set_intra_op_threads(1);
    if std::env::args().any(|word| word == "tiled") {
        set_products(Products::Tiled).expect("a processor with the instructions");
    }
    tch::manual_seed(1);
    println!("thousand tokens a second, medians of {steps} steps");
    for case in cases() {
        let config = case.model();
        let params = ParamStore::new(config.foundation.specs(), Kind::Float, Device::Cpu);
        params.init_random(1);
        let single = ProcessGroup::single();
        let mut pool = TrainState::new(Rc::new(params), single, Lanes::PerReplica, Some(ADAMW)).expect("one rank");
        let model = config.foundation.build(pool.params(), Policy::Keep);
        let Step { batch, features } = case.step(&*model);
        let mut recording = Vec::new();
        let mut times: Vec<f64> = (0..WARM_UP + steps)
            .map(|_| {
                let start = Instant::now();
                let made = model.record(&batch);
                recording.push(start.elapsed().as_secs_f64());
                let inputs = with_values(&made.features, &features);
                let mut run = Execution::new(made.tape, pool.params().clone(), inputs);
                run.forward().expect("one rank");
                run.seed(made.loss.expect("all of the model"), Tensor::from(1.0));
                let lane = pool.own_lane();
                run.backward(pool.lane(lane)).expect("a backward");
                pool.reduce().expect("one rank");
                pool.commit(1.0, 1e-3).expect("one rank");
                start.elapsed().as_secs_f64()
            })
            .skip(WARM_UP)
            .collect();
        let (tokens, recording, median) = (batch.num_tokens() as f64, median(&mut recording), median(&mut times));
        let [rate, all, first] = [tokens / median / 1e3, 1e3 * median, 1e3 * recording];
        println!("{:44} {rate:6.1}  ({all:.1} ms a step, {first:.1} of them to record it)", case.name);
    }
}
