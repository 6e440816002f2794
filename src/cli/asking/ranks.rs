//! The layout of a model over devices where no option says it: as its run split each layer, or divided the layers into stages, where
//! there are GPUs for them.

use loongforge_core::checkpoint::Manifest;
use std::path::Path;

/// The layout of a model over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each layer is split among so many; 1: the model is whole.
    Split(usize),
    /// The layers are divided into so many stages, one behind the other.
    Staged(usize),
}

impl Layout {
    /// Returns the number of devices that the model is divided among; 1: it is whole.
    pub fn devices(self) -> usize {
        match self {
            Self::Split(num) | Self::Staged(num) => num,
        }
    }
}

/// The layout of the foundation in the run that trained the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainedOn {
    tensor_parallel: usize,
    pipeline_parallel: usize,
}

impl TrainedOn {
    /// Reads the layout from the checkpoint's manifest. A folder without one counts as trained on one device.
    pub fn of(checkpoint: &Path) -> Self {
        let manifest = Manifest::read(checkpoint).ok();
        let value = |key: &str| {
            let foundation = manifest.as_ref().map(|manifest| &manifest.config["pools"]["foundation"]);
            foundation.and_then(|foundation| foundation[key].as_u64()).map_or(1, |value| value.max(1) as usize)
        };
        Self { tensor_parallel: value("tensor_parallel"), pipeline_parallel: value("pipeline_parallel") }
    }

    /// Returns the layout on a machine with so many GPUs, and a note on it for the user. On the CPU (`gpus` is 0) all devices share one
    /// memory, so one device holds whatever several do, and on one GPU there is no choice.
    pub fn layout(self, gpus: usize) -> (Layout, Option<String>) {
        let Self { tensor_parallel, pipeline_parallel } = self;
        match (tensor_parallel, pipeline_parallel) {
            _ if gpus < 2 || tensor_parallel * pipeline_parallel == 1 => (Layout::Split(1), None),
            (2.., _) if tensor_parallel <= gpus => {
                let what = format!(
                    "the model was trained with tensor_parallel={tensor_parallel} and is split among as many GPUs; \
                     --tensor-parallel N chooses another number"
                );
                (Layout::Split(tensor_parallel), Some(what))
            }
            (1, _) if pipeline_parallel <= gpus => {
                let what = format!(
                    "the model was trained with pipeline_parallel={pipeline_parallel} and has its stages on as many GPUs; \
                     --pipeline-parallel N chooses another number"
                );
                (Layout::Staged(pipeline_parallel), Some(what))
            }
            _ => {
                let what = format!(
                    "the model was trained with tensor_parallel={tensor_parallel}, pipeline_parallel={pipeline_parallel} and is \
                     loaded onto one GPU; --tensor-parallel N splits it among N of the {gpus} GPUs here, and --pipeline-parallel \
                     N places its layers on N of them in sequence"
                );
                (Layout::Split(1), Some(what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::MANIFEST;
    use serde_json::json;

    #[test]
    fn the_runs_layout_is_taken_where_there_are_gpus_for_it_and_else_said() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(TrainedOn::of(dir.path()), TrainedOn { tensor_parallel: 1, pipeline_parallel: 1 });
        let written = |foundation: serde_json::Value| {
            let mut manifest = Manifest::of_files(2, Default::default());
            manifest.config = json!({"pools": {"foundation": foundation}});
            std::fs::write(dir.path().join(MANIFEST), manifest.to_text()).unwrap();
            TrainedOn::of(dir.path())
        };
        let one = Layout::Split(1);
        assert_eq!(written(json!({"replicas": 4})).layout(8), (one, None));
        let split = written(json!({"tensor_parallel": 2, "pipeline_parallel": 3}));
        assert_eq!(split, TrainedOn { tensor_parallel: 2, pipeline_parallel: 3 });
        assert_eq!([split.layout(0), split.layout(1)], [(one, None), (one, None)]);
        let (layout, said) = split.layout(2);
        assert_eq!(layout, Layout::Split(2));
        assert!(said.unwrap().contains("tensor_parallel=2 and is split among as many GPUs"));
        let stages = written(json!({"pipeline_parallel": 3}));
        let (layout, said) = stages.layout(8);
        assert_eq!((layout, layout.devices()), (Layout::Staged(3), 3));
        assert!(said.unwrap().contains("pipeline_parallel=3 and has its stages on as many GPUs"));
        let wide = written(json!({"tensor_parallel": 4, "pipeline_parallel": 3}));
        for trained in [wide, stages] {
            let (layout, said) = trained.layout(2);
            let said = said.unwrap();
            assert!(layout == one && said.contains("pipeline_parallel=3 and is loaded onto one GPU"), "{said}");
            assert!(said.contains("--tensor-parallel N splits it among N of the 2"), "{said}");
        }
    }
}
