//! Tests on a set that lerobot wrote, against the samples that its own processors make of a frame.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::RgbImage;
use serde_json::{Value as Json, json};

use super::pictures::item;
use super::spec::{SampleSpec, name_of};
use super::*;
use crate::config::{Data, Normalization, Policy, TrainFile};
use crate::data::column::ColumnValues;
use crate::data::dataset::Dataset;
use crate::data::digits::{MODEL, write_model};
use crate::data::in_process::InProcess;
use crate::data::lerobot::{Set, Stats};
use crate::data::maker::SampleMaker;
use crate::data::processor::{PolicyOptions, ProcessorFolders, ProcessorOptions};
use crate::data::sample::{IGNORE_INDEX, Sample};

mod refusals;
mod tokens;

pub(super) const CAMERA: &str = "observation.images.front";
const HORIZON: usize = 4;

pub(super) fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/lerobot")
}

fn golden() -> Json {
    let json: Json = serde_json::from_slice(&std::fs::read(goldens().join("expected.json")).unwrap()).unwrap();
    json["image"]["processed"].clone()
}

/// Returns the config of a policy with pictures of 28 by 28 pixels, in patches of 14.
pub(super) fn config() -> Json {
    json!({
        "type": "pi05", "chunk_size": HORIZON, "max_state_dim": 6, "max_action_dim": 5, "image_resolution": [28, 28],
        "tokenizer_max_length": 200, "sizes": { "vocab_size": 400, "vision": { "patch_size": 14 } },
        "input_features": {
            CAMERA: { "type": "VISUAL", "shape": [3, 28, 28] },
            "observation.images.wrist": { "type": "VISUAL", "shape": [3, 28, 28] },
            "observation.state": { "type": "STATE", "shape": [6] },
        },
        "output_features": { "action": { "type": "ACTION", "shape": [5] } },
        "normalization_mapping": { "VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES" },
    })
}

/// Returns the config of SmolVLA with pictures of as many pixels, of which four patches of 7 become one feature.
fn smolvla() -> Json {
    let mut config = config();
    config["type"] = "smolvla".into();
    config["resize_imgs_with_padding"] = config.as_object_mut().unwrap().remove("image_resolution").unwrap();
    config["sizes"] = json!({ "vocab_size": 400, "scale_factor": 2, "vision": { "patch_size": 7 } });
    for key in ["normalization_mapping", "tokenizer_max_length"] {
        config.as_object_mut().unwrap().remove(key);
    }
    config
}

pub(super) struct Bench {
    pub(super) folder: tempfile::TempDir,
}

impl Bench {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        Self { folder }
    }

    pub(super) fn options(sets: &[&Path], settings: Policy) -> ProcessorOptions {
        let sets = sets.iter().map(|path| TrainFile::new(*path)).collect();
        let policy = PolicyOptions { settings, sets, seed: 1, ..PolicyOptions::default() };
        ProcessorOptions { policy, ..ProcessorOptions::default() }
    }

    pub(super) fn open(&self, config: &Json, options: &ProcessorOptions) -> Result<PolicyMaker, String> {
        let model = self.folder.path();
        let folders = ProcessorFolders::of(model);
        PolicyMaker::open(folders, config, options, Arc::new(InProcess)).map_err(|error| error.to_string())
    }

    pub(super) fn maker(&self, config: &Json, settings: Policy) -> PolicyMaker {
        self.open(config, &Self::options(&[&goldens().join("image")], settings)).unwrap()
    }

    pub(super) fn error(&self, config: &Json, settings: Policy) -> String {
        self.open(config, &Self::options(&[&goldens().join("image")], settings)).err().unwrap()
    }

    /// Returns the sample of frame `index` of the whole set.
    fn sample(&self, config: &Json, settings: Policy, index: u64) -> Sample {
        let data = Data { shuffle: false, ..Data::of_files(vec![TrainFile::new(goldens().join("image"))]) };
        Dataset::open(&data, Box::new(self.maker(config, settings)) as Box<dyn SampleMaker>, 1)
            .unwrap()
            .sample(index)
            .unwrap()
    }
}

