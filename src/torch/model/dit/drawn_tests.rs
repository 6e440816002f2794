//! Targets that are drawn from the distributions that an autoencoder gives.

use loongforge_core::message::Tower;
use tch::Tensor;

use super::record::OF_LATENTS;
use super::tests::{Fixture, folders};
use crate::model::batch::MicroBatch;
use crate::model::foundation::FoundationFamily;
use crate::model::objective::{Draw, FlowSettings};
use crate::model::towers::with_values;
use crate::tape::{Execution, Policy};

const SEED: u64 = 5;

/// Returns the loss of all samples of a fixture.
fn loss(fixture: &Fixture, draws_latents: bool, evaluates: bool, features: &[Vec<Tensor>]) -> f64 {
    let flow = FlowSettings { seed: SEED, draws_latents, ..FlowSettings::default() };
    let model = fixture.family.with_flow(flow).unwrap().build(&fixture.params, Policy::Keep);
    let all: Vec<usize> = (0..fixture.rows.len()).collect();
    let tape = model.record(&MicroBatch { evaluates, ..fixture.batch(&all) });
    let mut run = Execution::new(tape.tape, fixture.params.clone(), with_values(&tape.features, features));
    run.forward().unwrap();
    run.value(tape.loss.unwrap()).double_value(&[])
}

/// Conditions and references are the means.
#[test]
fn targets_are_drawn_by_seed_and_sample() {
    for name in ["wan2.1_t2v", "wan2.1_i2v", "wan2.2_ti2v", "qwen_image_edit"] {
        let fixture = Fixture::read(&folders().into_iter().find(|folder| folder.ends_with(name)).unwrap());
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let vae = fixture.family.inputs().iter().position(|input| input.tower == Tower::Vae).unwrap();
        let [means, mut both, mut drawn] = [(); 3].map(|()| fixture.features(&all));
        let latents = means[vae][0].copy();
        let deviations = latents.abs() * 0.1 + 0.05;
        let mut start = 0;
        for row in &fixture.rows {
            let items = row.items.iter().filter(|item| item.tower == Tower::Vae);
            let lens: Vec<i64> = items.map(|item| i64::from(item.num_features)).collect();
            let draw = Draw { seed: SEED, sample: row.id, purpose: row.purpose, number: 0 };
            let noise = draw.noise_of(OF_LATENTS, &[lens[0], latents.size()[1]]);
            let own = latents.narrow(0, start, lens[0]) + deviations.narrow(0, start, lens[0]) * noise;
            latents.narrow(0, start, lens[0]).copy_(&own);
            start += lens.iter().sum::<i64>();
        }
        drawn[vae] = vec![latents];
        both[vae].push(deviations);
        let expected = loss(&fixture, false, false, &drawn);
        let found = loss(&fixture, true, false, &both);
        assert!((found / expected - 1.0).abs() < 1e-6, "{name}: {found} and {expected}");
        assert!((loss(&fixture, false, false, &means) / expected - 1.0).abs() > 1e-4, "{name}");
        // Evaluations are of the means.
        assert_eq!(loss(&fixture, true, true, &both), loss(&fixture, false, true, &means), "{name}");
    }
}
