//! Tests on sets that lerobot wrote, against what its own reader makes of them, and on sets that are written here.

mod version_2_0;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{Rgb, RgbImage};
use serde_json::{Value as Json, json};

use super::*;
use crate::config::EpisodeRange;
use crate::data::error::DataError;
use crate::data::in_process::InProcess;
use crate::data::limits::Limits;

const CAMERA: &str = "observation.images.front";
/// Every so many bytes of a picture are compared.
const STRIDE: usize = 101;
const LIMITS: Limits = Limits { max_side: 4096, max_pixels: 1 << 20 };

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/lerobot")
}

fn expected() -> Json {
    serde_json::from_slice(&std::fs::read(goldens().join("expected.json")).unwrap()).unwrap()
}

fn open(folder: &Path) -> Arc<Set> {
    Arc::new(Set::open(folder).unwrap())
}

fn numbers(json: &Json) -> Vec<f32> {
    json.as_array()
        .unwrap()
        .iter()
        .flat_map(|row| match row {
            Json::Array(row) => row.iter().map(|it| it.as_f64().unwrap() as f32).collect(),
            one => vec![one.as_f64().unwrap() as f32],
        })
        .collect()
}

/// Returns the largest difference of a picture's bytes from those of the golden.
fn difference(picture: &RgbImage, golden: &Json) -> u8 {
    let golden = golden.as_array().unwrap();
    let ours: Vec<u8> = picture.as_raw().iter().copied().step_by(STRIDE).collect();
    assert_eq!(ours.len(), golden.len());
    let theirs = golden.iter().map(|it| it.as_u64().unwrap() as u8);
    ours.iter().zip(theirs).map(|(&ours, theirs)| ours.abs_diff(theirs)).max().unwrap()
}

/// Samples of a set in the order of its files.
fn samples(set: &Arc<Set>, dropped: usize) -> Vec<Step> {
    let blocks = (0..set.blocks(dropped).len()).map(|number| set.open_block(number, dropped).unwrap());
    blocks.flat_map(|block| (0..block.num_samples()).map(|at| block.step(at)).collect::<Vec<_>>()).collect()
}

/// Numbers and pads are equal; decoders are exact, and differ in how they round colors.
fn equals_lerobot(name: &str, max_difference: u8) {
    let (set, golden) = (open(&goldens().join(name)), expected());
    let steps = samples(&set, 0);
    assert_eq!((steps.len(), set.episodes().len(), set.info().fps), (24, 3, 10.0));
    let deltas = steps_of(&[-0.2, 0.0, 0.1, 0.3], set.info().fps).unwrap();
    assert_eq!(deltas, [-2, 0, 1, 3]);
    let items = golden[name]["items"].as_array().unwrap();
    assert!(items.len() >= 8);
    for item in items {
        let step = &steps[item["index"].as_u64().unwrap() as usize];
        assert_eq!(
            json!([step.episode(), step.frame(), step.task().unwrap()]),
            json!([item["episode"], item["frame"], item["task"]])
        );
        for key in ["observation.state", "action"] {
            let window = step.window(key, &deltas).unwrap();
            assert_eq!(window.values, numbers(&item[key]), "{name} {item}");
            assert_eq!(json!(window.is_pad), item[format!("{key}_is_pad")]);
        }
        let pictures = step.pictures(CAMERA, &[0], &InProcess, &LIMITS).unwrap();
        let most = difference(&pictures[0], &item["pixels"]);
        assert!(most <= max_difference, "{name} {}: {most}", item["index"]);
    }
    let stats = set.stats().unwrap();
    assert_stats(&stats, &golden[name]["stats"], 0.0);
}

/// `tolerance`: relative to the value; theirs were written in JSON, so that they are equal where nothing is computed.
fn assert_stats(stats: &Stats, golden: &Json, tolerance: f64) {
    for (key, feature) in golden.as_object().unwrap() {
        let theirs = Stats::of_json(&json!({ "a": feature })).unwrap();
        for (name, theirs) in &theirs.0["a"] {
            let ours = stats.get(key, name).unwrap_or_else(|| panic!("{key} {name}"));
            assert_eq!(ours.len(), theirs.len(), "{key} {name}");
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((ours - theirs).abs() <= tolerance * theirs.abs(), "{key} {name}: {ours} {theirs}");
            }
        }
    }
}

#[test]
fn pictures_in_parquet_are_read_as_lerobot_reads_them() {
    equals_lerobot("image", 0);
}

#[cfg(feature = "av1")]
#[test]
fn videos_of_av1_are_read_as_lerobot_reads_them() {
    equals_lerobot("av1", 2);
}

