//! Tests that pictures that a model is given are dropped by the visit.

use std::collections::BTreeMap;

use super::*;

fn options(condition_dropout: f64, dropout: f64, seed: u64) -> ProcessorOptions {
    let flow = FlowOptions { condition_dropout, dropout, seed, ..FlowOptions::default() };
    ProcessorOptions { flow, ..ProcessorOptions::default() }
}

/// Returns the first samples of a file.
fn visits(bench: &Bench, maker: DiffusionMaker, path: &Path) -> Vec<Sample> {
    let dataset = bench.dataset(maker, path).unwrap();
    (0..200).map(|at| dataset.sample(at).unwrap()).collect()
}

/// Returns of each sample whether it has nothing but its target and its prompt.
fn are_dropped(samples: &[Sample]) -> Vec<bool> {
    samples.iter().map(|sample| sample.media.len() == 2).collect()
}

#[test]
fn given_frames_are_dropped_by_the_visit() {
    let bench = Bench::new();
    fs::remove_file(bench.path("model/preprocessor_config.json")).unwrap();
    let line = json!({"video": ["0.png", "1.png", "5.png"], "caption": ["up", "down"]});
    let path = bench.write("one.jsonl", line.to_string());
    let clip = json!({"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4});
    // The first frame, and the first and the last one.
    for (positions, num_pictures) in [(Json::Null, 1), (json!(10), 2)] {
        let transformer = json!({"_class_name": WAN, "in_channels": 3, "out_channels": 1, "image_dim": 8,
            "pos_embed_seq_len": positions});
        let config = json!({"transformer": transformer, "image_encoder": clip});
        let maker = |options| bench.maker_of(config.clone(), options).unwrap();
        let some = visits(&bench, maker(options(0.3, 0.0, 1)), &path);
        let count = are_dropped(&some).into_iter().filter(|&is_dropped| is_dropped).count();
        assert!((40..80).contains(&count), "{count}");
        for sample in &some {
            let towers: Vec<Tower> = sample.media.iter().map(|item| item.tower).collect();
            let whole = [&[Tower::Vae, Tower::Vae, Tower::Text][..], &vec![Tower::Vision; num_pictures]].concat();
            assert!(towers == whole || towers == [Tower::Vae, Tower::Text], "{towers:?}");
            assert_eq!((sample.meta.num_tokens, sample.meta.num_targets), (144, 1));
        }
        assert_eq!(are_dropped(&some), are_dropped(&visits(&bench, maker(options(0.3, 0.0, 1)), &path)));
        assert_ne!(are_dropped(&some), are_dropped(&visits(&bench, maker(options(0.3, 0.0, 2)), &path)));
        assert!(!are_dropped(&visits(&bench, maker(options(0.0, 0.0, 1)), &path)).contains(&true));
        // Captions are dropped independently: with and without the frames.
        let both = visits(&bench, maker(options(0.3, 0.5, 1)), &path);
        assert_eq!(are_dropped(&both), are_dropped(&some));
        let is_null =
            |sample: &Sample| sample.media.iter().any(|item| item.tower == Tower::Text && item.num_features == 1);
        let of_dropped: Vec<bool> = both.iter().filter(|sample| sample.media.len() == 2).map(is_null).collect();
        let nulls = of_dropped.iter().filter(|&&is_null| is_null).count();
        assert!((count / 4..count * 3 / 4).contains(&nulls), "{nulls} of {count}");
        // Visits with the same choice have the same items: two captions or none, with the frames and without.
        let dataset = bench.dataset(maker(options(0.4, 0.3, 1)), &path).unwrap();
        let mut pixels = BTreeMap::new();
        for at in 0..200 {
            let own: Vec<Vec<f32>> = dataset.sample(at).unwrap().media.into_iter().map(|item| item.pixels).collect();
            assert_eq!(pixels.entry(dataset.choice(at).unwrap()).or_insert_with(|| own.clone()), &own, "visit {at}");
        }
        assert_eq!(pixels.len(), 6);
        // Samples that are made keep their pictures.
        let sampled = Sampled { size: Some("4x6".parse().unwrap()), frames: Some(3), ..Sampled::default() };
        let all = options(1.0, 0.0, 1);
        let flow = FlowOptions { sampled: Some(sampled), ..all.flow.clone() };
        let dataset = bench.dataset(maker(ProcessorOptions { flow, ..all }), &path).unwrap();
        assert_eq!(dataset.sample(0).unwrap().media.len(), 2);
        assert_eq!(dataset.prompt(0).unwrap().media.len(), 2 + num_pictures);
    }
}

#[test]
fn prompts_go_without_a_picture_where_the_model_has_learned_to() {
    let bench = Bench::new();
    let path = bench.write("p.jsonl", json!({"caption": "up"}).to_string());
    for positions in [Json::Null, json!(10)] {
        let transformer =
            json!({"_class_name": WAN, "in_channels": 3, "out_channels": 1, "pos_embed_seq_len": positions});
        let config = json!({"transformer": transformer});
        let asked = |goes_without| {
            let size = Some("4x6".parse().unwrap());
            let sampled = Sampled { size, frames: Some(3), goes_without, ..Sampled::default() };
            let flow = FlowOptions { sampled: Some(sampled), ..FlowOptions::default() };
            let maker = bench.maker_of(config.clone(), ProcessorOptions { flow, ..ProcessorOptions::default() });
            bench.dataset(maker.unwrap(), &path).unwrap().prompt(0)
        };
        let sample = asked(true).unwrap();
        assert_eq!(sample.media.iter().map(|item| item.tower).collect::<Vec<_>>(), [Tower::Text]);
        assert_eq!(sample.meta.num_tokens, 18);
        let error = asked(false).unwrap_err().to_string();
        assert!(error.contains("only a model that is trained with data.condition_dropout goes without"), "{error}");
    }
}

#[test]
fn pictures_to_edit_are_dropped_by_the_visit() {
    let bench = Bench::new();
    let line = json!({"prompt": "x", "image": "1.png", "edit_image": ["2.png", "3.png"]});
    let path = bench.write("e.jsonl", line.to_string());
    let some = visits(&bench, bench.qwen(options(0.3, 0.0, 1)), &path);
    let count = are_dropped(&some).into_iter().filter(|&is_dropped| is_dropped).count();
    assert!((40..80).contains(&count), "{count}");
    for sample in &some {
        let expected = if sample.media.len() == 2 { (2, 48) } else { (4, 3 * 48) };
        assert_eq!((sample.media.len(), sample.meta.num_tokens), expected);
    }
    // The prompt of a text tower that sees the pictures is that of a sample that has none.
    let text = json!({"model_type": "qwen2_5_vl", "vocab_size": 1000, "image_token_id": 262, "hidden_size": 8,
        "rope_scaling": {"mrope_section": [1, 1, 2]}, "vision_config": {"patch_size": 8, "spatial_merge_size": 2}});
    let config = json!({"transformer": {"_class_name": QWEN, "patch_size": 2}, "text_encoder": text,
        "pipeline": "QwenImageEditPlusPipeline"});
    let maker = |dropout| bench.maker_of(config.clone(), options(dropout, 0.0, 1)).unwrap();
    let dropped = bench.sample(maker(1.0), line).unwrap();
    let plain = bench.sample(maker(0.0), json!({"prompt": "x", "image": "1.png"})).unwrap();
    assert_eq!(dropped.media, plain.media);
}

#[test]
fn prompts_of_models_that_edit_one_picture_go_without_where_that_is_learned() {
    let bench = Bench::new();
    let path = bench.write("p.jsonl", json!({"caption": "up"}).to_string());
    let text = json!({"model_type": "qwen2_5_vl", "vocab_size": 1000, "image_token_id": 262, "hidden_size": 8,
        "rope_scaling": {"mrope_section": [1, 1, 2]}, "vision_config": {"patch_size": 8, "spatial_merge_size": 2}});
    let config = json!({"transformer": {"_class_name": QWEN, "patch_size": 2}, "text_encoder": text,
        "pipeline": "QwenImageEditPipeline"});
    let asked = |goes_without| {
        let sampled = Sampled { size: Some("4x6".parse().unwrap()), goes_without, ..Sampled::default() };
        let flow = FlowOptions { sampled: Some(sampled), ..FlowOptions::default() };
        let maker = bench.maker_of(config.clone(), ProcessorOptions { flow, ..ProcessorOptions::default() });
        bench.dataset(maker.unwrap(), &path).unwrap().prompt(0)
    };
    assert_eq!(asked(true).unwrap().media.iter().map(|item| item.tower).collect::<Vec<_>>(), [Tower::Text]);
    let error = asked(false).unwrap_err().to_string();
    assert!(error.contains("has 0 pictures to edit, but this model takes one"), "{error}");
}

#[test]
fn dropping_pictures_is_refused_where_none_are_always_given() {
    let bench = Bench::new();
    for expand_timesteps in [false, true] {
        let transformer = json!({"_class_name": WAN, "in_channels": 1, "out_channels": 1});
        let config = json!({"transformer": transformer, "expand_timesteps": expand_timesteps});
        let error = bench.maker_of(config.clone(), options(0.1, 0.0, 1)).err().unwrap().to_string();
        assert!(error.contains("data.condition_dropout is for models that are always given pictures"), "{error}");
        assert!(bench.maker_of(config, options(0.0, 0.1, 1)).is_ok());
    }
}
