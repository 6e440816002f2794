//! Sets of two robots of other widths and scales in one run's data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::RgbImage;
use serde_json::{Value as Json, json};

use super::{FastTokenizer, PolicyMaker};
use crate::config::{Data, Embodiment, Normalization, Policy, Statistics, TrainFile};
use crate::data::column::ColumnValues;
use crate::data::dataset::Dataset;
use crate::data::digits::{MODEL, write_model};
use crate::data::in_process::InProcess;
use crate::data::lerobot::{Feature, Set, SetWriter, Value};
use crate::data::maker::SampleMaker;
use crate::data::processor::{PolicyOptions, ProcessorFolders, ProcessorOptions};
use crate::data::sample::Sample;
use crate::message::SampleId;

const CAMERA: &str = "observation.images.front";
const HORIZON: usize = 4;

/// Writes a set of 8 frames of a robot with so many joints, whose values lie in `scale` times 0 to 7.
fn write_set(folder: &Path, robot: &str, width: usize, scale: f32) {
    let names: Vec<String> = (0..width).map(|at| format!("joint{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let features = vec![
        Feature::images(CAMERA, 48, 64),
        Feature::vector("observation.state", &names),
        Feature::vector("action", &names),
    ];
    let mut writer = SetWriter::create(folder, 10, robot, features).unwrap();
    for frame in 0..8 {
        let numbers = vec![scale * frame as f32; width];
        let of = |key| (key, Value::Numbers(&numbers));
        let picture = RgbImage::new(64, 48);
        writer.add_frame(&[(CAMERA, Value::Picture(&picture)), of("observation.state"), of("action")]).unwrap();
    }
    writer.end_episode("go").unwrap();
    writer.finish().unwrap();
}

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// Makes an arm of 3 joints, a hand of 2, another arm whose set calls it so, and a robot of no name.
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        write_model(bench.folder.path(), &MODEL).unwrap();
        for (name, robot, width, scale) in
            [("arm", "arm", 3, 1.0), ("hand", "hand", 2, 10.0), ("arm2", "arm", 3, 3.0), ("odd", "unknown", 2, 1.0)]
        {
            write_set(&bench.set(name), robot, width, scale);
        }
        bench
    }

    fn set(&self, name: &str) -> PathBuf {
        self.folder.path().join("sets").join(name)
    }

    fn pi05() -> Json {
        let camera = json!({ "type": "VISUAL", "shape": [3, 28, 28] });
        json!({
            "type": "pi05", "chunk_size": HORIZON, "max_state_dim": 6, "max_action_dim": 5, "image_resolution": [28, 28],
            "sizes": { "vocab_size": 400, "vision": { "patch_size": 14 }, "state_token": true },
            "input_features": { CAMERA: camera },
            "normalization_mapping": { "VISUAL": "IDENTITY", "STATE": "MIN_MAX", "ACTION": "MIN_MAX" },
        })
    }

    fn groot(&self) -> Json {
        let backbone: Json =
            serde_json::from_slice(&std::fs::read(self.folder.path().join("config.json")).unwrap()).unwrap();
        let sizes =
            json!({ "backbone_config": backbone, "action_horizon": HORIZON, "max_state_dim": 6, "max_action_dim": 5 });
        let camera = json!({ "type": "VISUAL", "shape": [3, 48, 64] });
        json!({ "type": "groot", "sizes": sizes, "input_features": { CAMERA: camera } })
    }

    fn open(&self, config: &Json, settings: &Policy, sets: &[&str]) -> Result<PolicyMaker, String> {
        let sets = sets.iter().map(|name| TrainFile::new(self.set(name).as_path())).collect();
        let policy = PolicyOptions { settings: settings.clone(), sets, seed: 1, ..PolicyOptions::default() };
        self.open_in(self.folder.path(), config, policy)
    }

    fn open_in(&self, model: &Path, config: &Json, policy: PolicyOptions) -> Result<PolicyMaker, String> {
        let folders = ProcessorFolders::of(model);
        let options = ProcessorOptions { policy, ..ProcessorOptions::default() };
        PolicyMaker::open(folders, config, &options, Arc::new(InProcess)).map_err(|error| error.to_string())
    }

    /// Returns the sample of a frame of a set.
    fn sample(&self, maker: &PolicyMaker, set: &str, frame: usize) -> Sample {
        let step = Arc::new(Set::open(&self.set(set)).unwrap()).step(0, frame).unwrap();
        maker.learn(SampleId(0), &step).unwrap()
    }
}

