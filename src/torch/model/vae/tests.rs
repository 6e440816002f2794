//! The autoencoders against diffusers, and against themselves in other chunks. `tests/oracle/make_vae.py` makes the folders;
//! `LOONGFORGE_VAES` has those of another place read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::{Device, Kind, Tensor};

use super::parts::Autoencoder;
use super::tower::{Encoder, VaeLatents};
use super::{LatentPatch, Tiles, VaeDecoder};
use crate::model::encoder::EncoderFamily;
use crate::model::keys::Keys;
use crate::model::policy::checks::change;
use crate::params::ParamStore;
use crate::tape::{Execution, Policy};

/// The tolerance in float64, as a share of the largest value: what files of float32 leave of it.
const TOLERANCE: f64 = 2e-7;
/// By how much a mistake has to move something, as a share of its largest value.
const FAR: f64 = 10.0 * TOLERANCE;
const SINGLE: LatentPatch = LatentPatch([1, 1, 1]);

/// A folder's autoencoder, with a parameter store of all that it has.
struct Fixture {
    name: String,
    family: VaeLatents,
    params: Rc<ParamStore>,
    tensors: BTreeMap<String, Tensor>,
}

/// Computed in float64 where nothing else is said: a norm over two channels makes much of the rounding of float32.
fn fixtures() -> Vec<Fixture> {
    fixtures_of(Kind::Double)
}

fn fixtures_of(kind: Kind) -> Vec<Fixture> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vae");
    let folder = std::env::var_os("LOONGFORGE_VAES").map_or_else(committed, PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty());
    found.iter().map(|path| fixture(path, kind)).collect()
}

fn fixture(folder: &Path, kind: Kind) -> Fixture {
    let tensors = |file: &str| -> BTreeMap<String, Tensor> {
        let tensors = Tensor::read_safetensors(folder.join(file)).unwrap().into_iter();
        tensors.map(|(name, tensor)| (name, tensor.to_kind(kind))).collect()
    };
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = serde_json::from_str(&config).unwrap();
    let Ok(Autoencoder::Causal(family)) = Autoencoder::read(&Keys::new(&config), "vae.", SINGLE) else {
        panic!("{}: an autoencoder", folder.display())
    };
    let both = Autoencoder::Causal(family.clone());
    let specs = [both.tower().specs(), both.decoder_specs()].concat();
    let params = Rc::new(ParamStore::new(specs, kind, Device::Cpu));
    let weights = tensors("diffusion_pytorch_model.safetensors");
    assert_eq!(params.names().count(), weights.len());
    params.ids().for_each(|id| params.set(id, &weights[params.spec(id).name.strip_prefix("vae.").unwrap()]));
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    Fixture { name, family: *family, params, tensors: tensors("expected.safetensors") }
}

impl Fixture {
    fn encoder(&self) -> Rc<Encoder> {
        Encoder::part(&self.family, &self.params).part
    }

    fn decoder(&self) -> VaeDecoder {
        VaeDecoder::network(&self.family.vae, SINGLE, &self.params)
    }

    /// Returns the clips: how many frames, and both sides.
    fn clips(&self) -> Vec<(i64, &Tensor, &Tensor)> {
        let of = |kind: &str, frames: i64| &self.tensors[&format!("{kind}/{frames}")];
        [1, 5, 9].map(|frames| (frames, of("pixels", frames), of("latents", frames))).to_vec()
    }
}

fn size(x: &Tensor) -> [i64; 3] {
    [x.size()[0], x.size()[1], x.size()[2]]
}

fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    let share = (found - expected).abs().max().double_value(&[]) / expected.abs().max().double_value(&[]);
    if share.is_nan() { f64::INFINITY } else { share }
}

