//! A run composed in code: a custom encoder and the quick start's language model, each in a separate pool, with one edge that
//! carries features from the first to the second.
//!
//!     cargo run --example compose_run

use loongforge::compose::{
    Composition, EncoderFamily, EncoderModel, EncoderTape, Grid, Init, ParamSpec, ParamStore, Policy, Tape,
};
use loongforge::core::data::digits::{self, Digits};
use loongforge::core::message::Tower;
use std::rc::Rc;

/// One linear map from a block of 2 × 2 patches to one feature, and to one more for each DeepStack level.
#[derive(Debug)]
struct Blocks {
    /// Values of a patch.
    patch_dim: i64,
    width: i64,
    num_outputs: i64,
}

impl EncoderFamily for Blocks {
    fn specs(&self) -> Vec<ParamSpec> {
        vec![ParamSpec::new("blocks.weight", &[self.num_outputs * self.width, 4 * self.patch_dim], Init::Normal(0.05))]
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let (id, block_dim, num_outputs) = (params.id("blocks.weight"), 4 * self.patch_dim, self.num_outputs);
        let weight = params.get("blocks.weight");
        Box::new(move |_: &[Grid]| {
            let (mut tape, weight) = (Tape::new(), weight.shallow_clone());
            let pixels = tape.input(false);
            let outputs = tape.run("blocks", &[id], policy, &[pixels], num_outputs as usize, move |read| {
                read[0].view([-1, block_dim]).linear::<&tch::Tensor>(&weight, None).chunk(num_outputs, 1)
            });
            EncoderTape { tape: Rc::new(tape), pixels, outputs }
        })
    }

    fn num_outputs(&self) -> usize {
        self.num_outputs as usize
    }

    fn patch_dim(&self) -> i64 {
        self.patch_dim
    }

    fn num_features(&self, grid: Grid) -> usize {
        grid.num_cells() / 4
    }
}

fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let root = dir.path().display();
    digits::compose(&dir.path().join("data"), &Digits { seed: 0, num_train: 256, num_held_out: 8 })?;
    digits::write_model(&dir.path().join("model"), &digits::MODEL)?;
    let run = Composition::from_yaml(&format!(
        "run: {{ name: composed, dir: {root}/run }}
model: {{ load: {root}/model, weights: random }}
pools: {{ encoder: {{ replicas: 2, threads: 1 }}, foundation: {{ threads: 1 }} }}
edges: {{ features: {{ credit: 1MiB }} }}
data: {{ train: [{{ path: {root}/data/train.jsonl }}] }}
train: {{ steps: 20, global_batch_size: 16, lr: 3e-3 }}"
    ))?;
    let model = &run.folder().config;
    let patch_dim = model.towers.get(Tower::Vision).expect("a Qwen3-VL has a vision tower").patch_dim();
    let num_outputs = model.inputs()[0].num_tensors as i64;
    let blocks = Blocks { patch_dim, width: model.foundation.shape().width, num_outputs };
    run.encoder(blocks).run_with(|step| println!("step {:2}  loss {:.3}", step.step.0, step.loss))?;
    Ok(())
}