fn robots(of: &[(&str, Option<usize>)]) -> Policy {
    let own = |(name, number): &(&str, Option<usize>)| {
        ((*name).to_owned(), Embodiment { number: *number, ..Embodiment::default() })
    };
    Policy { embodiments: of.iter().map(own).collect::<BTreeMap<_, _>>(), ..Policy::default() }
}

fn floats<'a>(sample: &'a Sample, name: &str) -> &'a [f32] {
    match &sample.columns.iter().find(|column| column.name == name).unwrap().values {
        ColumnValues::F32(values) => values,
        ColumnValues::I64(_) => panic!("{name} is of whole numbers"),
    }
}

fn number(sample: &Sample, name: &str) -> i64 {
    match &sample.columns.iter().find(|column| column.name == name).unwrap().values {
        ColumnValues::I64(values) => values[0],
        ColumnValues::F32(_) => panic!("{name} is no whole number"),
    }
}

/// Each robot's samples have its own number, widths and scales; so do its actions, also from a checkpoint.
#[test]
fn robots_have_scales_and_numbers_of_their_own() {
    let bench = Bench::new();
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/xvla");
    let xvla: Json = serde_json::from_slice(&std::fs::read(goldens.join("config.json")).unwrap()).unwrap();
    let bounds = Normalization::MinMax;
    for (family, config, column, numbers, mode) in [
        ("pi05", Bench::pi05(), None, [None, None], bounds),
        ("groot", bench.groot(), Some("embodiment"), [Some(3), Some(5)], bounds),
        // Numbers behind the bounds end there.
        ("groot", bench.groot(), Some("embodiment"), [Some(3), Some(5)], Normalization::Quantiles),
        ("xvla", xvla, Some("domain"), [Some(3), Some(5)], bounds),
    ] {
        let settings = Policy {
            state_normalization: Some(mode),
            action_normalization: Some(mode),
            ..robots(&[("arm", numbers[0]), ("hand", numbers[1])])
        };
        let sets = ["arm", "hand"].map(|name| TrainFile::new(bench.set(name).as_path())).to_vec();
        let model = if family == "xvla" { goldens.as_path() } else { bench.folder.path() };
        let policy = PolicyOptions { settings, sets, seed: 1, ..PolicyOptions::default() };
        let mut maker = bench.open_in(model, &config, policy).unwrap_or_else(|error| panic!("{family}: {error}"));
        // The greatest value of each robot becomes 1.
        for (set, width, number_at) in [("arm", 3, 0), ("hand", 2, 1)] {
            let sample = bench.sample(&maker, set, 7);
            let state = floats(&sample, "state");
            assert_eq!(&state[..width], vec![1.0; width].as_slice(), "{family} {set}");
            assert!(state[width..].iter().all(|value| *value == 0.0), "{family} {set}: padding");
            assert_eq!(&floats(&sample, "actions")[..width], vec![1.0; width].as_slice());
            if let Some(column) = column {
                assert_eq!(number(&sample, column), numbers[number_at].unwrap() as i64, "{family} {set}");
            }
        }
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(model).unwrap().map(Result::unwrap).filter(|it| it.path().is_file()) {
            if !super::is_processor_file(&entry.file_name().to_string_lossy()) {
                std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
            }
        }
        let mut saved = config.clone();
        maker.put_features(&mut saved);
        for (name, bytes) in maker.files() {
            assert!(super::is_processor_file(&name), "{name}");
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let mut served = bench.open_in(folder.path(), &saved, PolicyOptions::default()).unwrap();
        let error = served.choose(None).unwrap_err();
        assert!(error.contains("--embodiment, one of arm, hand"), "{error}");
        assert!(served.choose(Some("leg")).unwrap_err().contains("the policy's are arm, hand"));
        for (name, width, most) in [("arm", 3, 7.0), ("hand", 2, 70.0)] {
            served.choose(Some(name)).unwrap();
            maker.choose(Some(name)).unwrap();
            assert_eq!((served.action_dim(), served.state_dim()), (width, width));
            let step = Arc::new(Set::open(&bench.set(name)).unwrap()).step(0, 3).unwrap();
            let seen = served.observation(&step).unwrap();
            assert_eq!(served.observe(&seen).unwrap(), maker.observe(&seen).unwrap(), "{family} {name}");
            let predicted = vec![1.0; HORIZON * maker.spec.max_action_dim];
            let actions = served.actions(&predicted, &seen.state).unwrap();
            assert_eq!(actions, maker.actions(&predicted, &seen.state).unwrap(), "{family} {name}");
            assert_eq!(actions == vec![most; HORIZON * width], mode == bounds, "{family} {name} {actions:?}");
        }
        // To train on with a robot that the policy does not say is refused.
        let sets = vec![TrainFile::new(bench.set("arm").as_path())];
        let error =
            bench.open_in(folder.path(), &saved, PolicyOptions { sets, ..PolicyOptions::default() }).err().unwrap();
        assert!(error.contains("is a policy of the embodiments arm, hand"), "{error}");
    }
}

#[test]
fn sets_belong_to_one_robot_and_others_are_named() {
    let bench = Bench::new();
    let open = |settings: &Policy, sets: &[&str]| bench.open(&Bench::pi05(), settings, sets);
    let error = |settings: &Policy, sets: &[&str]| open(settings, sets).err().expect("an error");
    let both = robots(&[("arm", None), ("hand", None)]);
    let unknown = error(&both, &["arm", "hand", "odd"]);
    assert!(unknown.contains("has the robot_type \"unknown\", but policy.embodiments has arm, hand"), "{unknown}");
    assert!(error(&both, &["arm"]).contains("hand has no set in data.train"));
    assert!(error(&robots(&[("arm", Some(1))]), &["arm"]).contains("the same parameters for all robots"));
    let groot = |settings: &Policy| bench.open(&bench.groot(), settings, &["arm"]).err().expect("an error");
    assert!(groot(&robots(&[("arm", None)])).contains("arm needs a number"));
    assert!(groot(&robots(&[("arm", Some(40))])).contains("the number 40, but `max_num_embodiments` is 32"));
    for (settings, part) in [
        (
            Policy { state_normalization: Some(Normalization::MeanStd), ..Policy::default() },
            "policy.state_normalization is mean_std, but GR00T with absolute actions takes only min_max, quantiles",
        ),
        (
            Policy {
                action_normalization: Some(Normalization::Quantiles),
                relative_actions: Some(true),
                ..Policy::default()
            },
            "policy.action_normalization is quantiles, but GR00T with relative actions takes only min_max: leave it",
        ),
    ] {
        let said = groot(&settings);
        assert!(said.contains(part), "{said}");
    }

    // A set may be named whatever its robot_type is.
    let mut named = both.clone();
    named.embodiments.get_mut("hand").unwrap().sets = vec![bench.set("odd")];
    let maker = open(&named, &["arm", "hand", "odd"]).unwrap();
    assert_eq!(floats(&bench.sample(&maker, "odd", 7), "state")[0], 2.0 * 7.0 / 70.0 - 1.0, "scales of both hands");

    // A held-out set of no robot is refused, and one of a robot has its scales.
    let data = |name: &str| Data { shuffle: false, ..Data::of_files(vec![TrainFile::new(bench.set(name).as_path())]) };
    let dataset = |name: &str| {
        let maker = Box::new(open(&both, &["arm", "hand"]).unwrap()) as Box<dyn SampleMaker>;
        Dataset::open(&data(name), maker, 1)
    };
    assert!(dataset("odd").err().unwrap().to_string().contains("robot_type \"unknown\""));
    assert_eq!(floats(&dataset("arm2").unwrap().sample(2).unwrap(), "state")[0], 2.0 * 6.0 / 7.0 - 1.0);
}

/// FAST's tokens take the ids from 571 on down, those of a chunk of each robot's own width.
#[test]
fn robots_have_action_tokens_of_their_own_width() {
    let bench = Bench::new();
    let mut config = Bench::pi05();
    config["sizes"]["vocab_size"] = 700.into();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/fast");
    let both = robots(&[("arm", None), ("hand", None)]);
    let settings = Policy { token_weight: 1.0, action_tokenizer: Some(folder.clone()), ..both };
    let maker = bench.open(&config, &settings, &["arm", "hand"]).unwrap();
    for (set, width) in [("arm", 3), ("hand", 2)] {
        let sample = bench.sample(&maker, set, 3);
        let rows = floats(&sample, "actions").chunks(5).flat_map(|row| &row[..width]);
        let actions: Vec<f32> = rows.copied().collect();
        let expected = FastTokenizer::open(&folder, HORIZON, width).unwrap().encode(&actions).unwrap().ids;
        let own = sample.input_ids.iter().filter(|id| (372..572).contains(*id)).map(|id| 571 - id);
        assert_eq!(own.collect::<Vec<i64>>(), expected, "{set}");
    }
}

#[test]
fn merged_statistics_are_of_all_robots() {
    let bench = Bench::new();
    let mut settings = robots(&[("arm", None), ("other", None)]);
    settings.embodiments.get_mut("other").unwrap().sets = vec![bench.set("arm2")];
    let of = |statistics| {
        let settings = Policy { statistics, ..settings.clone() };
        let maker = bench.open(&Bench::pi05(), &settings, &["arm", "arm2"]).unwrap();
        ["arm", "arm2"].map(|set| floats(&bench.sample(&maker, set, 7), "state")[0])
    };
    assert_eq!(of(None), [1.0, 1.0]);
    assert_eq!(of(Some(Statistics::Embodiment)), [1.0, 1.0]);
    assert_eq!(of(Some(Statistics::Merged)), [2.0 * 7.0 / 21.0 - 1.0, 1.0]);
    let widths = Policy { statistics: Some(Statistics::Merged), ..robots(&[("arm", None), ("hand", None)]) };
    let error = bench.open(&Bench::pi05(), &widths, &["arm", "hand"]).err().unwrap();
    assert!(error.contains("observation.state has 2 numbers, but that of"), "{error}");
}

/// A word that excludes numbers of one robot alone is none that excludes nothing.
#[test]
fn words_that_stay_absolute_may_be_of_any_robot() {
    let bench = Bench::new();
    let exclude = |word: &str| Policy {
        relative_actions: Some(true),
        exclude: Some(vec![word.to_owned()]),
        ..robots(&[("arm", None), ("hand", None)])
    };
    // The third joint is one of the arm's, and of the arm's alone.
    let maker = bench.open(&Bench::pi05(), &exclude("joint2"), &["arm", "hand"]).unwrap();
    // Frame 7 is the last one, so a chunk repeats it: what is relative is 0, and what is not is 7.
    let sample = bench.sample(&maker, "arm", 7);
    assert!(floats(&sample, "actions")[2] != floats(&sample, "actions")[1]);
    let error = bench.open(&Bench::pi05(), &exclude("finger"), &["arm", "hand"]).err().unwrap();
    assert!(
        error.contains("\"finger\", which is not in any name of the numbers of action: joint0, joint1, joint2"),
        "{error}"
    );
}
