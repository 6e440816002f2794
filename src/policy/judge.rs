//! Judges a policy in the task Pads: its successes, and beside them what shows whether it reads, looks, and beats chance.

use super::table::{Row, table};
use anyhow::{Context, Result, anyhow};
use image::RgbImage;
use image::imageops::replace;
use loongforge_core::observe::{Exhibit, Gallery};
use loongforge_core::robot::Policy;
use loongforge_core::robot::pads::{Expert, Random, Scene, Tally, Trial, instruction, judge, picture};
use std::path::Path;

/// Episodes of which a strip of frames is drawn.
const NUM_STRIPS: usize = 8;
/// Frames of a strip at most, and pixels between them.
const STRIP_FRAMES: usize = 12;
const GAP: u32 = 1;

/// The counts of a policy's episodes.
pub struct Judged {
    pub plain: Tally,
    pub other_color: Tally,
    pub blanked: Tally,
    pub random: Tally,
    pub expert: Tally,
    strips: Vec<Exhibit>,
}

/// Judges on the first `num_layouts` held-out layouts of `seed`. `tell` is given the name of each trial before it.
///
/// # Errors
/// The policy is none of Pads, or cannot act.
pub fn judge_pads(
    policy: &mut dyn Policy,
    seed: u64,
    num_layouts: usize,
    mut tell: impl FnMut(&str),
) -> Result<Judged> {
    let mut episodes: Vec<Vec<Scene>> = vec![Vec::new(); NUM_STRIPS.min(num_layouts)];
    let mut keep = |index: usize, scene: &Scene| {
        if let Some(episode) = episodes.get_mut(index) {
            episode.push(scene.clone());
        }
    };
    let fail = |reason: String| anyhow!("the policy cannot play Pads: {reason}");
    tell("the policy");
    let plain = judge(policy, Trial::Plain, seed, num_layouts, &mut keep).map_err(fail)?;
    let mut trial = |policy: &mut dyn Policy, trial, what: &str| {
        tell(what);
        judge(policy, trial, seed, num_layouts, |_, _| ()).map_err(fail)
    };
    let other_color = trial(policy, Trial::OtherColor, "told another color")?;
    let blanked = trial(policy, Trial::Blanked, "the camera covered")?;
    let random = trial(&mut Random::new(seed), Trial::Plain, "random actions")?;
    let expert = trial(&mut Expert::new(), Trial::Plain, "the expert")?;
    let strips = episodes.iter().map(|episode| strip(episode)).collect();
    Ok(Judged { plain, other_color, blanked, random, expert, strips })
}

impl Judged {
    /// Returns the successes as a table.
    pub fn text(&self) -> String {
        let row =
            |what: &str, tally: Tally| Row { what: what.to_owned(), successes: tally.told, count: tally.num_layouts };
        let first = Row {
            successes: self.other_color.own,
            ..row("told another color: the layout's own pad", self.other_color)
        };
        table(
            "Pads that were reached",
            &[
                row("the policy", self.plain),
                row("told another color: the pad that it was told", self.other_color),
                first,
                row("the camera covered", self.blanked),
                row("random actions", self.random),
                row("the expert", self.expert),
            ],
        )
    }

    /// Writes strips of frames of the first episodes as PNG.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let title = format!("Pads: {} of {} reached", self.plain.told, self.plain.num_layouts);
        Gallery::new(&title, &self.strips).save(path).context("cannot write the sheet of episodes")
    }
}

/// Returns the frames of an episode side by side, at even distances, the last one among them.
fn strip(episode: &[Scene]) -> Exhibit {
    let Some(last) = episode.last() else { return Exhibit { picture: RgbImage::new(1, 1), text: String::new() } };
    let count = episode.len().min(STRIP_FRAMES);
    let frames: Vec<RgbImage> =
        (0..count).map(|at| picture(&episode[at * (episode.len() - 1) / (count - 1).max(1)])).collect();
    let (width, height) = frames[0].dimensions();
    let mut strip = RgbImage::from_pixel(count as u32 * (width + GAP) - GAP, height, image::Rgb([255; 3]));
    for (at, frame) in frames.iter().enumerate() {
        replace(&mut strip, frame, (at as u32 * (width + GAP)).into(), 0);
    }
    let named = last.layout.named;
    let end = if last.reached[named] { "reached" } else { "not reached" };
    Exhibit { picture: strip, text: format!("{}: {end} after {} steps", instruction(named), last.num_steps) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first episodes are drawn, each with what was asked and how it ended, and the table has every control.
    #[test]
    fn episodes_are_drawn_and_controls_stand_beside_successes() {
        let judged = judge_pads(&mut Expert::new(), 1, 9, |_| ()).unwrap();
        let [plain, other] = [judged.plain, judged.other_color].map(|tally| (tally.told, tally.own));
        assert_eq!((plain, other), ((9, 9), (9, 0)));
        assert_eq!((judged.blanked.told, judged.expert.told), (0, 9));
        let text = judged.text();
        for control in ["told another color", "the camera covered", "random actions", "the expert", "95 % interval"] {
            assert!(text.contains(control), "{control}: {text}");
        }
        assert_eq!(judged.strips.len(), NUM_STRIPS);
        for (strip, color) in judged.strips.iter().zip(["red", "green", "blue"].into_iter().cycle()) {
            assert!(strip.text.starts_with(&format!("go to the {color} pad: reached after ")), "{}", strip.text);
            let frames = (strip.picture.width() + GAP) / (32 + GAP);
            assert!((3..=STRIP_FRAMES as u32).contains(&frames) && strip.picture.height() == 32, "{frames}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pads.png");
        judged.save(&path).unwrap();
        let sheet = image::open(&path).unwrap();
        assert!(sheet.height() >= 4 * 32, "{} by {}", sheet.width(), sheet.height());
    }
}