#[cfg(feature = "mp4")]
#[test]
fn videos_of_h264_are_read_as_lerobot_reads_them() {
    equals_lerobot("h264", 2);
}

#[cfg(feature = "mp4")]
#[test]
fn a_rate_that_has_no_whole_ticks_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let features = vec![Feature::video(CAMERA, 16, 16)];
    let mut writer = SetWriter::create(&folder.path().join("set"), u32::MAX, "robot", features).unwrap();
    let error = writer.add_frame(&[(CAMERA, Value::Picture(&RgbImage::new(16, 16)))]).unwrap_err().to_string();
    assert!(error.contains("4294967295 frames per second are too many"), "{error}");
}

/// A share that does not answer for a moment makes no video bad for as long as the run goes on.
#[cfg(feature = "mp4")]
#[test]
fn a_video_that_could_not_be_opened_is_opened_when_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mp4");
    let videos = super::videos::Videos::default();
    let frames = || videos.frames((0, path.as_path()), &[0.0], &InProcess, &LIMITS);
    assert!(frames().is_err());
    std::fs::copy(goldens().join("v21/videos/chunk-000/observation.images.front/episode_000000.mp4"), &path).unwrap();
    assert_eq!(frames().unwrap().len(), 1);
}

#[cfg(feature = "mp4")]
#[test]
fn an_episode_a_file_is_read_with_statistics_of_all() {
    let (set, golden) = (open(&goldens().join("v21")), expected());
    let (steps, newer) = (samples(&set, 0), samples(&open(&goldens().join("image")), 0));
    assert_eq!((steps.len(), set.blocks(0).len()), (24, 1));
    for (ours, theirs) in steps.iter().zip(&newer) {
        for key in ["observation.state", "action"] {
            assert_eq!(ours.window(key, &[-1, 0, 5]).unwrap(), theirs.window(key, &[-1, 0, 5]).unwrap());
        }
        assert_eq!(ours.task().unwrap(), theirs.task().unwrap());
    }
    // Two frames out of their order, and one twice.
    let all = steps[3].pictures(CAMERA, &[2, -3, 2], &InProcess, &LIMITS).unwrap();
    assert_eq!(all[0], all[2]);
    assert_eq!(all[1], steps[0].pictures(CAMERA, &[0], &InProcess, &LIMITS).unwrap()[0]);
    for frame in golden["v21"]["frames"].as_array().unwrap() {
        let [episode, at] = ["episode", "frame"].map(|key| frame[key].as_u64().unwrap() as usize);
        let step = set.step(episode, at).unwrap();
        let most = difference(&step.pictures(CAMERA, &[0], &InProcess, &LIMITS).unwrap()[0], &frame["pixels"]);
        // Colors are converted with other roundings.
        assert!(most <= 3, "{frame}: {most}");
    }
    // Sums in another order.
    assert_stats(&set.stats().unwrap(), &golden["v21"]["stats"], 1e-6);
}

#[test]
fn the_last_frames_of_episodes_may_begin_no_sample() {
    let set = open(&goldens().join("image"));
    let steps = samples(&set, 5);
    let places: Vec<_> = steps.iter().map(|step| (step.episode(), step.frame())).collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6)]);
    // They are still what follows.
    assert_eq!(steps[1].window("action", &[5]).unwrap().is_pad, [false]);
}

#[test]
fn chosen_episodes_alone_begin_samples_and_only_their_files_are_needed() {
    let of = |folder: &Path, ranges: &[&str]| {
        let ranges: Vec<EpisodeRange> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        Arc::new(Set::open(folder).unwrap().choose(&ranges).unwrap())
    };
    for name in ["image", "v21"] {
        let folder = goldens().join(name);
        let wanted: Vec<Step> =
            samples(&open(&folder), 0).into_iter().filter(|step| [0, 2].contains(&step.episode())).collect();
        let set = of(&folder, &["2-", "0"]);
        let steps = samples(&set, 0);
        assert_eq!(steps, wanted);
        for (ours, whole) in steps.iter().zip(&wanted) {
            assert_eq!(ours.window("action", &[-1, 0, 5]).unwrap(), whole.window("action", &[-1, 0, 5]).unwrap());
        }
        assert_eq!((set.blocks(0).len(), set.episode_lens(0), set.episode_lens(5)), (1, vec![7, 5], vec![2]));
        assert_eq!(set.stats().unwrap(), open(&folder).stats().unwrap());
    }
    // A file of its own for each episode: those of the others are not looked at.
    let set = of(&goldens().join("v21"), &["1"]);
    let names = set.files().into_iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let names: Vec<String> = names.filter(|name| name.starts_with("episode_")).collect();
    assert_eq!(names, ["episode_000001", "episode_000001"]);
    assert_eq!(samples(&set, 0).len(), 12);
}

