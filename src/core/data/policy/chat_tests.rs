//! Tests against the samples that lerobot's processor makes (`tests/oracle/make_groot_samples.py`), and for N1.6 against those of
//! NVIDIA's (`tests/oracle/make_groot_n1_6_samples.py`).

use std::path::Path;
use std::sync::Arc;

use image::RgbImage;
use serde_json::{Value as Json, json};

use crate::config::{Augment, Policy};
use crate::data::column::ColumnValues;
use crate::data::digits::{MODEL, write_model};
use crate::data::in_process::InProcess;
use crate::data::lerobot::{Set, Window};
use crate::data::policy::data_keys::notes;
use crate::data::policy::spec::SampleSpec;
use crate::data::policy::{Observation, PolicyMaker, groot_files, groot_spec};
use crate::data::processor::{PolicyOptions, ProcessorFolders, ProcessorOptions};
use crate::data::sample::Sample;
use crate::message::{PicturedText, Tower};

fn golden() -> Json {
    serde_json::from_str(include_str!("../goldens/groot.json")).unwrap()
}

/// Returns the config of a policy on the quick start's Qwen3-VL.
fn config(folder: &Path) -> Json {
    let backbone: Json = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let golden = golden();
    let sizes = json!({
        "backbone_config": backbone, "action_horizon": golden["horizon"], "max_state_dim": golden["max_state_dim"],
        "max_action_dim": golden["max_action_dim"],
    });
    let camera = || json!({ "type": "VISUAL", "shape": [3, 200, 300] });
    json!({
        "type": "groot", "sizes": sizes, "embodiment_tag": "new_embodiment",
        "input_features": {
            "observation.images.wrist": camera(), "observation.images.front": camera(),
            "observation.state": { "type": "STATE", "shape": [3] },
        },
        "output_features": { "action": { "type": "ACTION", "shape": [2] } },
    })
}

/// Writes lerobot's processor files with the golden's statistics.
fn write_processor(folder: &Path, change: &dyn Fn(&mut Json)) {
    let stats = golden()["stats"].clone();
    let tensors: Vec<(String, Vec<u8>, usize)> = stats
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(key, own)| {
            own.as_object().unwrap().iter().map(move |(stat, values)| (format!("{key}.{stat}"), values))
        })
        .map(|(name, values)| {
            let values = values.as_array().unwrap();
            let bytes = values.iter().flat_map(|value| (value.as_f64().unwrap() as f32).to_le_bytes()).collect();
            (name, bytes, values.len())
        })
        .collect();
    let views = tensors.iter().map(|(name, bytes, len)| {
        (name.clone(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![*len], bytes).unwrap())
    });
    std::fs::write(folder.join("stats.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let mut pack = json!({ "registry_name": groot_files::PACK, "state_file": "stats.safetensors",
        "config": { "embodiment_tag": "new_embodiment", "clip_outliers": true, "use_percentiles": false } });
    change(&mut pack["config"]);
    let text = json!({ "name": "policy_preprocessor", "steps": [pack] }).to_string();
    std::fs::write(folder.join("policy_preprocessor.json"), text).unwrap();
}

fn open(folder: &Path, config: &Json) -> Result<PolicyMaker, String> {
    let folders = ProcessorFolders::of(folder);
    let maker = PolicyMaker::open(folders, config, &ProcessorOptions::default(), Arc::new(InProcess));
    maker.map_err(|error| error.to_string())
}

fn numbers(value: &Json) -> Vec<f32> {
    let flat = |value: &Json| value.as_f64().map(|number| number as f32);
    match value.as_array() {
        Some(values) => values.iter().flat_map(numbers).collect(),
        None => flat(value).into_iter().collect(),
    }
}

/// Returns a picture of smooth waves and hard edges, as the script makes it.
fn noise_picture(width: u32, height: u32, seed: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let value = [x * 7 + y * seed, x * y + 31 * seed, ((x / 5 + y / 3) % 2) * 200 + 20];
        image::Rgb(value.map(|value| (value % 256) as u8))
    })
}

fn seen(case: &Json) -> Observation {
    let picture = |camera: &Json| {
        let size = |at: usize| camera[at].as_u64().unwrap() as u32;
        let name = format!("observation.images.{}", camera[0].as_str().unwrap());
        (name, noise_picture(size(1), size(2), size(3)))
    };
    Observation {
        images: case["cameras"].as_array().unwrap().iter().map(picture).collect(),
        state: numbers(&case["state"]),
        prompt: case["task"].as_str().unwrap().to_owned(),
        begun: Vec::new(),
    }
}