pub(super) fn column<'a>(sample: &'a Sample, name: &str) -> &'a [f32] {
    let found = sample.columns.iter().find(|column| column.name == name).unwrap_or_else(|| panic!("no {name}"));
    match &found.values {
        ColumnValues::F32(values) => values,
        ColumnValues::I64(_) => panic!("{name} is of whole numbers"),
    }
}

pub(super) fn numbers(json: &Json) -> Vec<f32> {
    let rows = json.as_array().unwrap().iter().flat_map(|row| row.as_array().map_or(vec![row.clone()], Clone::clone));
    rows.map(|number| number.as_f64().unwrap() as f32).collect()
}

/// Checks that values are those of the same operations in float32, in another order by a rounding or two.
fn close(ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((ours - theirs).abs() <= 2e-6 * theirs.abs().max(1.0), "{ours} {theirs}");
    }
}

#[test]
fn states_actions_and_prompts_are_those_of_lerobot() {
    let (bench, golden) = (Bench::new(), golden());
    for mode in [
        Normalization::Identity,
        Normalization::MeanStd,
        Normalization::MinMax,
        Normalization::Quantiles,
        Normalization::Quantile10,
    ] {
        let theirs = &golden["modes"][name_of(mode)];
        let settings =
            Policy { state_normalization: Some(mode), action_normalization: Some(mode), ..Policy::default() };
        let sample = bench.sample(&config(), settings.clone(), 9);
        let actions: Vec<f32> = column(&sample, "actions").chunks(5).flat_map(|row| &row[..3]).copied().collect();
        close(&actions, &numbers(&theirs["action"]));
        let maker = bench.maker(&config(), settings);
        let ids = maker.prompt_ids_of(theirs["prompt"].as_str().unwrap());
        let features = 2 * 2;
        assert_eq!(&sample.input_ids[features..], ids, "{mode:?} {theirs}");
        // What was normalized comes back.
        let restored = maker.actions(column(&sample, "actions"), &[0.0; 3]).unwrap();
        let step = Arc::new(Set::open(&goldens().join("image")).unwrap()).step(1, 2).unwrap();
        let recorded = step.window("action", &[0, 1, 2, 3]).unwrap().values;
        for (restored, recorded) in restored.iter().zip(&recorded) {
            assert!((restored - recorded).abs() <= 1e-5 * recorded.abs().max(1.0), "{mode:?} {restored} {recorded}");
        }
    }
}

#[test]
fn relative_actions_and_their_statistics_are_those_of_lerobot() {
    let (bench, golden) = (Bench::new(), golden());
    let settings = Policy {
        action_normalization: Some(Normalization::Identity),
        relative_actions: Some(true),
        exclude: Some(vec!["GRIP".into()]),
        ..Policy::default()
    };
    let sample = bench.sample(&config(), settings.clone(), 9);
    let actions: Vec<f32> = column(&sample, "actions").chunks(5).flat_map(|row| &row[..3]).copied().collect();
    close(&actions, &numbers(&golden["relative"]["action"]));
    let maker = bench.maker(&config(), settings.clone());
    let set = Arc::new(Set::open(&goldens().join("image")).unwrap());
    let step = set.step(1, 2).unwrap();
    let state = step.numbers("observation.state").unwrap();
    let restored = maker.actions(column(&sample, "actions"), &state).unwrap();
    close(&restored, &step.window("action", &[0, 1, 2, 3]).unwrap().values);

    let stats = relative::stats(&set, ("observation.state", "action"), HORIZON, &[true, true, false]).unwrap();
    let theirs = Stats::of_json(&json!({ "action": golden["relative"]["stats"] })).unwrap();
    for (name, theirs) in &theirs.0["action"] {
        for at in 0..theirs.len() {
            // A quantile lies within a bin or two of 5,000 over the range.
            let range = stats["max"][at] - stats["min"][at];
            // Their sums are of float32.
            let tolerance = if name.starts_with('q') { range / 1000.0 + 1e-6 } else { 1e-4 };
            let ours = stats[name][at];
            assert!((ours - theirs[at]).abs() <= tolerance, "{name} {at}: {ours} {}", theirs[at]);
        }
    }
}

