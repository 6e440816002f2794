//! lerobot's numbers of Pi0-FAST: losses, gradients and written tokens of fixtures that `tests/oracle/make_pi0_fast.py` makes.
//! `LOONGFORGE_POLICIES` has those of another folder read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::{Grid, Tower};
use serde_json::Value;
use tch::{Kind, Tensor};

use crate::model::batch::MicroBatch;
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::decoding::Decoding;
use crate::model::encoder::EncoderFamily;
use crate::model::policy::Observed;
use crate::model::policy::fixtures::{self, Found, Parts, json, store, tensors};
use crate::params::ParamStore;
use crate::tape::Policy;

struct Fixture {
    name: String,
    model: ModelConfig,
    params: [Rc<ParamStore>; 2],
    summary: Value,
    inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
}

fn folders() -> Vec<PathBuf> {
    fixtures::folders(&["fast-"])
}

impl Fixture {
    fn read(folder: &Path) -> Fixture {
        let model = ModelConfig::from_hf(&json(folder.join("config.json"))).unwrap();
        let weights = tensors(folder.join("model.safetensors"));
        let store = |specs| store(specs, &weights, Kind::Float, str::to_owned);
        Fixture {
            name: fixtures::name(folder),
            params: [store(model.foundation.specs()), store(model.towers.specs())],
            model,
            summary: json(folder.join("fixture.json")),
            inputs: tensors(folder.join("inputs.safetensors")),
            expected: tensors(folder.join("expected.safetensors")),
        }
    }

    fn encoder(&self) -> &dyn EncoderFamily {
        &**self.model.towers.get(Tower::Vision).unwrap()
    }

    fn number(&self, sample: usize, key: &str) -> i64 {
        self.summary["samples"][sample][key].as_i64().unwrap()
    }

    fn cameras(&self, sample: usize) -> Vec<i64> {
        self.summary["samples"][sample]["cameras"].as_array().unwrap().iter().map(|it| it.as_i64().unwrap()).collect()
    }

    /// The patches of all samples' pictures.
    fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        let images = &self.inputs["images"];
        let patch = ((self.encoder().patch_dim() / 3) as f64).sqrt() as i64;
        let side = images.size()[3] / patch;
        let of = |(sample, camera): (usize, i64)| {
            let image = images.get(camera).get(sample as i64).view([3, side, patch, side, patch]);
            image.permute([1, 3, 0, 2, 4]).reshape([side * side, -1])
        };
        let each = samples.iter().flat_map(|sample| self.cameras(*sample).into_iter().map(|camera| (*sample, camera)));
        let pixels: Vec<Tensor> = each.map(of).collect();
        (Tensor::cat(&pixels, 0), vec![Grid { t: 1, h: side as u32, w: side as u32 }; pixels.len()])
    }

    /// Ids of a sample, and targets of what follows `bos`; with `bos` alone of one that is continued.
    fn tokens(&self, sample: usize, is_asked: bool) -> (Vec<i64>, Vec<i64>) {
        let row = |name: &str, len: i64| {
            Vec::<i64>::try_from(self.inputs[name].get(sample as i64).narrow(0, 0, len)).unwrap()
        };
        let places = self.cameras(sample).len() * self.encoder().num_features(self.pixels(&[sample]).1[0]);
        let mut ids = vec![self.model.foundation.as_policy().unwrap().chunk().image_token; places];
        ids.extend(row("tokens", self.number(sample, "prompt")));
        let first = ids.len();
        ids.extend(row("answers", if is_asked { 1 } else { self.number(sample, "answer") }));
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
        let rows = samples.iter().map(|sample| {
            fixtures::row(*sample, self.tokens(*sample, is_asked).0.len(), 1, self.pixels(&[*sample]).1, self.encoder())
        });
        fixtures::batch((columns, ends), rows.collect(), 1.0 / counted.max(1) as f64)
    }

    fn features(&self, samples: &[usize]) -> Vec<Tensor> {
        self.parts().features(self.pixels(samples))
    }

    fn parts(&self) -> Parts<'_> {
        let [params, of_tower] = &self.params;
        Parts { params, tower: self.encoder(), of_tower, trains_tower: true }
    }

    fn run(&self, samples: &[usize], policy: Policy) -> Found {
        let tape = self.model.foundation.build(&self.params[0], policy).record(&self.batch(samples, false));
        self.parts().run(tape, self.pixels(samples), policy)
    }

    fn written(&self, samples: &[usize], decoding: &Decoding) -> Vec<Vec<i64>> {
        let acting = self.model.foundation.as_policy().unwrap().acting(&self.params[0]);
        let MicroBatch { columns, cu_seqlens, .. } = self.batch(samples, true);
        let features = self.features(samples);
        acting.write(Observed { columns: &columns, cu_seqlens: &cu_seqlens, features: &features }, decoding).unwrap()
    }
}

/// Tolerances are those of the policies with two streams.
#[test]
fn packed_samples_have_lerobots_loss_and_gradients() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        for policy in [Policy::Keep, Policy::Recompute] {
            let found = fixture.run(&[0, 1, 2], policy);
            let off = (found.loss / fixture.expected["loss"].double_value(&[]) - 1.0).abs();
            let largest = fixture.parts().gradients(&found, &fixture.expected);
            println!("{}: loss {off:.1e}, gradients {:.1e} ({})", fixture.name, largest.0, largest.1);
            assert!(off < 5e-6 && largest.0 < 2e-5, "{} {largest:?}", fixture.name);
        }
    }
}

#[test]
fn written_tokens_are_lerobots() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let expected = &fixture.expected["written"];
        let row = |sample: i64| Vec::<i64>::try_from(expected.get(sample)).unwrap();
        let most = expected.size()[1] as usize;
        let decoding = |stop: i64| Decoding { max_new_tokens: most, stop_token_ids: vec![stop], ..Decoding::default() };
        let bar = fixture.summary["bar"].as_i64().unwrap();
        let written = fixture.written(&[0, 1, 2], &decoding(bar));
        for (sample, written) in (0..).zip(&written) {
            assert_eq!(*written, row(sample), "{} sample {sample}", fixture.name);
        }
        // A sample alone; and up to a token that ends it.
        let stop = row(1)[2];
        let until: Vec<i64> = row(1).into_iter().take_while(|id| *id != stop).collect();
        assert_eq!(fixture.written(&[1], &decoding(stop)), [until]);
    }
}
