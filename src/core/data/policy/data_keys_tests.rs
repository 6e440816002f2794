//! A run's settings and its sets: mistakes of both, which nothing may take no notice of, and statistics of several.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use super::tests::{Bench, CAMERA, column, config, goldens};
use crate::config::{Augment, Normalization, Policy};
use crate::data::lerobot::Set;

#[test]
fn settings_that_name_nothing_are_refused() {
    let bench = Bench::new();
    let error = |settings: Policy| bench.error(&config(), settings);
    let cameras =
        |key: &str, name: &str| Policy { cameras: [(key.to_owned(), name.to_owned())].into(), ..Policy::default() };
    let found = error(cameras("observation.images.side", CAMERA));
    assert!(
        found.contains("policy.cameras names observation.images.side, which is not a camera of the data"),
        "{found}"
    );
    let found = error(cameras(CAMERA, "observation.images.side"));
    assert!(
        found.contains("maps observation.images.front to observation.images.side, which is not a camera of the policy"),
        "{found}"
    );
    let fixed = |part: &str| {
        let augment = Augment { crop: 0.9, fixed_cameras: vec![part.to_owned()], ..Augment::default() };
        Policy { augment: Some(augment), ..Policy::default() }
    };
    for part in ["side", ""] {
        let found = error(fixed(part));
        assert!(
            found.contains(&format!(
                "policy.augment.fixed_cameras has {part:?}, which is not in the name of any camera"
            )),
            "{found}"
        );
    }
    bench.maker(&config(), fixed("front"));
    let found = error(Policy { domain: Some(3), ..Policy::default() });
    assert!(found.contains("policy.domain is only for X-VLA"), "{found}");
    let exclude = Some(vec!["gripper".to_owned()]);
    let found = error(Policy { exclude: exclude.clone(), ..Policy::default() });
    assert!(found.contains("policy.exclude says which numbers stay absolute"), "{found}");
    let relative =
        |word: &str| Policy { relative_actions: Some(true), exclude: Some(vec![word.to_owned()]), ..Policy::default() };
    let found = error(relative("finger"));
    assert!(found.contains("policy.exclude has \"finger\", which is not in any name"), "{found}");
    bench.maker(&config(), relative("Gripper"));
}

/// Makes a copy of a set whose `meta/info.json` has another value.
fn changed(folder: &Path, key: &str, value: Json) {
    let from = goldens().join("image");
    for name in ["meta/info.json", "meta/stats.json", "meta/tasks.parquet"] {
        std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    for name in ["data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"] {
        std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    let path = folder.join("meta/info.json");
    let mut info: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    info[key] = value;
    std::fs::write(path, info.to_string()).unwrap();
}

/// A name that is written goes before one that is kept, and two cameras cannot both be one of the policy's.
#[test]
fn a_camera_of_the_policy_is_one_of_the_data() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let info = std::fs::read(goldens().join("image/meta/info.json")).unwrap();
    let info: Json = serde_json::from_slice(&info).unwrap();
    let mut features = info["features"].clone();
    for side in ["observation.images.side", "observation.images.wrist"] {
        features[side] = info["features"][CAMERA].clone();
    }
    changed(folder.path(), "features", features);
    let open = |keys: &[&str]| {
        let cameras = keys.iter().map(|key| (format!("observation.images.{key}"), CAMERA.to_owned())).collect();
        bench.open(&config(), &Bench::options(&[folder.path()], Policy { cameras, ..Policy::default() }))
    };
    let notes = open(&["side"]).unwrap().notes();
    let replaced = format!("the camera {CAMERA} is not read: policy.cameras gives its name to another one");
    assert!(notes.iter().any(|note| note.contains(&replaced)), "{notes:?}");
    let notes = open(&[]).unwrap().notes();
    assert!(!notes.iter().any(|note| note.contains(&replaced)), "{notes:?}");
    let error = open(&["side", "wrist"]).err().unwrap().to_string();
    assert!(error.contains("maps both observation.images.side and observation.images.wrist to"), "{error}");
}

/// Rates that differ among sets are said, and one that is not that of the frames makes bad samples.
#[test]
fn rates_are_looked_at() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let own = Set::open(&goldens().join("image")).unwrap();
    changed(folder.path(), "fps", (own.info().fps * 3.0).into());
    let both = [&*goldens().join("image"), folder.path()];
    let notes = bench.open(&config(), &Bench::options(&both, Policy::default())).unwrap().notes();
    assert!(
        notes.iter().any(|note| note.contains("a step, and so a chunk of actions, takes a different time in each")),
        "{notes:?}"
    );
    let alone = bench.maker(&config(), Policy::default()).notes();
    assert!(!alone.iter().any(|note| note.contains("a different time")), "{alone:?}");
    let of = |set: Set, frame| Arc::new(set).step(0, frame).unwrap().expect_rate();
    let wrong = || Set::open(folder.path()).unwrap();
    assert!(of(own, 1).is_ok() && of(wrong(), 0).is_ok());
    let error = of(wrong(), 1).unwrap_err().to_string();
    assert!(error.contains("frame 1 comes") && error.contains("fps of meta/info.json"), "{error}");
}

