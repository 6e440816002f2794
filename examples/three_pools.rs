//! `loongforge` with two custom encoders, each in a separate pool, and a built-in language model; `run --processes`, `check`,
//! `plan`, `launch` and `evaluate` know them.
//!
//!     cargo run --example three_pools -- check examples/three_pools.yaml

use loongforge::cli::main_with;
use loongforge::compose::{AudioFamily, EncoderPart, EncoderTape, Families, Tape, VisionCut};
use loongforge::compose::{EncoderFamily, EncoderModel, Grid, Init, ParamSpec, ParamStore, Policy, Tensor};
use std::rc::Rc;

/// One linear map from `rows` neighboring rows of an item, patches or frames, to one feature.
#[derive(Debug)]
struct Neighbors {
    name: String,
    rows: i64,
    row_size: i64,
    width: i64,
}

impl Neighbors {
    fn read(part: EncoderPart<'_>, rows: i64) -> Result<Self, String> {
        let row_size = part.config["row_size"].as_i64().ok_or("row_size must be a number")?;
        Ok(Self { name: format!("{}map.weight", part.prefix), rows, row_size, width: part.width })
    }
}

impl EncoderFamily for Neighbors {
    fn specs(&self) -> Vec<ParamSpec> {
        vec![ParamSpec::new(&self.name, &[self.width, self.rows * self.row_size], Init::Normal(0.05))]
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let (weight, id, columns) = (params.get(&self.name), params.id(&self.name), self.rows * self.row_size);
        Box::new(move |_: &[Grid]| {
            let (mut tape, weight) = (Tape::new(), weight.shallow_clone());
            let pixels = tape.input(false);
            let map = move |read: &[Tensor]| vec![read[0].view([-1, columns]).linear(&weight, None::<&Tensor>)];
            let outputs = tape.run("map", &[id], policy, &[pixels], 1, map);
            EncoderTape { tape: Rc::new(tape), pixels, outputs }
        })
    }

    fn patch_dim(&self) -> i64 {
        self.row_size
    }

    fn num_features(&self, grid: Grid) -> usize {
        grid.num_cells() / self.rows as usize
    }
}

fn main() -> std::process::ExitCode {
    let families = Families::new().image_encoder("blocks", VisionCut::Qwen3, |part| Neighbors::read(part, 4));
    main_with(families.audio_encoder("frames", AudioFamily::Whisper, |part| Neighbors::read(part, 2)))
}
