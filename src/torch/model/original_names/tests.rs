//! Tests that every tensor of tiny models, as `tests/oracle/diffusion_names.py` lists them, has one name in each naming.

use super::{Naming, replaced};

const LISTS: [(Naming, &str); 3] = [
    (Naming::Wan, include_str!("../../tests/names/wan.txt")),
    (Naming::WanVae21, include_str!("../../tests/names/wan_vae.txt")),
    (Naming::WanVae22, include_str!("../../tests/names/wan_vae_2_2.txt")),
];

#[test]
fn names_go_both_ways() {
    for (naming, list) in LISTS {
        for line in list.lines() {
            let (original, diffusers) = line.split_once(' ').unwrap();
            assert_eq!(naming.to_diffusers(original).as_deref(), Some(diffusers), "{original}");
            assert_eq!(naming.from_diffusers(diffusers).as_deref(), Some(original), "{diffusers}");
            assert_eq!(Naming::Diffusers.to_diffusers(diffusers).as_deref(), Some(diffusers));
        }
        let has = |side: usize| move |name: &str| list.lines().any(|line| line.split(' ').nth(side) == Some(name));
        assert_eq!((Naming::of_file(has(0)), Naming::of_file(has(1))), (naming, Naming::Diffusers));
    }
}

#[test]
fn what_is_not_of_the_network_has_no_name() {
    for name in
        ["blocks.0.self_attn.w.weight", "blocks.x.self_attn.q.weight", "vace_blocks.0.norm3.weight", "blocks.0", ""]
    {
        assert_eq!(Naming::Wan.to_diffusers(name), None, "{name}");
    }
    assert_eq!(replaced("a.7.b.weight", "a.*.b", "c.*"), Some("c.7.weight".to_owned()));
}