/// Writes a set of two episodes and all types into `folder`.
fn write(folder: &Path, as_video: bool) -> Result<(), DataError> {
    let more =
        |key: &str, dtype: Dtype, width: usize| Feature { key: key.into(), dtype, shape: vec![width], names: vec![] };
    let features = vec![
        if as_video { Feature::video(CAMERA, 32, 48) } else { Feature::images(CAMERA, 32, 48) },
        Feature::vector("observation.state", &["x", "y"]),
        Feature::vector("action", &["dx", "dy"]),
        more("next.done", Dtype::Bool, 1),
        more("counts", Dtype::Int64, 2),
        more("exact", Dtype::Float64, 2),
        more("note", Dtype::String, 1),
    ];
    let mut writer = SetWriter::create(folder, 20, "table", features)?;
    for (episode, (length, task)) in [(9u8, "go left"), (4, "go right")].into_iter().enumerate() {
        for frame in 0..length {
            let (at, picture) = (f32::from(frame), picture(episode as u8, frame));
            writer.add_frame(&[
                (CAMERA, Value::Picture(&picture)),
                ("observation.state", Value::Numbers(&[at, at * 0.1])),
                ("action", Value::Numbers(&[1.0, -at])),
                ("next.done", Value::Numbers(&[f32::from(u8::from(frame + 1 == length))])),
                ("counts", Value::Numbers(&[at, 7.0])),
                ("exact", Value::Numbers(&[0.5, at])),
                ("note", Value::Text("said")),
            ])?;
        }
        writer.end_episode(task)?;
    }
    writer.finish()
}

fn picture(episode: u8, frame: u8) -> RgbImage {
    RgbImage::from_fn(48, 32, |x, y| Rgb([x as u8 * 4, y as u8 * 6, 20 * frame + 10 * episode]))
}

#[test]
fn what_is_written_is_read_again() {
    for as_video in [false, cfg!(feature = "mp4")] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), as_video).unwrap();
        let set = open(folder.path());
        let steps = samples(&set, 0);
        assert_eq!((steps.len(), set.info().version, set.info().robot_type.as_str()), (13, Version::V30, "table"));
        for (at, step) in steps.iter().enumerate() {
            let (episode, frame) = if at < 9 { (0, at) } else { (1, at - 9) };
            let value = frame as f32;
            assert_eq!((step.episode(), step.frame(), step.time()), (episode, frame, f64::from(value / 20.0)));
            assert_eq!(step.task().unwrap(), ["go left", "go right"][episode]);
            assert_eq!(step.numbers("observation.state").unwrap(), [value, value * 0.1]);
            assert_eq!(step.numbers("counts").unwrap(), [value, 7.0]);
            assert_eq!(step.numbers("exact").unwrap(), [0.5, value]);
            assert_eq!(step.numbers("next.done").unwrap(), [f32::from(u8::from([8, 3][episode] == frame))]);
            let shown = step.pictures(CAMERA, &[0], &InProcess, &LIMITS).unwrap().remove(0);
            let original = picture(episode as u8, frame as u8);
            let off: u64 = shown.as_raw().iter().zip(original.as_raw()).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
            let mean = off as f64 / original.as_raw().len() as f64;
            // Of H.264 the loss of the codec at this quantizer, and of color at half the size.
            assert!(if as_video { mean < 4.0 } else { off == 0 }, "frame {at}: {mean}");
        }
        let stats = set.stats().unwrap();
        assert_eq!(stats.get("observation.state", "max").unwrap(), [8.0, f64::from(8.0f32 * 0.1)]);
        assert_eq!(stats.get("observation.state", "count").unwrap(), [13.0]);
        assert!((stats.get("action", "mean").unwrap()[1] + 42.0 / 13.0).abs() < 1e-6);
        assert_eq!(stats.get(CAMERA, "max").unwrap()[0], f64::from(47 * 4) / 255.0);
        assert!(stats.get("action", "q99").is_some() && stats.get("note", "mean").is_none());
    }
}

