//! Weights of 4 and 8 bits against bitsandbytes, bit for bit (`tests/oracle/make_quantized.py`), and parts of weights against wholes.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use super::nf4::fill_by_operators;
use super::rounded::fill_from_int8;
use super::rounding::AT_ONCE;
use super::{Cut, Held, Init, ParamSpec, ParamStore, Rounding, Shard, StoredTensor};
use crate::native::dynamic_map;

fn theirs() -> HashMap<String, Tensor> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/quantized/weights.safetensors");
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

fn spec(shape: &[i64], rounding: Rounding) -> ParamSpec {
    let spec = ParamSpec::new("layers.0.w", shape, Init::Zeros).frozen();
    ParamSpec { is_linear: true, held: Held { rounding, on_host: false }, ..spec }
}

fn store(spec: ParamSpec, kind: Kind) -> ParamStore {
    ParamStore::new(vec![spec], kind, Device::Cpu)
}

/// Returns a weight as a store rounds it, and the weight that the store makes of that.
fn rounded(rounding: Rounding, weight: &Tensor, kind: Kind) -> ([Tensor; 3], Tensor) {
    let store = store(spec(&weight.size(), rounding), kind);
    let id = store.id("layers.0.w");
    store.set(id, weight);
    (store.frozen_units()[0].rounded(0), store.value(id))
}

#[test]
fn maps_are_bitsandbytes() {
    let theirs = theirs();
    for (name, signed) in [("map.signed", true), ("map.unsigned", false)] {
        assert_eq!(Tensor::from_slice(&dynamic_map(signed)), theirs[name], "{name}");
    }
}

#[test]
fn four_and_eight_bits_are_bitsandbytes() {
    let theirs = theirs();
    let weight = &theirs["weight"];
    for (rounding, name, values, scales) in [
        (Rounding::Nf4, "nf4", "nf4.packed", vec!["nf4.absmax"]),
        (Rounding::Nf4Double, "double", "nf4.packed", vec!["double.groups", "double.mean"]),
        (Rounding::Int8, "int8", "int8.values", vec!["int8.maxima"]),
    ] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let ([found, beside, codes], whole) = rounded(rounding, weight, kind);
            assert_eq!(found.reshape([-1]), theirs[values].reshape([-1]), "{name}");
            let expected: Vec<Tensor> = scales.iter().map(|name| theirs[*name].reshape([-1])).collect();
            assert_eq!(beside, Tensor::cat(&expected, 0), "{name}");
            assert_eq!(codes.numel() > 0, rounding == Rounding::Nf4Double);
            if rounding == Rounding::Nf4Double {
                assert_eq!(codes, theirs["double.codes"]);
            }
            let kind_name = if kind == Kind::Float { "float32" } else { "bfloat16" };
            match theirs.get(&format!("{name}.{kind_name}")) {
                Some(expected) => assert_eq!(&whole.narrow(0, 0, expected.size()[0]), expected, "{name}, {kind:?}"),
                None => assert_eq!((name, kind), ("double", Kind::Float)),
            }
        }
    }
}

#[test]
fn any_device_finds_the_same() {
    let theirs = theirs();
    let (packed, absmax) = (theirs["nf4.packed"].view([144, 64]), theirs["nf4.absmax"].view([144, 2]));
    for kind in [Kind::Float, Kind::BFloat16] {
        let expected = [Rounding::Nf4, Rounding::Int8].map(|rounding| rounded(rounding, &theirs["weight"], kind).1);
        // All at once, ten rows, and one.
        for at_once in [AT_ONCE, 1300, 1] {
            let found = [(); 2].map(|()| Tensor::zeros([144, 128], (kind, Device::Cpu)));
            fill_by_operators(&found[0], &packed, &absmax, at_once);
            fill_from_int8(&found[1], &theirs["int8.values"], &theirs["int8.maxima"], at_once);
            assert_eq!(found, expected, "{kind:?}, {at_once}");
        }
    }
}