/// Returns the largest errors of latents, of frames and of a picture in tiles.
fn errors(fixture: &Fixture) -> [f64; 3] {
    let (encoder, decoder) = (fixture.encoder(), fixture.decoder());
    let [time, space] = fixture.family.vae.factors();
    let mut largest = [0f64; 3];
    for (frames, pixels, expected) in fixture.clips() {
        let latents = encoder.latents(pixels, [1, time]);
        largest[0] = largest[0].max(error(&latents, expected));
        let decoded = decoder.decode(&SINGLE.rows(expected), size(expected), None);
        largest[1] = largest[1].max(error(&decoded, &fixture.tensors[&format!("frames/{frames}")]));
    }
    let (picture, tiles) = (&fixture.tensors["latents/1"], Tiles { side: 2 * space, stride: space });
    let tiled = decoder.decode(&SINGLE.rows(picture), size(picture), Some(&tiles));
    largest[2] = error(&tiled, &fixture.tensors["tiled"]);
    largest
}

#[test]
fn latents_and_frames_are_those_of_diffusers() {
    let _no_grad = tch::no_grad_guard();
    for (fixture, single) in fixtures().iter().zip(fixtures_of(Kind::Float)) {
        let [double, single] = [errors(fixture), errors(&single)];
        let shown = |errors: [f64; 3]| errors.map(|error| format!("{error:.1e}")).join(" ");
        println!("{}: latents, frames, tiles {}; in float32 {}", fixture.name, shown(double), shown(single));
        assert!(double.iter().all(|error| *error < TOLERANCE), "{}: {double:?}", fixture.name);
        assert!(single.iter().all(|error| *error < 1e-3), "{}: {single:?}", fixture.name);
    }
}

/// Frames in chunks of any length, and all at once, which is the formula without anything kept.
#[test]
fn chunks_change_nothing_but_rounding() {
    let _no_grad = tch::no_grad_guard();
    for fixture in fixtures() {
        let (encoder, decoder) = (fixture.encoder(), fixture.decoder());
        let (_, pixels, expected) = fixture.clips().pop().unwrap();
        let factor = fixture.family.vae.factors()[0];
        for chunks in [[1, factor], [1, 8], [1 + factor, factor], [9, 1]] {
            let error = error(&encoder.latents(pixels, chunks), expected);
            assert!(error < TOLERANCE, "{} in {chunks:?}: {error}", fixture.name);
        }
        let VaeDecoder::Network(network) = &decoder else { panic!("a network") };
        let one = network.places(expected, 1);
        for chunk in [2, expected.size()[0]] {
            let error = error(&network.places(expected, chunk), &one);
            assert!(error < TOLERANCE, "{} in {chunk}: {error}", fixture.name);
        }
    }
}

/// Deviations are those of diffusers' `DiagonalGaussianDistribution`, divided as the means are.
#[test]
fn deviations_stand_beside_the_same_means() {
    let _no_grad = tch::no_grad_guard();
    for fixture in fixtures() {
        let values = |family: &dyn EncoderFamily, pixels: &Tensor| -> Vec<Tensor> {
            let [t, h, w] = size(pixels).map(|side| side as u32);
            let tape = family.build(&fixture.params, Policy::Keep).record(&[Grid { t, h, w }]);
            let inputs = vec![(tape.pixels, pixels.flatten(0, 2))];
            let mut run = Execution::forward_only(tape.tape, fixture.params.clone(), inputs);
            run.forward().unwrap();
            tape.outputs.iter().map(|slot| run.value(*slot).shallow_clone()).collect()
        };
        let with_deviations = fixture.family.with_deviations().unwrap();
        for (_, pixels, _) in fixture.clips() {
            let (both, means) = (values(&*with_deviations, pixels), values(&fixture.family, pixels));
            assert_eq!((both.len(), means.len()), (2, 1));
            assert_eq!(both[0], means[0], "{}", fixture.name);
            let vae = &fixture.family.vae;
            let moments = fixture.encoder().moments(pixels, [1, vae.factors()[0]]);
            let log_variance = moments.narrow(-1, vae.latent_channels, vae.latent_channels);
            let std = Tensor::from_slice(&vae.std).to_kind(log_variance.kind());
            let expected = (log_variance.clamp(-30.0, 20.0) / 2.0).exp() / std;
            assert!(error(&both[1], &SINGLE.rows(&expected)) < TOLERANCE, "{}", fixture.name);
        }
    }
}

