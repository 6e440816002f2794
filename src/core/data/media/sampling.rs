//! Describes which frames of a video are taken. Equal to `sample_frames` of the families' video processors in
//! transformers.

use serde::{Deserialize, Serialize};

use super::settings::{Settings, set_alone};
use crate::config::{Take, VideoLimits};
use crate::data::error::DataError;

/// Describes how many frames are taken, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Frames a second; for frames whose rate is not known it is taken to be this one.
    pub fps: f64,
    /// A fixed number of frames, whatever the length.
    pub num_frames: Option<usize>,
    pub min_frames: usize,
    pub max_frames: usize,
    pub spread: Spread,
}

/// Says where the frames lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spread {
    /// The first frame of each of as many equal parts, a whole number of which fills a patch (Qwen2-VL).
    Parts { multiple: usize },
    /// The same with parts that need not be whole in number (ERNIE).
    Fractional,
    /// The same (Kimi), or the middle frame of each part (InternVL).
    Whole { middle: bool },
    /// Frames at equal distances from the first to the last (Qwen3-VL).
    Ends,
    /// The first frame of each second; of a longer video `max_frames` of those that begin a tenth of a second (MiniCPM-V).
    Seconds,
    /// One frame and a multiple of `group` behind it, at the rate of the clip's model, from a place that `take` says; `at` is
    /// the part of 2³² of a place that is chosen by chance.
    Clip { take: Take, at: u32, group: u32 },
}

/// The keys' values where a file has none.
pub struct Defaults {
    pub fps: f64,
    pub num_frames: Option<usize>,
    pub min_frames: usize,
    pub max_frames: usize,
}

impl Sampling {
    /// Samples so many frames from the first to the last, or all where there are fewer.
    pub fn evenly(num_frames: usize) -> Self {
        let (fps, spread) = (1.0, Spread::Ends);
        Self { fps, num_frames: Some(num_frames), min_frames: 1, max_frames: num_frames, spread }
    }

    /// Reads the sampling from a processor's file and the run's own limits, which come first.
    ///
    /// # Errors
    /// The rate is not above 0, or the numbers of frames contradict each other.
    pub fn new(
        settings: &Settings,
        limits: &VideoLimits,
        spread: Spread,
        defaults: Defaults,
    ) -> Result<Self, DataError> {
        let fps = limits.fps.or(settings.fps);
        let sampling = Self {
            fps: fps.unwrap_or(defaults.fps),
            num_frames: if fps.is_some() { None } else { settings.num_frames.or(defaults.num_frames) },
            min_frames: limits.min_frames.or(settings.min_frames).unwrap_or(defaults.min_frames),
            max_frames: limits.max_frames.or(settings.max_frames).unwrap_or(defaults.max_frames),
            spread,
        };
        let Self { fps, min_frames, max_frames, .. } = sampling;
        if !(fps.is_finite() && fps > 0.0) {
            return Err(settings.wrong(format!("fps must be a finite number above 0, found {fps}")));
        }
        if max_frames == 0 || min_frames > max_frames {
            let alone = set_alone((limits.min_frames, limits.max_frames), ("min_frames", "max_frames"));
            return Err(settings.wrong(format!(
                "min_frames ({min_frames}) must not exceed max_frames ({max_frames}), which must be above 0{alone}"
            )));
        }
        Ok(sampling)
    }

    /// Returns the indices of the frames to take of `total`, which were filmed at `source_fps`; where that is not known, all frames are
    /// taken, or as many as there may be from the first to the last. The list is empty only if `total` is 0.
    pub fn indices(&self, total: usize, source_fps: Option<f64>) -> Vec<usize> {
        if let Spread::Clip { take, at, group } = self.spread {
            return self.clip(total, source_fps.unwrap_or(self.fps), take, (at, group as usize));
        }
        let Some(source_fps) = source_fps else {
            return if total <= self.max_frames { (0..total).collect() } else { ends(total, self.max_frames) };
        };
        if self.spread == Spread::Seconds {
            return seconds(total, source_fps, self.max_frames);
        }
        let wanted = total as f64 / source_fps * self.fps;
        let clamped = |wanted: f64, max: usize| wanted.max(self.min_frames as f64).min(max as f64).min(total as f64);
        let (num, shift) = match self.spread {
            Spread::Parts { multiple } => {
                let whole = |frames: f64| (frames / multiple as f64).floor() * multiple as f64;
                let max = whole(self.max_frames.min(total) as f64);
                let num = match self.num_frames {
                    Some(num) => (num as f64 / multiple as f64).round_ties_even() * multiple as f64,
                    None => whole(wanted.max(self.min_frames as f64).min(max)),
                };
                (num.min(total as f64), 0.0)
            }
            Spread::Fractional => {
                (self.num_frames.map_or(clamped(wanted, self.max_frames), |num| num.min(total) as f64), 0.0)
            }
            Spread::Whole { middle } => {
                let num = self.num_frames.map_or(wanted.floor(), |num| num as f64);
                let num = num.max(1.0).min(self.max_frames as f64).min(total as f64);
                (num, if middle { total as f64 / num / 2.0 } else { 0.0 })
            }
            Spread::Clip { .. } | Spread::Seconds => unreachable!("it was asked above"),
            Spread::Ends => {
                let num = self.num_frames.map_or(clamped(wanted.floor(), self.max_frames), |num| num.min(total) as f64);
                return ends(total, num as usize);
            }
        };
        if num < 1.0 { (0..total).collect() } else { steps(shift, total, total as f64 / num) }
    }