#[test]
fn pictures_are_fitted_as_lerobot_fits_them() {
    let golden = golden();
    let step = Arc::new(Set::open(&goldens().join("image")).unwrap()).step(1, 2).unwrap();
    let limits = crate::data::limits::Limits::NONE;
    let picture = step.pictures(CAMERA, &[0], &InProcess, &limits).unwrap().remove(0);
    let in_middle = golden["canvases"].as_object().unwrap().iter().map(|canvas| (false, canvas));
    let in_corner = golden["corners"].as_object().unwrap().iter().map(|canvas| (true, canvas));
    for (in_corner, (size, theirs)) in in_middle.chain(in_corner) {
        let (rows, columns) = size.split_once('x').unwrap();
        let [rows, columns]: [usize; 2] = [rows, columns].map(|side| side.parse().unwrap());
        let mut config = if in_corner { smolvla() } else { config() };
        config[if in_corner { "resize_imgs_with_padding" } else { "image_resolution" }] = json!([rows, columns]);
        config["sizes"]["vision"]["patch_size"] = 2.into();
        if in_corner {
            config["sizes"]["scale_factor"] = 1.into();
        }
        let spec = SampleSpec::of(&config).unwrap();
        let item = item(&picture, &spec.pictures);
        assert_eq!(
            (item.grid.h as usize, item.grid.w as usize, item.num_features),
            (rows / 2, columns / 2, rows * columns / 4)
        );
        let at = |channel: usize, y: usize, x: usize| {
            let patch = (y / 2) * (columns / 2) + x / 2;
            item.pixels[patch * 12 + channel * 4 + (y % 2) * 2 + x % 2]
        };
        let all = (0..3).flat_map(|channel| (0..rows).flat_map(move |y| (0..columns).map(move |x| (channel, y, x))));
        let ours: Vec<f32> = all.step_by(37).map(|(channel, y, x)| at(channel, y, x)).collect();
        close(&ours, &numbers(theirs));
    }
}

#[test]
fn samples_have_the_columns_of_a_policy() {
    let bench = Bench::new();
    let sample = bench.sample(&config(), Policy::default(), 9);
    assert_eq!(&sample.input_ids[..4], [399; 4]);
    assert!(sample.input_ids[4..].iter().all(|&id| id < 399));
    assert!(sample.targets.iter().all(|&target| target == IGNORE_INDEX));
    let tokens = sample.input_ids.len();
    assert_eq!(sample.position_ids[..tokens], sample.position_ids[2 * tokens..]);
    assert_eq!((sample.position_ids[tokens - 1], sample.meta.num_tokens as usize), ((tokens - 1) as f32, tokens));
    assert_eq!((sample.meta.items.len(), sample.meta.num_targets), (1, 4 * 3));
    let names: Vec<_> = sample.columns.iter().map(|it| (it.name.as_str(), it.rows, it.after.clone())).collect();
    assert_eq!(names, [("actions", 4, vec![5]), ("action_weights", 4, vec![5])]);
    let row = [1.0, 1.0, 1.0, 0.0, 0.0];
    assert_eq!(column(&sample, "action_weights"), [row; 4].concat());
    assert!(column(&sample, "actions").chunks(5).all(|row| row[3..] == [0.0, 0.0]));
    // The last but one frame of the first episode: two steps are behind its end.
    assert_eq!(bench.sample(&config(), Policy::default(), 5).meta.num_targets, 12);
    let masked = bench.sample(&config(), Policy { mask_padding: Some(true), ..Policy::default() }, 5);
    assert_eq!(
        (column(&masked, "action_weights"), masked.meta.num_targets),
        ([row, row, [0.0; 5], [0.0; 5]].concat().as_slice(), 6)
    );

    // With a state token the state is a column, and its digits are not in the prompt.
    let mut tokenized = config();
    tokenized["sizes"]["state_token"] = true.into();
    let with_token = bench.sample(&tokenized, Policy::default(), 9);
    assert!(with_token.input_ids.len() < sample.input_ids.len());
    let state = column(&with_token, "state");
    assert_eq!((state.len(), &state[3..]), (6, [0.0; 3].as_slice()));
    let mut pi0 = tokenized.clone();
    (pi0["type"], pi0["tokenizer_max_length"]) = ("pi0".into(), 48.into());
    pi0.as_object_mut().unwrap().remove("normalization_mapping");
    let of_pi0 = bench.sample(&pi0, Policy::default(), 9);
    assert_eq!(of_pi0.input_ids, with_token.input_ids);
    assert_ne!(column(&of_pi0, "state"), state, "mean and deviation");
}