/// The first frame of a clip is a picture, and each picture has the bits that it has alone.
#[test]
fn items_of_a_batch_have_the_bits_that_they_have_alone() {
    for fixture in fixtures() {
        let family = VaeLatents { patch: SINGLE, ..fixture.family.clone() };
        let model = family.build(&fixture.params, Policy::Keep);
        let run = |items: &[&Tensor]| {
            let grids = items.iter().map(|item| {
                let [t, h, w] = size(item).map(|side| side as u32);
                Grid { t, h, w }
            });
            let grids: Vec<Grid> = grids.collect();
            let pixels: Vec<Tensor> = items.iter().map(|item| item.flatten(0, 2)).collect();
            let tape = model.record(&grids);
            let inputs = vec![(tape.pixels, Tensor::cat(&pixels, 0))];
            let mut run = Execution::forward_only(tape.tape, fixture.params.clone(), inputs);
            run.forward().unwrap();
            let counts: usize = grids.iter().map(|grid| family.num_features(*grid)).sum();
            let rows = run.value(tape.outputs[0]).shallow_clone();
            assert_eq!(rows.size()[0], counts as i64);
            rows
        };
        let clips = fixture.clips();
        let first = clips[2].1.narrow(0, 0, 1);
        let items = [clips[2].1, clips[0].1, &first];
        let together = run(&items);
        let alone = Tensor::cat(&items.map(|item| run(&[item])), 0);
        assert_eq!(together, alone, "{}", fixture.name);
        let frame = run(&[&first]);
        assert_eq!(together.narrow(0, 0, frame.size()[0]), frame, "{}: the first frame alone", fixture.name);
    }
}

/// Offsets of columns and rows exchanged in the patches of Wan 2.2; and, behind the first frame of a clip of two latents, repetition instead
/// of zeros where time doubles first: with one frame there, all taps of the convolution see that frame.
#[test]
fn mistakes_are_far_from_the_reference() {
    let _no_grad = tch::no_grad_guard();
    let offsets =
        |x: &Tensor, axis: i64| x.unflatten(axis, [-1, 2, 2]).transpose(axis + 1, axis + 2).flatten(axis, axis + 2);
    for number in 0..fixtures().len() {
        let open = || fixtures().swap_remove(number);
        let fixture = open();
        let without = errors(&fixture);
        assert!(without.iter().all(|error| *error < TOLERANCE), "{}: {without:?}", fixture.name);
        if fixture.family.vae.patch == 2 {
            change(&fixture.params, "encoder.conv_in.weight", |x| offsets(x, 1));
            change(&fixture.params, "decoder.conv_out.", |x| offsets(x, 0));
            let [latents, frames, _] = errors(&fixture);
            println!("{}: offsets exchanged {latents:.1e} {frames:.1e}", fixture.name);
            assert!(latents.min(frames) > FAR, "{}: {latents} {frames}", fixture.name);
        }
        let fixture = open();
        let doubling = fixture.family.vae.halves_time.iter().rev().position(|halves| *halves).unwrap();
        let part = if fixture.family.vae.has_shortcuts { "upsampler" } else { "upsamplers.0" };
        change(&fixture.params, &format!("decoder.up_blocks.{doubling}.{part}.time_conv.weight"), |x| {
            let (sum, zeros) = (x.sum_dim_intlist([2i64].as_slice(), true, x.kind()), x.narrow(2, 0, 2).zeros_like());
            Tensor::cat(&[zeros, sum], 2)
        });
        let (_, _, latents) = fixture.clips()[1];
        let decoded = fixture.decoder().decode(&SINGLE.rows(latents), size(latents), None);
        let off = error(&decoded, &fixture.tensors["frames/5"]);
        println!("{}: repeated frames {off:.1e}", fixture.name);
        assert!(off > FAR, "{}: {off}", fixture.name);
    }
}
