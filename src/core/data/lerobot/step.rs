//! One frame of an episode, and what is around it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use image::RgbImage;

use super::columns::Stored;
use super::feature::{Dtype, Feature};
use super::names::INFO;
use super::rows::Rows;
use super::set::Set;
use super::template::is_inner;
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::limits::Limits;
use crate::data::locator::Locator;

/// Seconds by which a time may be off a whole number of steps, as lerobot has it.
const TOLERANCE: f64 = 1e-4;

/// A frame of an episode.
#[derive(Clone)]
pub struct Step {
    set: Arc<Set>,
    rows: Arc<Rows>,
    episode: usize,
    frame: usize,
}

/// Values of a feature at several steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// `[steps, width]`, row-major.
    pub values: Vec<f32>,
    /// True for each step that lies outside of the episode, whose first or last frame stands for it.
    pub is_pad: Vec<bool>,
}

/// Returns the steps of times, in seconds, at `fps` frames a second.
///
/// # Errors
/// The reason: a time that is no whole number of steps.
pub fn steps_of(seconds: &[f64], fps: f64) -> Result<Vec<i64>, String> {
    let step = |&time: &f64| {
        let steps = time * fps;
        // lerobot allows so many seconds; a step has 1/fps.
        if !steps.is_finite() || (steps - steps.round()).abs() > TOLERANCE * fps || steps.abs() > 1e6 {
            return Err(format!(
                "{time} s is not a whole number of steps: at {fps} frames per second, one step takes {:.6} s",
                1.0 / fps
            ));
        }
        Ok(steps.round() as i64)
    };
    seconds.iter().map(step).collect()
}

impl Step {
    pub(super) fn new(set: Arc<Set>, rows: Arc<Rows>, episode: usize, frame: usize) -> Self {
        Self { set, rows, episode, frame }
    }

    /// Returns the set whose frame this is.
    pub fn set(&self) -> &Arc<Set> {
        &self.set
    }

    /// Returns the number of its episode.
    pub fn episode(&self) -> usize {
        self.episode
    }

    /// Returns its number in the episode.
    pub fn frame(&self) -> usize {
        self.frame
    }

    /// Seconds since the begin of the episode.
    pub fn time(&self) -> f64 {
        self.rows.timestamps[self.row(self.frame)]
    }

    /// Checks that the frame comes as long after the one before it as the set's rate says.
    ///
    /// # Errors
    /// It does not: `fps` of `meta/info.json` or its timestamp is wrong.
    pub fn expect_rate(&self) -> Result<(), DataError> {
        let Some(before) = self.frame.checked_sub(1).map(|frame| self.rows.timestamps[self.row(frame)]) else {
            return Ok(());
        };
        let (fps, gap) = (self.set.info().fps, self.time() - before);
        // Both times are rounded to float32.
        let tolerance = TOLERANCE + self.time().abs() * f64::from(f32::EPSILON);
        match (gap - 1.0 / fps).abs() <= tolerance {
            true => Ok(()),
            false => Err(DataError::Line(format!(
                "frame {} comes {gap:.4} s after the one before it, but at {fps} frames per second (fps of \
                 meta/info.json) it should be {:.4} s",
                self.frame,
                1.0 / fps
            ))),
        }
    }

    /// Checks that videos have the frames of its whole episode and of no other: else some of them are found, of other moments. A video that
    /// is not there is not looked at.
    ///
    /// # Errors
    /// Named by the video: it has no frame where the last one should be, or the next episode begins before it.
    pub fn expect_videos(&self, limits: &Limits) -> Result<(), DataError> {
        let (episode, fps) = (self.of_episode(), self.set.info().fps);
        let length = self.rows.timestamps[self.row(episode.length - 1)];
        let following = self.set.episodes().get(self.episode + 1);
        for (at, clip) in episode.clips.iter().enumerate() {
            let path = self.set.video(clip.file);
            let next = following.map(|next| next.clips[at]);
            let next = next.filter(|next| next.file == clip.file && next.from >= clip.from).map(|next| next.from);
            if path.is_file() {
                self.set.videos().expect_episode((clip.file, &path), [clip.from + length, fps], next, limits)?;
            }
        }
        Ok(())
    }

