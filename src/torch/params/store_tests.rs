//! Tests that parameters lie where the store says, whole and shared out.

use tch::{Device, Kind, Tensor};

use super::{ParamSpec, ParamStore, Role, Sharding, ZeroStage};
use crate::params::Init;

fn store(kind: Kind) -> ParamStore {
    let specs = vec![
        ParamSpec::new("norm", &[5], Init::Ones),
        ParamSpec::new("w1", &[3, 5], Init::Normal(1.0)),
        ParamSpec::new("bias", &[17], Init::Zeros),
        ParamSpec::new("w2", &[2, 2], Init::Uniform(1.0)),
    ];
    ParamStore::new(specs, kind, Device::Cpu)
}

fn num_decay(store: &ParamStore) -> usize {
    store.owned().iter().filter(|part| part.decays).map(|part| part.values.numel()).sum()
}

#[test]
fn decayed_parameters_come_first_and_start_aligned() {
    let store = store(Kind::Float);
    assert_eq!(store.names().collect::<Vec<_>>(), ["w1", "w2", "norm", "bias"]);
    let ranges: Vec<_> = store.ids().map(|id| store.range(id)).collect();
    assert_eq!(ranges, [(0, 15), (16, 4), (32, 5), (48, 17)]);
    assert_eq!((num_decay(&store), store.flat().size()[0], store.num_elements()), (32, 80, 41));
}

#[test]
fn leaves_are_views_of_the_buffer() {
    let store = store(Kind::BFloat16);
    store.init_random(3);
    let bias = store.get("bias");
    let _ = store.flat().shallow_clone().g_add_scalar_(1.0);
    assert!(bias.is_leaf() && bias.requires_grad());
    assert_eq!(bias.double_value(&[16]), 1.0);
    assert_eq!(store.get("norm").double_value(&[0]), 2.0);
}

#[test]
fn what_is_not_trained_lies_behind_and_has_no_gradient() {
    let specs = vec![
        ParamSpec::new("bias", &[3], Init::Zeros).with_role(Role::Buffer),
        ParamSpec::new("base", &[4, 4], Init::Ones).with_role(Role::Frozen),
        ParamSpec::new("norm", &[5], Init::Ones),
        ParamSpec::new("w", &[2, 2], Init::Ones),
    ];
    let store = ParamStore::new(specs, Kind::BFloat16, Device::Cpu);
    assert_eq!(store.names().collect::<Vec<_>>(), ["w", "norm", "base", "bias"]);
    assert_eq!((num_decay(&store), store.num_trained(), store.flat().size()[0]), (16, 32, 48));
    assert_eq!(store.new_grad().flat().size(), [32]);
    store.set_trainable(true);
    let trained = |name: &str| store.get(name).requires_grad();
    assert!(trained("w") && trained("norm") && !trained("base") && !trained("bias"));
    assert_eq!((store.get("bias").kind(), store.trained_ids().count()), (Kind::Float, 2));
    store.set(store.id("bias"), &Tensor::from_slice(&[1f32, 2.0, 3.0]));
    assert_eq!(store.get("bias").double_value(&[2]), 3.0);
}

#[test]
fn units_are_sliced_evenly_and_slices_make_the_whole() {
    let specs = || {
        vec![
            ParamSpec::new("embed.weight", &[7, 5], Init::Normal(1.0)),
            ParamSpec::new("layers.0.norm.weight", &[5], Init::Uniform(1.0)),
            ParamSpec::new("layers.0.up.weight", &[9, 5], Init::Normal(1.0)),
            ParamSpec::new("layers.0.base.weight", &[4, 5], Init::Normal(1.0)).frozen(),
            ParamSpec::new("layers.0.bias", &[3], Init::Ones).with_role(Role::Buffer),
            ParamSpec::new("layers.1.norm.weight", &[40], Init::Uniform(1.0)),
        ]
    };
    let options = (Kind::Float, Device::Cpu);
    let whole = ParamStore::new(specs(), options.0, options.1);
    whole.init_random(1);
    let stores = [0, 1, 2].map(|rank| {
        let sharding = Sharding::new(ZeroStage::Parameters, rank, 3);
        let store = ParamStore::shared_out(specs(), options.0, options.1, sharding);
        store.init_random(1);
        store
    });
    let names: Vec<_> = stores[0].units().iter().map(|unit| (unit.name(), unit.is_trained(), unit.range())).collect();
    let expected = [("embed", true, (0, 48)), ("layers.0", true, (48, 96)), ("layers.1", true, (144, 48))];
    assert_eq!(names[..3], expected);
    assert_eq!(names[3], ("layers.0", false, (192, 48)));
    assert_eq!((stores[0].num_trained(), stores[0].num_owned(), stores[0].flat().size()[0]), (192, 64, 80));
    for id in whole.ids() {
        let id = stores[0].id(&whole.spec(id).name);
        let expected = whole.get(&stores[0].spec(id).name).detach().reshape([-1]);
        if stores[0].is_here(id) {
            assert_eq!(stores[0].leaf(id), &expected);
            continue;
        }
        let parts = stores.iter().map(|store| {
            let (part, at) = store.owned_range(id);
            store.flat().narrow(0, at, part.end - part.start)
        });
        assert_eq!(Tensor::cat(&parts.collect::<Vec<_>>(), 0), expected, "{}", stores[0].spec(id).name);
    }
    // 48 of layer 0's 96 elements decay: all of the first rank's 32 and half of the second's.
    let decays = |rank: usize| {
        let owned = stores[rank].owned();
        owned.iter().filter(|part| part.decays).map(|part| part.values.numel()).sum::<usize>()
    };
    assert_eq!([0, 1, 2].map(decays), [48, 32, 16]);
}

#[test]
fn gradients_are_summed_in_float32() {
    let store = store(Kind::BFloat16);
    let mut grads = store.new_grad();
    let id = store.id("w2");
    for _ in 0..2 {
        grads.add(id, &Tensor::full([2, 2], 1.00390625, (Kind::BFloat16, Device::Cpu)));
        grads.add(id, &Tensor::full([2, 2], 0.0001, (Kind::Float, Device::Cpu)));
    }
    assert!((grads.flat().double_value(&[19]) - 2.0002).abs() < 1e-5);
    grads.zero();
    assert_eq!(grads.view(id).double_value(&[1, 1]), 0.0);
}
