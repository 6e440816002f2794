//! Fixtures of Florence-2, which `tests/oracle/make_florence.py` writes: their samples here and in transformers.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::Grid;
use serde::Deserialize;
use tch::{Kind, Tensor};

use super::config::EncoderDecoderConfig;
use super::layout::AnsweredSamples;
use super::network::EncoderDecoder;
use crate::model::batch::MicroBatch;
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::decoding::Decoding;
use crate::model::encoder::EncoderFamily;
use crate::model::fixture::{
    ALONE, Comparisons, FixtureError, FixtureFolder, Found, Parts, ReferenceFixture, grads_of, patches,
};
use crate::params::ParamStore;
use crate::tape::{Execution, Policy, Tape};

/// The tolerance of losses and scores, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// The tolerance of gradients, which are sums over all rows in another order, through DaViT's convolutions (`xvla/fixture.rs`).
const OF_GRADIENTS: f64 = 1e-4;
/// The tolerance of a target's losses, which are differences of scores.
const OF_LOSSES: f64 = 1e-5;
/// The token that ends an answer.
const END: i64 = 2;

/// Florence-2 and its samples.
pub(in crate::model) struct Fixture {
    pub model: ModelConfig,
    pub params: Rc<ParamStore>,
    bart: EncoderDecoderConfig,
    image_token: i64,
    tower: Arc<dyn EncoderFamily>,
    of_tower: Rc<ParamStore>,
    num_samples: usize,
    new_tokens: usize,
    inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
}

#[derive(Deserialize)]
struct Summary {
    samples: Vec<serde::de::IgnoredAny>,
    new_tokens: usize,
}

impl Fixture {
    /// Reads a fixture's folder; parameters have this `kind`.
    ///
    /// # Errors
    /// A file is missing or damaged, or does not fit the config.
    pub fn read(path: &Path, kind: Kind) -> Result<Fixture, FixtureError> {
        let folder = FixtureFolder::read(path, "make_florence.py", &[], &["loss"])?;
        let model = folder.model()?;
        let own = |name: &str| name.to_owned();
        folder.expect_all(&model.specs(), &[], own)?;
        let bart = model.foundation.as_encoder_decoder();
        let bart = bart.ok_or_else(|| folder.lacks("config.json", "an encoder and a decoder"))?.clone();
        let tower = folder.vision_tower(&model)?;
        let Summary { samples, new_tokens } = folder.summary()?;
        for at in 0..samples.len() {
            let of = |name: &str| format!("{name}.{at}");
            let inputs = ["prompt", "labels"].map(|name| ("inputs.safetensors", of(name), &folder.inputs));
            let expected = ["scores", "answer"].map(|name| ("expected.safetensors", of(name), &folder.expected));
            let missing = inputs.into_iter().chain(expected).find(|(_, name, tensors)| !tensors.contains_key(name));
            if let Some((file, name, _)) = missing {
                return Err(folder.lacks(file, name));
            }
        }
        Ok(Fixture {
            image_token: bart.image_token.ok_or_else(|| folder.lacks("config.json", "image_token_id"))?,
            params: folder.store(model.foundation.specs(), kind, own)?,
            of_tower: folder.store(tower.specs(), Kind::Float, own)?,
            num_samples: samples.len(),
            new_tokens,
            bart,
            tower,
            model,
            inputs: folder.inputs,
            expected: folder.expected,
        })
    }

    /// Returns the numbers of all samples.
    pub fn all(&self) -> Vec<usize> {
        (0..self.num_samples).collect()
    }

    fn tokens(&self, name: &str, sample: usize) -> Vec<i64> {
        Vec::try_from(&self.inputs[&format!("{name}.{sample}")]).expect("a row of whole numbers")
    }