#[test]
fn a_chunk_that_no_episode_has_is_said() {
    let bench = Bench::new();
    let mut long = config();
    long["chunk_size"] = 500.into();
    let notes = bench.maker(&long, Policy::default()).notes();
    assert!(notes.iter().any(|note| note.contains("a chunk has 500 actions, but the longest episode")), "{notes:?}");
    let notes = bench.maker(&config(), Policy::default()).notes();
    assert!(!notes.iter().any(|note| note.contains("a chunk has")), "{notes:?}");
}

/// Tests what a run reports before its first step and an author of data would not expect.
#[test]
fn cameras_and_robots_that_count_for_nothing_are_said() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let own = Set::open(&goldens().join("image")).unwrap();
    changed(folder.path(), "robot_type", "another".into());
    let of_data =
        |config: &Json, sets: &[&Path]| bench.open(config, &Bench::options(sets, Policy::default())).unwrap().of_data();
    let mut one = config();
    one["input_features"].as_object_mut().unwrap().remove("observation.images.wrist");
    let alone = of_data(&one, &[folder.path()]);
    assert!(!alone.iter().any(|note| note.contains("camera") || note.contains("robot")), "{alone:?}");
    let both = of_data(&config(), &[own.folder(), folder.path()]);
    let robots = format!("has the robot {:?}, but", own.info().robot_type);
    assert!(both.iter().any(|note| note.contains(&robots) && note.contains("policy.embodiments")), "{both:?}");
    let mut more = config();
    more["input_features"]["observation.images.empty_camera_0"] = more["input_features"][CAMERA].clone();
    let blind = of_data(&more, &[folder.path()]);
    assert!(blind.iter().any(|note| note.contains("has no camera observation.images.wrist")), "{blind:?}");
    assert!(!blind.iter().any(|note| note.contains("empty_camera")), "{blind:?}");
    // A set with a second camera, which the policy lacks.
    let path = folder.path().join("meta/info.json");
    let mut info: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    info["features"]["observation.images.side"] = info["features"][CAMERA].clone();
    std::fs::write(path, info.to_string()).unwrap();
    let unread = of_data(&config(), &[folder.path()]);
    assert!(unread.iter().any(|note| note.contains("the camera observation.images.side is not one of")), "{unread:?}");
}

#[test]
fn several_sets_have_statistics_of_all() {
    let bench = Bench::new();
    let both = [&*goldens().join("image"), &*goldens().join("v21")];
    let settings = Policy {
        state_normalization: Some(Normalization::MeanStd),
        action_normalization: Some(Normalization::MinMax),
        ..Policy::default()
    };
    let one = bench.maker(&config(), settings.clone());
    let two = bench.open(&config(), &Bench::options(&both, settings)).unwrap();
    // The same frames twice: the same mean, deviation and bounds.
    let step = Arc::new(Set::open(both[0]).unwrap()).step(0, 3).unwrap();
    let [one, two] = [one, two].map(|maker| maker.sample_of(&step));
    for (one, two) in column(&one, "actions").iter().zip(column(&two, "actions")) {
        assert!((one - two).abs() < 1e-5, "{one} {two}");
    }
}

#[test]
fn of_several_sets_the_one_that_lacks_statistics_is_named() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    changed(folder.path(), "chunks_size", 1000.into());
    let error = |lacking: &str| {
        let stats = std::fs::read(goldens().join("image/meta/stats.json")).unwrap();
        let mut stats: Json = serde_json::from_slice(&stats).unwrap();
        stats["action"].as_object_mut().unwrap().remove(lacking);
        std::fs::write(folder.path().join("meta/stats.json"), stats.to_string()).unwrap();
        let both = [&*goldens().join("image"), folder.path()];
        bench.open(&config(), &Bench::options(&both, Policy::default())).err().unwrap()
    };
    // Sets of version 2.0 have no counts, by which sets are weighted.
    for lacking in ["q01", "count"] {
        let found = error(lacking);
        let expected = format!("{}: statistics of action: has no {lacking}", folder.path().display());
        assert!(found.contains(&expected), "{found}");
    }
}
