//! The projector from the states of the last stage to features: learned positions of rows and columns, the position of the frame, the
//! mean of all places before them, and a map with a norm.
//!
//! Shapes: B pictures, C channels, H rows, W columns, N = H·W places, D width of features.

use tch::Tensor;

use super::config::{DavitConfig, EPS};
use crate::nn::{LayerNorm, Linear};
use crate::params::{Init, ParamSpec, Scope};

const ROWS: &str = "image_position_embed.row_embeddings.weight";
const COLUMNS: &str = "image_position_embed.column_embeddings.weight";
const FRAMES: &str = "visual_temporal_embed.pos_idx_to_embed";
const MAP: &str = "image_projection";
const NORM: &str = "image_proj_norm";

/// The projector on its parameters.
pub(super) struct Projector {
    rows: Tensor,
    columns: Tensor,
    frames: Tensor,
    map: Linear,
    norm: LayerNorm,
}

/// Returns the parameters of the projector. Those of frames are sinusoids, which checkpoints hold.
pub(super) fn specs(config: &DavitConfig) -> Vec<ParamSpec> {
    let (prefix, width) = (config.projector_prefix.as_str(), config.width());
    let half = width / 2;
    let table = |name: &str, rows, width, init| ParamSpec::new(format!("{prefix}{name}"), &[rows, width], init);
    let mut specs = vec![
        table(ROWS, config.max_positions, half, Init::Normal(config.std)),
        table(COLUMNS, config.max_positions, width - half, Init::Normal(config.std)),
        table(FRAMES, config.max_frames, width, Init::Alternating(width)).frozen(),
    ];
    specs.extend(Linear::specs(prefix, MAP, width, config.outputs, false, config.std));
    specs.extend(LayerNorm::specs(prefix, NORM, config.outputs));
    specs
}

impl Projector {
    /// Takes the tables of positions, the map to the width of features, and the norm behind it.
    pub fn new(scope: &Scope<'_>) -> Projector {
        Projector {
            rows: scope.take(ROWS),
            columns: scope.take(COLUMNS),
            frames: scope.take(FRAMES),
            map: Linear::new(scope, MAP),
            norm: LayerNorm::new(scope, NORM, EPS),
        }
    }

    /// Maps `[B, C, H, W]` to `[B·(1 + N), D]`.
    pub fn forward(&self, x_BCHW: &Tensor) -> Tensor {
        let size = x_BCHW.size();
        let [rows, columns] = [size[2], size[3]];
        let across = self.columns.narrow(0, 0, columns).unsqueeze(0).expand([rows, -1, -1], false);
        let down = self.rows.narrow(0, 0, rows).unsqueeze(1).expand([-1, columns, -1], false);
        let places = Tensor::cat(&[across, down], 2).flatten(0, 1) + self.frames.narrow(0, 0, 1);
        let x_BNC = x_BCHW.flatten(2, 3).transpose(1, 2) + places;
        let mean = x_BNC.mean_dim(1i64, true, None);
        let all = Tensor::cat(&[mean, x_BNC], 1).flatten(0, 1);
        self.norm.forward(&self.map.forward(&all))
    }
}