    /// Returns the patches of the samples' pictures, and the size of each.
    fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        let images = samples.iter().filter_map(|sample| self.inputs.get(&format!("image.{sample}")));
        let (patches, grids): (Vec<Tensor>, Vec<Grid>) = images.map(|image| patches(image, &*self.tower)).unzip();
        (if grids.is_empty() { Tensor::new() } else { Tensor::cat(&patches, 0) }, grids)
    }

    /// Returns samples with their answers, or without.
    fn batch(&self, samples: &[usize], answers: bool) -> MicroBatch {
        let (mut ids, mut positions, mut targets, mut ends) = (Vec::new(), Vec::new(), Vec::new(), vec![0]);
        for sample in samples {
            let (prompt, labels) = (self.tokens("prompt", *sample), self.tokens("labels", *sample));
            positions.extend((0..prompt.len()).map(|at| at as f32));
            targets.extend(vec![IGNORE_INDEX; prompt.len()]);
            ids.extend(prompt);
            if answers {
                positions.extend((0..labels.len()).map(|at| at as f32));
                ids.push(self.bart.answers.start);
                let before = labels[..labels.len() - 1].iter();
                ids.extend(before.map(|id| if *id == IGNORE_INDEX { self.bart.bart.pad_token } else { *id }));
                targets.extend(labels);
            }
            ends.push(ids.len());
        }
        let of = |sample: usize| self.tokens("labels", sample).iter().filter(|id| **id >= 0).count();
        let num_targets: usize = self.all().into_iter().map(of).sum();
        let positions = Tensor::from_slice(&positions).unsqueeze(0).repeat([3, 1]);
        MicroBatch {
            num_features: vec![ids.iter().filter(|id| **id == self.image_token).count() as i64],
            columns: Columns::of_tokens(Tensor::from_slice(&ids), positions, Tensor::from_slice(&targets)),
            cu_seqlens: ends,
            samples: Rc::new([]),
            loss_scale: 1.0 / num_targets as f64,
            feature_grads: true,
            constant_features: Default::default(),
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    fn parts(&self) -> Parts<'_> {
        let Fixture { params, tower, of_tower, .. } = self;
        Parts { params, tower: &**tower, of_tower, trains_tower: true }
    }

    fn run(&self, samples: &[usize], policy: Policy) -> Found {
        let tape = self.model.foundation.build(&self.params, policy).record(&self.batch(samples, true));
        self.parts().run(tape, self.pixels(samples), policy)
    }

    /// The scores of all targets, `[L, V]`, and what an evaluation scores of them.
    fn compare_scores(&self, with: &mut Comparisons) {
        let (network, all) = (EncoderDecoder::new(&self.bart, &self.params, Policy::Keep), self.all());
        let features = self.parts().features(self.pixels(&all));
        // Every target counts, so that all scores are there.
        let batch = self.batch(&all, true);
        let (ids, mut targets) = (batch.input_ids(), batch.targets());
        for (ends, sample) in batch.cu_seqlens.windows(2).zip(&all) {
            let prompt = self.tokens("prompt", *sample).len();
            targets[ends[0] + prompt..ends[1]].iter_mut().for_each(|target| *target = (*target).max(0));
        }
        let positions = Vec::<f32>::try_from(batch.columns.get("position_ids").get(0)).expect("a row of positions");
        let samples = AnsweredSamples {
            ids: &ids,
            positions: &positions,
            targets: &targets,
            cu_seqlens: &batch.cu_seqlens,
            feature_rows: self.model.inputs()[0].rows(&ids),
        };
        let mut tape = Tape::new();
        let recorded = network.record_states(&mut tape, &samples, false);
        tape.keep(recorded.hidden);
        let inputs = recorded.features.iter().flatten().copied().zip(features.iter().map(Tensor::shallow_clone));
        let mut run = Execution::forward_only(Rc::new(tape), self.params.clone(), inputs.collect());
        run.forward().expect(ALONE);
        let scores = run.value(recorded.hidden).matmul(&network.tokens.part.table().tr());
        let of_samples = all.iter().map(|sample| &self.expected[&format!("scores.{sample}")]);
        let expected = Tensor::cat(&of_samples.collect::<Vec<_>>(), 0);
        with.add("scores", "all targets", &scores, &expected, TOLERANCE);
        let (best, counted): (Tensor, Vec<i64>) =
            (expected.argmax(-1, false), targets.iter().copied().filter(|target| *target >= 0).collect());
        let Ok(scored) = network.score(&self.params, &samples, &features) else {
            with.problems.push("targets are not scored".into());
            return;
        };
        let index = Tensor::from_slice(&counted);
        let wanted = -expected.log_softmax(-1, Kind::Float).gather(1, &index.unsqueeze(1), false).squeeze_dim(1);
        with.add("held-out losses", "all targets", &Tensor::from_slice(&scored.losses), &wanted, OF_LOSSES);
        let correct: Vec<i64> = scored.correct.iter().map(|is| i64::from(*is)).collect();
        let is_best = Vec::<i64>::try_from(best.eq_tensor(&index).to_kind(Kind::Int64)).expect("a row of numbers");
        with.equal("held-out correct", "all targets", &correct, &is_best);
    }

    /// Greedy answers, whole and up to their end. transformers returns the token that ends an answer, and stops there.
    fn compare_answers(&self, with: &mut Comparisons) {
        let all = self.all();
        let model = self.model.foundation.build(&self.params, Policy::Keep);
        let (batch, features) = (self.batch(&all, false), vec![self.parts().features(self.pixels(&all))]);
        let answers = |stop_token_ids: Vec<i64>| {
            let decoding = Decoding { max_new_tokens: self.new_tokens, stop_token_ids, ..Decoding::default() };
            model.generate(&batch, &features, &decoding)
        };
        let (Some(whole), Some(cut)) = (answers(Vec::new()), answers(vec![END])) else {
            with.problems.push("the model writes no answers".into());
            return;
        };
        for (sample, (found, cut)) in whole.iter().zip(&cut).enumerate() {
            let expected = &self.expected[&format!("answer.{sample}")];
            let expected = Vec::<i64>::try_from(expected).expect("a row of whole numbers");
            let len = expected.len().min(found.len());
            with.equal("answers", format!("sample {sample}"), &found[..len], &expected);
            let before = expected.iter().position(|token| *token == END).unwrap_or(expected.len());
            with.equal("ended answers", format!("sample {sample}"), cut, &expected[..before]);
        }
    }
}

impl ReferenceFixture for Fixture {
    fn compare(&self, with: &mut Comparisons) {
        let (all, expected) = (self.all(), grads_of(&self.expected));
        let loss = self.expected["loss"].double_value(&[]);
        let reversed = all.iter().rev().copied().collect::<Vec<_>>();
        for (policy, name) in [(Policy::Keep, "kept"), (Policy::Recompute, "recomputed")] {
            for (order, name) in [(&all, name.to_owned()), (&reversed, format!("{name}, in another order"))] {
                let found = self.run(order, policy);
                with.number("loss", name, found.loss, loss, TOLERANCE);
                with.gradients("gradients", self.parts().trained(&found), &expected, OF_GRADIENTS);
            }
        }
        let sum: f64 = all.iter().map(|sample| self.run(&[*sample], Policy::Keep).loss).sum();
        with.number("losses alone", "their sum", sum, loss, TOLERANCE);
        self.compare_scores(with);
        self.compare_answers(with);
    }

    fn losses(&self) -> [f64; 2] {
        let all = self.all();
        let tape = self.model.foundation.build(&self.params, Policy::Keep).record(&self.batch(&all, true));
        [self.parts().loss(tape, self.pixels(&all)), self.expected["loss"].double_value(&[])]
    }
}