#[test]
fn processor_files_hold_all_that_serving_needs() {
    let bench = Bench::new();
    let settings = Policy {
        relative_actions: Some(true),
        action_normalization: Some(Normalization::MeanStd),
        max_delay: 2,
        ..Policy::default()
    };
    let trained = bench.maker(&config(), settings);
    let mut saved = config();
    trained.put_features(&mut saved);
    assert_eq!(saved["output_features"]["action"]["shape"], json!([3]));
    assert_eq!(saved["normalization_mapping"]["ACTION"], "MEAN_STD");
    let files = trained.files();
    assert_eq!(files.len(), 5);
    for (name, contents) in files {
        assert!(is_processor_file(&name));
        std::fs::write(bench.folder.path().join(name), contents).unwrap();
    }
    let served = bench.open(&saved, &ProcessorOptions::default()).unwrap();
    assert_eq!((served.horizon(), served.action_dim(), served.state_dim()), (4, 3, 3));
    assert_eq!(served.cameras(), [CAMERA, "observation.images.wrist"]);
    let set = Arc::new(Set::open(&goldens().join("image")).unwrap());
    let step = set.step(1, 2).unwrap();
    let observation = served.observation(&step).unwrap();
    let (asked, learned) = (served.observe(&observation).unwrap(), trained.observe(&observation).unwrap());
    assert_eq!(asked, learned);
    assert!(column(&asked, "action_weights").iter().all(|&weight| weight == 0.0) && asked.meta.num_targets == 0);
    let normalized: Vec<f32> = (0..20).map(|at| at as f32 * 0.1 - 1.0).collect();
    let state = &observation.state;
    assert_eq!(served.actions(&normalized, state).unwrap(), trained.actions(&normalized, state).unwrap());

    // The first actions of a chunk are brought to the model's numbers as those that are learned are.
    let (recorded, sample) = (trained.recorded(&step).unwrap().values, trained.sample_of(&step));
    assert_eq!(served.begun(&recorded[..6], state).unwrap(), column(&sample, "actions")[..10]);
    for (begun, part) in [
        (&recorded[..5], "found 5 numbers of started actions"),
        (&recorded[..], "fewer than 4"),
        (&[f32::NAN; 3], "NaN"),
    ] {
        assert!(served.begun(begun, state).unwrap_err().to_string().contains(part), "{part}");
    }
    // More than it was trained with; a folder of lerobot does not say.
    let more = served.begun(&recorded[..9], state).unwrap_err().to_string();
    assert!(more.contains("3 actions of the chunk have started, but the policy was trained with at most 2"), "{more}");
    let delay = bench.folder.path().join("policy_delay.json");
    std::fs::remove_file(&delay).unwrap();
    assert!(bench.open(&saved, &ProcessorOptions::default()).unwrap().begun(&recorded[..9], state).is_ok());
    std::fs::write(&delay, "{\"max_delay\": \"two\"}").unwrap();
    let wrong = bench.open(&saved, &ProcessorOptions::default()).err().unwrap().to_string();
    assert!(wrong.contains("policy_delay.json") && wrong.contains("max_delay"), "{wrong}");

    let wrong = |change: &dyn Fn(&mut Observation)| {
        let mut observation = observation.clone();
        change(&mut observation);
        served.observe(&observation).unwrap_err().to_string()
    };
    assert!(wrong(&|it| it.state.push(0.0)).contains("the state has 4 numbers, but needs 3"));
    assert!(wrong(&|it| it.state[0] = f32::INFINITY).contains("inf"));
    assert!(wrong(&|it| it.images.clear()).contains("no picture of any of the cameras"));
    assert!(
        wrong(&|it| it.images.push(("top".into(), RgbImage::new(4, 4))))
            .contains("has a picture of the unknown camera top")
    );
    assert!(served.actions(&normalized[1..], state).is_err());
}

