//! The sizes of a model that planning needs.

use crate::model::folder::ModelFolder;
use loongforge_core::config::ModelKind;
use loongforge_core::data::ModelCard;
use loongforge_core::schedule::{AutoShift, ByTower, FlowShape, ModelShape};
use serde_json::Value;

impl ModelFolder {
    /// Returns the sizes of the model that planning needs; features and pixels are float32 or narrower on the wire.
    pub fn shape(&self) -> ModelShape {
        let foundation = self.config.foundation.shape();
        let towers = &self.config.towers;
        let bytes = |width: i64| width as u64 * size_of::<f32>() as u64;
        let (mut bytes_per_patch, mut bytes_per_feature) = (ByTower::default(), ByTower::default());
        towers.iter().for_each(|it| bytes_per_patch.raise(it.tower, bytes(it.family.patch_dim())));
        for input in self.config.inputs() {
            bytes_per_feature.raise(input.tower, bytes(input.num_tensors as i64 * input.width));
        }
        ModelShape {
            hidden_size: foundation.width as u64,
            even_length: foundation.even_length as u64,
            towers: towers.iter().map(|it| it.tower).collect(),
            bytes_per_patch,
            bytes_per_feature,
            flow: flow_shape(&self.json),
        }
    }
}

/// Returns the noise schedule of a diffusion model that planning needs: the boundary of its transformers, and the line of its scheduler.
fn flow_shape(json: &Value) -> Option<FlowShape> {
    let ModelKind::Diffusion { two } = ModelCard::of(json).kind() else { return None };
    let own = |key: &str| json["scheduler"][key].as_f64();
    let line = || {
        let from = (own("base_image_seq_len")?, own("base_shift")?);
        Some(AutoShift { from, to: (own("max_image_seq_len")?, own("max_shift")?) })
    };
    let boundary = json["boundary_ratio"].as_f64().filter(|_| two);
    Some(FlowShape { boundary, auto_shift: line().unwrap_or(AutoShift::QWEN) })
}
