//! The task as a whole: what experts and chance reach, and the bytes of pictures.

use super::*;
use crate::robot::{Policy, wilson};
use crate::text::hex;
use sha2::{Digest, Sha256};

fn rate(policy: &mut dyn Policy, trial: Trial) -> Tally {
    judge(policy, trial, 5, 400, |_, _| ()).unwrap()
}

#[test]
fn experts_reach_the_pad_that_they_are_told_and_chance_reaches_none() {
    let mut expert = Expert::new();
    let plain = rate(&mut expert, Trial::Plain);
    assert!(plain.told >= 396 && plain.own == plain.told, "{plain:?}");
    let other = rate(&mut expert, Trial::OtherColor);
    assert!(other.told >= 396 && other.own <= 4, "{other:?}");
    assert!(rate(&mut expert, Trial::Blanked).told <= 4);
    let random = rate(&mut Random::new(1), Trial::Plain);
    assert!(random.told <= 12, "{random:?} {:?}", wilson(random.told, 400));
}

#[test]
fn demonstrations_end_on_the_pad_and_every_second_is_disturbed() {
    let made: Vec<Demonstration> = (0..400).map(|index| demonstration(1, index)).collect();
    let steps: usize = made.iter().map(|episode| episode.frames.len()).sum();
    assert!((15..25).contains(&(steps / 400)), "{steps}");
    let reached = |odd: usize| made.iter().skip(odd).step_by(2).filter(|episode| episode.is_success).count();
    assert_eq!(reached(0), 200);
    assert!((120..195).contains(&reached(1)), "{}", reached(1));
    assert_eq!(made[0].instruction, "go to the red pad");
}

/// The same digests are in `tests/clients/pads.py`, which draws and paints in Python.
#[test]
fn pictures_have_the_same_bytes_as_those_of_python() {
    let mut digest = Sha256::new();
    for index in 0..20 {
        let mut scene = Scene::begin(SceneLayout::draw(3, Part::HeldOut, index));
        for step in 0..10 {
            digest.update(picture(&scene).as_raw());
            digest.update(scene.agent.map(f64::to_le_bytes).concat());
            scene.step([0.01 * step as f32 - 0.05, 0.07 - 0.02 * step as f32]);
        }
    }
    assert_eq!(hex(digest.finalize()), GOLDEN);
}
const GOLDEN: &str = "4ce48f1a6abba62608826f72944d3eccc90cf0e83e03da49b434c927f7d65551";
