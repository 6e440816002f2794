//! Counts successes of a policy on layouts that no demonstration has, and what shows whether it reads and looks.

use super::picture::{blank, picture};
use super::players::CAMERA;
use super::scene::{Part, Scene, SceneLayout, instruction};
use crate::robot::policy::{Moment, Observation, Policy};

/// The variant of an episode: what a policy is told and shown in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    Plain,
    /// The instruction names another pad than the layout does.
    OtherColor,
    /// The camera is covered.
    Blanked,
}

/// The counts of pads that were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub num_layouts: usize,
    /// The pad that the policy was told.
    pub told: usize,
    /// The pad of the layout; the same but under [`Trial::OtherColor`].
    pub own: usize,
    /// Steps of the episodes that reached the pad that was told.
    pub num_steps: usize,
}

/// Judges `policy` on the first `num_layouts` held-out layouts of `seed`. `frame` is told of every step: the layout's index,
/// the picture, and whether the episode is over.
///
/// # Errors
/// The reason: the policy cannot act on an observation of Pads.
pub fn judge(
    policy: &mut dyn Policy,
    trial: Trial,
    seed: u64,
    num_layouts: usize,
    mut frame: impl FnMut(usize, &Scene),
) -> Result<Tally, String> {
    let mut tally = Tally { num_layouts, ..Tally::default() };
    for index in 0..num_layouts {
        let layout = SceneLayout::draw(seed, Part::HeldOut, index as u64);
        let told = match trial {
            Trial::OtherColor => (layout.named + 1 + index / 3 % 2) % 3,
            Trial::Plain | Trial::Blanked => layout.named,
        };
        let scene = episode(policy, layout, told, trial == Trial::Blanked, index, &mut frame)?;
        tally.told += usize::from(scene.reached[told]);
        tally.own += usize::from(scene.reached[layout.named]);
        tally.num_steps += if scene.reached[told] { scene.num_steps } else { 0 };
    }
    Ok(tally)
}

fn episode(
    policy: &mut dyn Policy,
    layout: SceneLayout,
    told: usize,
    is_blanked: bool,
    index: usize,
    frame: &mut impl FnMut(usize, &Scene),
) -> Result<Scene, String> {
    let mut scene = Scene::begin(layout);
    let mut moment = Moment { episode: index as u64, request: 0 };
    frame(index, &scene);
    while !scene.is_over(told) {
        let seen = if is_blanked { blank() } else { picture(&scene) };
        let images = vec![(CAMERA.to_owned(), seen)];
        let actions = policy
            .act(&Observation { images, state: scene.state(), prompt: instruction(told), begun: Vec::new() }, moment)?;
        actions.check()?;
        if actions.width != 2 {
            return Err(format!("actions in Pads have 2 values, but the policy's have {}", actions.width));
        }
        moment.request += 1;
        for step in 0..actions.num_steps().min(policy.spec().num_executed.max(1)) {
            let action = actions.step(step);
            scene.step([action[0], action[1]]);
            frame(index, &scene);
            if scene.is_over(told) {
                break;
            }
        }
    }
    Ok(scene)
}
