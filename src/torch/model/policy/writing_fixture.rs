//! Fixtures of Pi0-FAST, which `tests/oracle/make_pi0_fast.py` writes: their samples here and in lerobot.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::Grid;
use serde::Deserialize;
use tch::{Kind, Tensor};

use super::fixture::{pictures, row};
use super::robot::Observed;
use crate::model::batch::MicroBatch;
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::decoding::Decoding;
use crate::model::encoder::EncoderFamily;
use crate::model::fixture::{self, Comparisons, FixtureError, FixtureFolder, Found, Parts, ReferenceFixture};
use crate::params::ParamStore;
use crate::tape::Policy;

/// The tolerance of losses, and of gradients: those of the policies of two streams.
const TOLERANCE: f64 = 5e-6;
const OF_GRADIENTS: f64 = 2e-5;

/// A policy that writes actions, and its samples.
pub(in crate::model) struct Fixture {
    model: ModelConfig,
    image_token: i64,
    params: Rc<ParamStore>,
    tower: Arc<dyn EncoderFamily>,
    of_tower: Rc<ParamStore>,
    summary: Summary,
    inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
}

#[derive(Deserialize)]
struct Summary {
    samples: Vec<Sample>,
    /// The token that ends a chunk.
    bar: i64,
}

#[derive(Deserialize)]
struct Sample {
    prompt: i64,
    answer: i64,
    cameras: Vec<i64>,
}

impl Fixture {
    /// Reads a fixture's folder; parameters have this `kind`.
    ///
    /// # Errors
    /// A file is missing or damaged, or does not fit the config.
    pub fn read(path: &Path, kind: Kind) -> Result<Fixture, FixtureError> {
        let folder =
            FixtureFolder::read(path, "make_pi0_fast.py", &["images", "tokens", "answers"], &["loss", "written"])?;
        let model = folder.model()?;
        let own = |name: &str| name.to_owned();
        folder.expect_all(&model.specs(), model.carried.prefixes, own)?;
        let image_token = model.foundation.as_policy().map(|policy| policy.chunk().image_token);
        let tower = folder.vision_tower(&model)?;
        let summary: Summary = folder.summary()?;
        folder.expect_samples(summary.samples.len(), 0, ["tokens", "answers"])?;
        folder.expect_samples(summary.samples.len(), 1, ["images"])?;
        Ok(Fixture {
            image_token: image_token.ok_or_else(|| folder.lacks("config.json", "a policy that writes actions"))?,
            params: folder.store(model.foundation.specs(), kind, own)?,
            of_tower: folder.store(tower.specs(), Kind::Float, own)?,
            tower,
            summary,
            model,
            inputs: folder.inputs,
            expected: folder.expected,
        })
    }

    /// Returns the numbers of all samples.
    pub fn all(&self) -> Vec<usize> {
        (0..self.summary.samples.len()).collect()
    }

    /// Returns the patches of all samples' pictures.
    fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        let cameras = |sample: usize| self.summary.samples[sample].cameras.as_slice();
        pictures(&self.inputs["images"], samples, cameras, &*self.tower)
    }

    /// Returns the ids of a sample, and targets of what follows `bos`; with `bos` alone of one that is continued.
    fn tokens(&self, sample: usize, is_asked: bool) -> (Vec<i64>, Vec<i64>) {
        let Sample { prompt, answer, .. } = &self.summary.samples[sample];
        let (_, grids) = self.pixels(&[sample]);
        let places = grids.iter().map(|grid| self.tower.num_features(*grid)).sum();
        let mut ids = vec![self.image_token; places];
        ids.extend(row(&self.inputs["tokens"], sample, *prompt));
        let first = ids.len();
        ids.extend(row(&self.inputs["answers"], sample, if is_asked { 1 } else { *answer }));
        let mut targets = vec![IGNORE_INDEX; ids.len()];
        let last = ids.len() - 1;
        targets[first..last].copy_from_slice(&ids[first + 1..]);
        (ids, targets)
    }

    fn batch(&self, samples: &[usize], is_asked: bool) -> MicroBatch {
        let (mut ids, mut targets, mut positions, mut ends) = (Vec::new(), Vec::new(), Vec::new(), vec![0]);
        for sample in samples {
            let (own, of_own) = self.tokens(*sample, is_asked);
            positions.extend((0..own.len()).map(|at| at as f32));
            ids.extend(own);
            targets.extend(of_own);
            ends.push(ids.len());
        }
        let counted = targets.iter().filter(|target| **target >= 0).count();
        let positions = Tensor::from_slice(&positions).unsqueeze(0).repeat([3, 1]);
        let columns = vec![Tensor::from_slice(&ids), positions, Tensor::from_slice(&targets)];
        let columns = Columns::new(&self.model.foundation.columns().into(), columns);
        let row = |sample: &usize| {
            let grids = self.pixels(&[*sample]).1;
            fixture::row(*sample, self.tokens(*sample, is_asked).0.len(), 1, grids, &*self.tower)
        };
        fixture::batch((columns, ends), samples.iter().map(row).collect(), 1.0 / counted.max(1) as f64)
    }

    fn parts(&self) -> Parts<'_> {
        let Fixture { params, tower, of_tower, .. } = self;
        Parts { params, tower: &**tower, of_tower, trains_tower: true }
    }

    fn run(&self, samples: &[usize], policy: Policy) -> Found {
        let tape = self.model.foundation.build(&self.params, policy).record(&self.batch(samples, false));
        self.parts().run(tape, self.pixels(samples), policy)
    }

    /// Returns the tokens that follow `bos` of each sample, at most as many as the reference has, up to `stop`.
    pub fn written(&self, samples: &[usize], stop: i64) -> Option<Vec<Vec<i64>>> {
        let max_new_tokens = self.expected["written"].size()[1] as usize;
        let decoding = Decoding { max_new_tokens, stop_token_ids: vec![stop], ..Decoding::default() };
        let acting = self.model.foundation.as_policy()?.acting(&self.params);
        let MicroBatch { columns, cu_seqlens, .. } = self.batch(samples, true);
        let features = self.parts().features(self.pixels(samples));
        acting.write(Observed { columns: &columns, cu_seqlens: &cu_seqlens, features: &features }, &decoding)
    }

    /// Returns the tokens that the reference has written.
    pub fn expected_tokens(&self, sample: usize) -> Vec<i64> {
        let expected = &self.expected["written"];
        row(expected, sample, expected.size()[1])
    }
}

impl ReferenceFixture for Fixture {
    fn compare(&self, with: &mut Comparisons) {
        let all = self.all();
        self.parts().compare(with, &self.expected, [TOLERANCE, OF_GRADIENTS], |policy| self.run(&all, policy));
        let Some(written) = self.written(&all, self.summary.bar) else {
            with.problems.push("the policy writes no tokens".into());
            return;
        };
        for (sample, written) in all.iter().zip(&written) {
            with.equal("written tokens", format!("sample {sample}"), written, &self.expected_tokens(*sample));
        }
    }

    fn losses(&self) -> [f64; 2] {
        let all = self.all();
        let tape = self.model.foundation.build(&self.params, Policy::Keep).record(&self.batch(&all, false));
        [self.parts().loss(tape, self.pixels(&all)), self.expected["loss"].double_value(&[])]
    }
}