#[test]
fn rounding_twice_changes_nothing_at_any_width() {
    for width in [1, 2, 63, 64, 65, 100, 128] {
        let weight = (Tensor::arange(7 * width, (Kind::Float, Device::Cpu)) * 0.37).sin().view([7, width]);
        for rounding in [Rounding::Nf4, Rounding::Int8] {
            for kind in [Kind::Float, Kind::BFloat16] {
                let once = rounded(rounding, &weight.to_kind(kind), kind).1;
                let error = (once.to_kind(Kind::Float) - &weight).abs().max().double_value(&[]);
                assert!(error < if rounding == Rounding::Nf4 { 0.16 } else { 0.01 }, "{rounding:?}, {width}: {error}");
                // 127 times the reciprocal of 127 is not 1 in float32.
                if (rounding, kind) != (Rounding::Int8, Kind::Float) {
                    assert_eq!(rounded(rounding, &once, kind).1, once, "{rounding:?}, {width}, {kind:?}");
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    for bad in [f64::NAN, f64::INFINITY] {
        let weight = Tensor::ones([2, 128], (Kind::Float, Device::Cpu));
        let _ = weight.narrow(0, 1, 1).narrow(1, 70, 1).fill_(bad);
        for rounding in [Rounding::Nf4, Rounding::Nf4Double, Rounding::Int8] {
            let found = rounded(rounding, &weight, Kind::Float).1;
            assert_eq!(found.get(1).isfinite().all().int64_value(&[]), 0, "{rounding:?} of {bad}");
            if rounding != Rounding::Nf4Double {
                assert_eq!(found.get(0), weight.get(0), "{rounding:?} of {bad}");
            }
        }
    }
}

#[test]
fn ranks_have_parts_of_what_one_would_have() {
    let whole = &theirs()["weight"];
    let cuts = [
        Cut { dim: 0, ranges: vec![(0, 10), (100, 7)] },
        Cut { dim: 1, ranges: vec![(64, 64)] },
        Cut { dim: 1, ranges: vec![(0, 64)] },
        Cut { dim: 1, ranges: vec![(32, 32)] },
    ];
    for (index, cut) in cuts.into_iter().enumerate() {
        for rounding in [Rounding::Nf4, Rounding::Nf4Double, Rounding::Int8] {
            let len = cut.ranges.iter().map(|range| range.1).sum();
            let shape = if cut.dim == 0 { [len, 128] } else { [144, len] };
            let shard = Shard { cuts: vec![cut.clone()], tp_parts: 2, tp: 2, ..Shard::whole(&[144, 128]) };
            let part = ParamSpec { shard: Some(shard.clone()), ..spec(&shape, rounding) };
            let is_refused = rounding == Rounding::Nf4Double || (rounding == Rounding::Nf4 && index == 3);
            assert_eq!(part.cannot_be_rounded().is_some(), is_refused, "{rounding:?}, {cut:?}");
            if !is_refused {
                let store = store(part, Kind::Float);
                let id = store.id("layers.0.w");
                store.set_whole(id, whole);
                let expected = shard.take(&rounded(rounding, whole, Kind::Float).1);
                assert_eq!(store.value(id), expected, "{rounding:?}, {cut:?}");
            }
        }
    }
}

#[test]
fn each_matrix_of_the_checkpoint_is_rounded_for_itself() {
    let weight = &theirs()["weight"];
    let piece =
        |name: &str, start, len| StoredTensor { rows: Some((start, len)), ..StoredTensor::whole(name, &[len, 128]) };
    let fused = spec(&[144, 128], Rounding::Nf4Double).stored_as(vec![piece("a", 0, 40), piece("b", 40, 104)]);
    let fused = store(fused, Kind::Float);
    let id = fused.id("layers.0.w");
    fused.set(id, weight);
    let each = [(0, 40), (40, 104)]
        .map(|(start, len)| rounded(Rounding::Nf4Double, &weight.narrow(0, start, len), Kind::Float).1);
    assert_eq!(fused.value(id), Tensor::cat(&each, 0));
    assert_ne!(fused.value(id), rounded(Rounding::Nf4Double, weight, Kind::Float).1);
    // A stack of two maps.
    let stack = weight.view([2, 72, 128]);
    let each = [0, 1].map(|index| rounded(Rounding::Nf4Double, &stack.get(index), Kind::Float).1);
    assert_eq!(rounded(Rounding::Nf4Double, &stack, Kind::Float).1, Tensor::stack(&each, 0));
    // Experts of which ranks have some, with two matrices each.
    let piece = |name: &str, index, start, len| StoredTensor {
        index: Some(index),
        rows: Some((start, len)),
        ..StoredTensor::whole(name, &[len, 128])
    };
    let pieces = vec![piece("0.a", 0, 0, 24), piece("0.b", 0, 24, 48), piece("1.a", 1, 0, 24), piece("1.b", 1, 24, 48)];
    let whole = spec(&[2, 72, 128], Rounding::Nf4Double).stored_as(pieces);
    let shard = Shard { cuts: vec![Cut { dim: 0, ranges: vec![(1, 1)] }], ..Shard::whole(&[2, 72, 128]) };
    let part = ParamSpec { shape: vec![1, 72, 128], shard: Some(shard), ..whole.clone() };
    assert!(part.cannot_be_rounded().is_none());
    let values = [whole, part].map(|spec| {
        let store = store(spec, Kind::Float);
        let id = store.id("layers.0.w");
        store.set_whole(id, &stack);
        store.value(id)
    });
    assert_eq!(values[0].narrow(0, 1, 1), values[1]);
    let second = rounded(Rounding::Nf4Double, &weight.narrow(0, 72 + 24, 48), Kind::Float).1;
    assert_eq!(values[1].get(0).narrow(0, 24, 48), second);
}