#[test]
fn what_cannot_be_written_is_named_and_leaves_no_set() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let state = || Feature::vector("observation.state", &["x"]);
    let error = |features: Vec<Feature>| SetWriter::create(&at("a"), 10, "", features).err().unwrap().to_string();
    assert!(error(vec![Feature::vector("timestamp", &["t"])]).contains("timestamp"));
    assert!(error(vec![Feature { shape: vec![2, 2], ..state() }]).contains("[2, 2]"));
    assert!(error(vec![Feature { dtype: Dtype::Other("sound".into()), ..state() }]).contains("sound"));
    let mut writer = SetWriter::create(&at("a"), 10, "", vec![state()]).unwrap();
    let mut add = |values: &[(&str, Value<'_>)]| writer.add_frame(values).unwrap_err().to_string();
    assert!(add(&[]).contains("observation.state is missing"));
    assert!(add(&[("observation.state", Value::Numbers(&[1.0, 2.0]))]).contains("2 numbers"));
    assert!(
        add(&[("observation.state", Value::Numbers(&[f32::NAN]))])
            .contains("frame 0 of episode 0: observation.state has NaN")
    );
    assert!(add(&[("other", Value::Numbers(&[1.0]))]).contains("other is not a feature"));
    assert!(writer.end_episode("t").unwrap_err().to_string().contains("no frames"));
    writer.add_frame(&[("observation.state", Value::Numbers(&[1.0]))]).unwrap();
    assert!(writer.finish().unwrap_err().to_string().contains("1 frame of one that was not finished"));
    assert!(!is_set(&at("a")));
    std::fs::write(at("file"), "x").unwrap();
    let error = SetWriter::create(folder.path(), 10, "", vec![state()]).err().unwrap().to_string();
    assert!(error.contains("is not empty"), "{error}");
}

#[test]
fn what_is_wrong_with_a_set_is_named() {
    let fresh = || {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), false).unwrap();
        folder
    };
    let edit = |folder: &Path, name: &str, change: &dyn Fn(&mut Json)| {
        let path = folder.join(name);
        let mut json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        std::fs::write(path, json.to_string()).unwrap();
    };
    let opened = |folder: &Path| Set::open(folder).err().unwrap().to_string();
    let folder = fresh();
    edit(folder.path(), "meta/info.json", &|info| info["total_frames"] = 14.into());
    assert!(opened(folder.path()).contains("says 2 episodes with 14 frames, but the files of episodes have 2 with 13"));

    let folder = fresh();
    std::fs::remove_file(folder.path().join("meta/tasks.parquet")).unwrap();
    assert!(opened(folder.path()).contains("meta/tasks.parquet"));

    let folder = fresh();
    std::fs::remove_file(folder.path().join("meta/stats.json")).unwrap();
    let error = open(folder.path()).stats().unwrap_err().to_string();
    assert!(error.contains("loongforge data stats --write"), "{error}");

    let folder = fresh();
    edit(folder.path(), "meta/info.json", &|info| info["features"]["action"]["shape"] = json!([3]));
    let error = samples(&open(folder.path()), 0)[0].numbers("action").unwrap_err().to_string();
    assert!(error.contains("column action has 26 values in 13 rows, but needs 3 per row"), "{error}");

    let folder = fresh();
    let data = folder.path().join("data/chunk-000/file-000.parquet");
    let bytes = std::fs::read(&data).unwrap();
    std::fs::write(&data, &bytes[..bytes.len() / 2]).unwrap();
    assert!(open(folder.path()).open_block(0, 0).err().unwrap().to_string().contains("file-000.parquet"));
    std::fs::remove_file(&data).unwrap();
    assert!(open(folder.path()).open_block(0, 0).err().unwrap().to_string().contains("file-000.parquet"));

    let step = &samples(&open(fresh().path()), 0)[0];
    assert!(step.window("gone", &[0]).unwrap_err().to_string().contains("no feature gone"));
    assert!(step.window("note", &[0]).unwrap_err().to_string().contains("string"));
    assert!(step.pictures("action", &[0], &InProcess, &LIMITS).unwrap_err().to_string().contains("not pictures"));
    assert!(steps_of(&[0.05, 0.12], 20.0).unwrap_err().contains("0.12 s is not a whole number of steps"));
    assert!(Set::open(&goldens()).err().unwrap().to_string().contains("meta/info.json"));
}