fn column(sample: &Sample, name: &str) -> Vec<f32> {
    let column = sample.columns.iter().find(|column| column.name == name).unwrap();
    match &column.values {
        ColumnValues::F32(values) => values.clone(),
        ColumnValues::I64(values) => values.iter().map(|value| *value as f32).collect(),
    }
}

fn close(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6 * b.abs().max(1.0))
}

#[test]
fn samples_are_those_of_lerobots_processor() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    write_processor(folder.path(), &|_| {});
    let maker = open(folder.path(), &config(folder.path())).unwrap();
    for case in golden()["cases"].as_array().unwrap() {
        let is_pad = case["is_pad"].as_array().unwrap().iter().map(|it| it == true).collect();
        let actions = Window { values: numbers(&case["actions"]), is_pad };
        let sample = maker.sample_with(&seen(case), actions);
        let ids: Vec<i64> = case["input_ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
        assert_eq!(sample.input_ids, ids);
        assert_eq!(sample.position_ids.len(), 3 * ids.len());
        let grids: Vec<f32> =
            sample.media.iter().flat_map(|item| [item.grid.t, item.grid.h, item.grid.w]).map(|it| it as f32).collect();
        assert_eq!(grids, numbers(&case["grids"]));
        let pixels: Vec<f32> = sample.media.iter().flat_map(|item| item.pixels.iter().copied()).collect();
        let expected = &case["pixels"];
        let stride = expected["stride"].as_u64().unwrap() as usize;
        let thinned: Vec<f32> = pixels.iter().copied().step_by(stride).collect();
        let expected_values = numbers(&expected["values"]);
        assert_eq!(thinned.len(), expected_values.len());
        // A byte's rounding in one of two resizings is 1 / 255 over the deviation of 0.3.
        let off = thinned.iter().zip(&expected_values).filter(|(a, b)| (**a - **b).abs() > 1e-4).count();
        let most = thinned.iter().zip(&expected_values).map(|(a, b)| (a - b).abs());
        // Not `max`, which drops a NaN.
        let most = most.max_by(f32::total_cmp).unwrap_or_default();
        println!("{off} of {} values are off, by {most} at most", thinned.len());
        assert!(most < 2.1 / 255.0 / 0.3 && off * 50 <= thinned.len());
        let sum: f64 = pixels.iter().map(|value| f64::from(*value)).sum();
        let wanted = expected["sum"].as_f64().unwrap();
        assert!((sum - wanted).abs() < 1e-3 * wanted.abs(), "{sum} {wanted}");
        assert!(close(&column(&sample, "state"), &numbers(&case["normalized_state"])));
        assert!(close(&column(&sample, "actions"), &numbers(&case["normalized"])));
        assert!(close(&column(&sample, "action_weights"), &numbers(&case["mask"])));
        assert_eq!(column(&sample, "embodiment"), numbers(&case["embodiment"]));
        assert_eq!(sample.meta.num_targets as f32, numbers(&case["mask"]).iter().sum::<f32>());
        let actions = maker.actions(&numbers(&case["predicted"]), &numbers(&case["state"])).unwrap();
        assert!(close(&actions, &numbers(&case["restored"])), "{actions:?}");
    }
}

