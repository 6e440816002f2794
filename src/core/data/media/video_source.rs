//! The frames of a video: a folder or a list of pictures, an animated GIF, or an MP4 file.

use std::cmp::Ordering;
use std::path::Path;

use image::RgbImage;

use super::sampling::Sampling;
use super::video::{FEWER, Video};
use crate::data::animation::expect_still;
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::in_process::{is_clip_file, read_rgb_with};
use crate::data::limits::{Limits, MAX_VIDEO_BYTES};
use crate::data::locator::Locator;

const PICTURES: [&str; 7] = ["png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff"];
const VIDEOS: [&str; 8] = ["mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "flv"];

const OTHER_VIDEO: &str = "not an MP4 file: of video files only MP4 with H.264 or AV1 is decoded; convert it (ffmpeg -i FILE -c:v \
                           libx264 -pix_fmt yuv420p NEW.mp4), or extract the frames (ffmpeg -i FILE -r 2 \
                           FOLDER/%06d.jpg) and name the folder, with \"fps\"";

/// A video in a sample: where its frames are.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoSource {
    /// One: a folder of pictures, an animated GIF or an MP4 file. Several: the frames themselves.
    pub locators: Vec<Locator>,
    /// Frames a second of these frames. `None`: a file's own; frames are taken as they are, at the processor's rate.
    pub fps: Option<f64>,
}

/// Returns whether a file holds a whole video, by its name.
pub fn is_clip(locator: &Locator) -> bool {
    let extension = locator.extension();
    extension == "gif" || VIDEOS.contains(&extension.as_str())
}

/// Reads the frames that `sampling` takes. Paths are relative to `base`.
///
/// # Errors
/// Named by its path: nothing there, a video file that has to be decoded, no frames, frames of several sizes.
pub fn load(
    source: &VideoSource,
    base: &Path,
    decoder: &dyn MediaDecoder,
    limits: &Limits,
    sampling: &Sampling,
) -> Result<Video, DataError> {
    if let [one] = source.locators.as_slice() {
        let fail = |reason: &str| DataError::image(Path::new(&one.display(base)), reason);
        let extension = one.extension();
        if let Locator::File(name) = one
            && base.join(name).is_dir()
        {
            let folder = base.join(name);
            return pictures(&folder, &in_folder(&folder)?, source.fps, decoder, limits, sampling);
        }
        if !PICTURES.contains(&extension.as_str()) {
            // By its contents, whatever its name says.
            let bytes = one.read(base)?;
            if is_clip_file(&bytes) {
                return decoder.clip(&bytes, source.fps, limits, sampling).map_err(|reason| fail(&reason));
            }
            if VIDEOS.contains(&extension.as_str()) {
                return Err(fail(OTHER_VIDEO));
            }
        } else {
            expect_still(&one.read(base)?).map_err(|reason| fail(&reason))?;
        }
    }
    pictures(base, &source.locators, source.fps, decoder, limits, sampling)
}

/// An empty list is blamed on `base`.
fn pictures(
    base: &Path,
    paths: &[Locator],
    fps: Option<f64>,
    decoder: &dyn MediaDecoder,
    limits: &Limits,
    sampling: &Sampling,
) -> Result<Video, DataError> {
    if paths.is_empty() {
        return Err(DataError::image(base, "the video has no frames"));
    }
    let taken = sampling.indices(paths.len(), fps);
    let mut frames: Vec<RgbImage> = Vec::with_capacity(taken.len());
    for &index in &taken {
        let frame = read_rgb_with(decoder, &paths[index], base, limits)?;
        if let Some(first) = frames.first()
            && first.dimensions() != frame.dimensions()
        {
            let ((w, h), (first_w, first_h)) = (frame.dimensions(), first.dimensions());
            let reason = format!("is {w}×{h} pixels, but the video's first frame is {first_w}×{first_h}");
            return Err(DataError::image(Path::new(&paths[index].display(base)), reason));
        }
        if (frames.len() as u64 + 1) * frame.as_raw().len() as u64 > MAX_VIDEO_BYTES {
            let reason = format!("the frames of its video take more than {} MiB; {FEWER}", MAX_VIDEO_BYTES >> 20);
            return Err(DataError::image(Path::new(&paths[index].display(base)), reason));
        }
        frames.push(frame);
    }
    Ok(Video::new(frames, &taken, paths.len(), fps.unwrap_or(sampling.fps)))
}

/// Returns the pictures of a folder in the order of their names, numbers by value.
///
/// # Errors
/// The folder cannot be read.
pub fn in_folder(folder: &Path) -> Result<Vec<Locator>, DataError> {
    let read = |error: std::io::Error| DataError::image(folder, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let file = Locator::File(entry.map_err(read)?.file_name().to_string_lossy().into_owned());
        if PICTURES.contains(&file.extension().as_str()) {
            files.push(file);
        }
    }
    files.sort_by(|a, b| natural(a.name(), b.name()));
    Ok(files)
}