#[test]
fn a_task_has_one_text_and_all_files_are_known() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), false).unwrap();
    let named = |folder: &Path, name: &str| open(folder).files().contains(&folder.join(name));
    for name in ["meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"]
    {
        assert!(named(folder.path(), name), "{name}");
    }
    let old = goldens().join("v21");
    for name in ["meta/tasks.jsonl", "meta/episodes.jsonl", "meta/episodes_stats.jsonl"] {
        assert!(named(&old, name), "{name}");
    }
    let tasks = |texts: &[&str]| {
        let cells = |numbers: Vec<i64>| table::Cells::Integers(numbers);
        let columns = [
            ("task_index".to_owned(), cells(vec![0, 1, 1])),
            ("task".to_owned(), table::Cells::Texts(texts.iter().map(|&text| text.to_owned()).collect())),
        ];
        let mut table = table::TableWriter::create(&folder.path().join("meta/tasks.parquet"), &columns, &[]).unwrap();
        table.add(&columns).unwrap();
        table.finish().unwrap();
        Set::open(folder.path()).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(tasks(&["a", "b", "b"]), Ok(()));
    let error = tasks(&["a", "b", "c"]).unwrap_err();
    assert!(error.contains("tasks.parquet: task 1 has two texts: \"b\" and \"c\""), "{error}");
}

#[test]
fn a_set_that_is_written_anew_has_every_digit_and_its_texts() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let feature =
        |key: &str, dtype: Dtype, width: usize| Feature { key: key.into(), dtype, shape: vec![width], names: vec![] };
    let features =
        [feature("stamp", Dtype::Int64, 1), feature("exact", Dtype::Float64, 2), feature("note", Dtype::String, 1)];
    let (stamp, exact) = ((1 << 60) + 1, [1.0 / 3.0, 1_732_700_000.123_456]);
    let mut writer = SetWriter::create(&from, 20, "table", features.to_vec()).unwrap();
    for frame in 0..3 {
        let values = [
            ("stamp", Value::Whole(&[stamp + frame])),
            ("exact", Value::Reals(&exact)),
            ("note", Value::Text(["one", "", "ünd"][frame as usize])),
        ];
        writer.add_frame(&values).unwrap();
    }
    writer.end_episode("go").unwrap();
    writer.finish().unwrap();
    rewrite(&open(&from), &to, false, (&InProcess, &LIMITS), || {}).unwrap();
    let set = open(&to);
    assert_eq!(set.info().features, features);
    for (frame, step) in samples(&set, 0).iter().enumerate() {
        assert_eq!(step.whole(&features[0]).unwrap(), [stamp + frame as i64]);
        assert_eq!(step.reals(&features[1]).unwrap(), exact);
        assert_eq!(step.text("note").unwrap(), ["one", "", "ünd"][frame]);
    }
}

#[test]
fn a_set_that_is_not_written_anew_leaves_nothing_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    write(&from, false).unwrap();
    // The first picture is more than is decoded.
    let small = Limits { max_side: 8, max_pixels: 64 };
    let attempt = |limits: &Limits| rewrite(&open(&from), &to, false, (&InProcess, limits), || {});
    assert!(attempt(&small).is_err() && !to.exists());
    std::fs::create_dir(&to).unwrap();
    assert!(attempt(&small).is_err() && to.read_dir().unwrap().next().is_none());
    attempt(&LIMITS).unwrap();
    let error = attempt(&LIMITS).unwrap_err().to_string();
    assert!(error.contains("is not empty") && is_set(&to), "{error}");
    // Sides that a video cannot have are seen before there is a folder.
    let odd = vec![Feature::video(CAMERA, 33, 48)];
    let error = SetWriter::create(&folder.path().join("odd"), 10, "", odd).err().unwrap().to_string();
    assert!(error.contains(CAMERA) && !folder.path().join("odd").exists(), "{error}");
    #[cfg(feature = "mp4")]
    assert!(error.contains("H.264 needs even sides"), "{error}");
}

#[test]
fn statistics_that_python_wrote_are_read_and_those_of_pictures_are_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), false).unwrap();
    let (set, path) = (open(folder.path()), folder.path().join("meta/stats.json"));
    let mut json: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["action"]["mean"] = json!(["NaN", "-Infinity"]);
    json["an \"Infinity\" of \\"] = json!({ "mean": [1.0] });
    let text = json.to_string().replace("\"NaN\"", "NaN").replace("\"-Infinity\"", "-Infinity");
    std::fs::write(&path, text).unwrap();
    let stats = set.stats().unwrap();
    assert!(stats.get("action", "mean").unwrap().iter().all(|value| value.is_nan()));
    assert_eq!(stats.get("an \"Infinity\" of \\", "mean").unwrap(), [1.0]);
    write_stats(&set).unwrap();
    let mended = set.stats().unwrap();
    assert!(mended.get("action", "mean").unwrap().iter().all(|value| value.is_finite()));
    assert_eq!(mended.get(CAMERA, "mean"), stats.get(CAMERA, "mean"));
    std::fs::write(&path, "{").unwrap();
    assert!(write_stats(&set).unwrap_err().to_string().contains("stats.json"));
    assert_eq!(std::fs::read(&path).unwrap(), b"{");
}