/// A language model with a pool of its own reads one item, which has a feature for each token; all else of the sample is the same.
#[test]
fn a_sample_of_a_policy_in_two_parts_has_its_chat_as_an_item() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    write_processor(folder.path(), &|_| {});
    let config = config(folder.path());
    let whole = open(folder.path(), &config).unwrap();
    let policy = PolicyOptions { prefix_tower: true, ..PolicyOptions::default() };
    let options = ProcessorOptions { policy, ..ProcessorOptions::default() };
    let apart = PolicyMaker::open(ProcessorFolders::of(folder.path()), &config, &options, Arc::new(InProcess)).unwrap();
    for case in golden()["cases"].as_array().unwrap() {
        let [whole, apart] = [&whole, &apart].map(|maker| maker.observe(&seen(case)).unwrap());
        let [item] = apart.media.as_slice() else { panic!("{} items", apart.media.len()) };
        assert_eq!((item.tower, item.num_features), (Tower::Text, whole.input_ids.len()));
        assert_eq!(apart.meta.items[0].num_features, apart.meta.num_tokens);
        let num_sizes = PicturedText::len_of_sizes(item.pixels[0]).unwrap();
        let len = PicturedText::len_of_head(&item.pixels[..num_sizes]).unwrap();
        let text = PicturedText::of_head(&item.pixels[..len], num_sizes).unwrap();
        assert_eq!((&text.ids, &text.positions), (&whole.input_ids, &whole.position_ids));
        assert!(text.grids.iter().eq(whole.media.iter().map(|item| &item.grid)));
        let patches: Vec<f32> = whole.media.iter().flat_map(|item| item.pixels.iter().copied()).collect();
        let (own, zeros) = item.pixels[len..].split_at(patches.len());
        assert!(own == patches && zeros.len() < text.ids.len() && zeros.iter().all(|value| *value == 0.0));
        assert_eq!((item.grid.h as usize, item.grid.num_cells()), (text.ids.len(), item.pixels.len()));
        assert_eq!((apart.input_ids, apart.columns), (whole.input_ids, whole.columns));
        assert_eq!((apart.num_sources, apart.targets), (whole.num_sources, whole.targets));
    }
}

/// N1.6's pictures keep their shape, stand behind the task and are numbered; a processor file goes before the config.
#[test]
fn samples_of_n1_6_are_those_of_nvidias_processor() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    write_processor(folder.path(), &|_| {});
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let golden: Json = serde_json::from_str(include_str!("../goldens/groot_n1_6.json")).unwrap();
    write("chat_template.jinja", golden["template"].as_str().unwrap().to_owned());
    let half = [0.5; 3];
    write("preprocessor_config.json", json!({ "image_mean": half, "image_std": half }).to_string());
    let backbone = json!({
        "model_type": "eagle_3_vl", "image_token_index": golden["image_token_index"], "text_config": { "model_type": "qwen3" },
        "vision_config": { "model_type": "siglip2_vision_model", "patch_size": 14 },
    });
    for (number, case) in golden["cases"].as_array().unwrap().iter().enumerate() {
        let mut config = config(folder.path());
        config["model_type"] = "Gr00tN1d6".into();
        let own = json!({ "action_horizon": 3, "max_state_dim": 5, "max_action_dim": 4, "backbone_config": backbone });
        own.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        config["crop_fraction"] = case["fraction"].clone();
        if number > 0 {
            let file = json!({ "shortest_image_edge": case["edge"], "crop_fraction": case["fraction"] });
            write("processor_config.json", json!({ "processor_kwargs": file }).to_string());
            config["crop_fraction"] = json!(0.5);
        }
        let maker = open(folder.path(), &config).unwrap();
        let case_with_state = {
            let mut case = case.clone();
            case["state"] = json!([0.5, 1.0, 2.0]);
            case
        };
        let sample = maker.observe(&seen(&case_with_state)).unwrap();
        let ids: Vec<i64> = case["input_ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
        assert_eq!(sample.input_ids, ids);
        assert_eq!(sample.position_ids.len(), 3 * ids.len());
        let grids = sample.media.iter().flat_map(|item| [item.grid.t, item.grid.h, item.grid.w]);
        assert_eq!(grids.map(|it| it as f32).collect::<Vec<_>>(), numbers(&case["grids"]));
        let pixels: Vec<f32> = sample.media.iter().flat_map(|item| item.pixels.iter().copied()).collect();
        let expected = numbers(&case["pixels"]["values"]);
        let found: Vec<f32> = pixels.iter().copied().step_by(1511).collect();
        assert_eq!(found.len(), expected.len());
        // A byte's rounding in Pillow's resizing is 1 / 127.5; OpenCV's is equal.
        let off: Vec<f32> = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).filter(|off| *off > 1e-4).collect();
        assert!(off.len() * 100 <= found.len() && off.iter().all(|off| *off < 1.01 / 127.5), "{off:?}");
        let (sum, wanted) = (pixels.iter().map(|value| f64::from(*value)).sum::<f64>(), case["pixels"]["sum"].as_f64());
        assert!((sum - wanted.unwrap()).abs() < 1e-4 * pixels.len() as f64, "{sum}");
        assert_eq!(column(&sample, "embodiment"), [10.0]);
    }
    write("processor_config.json", json!({ "processor_kwargs": { "use_albumentations": false } }).to_string());
    let mut config = config(folder.path());
    config["model_type"] = "Gr00tN1d6".into();
    config["backbone_config"] = backbone;
    let message = open(folder.path(), &config).err().expect("an error");
    assert!(message.contains("processor_config.json") && message.contains("`use_albumentations`"), "{message}");
}

