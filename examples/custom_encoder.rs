//! A custom encoder in one file, run step by step: parameters, a tape of segments, forward, a gradient from outside,
//! backward, and steps of AdamW. No actors and no run; `compose_run` puts an encoder into one.
//!
//!     cargo run --example custom_encoder

use loongforge::compose::{EncoderTape, Init, ParamSpec, ParamStore, Policy, Tape, Tensor};
use loongforge::torch::tape::Execution;
use loongforge::torch::train::{AdamW, AdamWConfig};
use std::rc::Rc;
use tch::{Device, Kind};

const PATCH_DIM: i64 = 48;
const WIDTH: i64 = 32;

fn specs() -> Vec<ParamSpec> {
    let spec = |name, shape| ParamSpec::new(name, shape, Init::Normal(0.1));
    vec![spec("embed", &[WIDTH, PATCH_DIM]), spec("up", &[2 * WIDTH, WIDTH]), spec("down", &[WIDTH, 2 * WIDTH])]
}

/// Maps patches `[P, PATCH_DIM]` to features `[P / 4, WIDTH]`: `x = embed(patches)`, `x + mlp(x)`, the mean of each block.
fn record(params: &ParamStore) -> EncoderTape {
    let [embed, up, down] = ["embed", "up", "down"].map(|name| params.get(name));
    let [embed_id, up_id, down_id] = ["embed", "up", "down"].map(|name| params.id(name));
    let linear = |x: &Tensor, weight: &Tensor| x.linear(weight, None::<&Tensor>);
    let mut tape = Tape::new();
    let pixels = tape.input(false);
    let x = tape.run("embed", &[embed_id], Policy::Keep, &[pixels], 1, move |read| vec![linear(&read[0], &embed)])[0];
    // This segment keeps no more than its input, and computes its inside again for the backward pass.
    let branch = tape.run("mlp", &[up_id, down_id], Policy::Recompute, &[x], 1, move |read| {
        vec![linear(&linear(&read[0], &up).gelu("none"), &down)]
    })[0];
    let sum = tape.add(x, branch);
    let merge = |read: &[Tensor]| vec![read[0].view([-1, 4, WIDTH]).mean_dim(1, false, None::<Kind>)];
    let outputs = tape.run("merge", &[], Policy::Keep, &[sum], 1, merge);
    EncoderTape { tape: Rc::new(tape), pixels, outputs }
}

fn main() -> anyhow::Result<()> {
    let params = Rc::new(ParamStore::new(specs(), Kind::Float, Device::Cpu));
    params.init_random(1);
    let mut optimizer = AdamW::new(&params, AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0 })?;
    tch::manual_seed(1);
    let patches = Tensor::randn([64, PATCH_DIM], (Kind::Float, Device::Cpu));
    for step in 0..20 {
        let recorded = record(&params);
        let mut run = Execution::new(recorded.tape, params.clone(), vec![(recorded.pixels, patches.shallow_clone())]);
        run.forward()?;
        // The features are to become ones. In a run, the gradient comes back over the edge from the foundation.
        let error = run.value(recorded.outputs[0]) - 1.0;
        println!("step {step:2}  error {:.4}", error.square().mean(Kind::Float).double_value(&[]));
        run.seed(recorded.outputs[0], error * 2.0 / (16 * WIDTH) as f64);
        let mut grads = params.new_grad();
        run.backward(Some(&mut grads))?;
        optimizer.step(grads.flat(), 1.0, 1e-2, false)?;
    }
    Ok(())
}