/// Compares names so that `frame2` comes before `frame10`.
pub fn natural(left: &str, right: &str) -> Ordering {
    let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (mut a, mut b) = (left, right);
    loop {
        let (num_a, num_b) = (digits(a), digits(b));
        let order = if num_a > 0 && num_b > 0 {
            let value = |text: &str| text.trim_start_matches('0').to_owned();
            let (left, right) = (value(&a[..num_a]), value(&b[..num_b]));
            (a, b) = (&a[num_a..], &b[num_b..]);
            left.len().cmp(&right.len()).then(left.cmp(&right))
        } else {
            match (a.chars().next(), b.chars().next()) {
                (Some(left), Some(right)) => {
                    (a, b) = (&a[left.len_utf8()..], &b[right.len_utf8()..]);
                    left.cmp(&right)
                }
                (left, right) => return left.cmp(&right).then_with(|| a.cmp(b)),
            }
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use image::codecs::gif::GifEncoder;
    use image::{Delay, Frame, Rgb, RgbaImage};

    use super::*;
    use crate::data::in_process::InProcess;
    use crate::data::media::Spread;

    const LIMITS: Limits = Limits { max_side: 100, max_pixels: 1 << 20 };

    fn sampling(max_frames: usize) -> Sampling {
        Sampling { fps: 2.0, num_frames: None, min_frames: 1, max_frames, spread: Spread::Ends }
    }

    fn source(paths: &[&str], fps: Option<f64>) -> VideoSource {
        VideoSource { locators: paths.iter().map(|&path| path.into()).collect(), fps }
    }

    /// Frame number `i` is all of brightness `20 i`.
    fn shades(video: &Video) -> Vec<u8> {
        video.frames.iter().map(|frame| frame.get_pixel(0, 0).0[0] / 20).collect()
    }

    #[test]
    fn folders_lists_and_animations_are_videos() {
        let folder = tempfile::tempdir().unwrap();
        let frames = folder.path().join("clip");
        std::fs::create_dir(&frames).unwrap();
        for index in 0..12u8 {
            RgbImage::from_pixel(8, 6, Rgb([index * 20; 3])).save(frames.join(format!("f{index}.png"))).unwrap();
        }
        std::fs::write(frames.join("notes.txt"), "x").unwrap();
        let load = |source: &VideoSource, max| load(source, folder.path(), &InProcess, &LIMITS, &sampling(max));
        let all = load(&source(&["clip"], None), 99).unwrap();
        assert_eq!(shades(&all), (0..12).collect::<Vec<_>>());
        assert_eq!((all.times[3], all.fps), (1.5, 2.0));
        // Filmed at 4 frames a second: every other frame.
        let half = load(&source(&["clip"], Some(4.0)), 99).unwrap();
        assert_eq!((shades(&half), half.fps), (vec![0, 2, 4, 7, 9, 11], 2.0));
        assert_eq!(shades(&load(&source(&["clip"], None), 3).unwrap()), [0, 6, 11]);
        let listed = load(&source(&["clip/f3.png", "clip/f1.png"], None), 99).unwrap();
        assert_eq!(shades(&listed), [3, 1]);

        let gif = std::fs::File::create(folder.path().join("a.gif")).unwrap();
        let mut encoder = GifEncoder::new(gif);
        for index in 0..5u8 {
            let picture = RgbaImage::from_pixel(8, 6, image::Rgba([index * 20, index * 20, index * 20, 255]));
            encoder.encode_frame(Frame::from_parts(picture, 0, 0, Delay::from_numer_denom_ms(500, 1))).unwrap();
        }
        drop(encoder);
        let animation = load(&source(&["a.gif"], None), 99).unwrap();
        assert_eq!((shades(&animation), animation.times[4]), (vec![0, 1, 2, 3, 4], 2.0));
    }

    #[test]
    fn what_is_no_video_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        RgbImage::new(8, 6).save(folder.path().join("a.png")).unwrap();
        RgbImage::new(8, 7).save(folder.path().join("b.png")).unwrap();
        std::fs::write(folder.path().join("c.gif"), "GIF89a").unwrap();
        std::fs::write(folder.path().join("x.mkv"), "\x1aE").unwrap();
        std::fs::write(folder.path().join("w.webp"), b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0").unwrap();
        std::fs::write(folder.path().join("d.mp4"), "\0\0\0\x08ftyp").unwrap();
        for (paths, part) in [
            (&["gone"][..], "gone"),
            (&["empty"], "has no frames"),
            (&["x.mkv"], "extract the frames"),
            (&["d.mp4"], "no table of frames"),
            (&["a.png", "b.png"], "8×7 pixels, but the video's first frame is 8×6"),
            (&["c.gif"], "c.gif"),
            (&["w.webp"], "animated WebP"),
        ] {
            let error =
                load(&source(paths, None), folder.path(), &InProcess, &LIMITS, &sampling(9)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn names_are_ordered_by_their_numbers() {
        let mut names = ["f10.png", "f2.png", "f002b.png", "e11.png", "f1.png"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["e11.png", "f1.png", "f2.png", "f002b.png", "f10.png"]);
    }
}
