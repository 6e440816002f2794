//! Tests that samples are made at their own levels, by one transformer and by two.

use std::rc::Rc;

use loongforge_core::message::{Grid, ItemMeta, SampleId, SampleMeta, Sigma, Target};
use tch::{Device, Kind};

use super::*;
use crate::model::sampler::Method;
use crate::model::{Column, FeatureInput, FoundationTape, NoisePurpose};
use crate::native::NativeError;

/// The velocity that leads straight to what a prompt says: of prompt 0 the number of the sample, of prompt 1 nothing;
/// and `strays` more.
struct Straight {
    strays: f64,
    inputs: Vec<FeatureInput>,
    columns: Rc<[Column]>,
}

impl FoundationModel for Straight {
    fn record(&self, _: &MicroBatch) -> FoundationTape {
        unreachable!("nothing is trained")
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }
}

impl Straight {
    /// Returns the velocity of these samples.
    fn velocity(&self, rows: &[SampleRow], at: &Noised) -> Result<Tensor, NativeError> {
        let mut start = 0;
        let of_row = |(row, sigma): (&SampleRow, &f64)| {
            let x = at.latents.narrow(0, start, num_tokens(row));
            start += num_tokens(row);
            let data = if at.prompt == 0 { row.id.0 as f64 } else { 0.0 };
            (x - data) / *sigma + self.strays
        };
        Ok(Tensor::cat(&rows.iter().zip(&at.sigma).map(of_row).collect::<Vec<_>>(), 0))
    }
}

const ALL: Range<f64> = 0.0..f64::INFINITY;

fn row(id: u64, t: u32, given: u32) -> SampleRow {
    let target = Some(Target { grid: Grid { t, h: 1, w: 2 }, sigma: Sigma::default() });
    let item = ItemMeta { tower: Tower::Vae, grid: Grid { t: 1, h: 1, w: given }, num_features: given };
    let items = if given > 0 { vec![item] } else { Vec::new() };
    let meta = SampleMeta { target, items, ..SampleMeta::of_tokens(SampleId(id), 2 * t, 1) };
    SampleRow::new(&meta, NoisePurpose::Evaluation(0))
}

#[test]
fn every_sample_goes_its_own_way_to_what_it_is_told() {
    let input = FeatureInput { tower: Tower::Vae, num_tensors: 1, width: 3, placeholders: Vec::new() };
    let model = Straight { strays: 0.0, inputs: vec![input], columns: Rc::new([]) };
    let rows = vec![row(5, 1, 0), row(7, 3, 2)];
    let batch = MicroBatch { samples: rows.clone().into(), ..MicroBatch::filler(&model.columns, Device::Cpu) };
    let given = Tensor::full([2, 3], 40.0, (Kind::Float, Device::Cpu));
    let settings = |method, scale: f64, keeps_first_frame| MakeSettings {
        schedule: Schedule {
            method,
            num_steps: 8,
            shift: Shift::BySize([(2.0, 0.0), (6.0, 1.0)]),
            terminal: None,
            to_least: false,
        },
        guidance: GuidanceScales { scales: vec![scale], boundary: 0.0, keeps_length: false },
        seed: 3,
        keeps_first_frame,
    };
    for (method, scale, keeps) in [(Method::Euler, 1.0, false), (Method::Euler, 2.0, true), (Method::UniPc, 1.0, true)]
    {
        let settings = settings(method, scale, keeps);
        let noise: Vec<Tensor> = rows.iter().map(|row| settings.noise(row, 3)).collect();
        let features = [vec![given.shallow_clone()]];
        let mut samples = settings.begin(&rows, noise);
        settings.advance(&mut samples, &ALL, Device::Cpu, |at| model.velocity(&rows, at)).unwrap();
        let made = settings.finish(samples, &model, &batch, &features);
        assert_eq!(made.iter().map(Tensor::size).collect::<Vec<_>>(), [[2, 3], [6, 3]]);
        for (row, made) in rows.iter().zip(&made) {
            // Away from nothing: as far again, in the last step alone, which ends at the data of the combined velocity.
            let want = scale * row.id.0 as f64;
            let from = if keeps && row.id.0 == 7 { 2 } else { 0 };
            let off = (made.narrow(0, from, made.size()[0] - from) - want).abs().max().double_value(&[]);
            assert!(off < 1e-2, "{method:?}, guidance {scale}: sample {} is off by {off}", row.id);
            assert!(from == 0 || made.narrow(0, 0, 2).equal(&given), "the given frame stays");
        }
    }
    let noise = |id| settings(Method::Euler, 1.0, false).noise(&row(id, 3, 0), 3);
    assert!(noise(5).equal(&noise(5)) && !noise(5).equal(&noise(7)));
}