/// Steps behind the end of an episode do not count; the files are those of lerobot's processors, and `config.json` gets no key that its
/// config lacks.
#[test]
fn samples_of_smolvla_are_those_of_lerobot() {
    let bench = Bench::new();
    let sample = bench.sample(&smolvla(), Policy::default(), 5);
    assert_eq!((sample.input_ids.iter().filter(|&&id| id == 399).count(), sample.meta.num_targets), (4, 6));
    assert_eq!((sample.media[0].grid.h, sample.media[0].num_features), (4, 4));
    let counted = bench.sample(&smolvla(), Policy { mask_padding: Some(false), ..Policy::default() }, 5);
    assert_eq!(counted.meta.num_targets, 12);
    let maker = bench.maker(&smolvla(), Policy::default());
    assert_eq!(&sample.input_ids[4..], maker.prompt_ids_of("pick_up the cube\n"));
    let theirs = &golden()["modes"]["MEAN_STD"];
    let sample = bench.sample(&smolvla(), Policy::default(), 9);
    close(&column(&sample, "state")[..3], &numbers(&theirs["state"]));
    assert_eq!(&column(&sample, "state")[3..], [0.0; 3]);

    let steps = |maker: &PolicyMaker, file: &str| {
        let (_, bytes) = maker.files().into_iter().find(|(name, _)| name == file).unwrap();
        let json: Json = serde_json::from_slice(&bytes).unwrap();
        let steps = json["steps"].as_array().unwrap().clone();
        steps
            .into_iter()
            .map(|step| (step["registry_name"].as_str().unwrap().to_owned(), step["config"].clone()))
            .collect()
    };
    let names = |steps: Vec<(String, Json)>| steps.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let before: Vec<(String, Json)> = steps(&maker, "policy_preprocessor.json");
    assert_eq!(before[3].1["padding"], "longest");
    assert_eq!(before[3].1["tokenizer_name"], "HuggingFaceTB/SmolVLM2-500M-Video-Instruct");
    assert_eq!(before[3].1["max_length"], 48);
    let expected = ["rename_observations", "to_batch", "smolvla_new_line", "tokenizer", "device", "normalizer"];
    assert_eq!(names(before), expected.map(|name| format!("{name}_processor")));
    assert_eq!(names(steps(&maker, "policy_postprocessor.json")), ["unnormalizer_processor", "device_processor"]);
    let mut saved = smolvla();
    maker.put_features(&mut saved);
    assert_eq!(saved["input_features"]["observation.state"]["shape"], json!([3]));
    let known = smolvla();
    let added: Vec<&String> = saved.as_object().unwrap().keys().filter(|key| known.get(*key).is_none()).collect();
    assert_eq!(added, ["normalization_mapping"]);

    let relative = bench.maker(&smolvla(), Policy { relative_actions: Some(true), ..Policy::default() });
    assert_eq!(names(steps(&relative, "policy_postprocessor.json"))[1], "absolute_actions_processor");
    for (name, contents) in relative.files() {
        std::fs::write(bench.folder.path().join(name), contents).unwrap();
    }
    let served = bench.open(&saved, &ProcessorOptions::default()).unwrap();
    let normalized: Vec<f32> = (0..20).map(|at| at as f32 * 0.1 - 1.0).collect();
    let state = [1.0, 2.0, 3.0];
    assert_eq!(served.actions(&normalized, &state).unwrap(), relative.actions(&normalized, &state).unwrap());
    assert_ne!(served.actions(&normalized, &state).unwrap(), maker.actions(&normalized, &state).unwrap());
}

/// A policy without cameras goes by state and prompt, whatever pictures the set has.
#[test]
fn a_policy_may_go_by_its_state_alone() {
    let bench = Bench::new();
    let mut config = config();
    config["input_features"] = json!({ "observation.state": { "type": "STATE", "shape": [6] } });
    let sample = bench.sample(&config, Policy::default(), 0);
    assert!(sample.media.is_empty() && !sample.input_ids.contains(&399) && sample.meta.num_targets > 0);
    let maker = bench.maker(&config, Policy::default());
    let seen = Observation {
        images: vec![(CAMERA.into(), RgbImage::new(4, 4))],
        state: vec![0.0; 3],
        prompt: "go".into(),
        begun: Vec::new(),
    };
    assert!(
        maker
            .observe(&seen)
            .unwrap_err()
            .to_string()
            .contains("a picture of the unknown camera observation.images.front")
    );
    assert!(maker.observe(&Observation { images: Vec::new(), ..seen }).unwrap().media.is_empty());
}