    /// Checks that the pictures of this frame have the sizes that the set says. One that cannot be read is left to whoever needs it.
    ///
    /// # Errors
    /// They do not; the cameras are named.
    pub fn expect_sizes(&self, decoder: &dyn MediaDecoder, limits: &Limits) -> Result<(), DataError> {
        let mut wrong = Vec::new();
        for camera in self.set.info().cameras() {
            let Some(expected) = camera.picture_size() else { continue };
            let Ok(pictures) = self.pictures(&camera.key, &[0], decoder, limits) else { continue };
            let sizes = pictures.iter().map(|picture| [picture.height() as usize, picture.width() as usize]);
            wrong.extend(sizes.filter(|size| *size != expected).map(|[rows, columns]| {
                let (key, [height, width]) = (&camera.key, expected);
                format!("{key} has pictures of {columns}×{rows} pixels, but its shape in {INFO} says {width}×{height}")
            }));
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(DataError::Line(wrong.join("; "))),
        }
    }

    /// Returns the instruction to the robot.
    ///
    /// # Errors
    /// The number of its task has no text.
    pub fn task(&self) -> Result<&str, DataError> {
        let number = self.rows.tasks[self.row(self.frame)];
        let text = self.set.tasks().get(&number);
        text.map(String::as_str)
            .ok_or_else(|| DataError::Line(format!("has task {number}, for which the set has no text")))
    }

    /// Values of a feature of numbers at `steps` from this frame, those before the episode being its first and those behind it
    /// its last.
    ///
    /// # Errors
    /// Named: no such feature, no numbers, or a file is damaged.
    pub fn window(&self, key: &str, steps: &[i64]) -> Result<Window, DataError> {
        let feature = self.feature(key)?;
        if !feature.is_numbers() {
            return Err(DataError::Line(format!("{key} has the type {}, not numbers", feature.dtype.name())));
        }
        let (values, width) = (self.rows.numbers(feature)?, feature.width());
        let mut window =
            Window { values: Vec::with_capacity(steps.len() * width), is_pad: Vec::with_capacity(steps.len()) };
        for &step in steps {
            let (frame, is_pad) = self.clamped(step);
            window.values.extend_from_slice(&values[self.row(frame) * width..][..width]);
            window.is_pad.push(is_pad);
        }
        Ok(window)
    }

    /// Returns the values of a feature of numbers in this frame.
    ///
    /// # Errors
    /// Fails as [`Step::window`] does.
    pub fn numbers(&self, key: &str) -> Result<Vec<f32>, DataError> {
        Ok(self.window(key, &[0])?.values)
    }

    /// Returns the values of a feature of whole numbers in this frame, each as it is.
    ///
    /// # Errors
    /// Fails as [`Step::window`] does.
    pub fn whole(&self, feature: &Feature) -> Result<Vec<i64>, DataError> {
        Ok(self.rows.whole(feature)?[self.row(self.frame) * feature.width()..][..feature.width()].to_vec())
    }

    /// Returns the values of a feature of float64 in this frame, each as it is.
    ///
    /// # Errors
    /// Fails as [`Step::window`] does.
    pub fn reals(&self, feature: &Feature) -> Result<Vec<f64>, DataError> {
        Ok(self.rows.reals(feature)?[self.row(self.frame) * feature.width()..][..feature.width()].to_vec())
    }

    /// Returns the text of a feature of texts in this frame.
    ///
    /// # Errors
    /// Fails as [`Step::window`] does.
    pub fn text(&self, key: &str) -> Result<String, DataError> {
        let feature = self.feature(key)?;
        if feature.dtype != Dtype::String {
            return Err(DataError::Line(format!("{key} has the type {}, not text", feature.dtype.name())));
        }
        Ok(self.rows.texts(key)?[self.row(self.frame)].clone())
    }