    /// Returns the frames of a clip for a diffusion model: those nearest to its rate, and of these as many as there may be.
    fn clip(&self, total: usize, source_fps: f64, take: Take, (at, group): (u32, usize)) -> Vec<usize> {
        if total == 0 {
            return Vec::new();
        }
        let step = source_fps / self.fps;
        let len = ((total - 1) as f64 / step + 1e-6) as usize + 1;
        let whole = |frames: usize| 1 + (frames - 1) / group * group;
        let most = if take == Take::Whole { len } else { len.min(self.max_frames) };
        let num = whole(most);
        let by_chance = |places: usize| ((places as u64 * u64::from(at)) >> 32) as usize;
        let place = |at: usize| match take {
            Take::Head | Take::Whole => at,
            Take::Middle => (len - num) / 2 + at,
            Take::Sliding => by_chance(len - num + 1) + at,
            Take::Chunks => by_chance(len / num) * num + at,
            Take::Uniform => (at * (len - 1) + num.saturating_sub(1) / 2) / num.saturating_sub(1).max(1),
        };
        (0..num).map(|at| ((place(at) as f64 * step).round() as usize).min(total - 1)).collect()
    }
}

/// Returns the frames of [`Spread::Seconds`], in float64 and rounded down.
fn seconds(total: usize, fps: f64, max_frames: usize) -> Vec<usize> {
    let duration = total as f64 / fps;
    let frame = |time: f64| ((time * fps) as usize).min(total.saturating_sub(1));
    if duration <= max_frames as f64 {
        return (0..duration.ceil() as usize).map(|second| frame(second as f64)).collect();
    }
    let len = (duration / 0.1) as usize;
    let tenth = |at: usize| frame(at as f64 / 10.0);
    if len <= max_frames {
        return (0..len).map(tenth).collect();
    }
    let step = (len - 1) as f64 / (max_frames.max(2) - 1) as f64;
    let place = |at: usize| if at + 1 == max_frames && at > 0 { len - 1 } else { (at as f64 * step) as usize };
    (0..max_frames).map(|at| tenth(place(at))).collect()
}

/// Returns `torch.arange(from, total, step).int()`, which computes in float32.
fn steps(from: f64, total: usize, step: f64) -> Vec<usize> {
    let len = ((total as f64 - from) / step).ceil() as usize;
    (0..len).map(|index| ((from + step * index as f64) as f32 as usize).min(total - 1)).collect()
}

/// Returns `numpy.linspace(0, total - 1, num).round()`.
fn ends(total: usize, num: usize) -> Vec<usize> {
    let last = total.saturating_sub(1) as f64;
    let step = last / num.saturating_sub(1).max(1) as f64;
    (0..num).map(|index| (index as f64 * step).round_ties_even().min(last) as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_frames_that_the_run_sets_alone_is_told() {
        let settings = Settings::parse(serde_json::json!({}), "dir/video.json".into()).unwrap();
        let new = |limits: VideoLimits| {
            let defaults = Defaults { fps: 2.0, num_frames: None, min_frames: 4, max_frames: 768 };
            Sampling::new(&settings, &limits, Spread::Fractional, defaults)
        };
        let error = new(VideoLimits { max_frames: Some(2), ..VideoLimits::default() }).unwrap_err().to_string();
        assert!(error.contains("dir/video.json: min_frames (4) must not exceed max_frames (2)"), "{error}");
        assert!(error.ends_with("the run sets max_frames alone: set min_frames beside it"), "{error}");
        let both = VideoLimits { min_frames: Some(1), max_frames: Some(2), ..VideoLimits::default() };
        assert_eq!(new(both).unwrap().max_frames, 2);
    }
}
