//! Among how many ranks a model answers where nobody says it: as many as its run split each layer among, where there are GPUs for
//! them.

use loongforge_core::checkpoint::Manifest;
use std::path::Path;

/// How the run that trained a model had laid its foundation out.
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

    /// The number of ranks for a machine with so many GPUs, and what is to be said of it. On the CPU (`gpus` is 0) ranks share one
    /// memory, so one rank holds whatever several do, and on one GPU there is no choice.
    pub fn ranks(self, gpus: usize) -> (usize, Option<String>) {
        let Self { tensor_parallel, pipeline_parallel } = self;
        let trained = format!("the model was trained with tensor_parallel={tensor_parallel}");
        match tensor_parallel {
            _ if gpus < 2 || tensor_parallel * pipeline_parallel == 1 => (1, None),
            2.. if tensor_parallel <= gpus => {
                let what =
                    format!("{trained} and is split among as many GPUs; --tensor-parallel N takes another number");
                (tensor_parallel, Some(what))
            }
            _ => {
                let what = format!(
                    "{trained}, pipeline_parallel={pipeline_parallel} and is loaded onto one GPU; --tensor-parallel N splits it \
                     among N of the {gpus} that are here"
                );
                (1, Some(what))
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
        assert_eq!(written(json!({"replicas": 4})).ranks(8), (1, None));
        let split = written(json!({"tensor_parallel": 2, "pipeline_parallel": 3}));
        assert_eq!(split, TrainedOn { tensor_parallel: 2, pipeline_parallel: 3 });
        assert_eq!([split.ranks(0), split.ranks(1)], [(1, None), (1, None)]);
        let (ranks, said) = split.ranks(2);
        assert!(ranks == 2 && said.unwrap().contains("tensor_parallel=2 and is split among as many GPUs"));
        let stages = written(json!({"pipeline_parallel": 3}));
        let wide = written(json!({"tensor_parallel": 4, "pipeline_parallel": 3}));
        for (trained, gpus) in [(wide, 2), (stages, 8)] {
            let (ranks, said) = trained.ranks(gpus);
            let said = said.unwrap();
            assert!(ranks == 1 && said.contains("pipeline_parallel=3 and is loaded onto one GPU"), "{said}");
            assert!(said.contains(&format!("--tensor-parallel N splits it among N of the {gpus}")), "{said}");
        }
    }
}
