//! Says which frozen weights lie on the host, so that an actor's weights take no more of its device than they may.

use tch::Kind;

use super::flat_param::FlatParam;
use super::id::ALIGN;
use super::matrices::bytes_at_rest;
use super::spec::{Held, ParamSpec, Role};

/// The frozen linear maps of a layer.
struct Layer {
    name: String,
    held: Held,
    specs: Vec<usize>,
    /// Bytes while no tape reads it, of which `scales` are on the device in any case.
    at_rest: u64,
    scales: u64,
    /// Bytes while a tape reads it.
    whole: u64,
}

/// Returns the same parameters of a store of this `kind`, of whose frozen linear maps as many layers lie on the host as have to,
/// evenly among the others.
///
/// # Errors
/// The least budget, in bytes: with every layer on the host more than `budget` is on the device.
pub fn within_weight_budget(mut specs: Vec<ParamSpec>, kind: Kind, budget: u64) -> Result<Vec<ParamSpec>, u64> {
    let (layers, others) = layers(&specs, kind);
    let takes = |num_away: usize| {
        let is_away = |index: &usize| is_away(*index, num_away, layers.len());
        let of = |layer: &Layer, is_away: bool| if is_away { layer.scales } else { layer.at_rest + layer.scales };
        let at_rest: u64 = layers.iter().enumerate().map(|(index, layer)| of(layer, is_away(&index))).sum();
        let away = (0..layers.len()).filter(is_away).map(|index| &layers[index]);
        // One layer is read, and the next one from the host is on its way.
        let coming = away.map(|layer| layer.at_rest).max().unwrap_or(0);
        let apart = layers.iter().enumerate().filter(|(index, layer)| layer.held.rounding.is_some() || is_away(index));
        others + at_rest + coming + apart.map(|(_, layer)| layer.whole).max().unwrap_or(0)
    };
    let Some(num_away) = (0..=layers.len()).find(|num| takes(*num) <= budget) else {
        return Err((0..=layers.len()).map(takes).min().unwrap_or(0));
    };
    for (_, layer) in layers.iter().enumerate().filter(|(index, _)| is_away(*index, num_away, layers.len())) {
        layer.specs.iter().for_each(|spec| specs[*spec].held.on_host = true);
    }
    Ok(specs)
}

/// Returns whether layer `index` is one of `num` among `all` that are evenly spread.
fn is_away(index: usize, num: usize, all: usize) -> bool {
    (index + 1) * num / all > index * num / all
}

/// Returns the layers of frozen linear maps, and the bytes of all other parameters.
fn layers(specs: &[ParamSpec], kind: Kind) -> (Vec<Layer>, u64) {
    let width = kind.elt_size_in_bytes() as u64;
    let (mut layers, mut others): (Vec<Layer>, u64) = (Vec::new(), 0);
    for (index, spec) in specs.iter().enumerate() {
        let elements = spec.num_elements() as u64;
        let padded = elements.next_multiple_of(ALIGN as u64);
        if !spec.is_frozen_map() {
            others += if spec.role == Role::Buffer { elements * 4 } else { padded * width };
            continue;
        }
        let (name, held) = (FlatParam::name_of(spec), spec.held);
        let known = layers.iter().position(|layer| (&layer.name, layer.held) == (&name, held));
        let at = known.unwrap_or(layers.len());
        if known.is_none() {
            layers.push(Layer { name, held, specs: Vec::new(), at_rest: 0, scales: 0, whole: 0 });
        }
        let layer = &mut layers[at];
        layer.specs.push(index);
        layer.whole += padded * width;
        let (at_rest, scales) = bytes_at_rest(spec, kind);
        layer.at_rest += at_rest;
        layer.scales += scales;
    }
    (layers, others)
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::within_weight_budget;
    use crate::params::{Init, ParamSpec, Rounding};

    /// Returns six layers of 1024 elements, an embedding of 256 and an adapter of 64.
    fn specs(rounding: Rounding) -> Vec<ParamSpec> {
        let layer = |index: usize| {
            let spec = ParamSpec::new(format!("layers.{index}.w"), &[32, 32], Init::Zeros).frozen();
            let mut spec = ParamSpec { is_linear: true, ..spec };
            spec.held.rounding = rounding;
            spec
        };
        let mut specs: Vec<ParamSpec> = (0..6).map(layer).collect();
        specs.push(ParamSpec::new("embed", &[8, 32], Init::Zeros).frozen());
        specs.push(ParamSpec::new("layers.0.lora_A", &[2, 32], Init::Zeros));
        specs
    }

    fn away(rounding: Rounding, kind: Kind, budget: u64) -> Result<Vec<usize>, u64> {
        let found = within_weight_budget(specs(rounding), kind, budget)?;
        Ok((0..found.len()).filter(|index| found[*index].held.on_host).collect())
    }

    #[test]
    fn as_many_layers_as_must_lie_on_the_host_evenly() {
        let (layer, others) = (4096, 4 * 320);
        let all = 6 * layer + others;
        assert_eq!(away(Rounding::None, Kind::Float, all), Ok(vec![]));
        // Two layers are on the device for a while, so that three must be away for the first one to help.
        assert_eq!(away(Rounding::None, Kind::Float, all - 1), Ok(vec![1, 3, 5]));
        assert_eq!(away(Rounding::None, Kind::Float, 2 * layer + others), Ok((0..6).collect()));
        assert_eq!(away(Rounding::None, Kind::Float, 2 * layer + others - 1), Err(2 * layer + others));
    }

    #[test]
    fn float8_takes_a_byte_a_number_and_a_scale_a_row() {
        let (layer, scales, others) = (1024, 6 * 32 * 4, 2 * 320);
        let whole = 2 * layer;
        assert_eq!(away(Rounding::Float8, Kind::BFloat16, 6 * layer + scales + others + whole), Ok(vec![]));
        assert_eq!(away(Rounding::Float8, Kind::BFloat16, 6 * layer + scales + others + whole - 1), Ok(vec![2, 5]));
        assert_eq!(away(Rounding::Float8, Kind::BFloat16, 0), Err(layer + scales + others + whole));
    }
}