    /// Returns the pictures of a camera at `steps` from this frame, clamped as [`Step::window`] does.
    ///
    /// # Errors
    /// Named: no such camera, or a picture cannot be read or decoded.
    pub fn pictures(
        &self,
        key: &str,
        steps: &[i64],
        decoder: &dyn MediaDecoder,
        limits: &Limits,
    ) -> Result<Vec<RgbImage>, DataError> {
        let feature = self.feature(key)?;
        let frames = steps.iter().map(|&step| self.clamped(step).0);
        match &feature.dtype {
            Dtype::Image => {
                let stored = self.rows.pictures(key)?;
                frames.map(|frame| self.stored(&stored[self.row(frame)], key, frame, decoder, limits)).collect()
            }
            Dtype::Video => {
                let videos = self.set.info().videos();
                let at = videos.into_iter().position(|video| video == key).unwrap_or_default();
                let clip = self.of_episode().clips[at];
                let times: Vec<f64> = frames.map(|frame| clip.from + self.rows.timestamps[self.row(frame)]).collect();
                let path = self.set.video(clip.file);
                self.set.videos().frames((clip.file, &path), &times, decoder, limits)
            }
            other => Err(DataError::Line(format!("{key} has the type {}, not pictures", other.name()))),
        }
    }

    /// Returns a picture from a cell of the file, or from the file that it names.
    fn stored(
        &self,
        stored: &Stored,
        key: &str,
        frame: usize,
        decoder: &dyn MediaDecoder,
        limits: &Limits,
    ) -> Result<RgbImage, DataError> {
        let name = format!("{key} of frame {frame} of episode {}", self.episode);
        let wrong = |reason: String| DataError::image(Path::new(&name), reason);
        match stored {
            Stored::Bytes(bytes) => decoder.picture(bytes, limits).map_err(wrong),
            Stored::File(path) => {
                is_inner(path).map_err(|()| wrong(format!("is the file {path:?}, which is not in the set")))?;
                let bytes = Locator::File(path.clone()).read(self.set.folder())?.into_owned();
                decoder.picture(&bytes, limits).map_err(wrong)
            }
        }
    }

    fn feature(&self, key: &str) -> Result<&Feature, DataError> {
        let feature = self.set.info().feature(key);
        feature.ok_or_else(|| DataError::Line(format!("the set has no feature {key}")))
    }

    fn of_episode(&self) -> &super::episodes::Episode {
        &self.set.episodes()[self.episode]
    }

    /// Returns the row of a frame of the episode.
    fn row(&self, frame: usize) -> usize {
        self.of_episode().row + frame
    }

    /// Returns the frame of the episode that a step leads to, and whether another stands for it.
    fn clamped(&self, step: i64) -> (usize, bool) {
        let last = self.of_episode().length as i64 - 1;
        let wanted = self.frame as i64 + step;
        let frame = wanted.clamp(0, last);
        (frame as usize, frame != wanted)
    }
}

impl PartialEq for Step {
    /// Two are equal if they are the same frame of the same folder.
    fn eq(&self, other: &Self) -> bool {
        (self.set.folder(), self.episode, self.frame) == (other.set.folder(), other.episode, other.frame)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: frame {} of episode {}", self.set.folder().display(), self.frame, self.episode)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SetWriter, Value};
    use super::*;
    use crate::data::InProcess;

    /// Frames of a third of the episode would be found, and be those of other moments.
    #[cfg(feature = "mp4")]
    #[test]
    fn videos_have_the_rate_of_their_set() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [set, other] = folders.each_ref().map(|folder| folder.path().join("set"));
        for (folder, fps) in [(&set, 10), (&other, 30)] {
            let mut writer = SetWriter::create(folder, fps, "arm", vec![Feature::video("top", 32, 48)]).unwrap();
            for length in [7, 5] {
                for _ in 0..length {
                    writer.add_frame(&[("top", Value::Picture(&RgbImage::new(48, 32)))]).unwrap();
                }
                writer.end_episode("go").unwrap();
            }
            writer.finish().unwrap();
        }
        let limits = Limits { max_side: 64, max_pixels: 1 << 12 };
        let found = |folder: &Path| {
            let block = Arc::new(Set::open(folder).unwrap()).open_block(0, 0).unwrap();
            let steps = (0..block.num_samples()).map(|at| block.step(at).expect_videos(&limits));
            steps.filter_map(|found| found.err().map(|error| error.to_string())).collect::<Vec<_>>()
        };
        assert_eq!((found(&set), found(&other)), (Vec::new(), Vec::new()));
        let video = "videos/top/chunk-000/file-000.mp4";
        std::fs::copy(other.join(video), set.join(video)).unwrap();
        let said = found(&set);
        assert_eq!(said.len(), 12, "{said:?}");
        let rates = "the video has 30.00 frames per second, and the set 10 (fps of meta/info.json)";
        assert!(said.iter().all(|said| said.contains("has no frame at") && said.contains(rates)), "{said:?}");
        // Episodes begin where the video has them, and the frames of one reach into the next.
        for file in ["meta/info.json", "data/chunk-000/file-000.parquet"] {
            std::fs::copy(set.join(file), other.join(file)).unwrap();
        }
        let said = found(&other);
        let reaches_on = |said: &String| said.contains("the next episode begins at") && said.contains(rates);
        assert!(said.len() == 12 && said[..7].iter().all(reaches_on), "{said:?}");
    }