/// Processor files that are written are read again, and make the same samples.
#[test]
fn processor_files_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    write_processor(folder.path(), &|_| {});
    let mut saved = config(folder.path());
    let maker = open(folder.path(), &saved).unwrap();
    saved["dtype"] = "float32".into();
    maker.put_features(&mut saved);
    assert!(saved.get("dtype").is_none() && saved["embodiment_tag"] == "new_embodiment");
    assert_eq!(saved["normalization_mapping"]["ACTION"], "IDENTITY");
    for (name, bytes) in maker.files() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let again = open(folder.path(), &saved).unwrap();
    let case = &golden()["cases"][0];
    let [first, second] = [&maker, &again].map(|maker| maker.observe(&seen(case)).unwrap());
    assert_eq!((first.input_ids, first.columns), (second.input_ids, second.columns));
    assert_eq!(maker.files(), again.files());
    let after: Json =
        serde_json::from_slice(&std::fs::read(folder.path().join("policy_postprocessor.json")).unwrap()).unwrap();
    assert_eq!(after["steps"][0]["registry_name"], "groot_action_unpack_unnormalize_v2");
    assert_eq!(after["steps"][0]["config"]["env_action_dim"], 2);
}

/// NVIDIA's fine-tuning writes them, and they are of no use to a policy that acts.
#[test]
fn changes_of_training_pictures_are_told_and_not_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    write_processor(folder.path(), &|_| {});
    let mut config = config(folder.path());
    config["sizes"]["random_rotation_angle"] = Json::Null;
    config["sizes"]["color_jitter_params"] = json!({ "brightness": 0.3, "hue": 0.08 });
    open(folder.path(), &config).unwrap();
    let mut spec = groot_spec::read(&config).unwrap();
    assert_eq!(spec.told_changes, [r#"color_jitter_params {"brightness":0.3,"hue":0.08}"#]);
    let set = Arc::new(Set::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/lerobot/image")).unwrap());
    let told = |spec: &SampleSpec, augment, sets: &[Arc<Set>]| {
        let notes = notes(spec, &Policy { augment, ..Policy::default() }, sets);
        notes.iter().any(|note| note.contains("random augmentations of training pictures (color_jitter_params"))
    };
    let sets = [set];
    assert!(told(&spec, None, &sets));
    assert!(!told(&spec, None, &[]), "nothing is trained");
    assert!(!told(&spec, Some(Augment::default()), &sets));
    spec.told_changes.clear();
    assert!(!told(&spec, None, &sets));
}

#[test]
fn what_is_not_implemented_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    write_processor(folder.path(), &|_| {});
    let error = |change: &dyn Fn(&mut Json)| {
        let mut config = config(folder.path());
        change(&mut config);
        open(folder.path(), &config).err().expect("an error")
    };
    for (change, expected) in [
        (
            &(|it: &mut Json| it["embodiment_tag"] = "my_robot".into()) as &dyn Fn(&mut Json),
            "`embodiment_tag` is \"my_robot\"",
        ),
        (&|it| it["sizes"]["max_num_embodiments"] = 10.into(), "the number 10, but `max_num_embodiments` is 10"),
        (&|it| it["sizes"]["image_crop_size"] = json!([224, 224]), "`image_crop_size`"),
        (&|it| it["action_decode_transform"] = "libero".into(), "`action_decode_transform`"),
        (&|it| it["embodiment_tag"] = "libero_sim".into(), "set `action_decode_transform` to null"),
        (&|it| it["input_features"] = json!({ "observation.state": { "type": "STATE", "shape": [3] } }), "no camera"),
        (
            &|it| it["sizes"]["backbone_config"]["vision_config"]["patch_size"] = 16.into(),
            "patch_size is 8, but config.json says 16",
        ),
    ] {
        let message = error(change);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
    for (key, value, expected) in [
        ("use_percentiles", json!(true), "use_percentiles is true"),
        ("modality_config", json!({}), "modality_config is invalid: {}"),
        ("state_dropout_prob", json!(0.2), "state_dropout_prob is 0.2"),
        ("embodiment_tag", json!("libero_sim"), "libero_sim"),
    ] {
        write_processor(folder.path(), &|config| config[key] = value.clone());
        let message = error(&|_| {});
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}