/// Levels go by size: the samples are at different ones when the first comes to the boundary.
#[test]
fn each_sample_changes_its_transformer_at_the_boundary() {
    let input = FeatureInput { tower: Tower::Vae, num_tensors: 1, width: 3, placeholders: Vec::new() };
    let model = |strays| Straight { strays, inputs: vec![input.clone()], columns: Rc::new([]) };
    let (straight, astray) = (model(0.0), model(1.0));
    let rows = vec![row(5, 1, 0), row(7, 3, 0)];
    let batch = MicroBatch { samples: rows.clone().into(), ..MicroBatch::filler(&straight.columns, Device::Cpu) };
    for method in [Method::Euler, Method::UniPc] {
        let shift = Shift::BySize([(2.0, 0.0), (6.0, 1.0)]);
        let schedule = Schedule { method, num_steps: 8, shift, terminal: None, to_least: false };
        let levels = |row: &SampleRow| Sampler::new(&schedule, num_tokens(row) as usize).levels.times.clone();
        let boundary = levels(&rows[0])[4];
        assert!(levels(&rows[1]).iter().filter(|time| **time >= boundary).count() > 5, "the larger one changes later");
        let guidance = GuidanceScales { scales: vec![1.0], boundary: 0.0, keeps_length: false };
        let settings = MakeSettings { schedule: schedule.clone(), guidance, seed: 3, keeps_first_frame: false };
        let noise = || -> Vec<Tensor> { rows.iter().map(|row| settings.noise(row, 3)).collect() };
        let made = |high: &Straight, low: &Straight| {
            let mut samples = settings.begin(&rows, noise());
            let above = boundary..f64::INFINITY;
            settings.advance(&mut samples, &above, Device::Cpu, |at| high.velocity(&rows, at)).unwrap();
            // As another process takes them over.
            let mut samples: Vec<Underway> = (samples.iter().zip(&rows))
                .map(|(sample, row)| {
                    let tensors = sample.tensors();
                    let find = |name: &str| tensors.iter().find(|(own, _)| own == name);
                    let tensor = |name: &'static str| find(name).map(|(_, tensor)| tensor.copy());
                    settings.resume(row, &tensor).unwrap()
                })
                .collect();
            settings.advance(&mut samples, &(0.0..boundary), Device::Cpu, |at| low.velocity(&rows, at)).unwrap();
            settings.finish(samples, high, &batch, &[])
        };
        let mut alone = settings.begin(&rows, noise());
        settings.advance(&mut alone, &ALL, Device::Cpu, |at| astray.velocity(&rows, at)).unwrap();
        let alone = settings.finish(alone, &astray, &batch, &[]);
        assert!(alone.iter().zip(made(&astray, &astray)).all(|(one, other)| one.equal(&other)), "{method:?}");
        if method == Method::UniPc {
            continue;
        }
        // Whoever strays on the way is led back by the one that does not.
        for (made, row) in made(&astray, &straight).iter().zip(&rows) {
            let off = (made - row.id.0 as f64).abs().max().double_value(&[]);
            assert!(off < 1e-4, "the low one ends at the data: {off}");
        }
        for (made, row) in made(&straight, &astray).iter().zip(&rows) {
            let off = (made - row.id.0 as f64 + levels(row)[7]).abs().max().double_value(&[]);
            assert!(off < 1e-4, "the last step strays by its level: {off}");
        }
    }
}

/// Replicas that meet within a forward take as many: those without a sample compute fillers.
#[test]
fn a_transformer_takes_the_forwards_of_its_own_levels() {
    let model = Straight { strays: 0.0, inputs: Vec::new(), columns: Rc::new([]) };
    let rows = vec![row(5, 1, 0), row(7, 3, 0)];
    let by_size = Shift::BySize([(2.0, 0.0), (6.0, 1.0)]);
    for (shift, method) in [Shift::Constant(3.0), by_size]
        .into_iter()
        .flat_map(|shift| [Method::Euler, Method::UniPc].map(|method| (shift, method)))
    {
        let schedule = Schedule { method, num_steps: 8, shift, terminal: None, to_least: false };
        let boundary = schedule.levels(6).times[3];
        let guidance = GuidanceScales { scales: vec![2.0, 1.0], boundary, keeps_length: false };
        let settings = MakeSettings { schedule, guidance, seed: 3, keeps_first_frame: false };
        let mut samples = settings.begin(&rows, rows.iter().map(|row| settings.noise(row, 3)).collect());
        let mut taken = |levels: &Range<f64>| {
            let mut count = 0;
            let velocity = |at: &Noised| {
                count += 1;
                model.velocity(&rows, at)
            };
            settings.advance(&mut samples, levels, Device::Cpu, velocity).unwrap();
            count
        };
        let [above, below] = [boundary..f64::INFINITY, 0.0..boundary];
        let (taken, most) = ([taken(&above), taken(&below)], [&above, &below].map(|it| settings.max_forwards(it)));
        match shift {
            Shift::Constant(_) => assert_eq!((taken, most), ([8, 4], [8, 4]), "{method:?}"),
            Shift::BySize(_) => assert!(taken.iter().zip(&most).all(|(taken, most)| taken <= most), "{method:?}"),
        }
    }
}