    /// The second episode's frames would be the first one's.
    #[cfg(feature = "mp4")]
    #[test]
    fn episodes_do_not_share_the_frames_of_a_video() {
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("set");
        let mut writer = SetWriter::create(&set, 10, "arm", vec![Feature::video("top", 32, 48)]).unwrap();
        for length in [7, 5] {
            for _ in 0..length {
                writer.add_frame(&[("top", Value::Picture(&RgbImage::new(48, 32)))]).unwrap();
            }
            writer.end_episode("go").unwrap();
        }
        writer.finish().unwrap();
        let limits = Limits { max_side: 64, max_pixels: 1 << 12 };
        let mut opened = Set::open(&set).unwrap();
        for (from, expected) in [(0.7, None), (0.6, Some("begins at 0.6000 s")), (0.0, Some("begins at 0.0000 s"))] {
            opened.episodes.list[1].clips[0].from = from;
            let shared = Arc::new(opened);
            let found = shared.step(0, 3).unwrap().expect_videos(&limits).map_err(|error| error.to_string());
            match expected {
                None => assert_eq!(found, Ok(())),
                Some(expected) => {
                    let error = found.unwrap_err();
                    assert!(error.contains(expected) && error.contains("from_timestamp"), "{error}");
                }
            }
            opened = Arc::into_inner(shared).unwrap();
        }
    }

    #[test]
    fn pictures_have_the_sizes_that_their_set_says() {
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("set");
        let cameras = vec![Feature::images("top", 32, 48), Feature::images("side", 16, 16)];
        let mut writer = SetWriter::create(&set, 10, "arm", cameras).unwrap();
        let [top, side] = [RgbImage::new(48, 32), RgbImage::new(16, 16)];
        writer.add_frame(&[("top", Value::Picture(&top)), ("side", Value::Picture(&side))]).unwrap();
        writer.end_episode("go").unwrap();
        writer.finish().unwrap();
        let found = || {
            let step = Arc::new(Set::open(&set).unwrap()).step(0, 0).unwrap();
            let limits = Limits { max_side: 64, max_pixels: 1 << 12 };
            step.expect_sizes(&InProcess, &limits).map_err(|error| error.to_string())
        };
        assert_eq!(found(), Ok(()));
        let path = set.join(INFO);
        let mut info: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        info["features"]["top"]["shape"] = serde_json::json!([48, 32, 3]);
        std::fs::write(&path, info.to_string()).unwrap();
        let error = found().unwrap_err();
        assert!(
            error.ends_with("top has pictures of 48×32 pixels, but its shape in meta/info.json says 32×48"),
            "{error}"
        );
        assert!(!error.contains("side"), "{error}");
    }

    /// Float32 rounds times behind 2,048 seconds by more than lerobot's tolerance.
    #[test]
    fn long_episodes_have_the_rate_that_their_set_says() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = SetWriter::create(folder.path(), 3, "arm", vec![Feature::vector("action", &["x"])]).unwrap();
        for _ in 0..6200 {
            writer.add_frame(&[("action", Value::Numbers(&[0.0]))]).unwrap();
        }
        writer.end_episode("go").unwrap();
        writer.finish().unwrap();
        let block = Arc::new(Set::open(folder.path()).unwrap()).open_block(0, 0).unwrap();
        for at in 0..block.num_samples() {
            block.step(at).expect_rate().unwrap();
        }
    }
}
