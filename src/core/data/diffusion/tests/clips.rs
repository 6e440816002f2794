//! Tests of numbers of frames, and of what is counted of samples.

use super::*;

#[test]
fn numbers_of_frames_that_would_be_changed_are_refused() {
    let bench = Bench::new();
    let vae = json!({"_class_name": "AutoencoderKLWan", "dim_mult": [1], "temperal_downsample": [true, true]});
    let wan = json!({"transformer": {"_class_name": WAN, "in_channels": 4, "out_channels": 4}, "vae": vae});
    let video = |frames| VideoLimits { frames: Some(frames), ..Default::default() };
    let open = |config: &Json, frames| {
        bench.maker_of(config.clone(), ProcessorOptions { video: video(frames), ..ProcessorOptions::default() })
    };
    assert!(open(&wan, 1).is_ok() && open(&wan, 17).is_ok());
    let error = open(&wan, 16).err().unwrap().to_string();
    assert!(
        error.contains("data.video.frames is 16, but") && error.contains("a multiple of 4: set 13 or 17"),
        "{error}"
    );
    let qwen = json!({"transformer": {"_class_name": QWEN, "patch_size": 2}});
    let error = open(&qwen, 5).err().unwrap().to_string();
    assert!(error.contains("data.video.frames applies to clips, but this model makes pictures"), "{error}");
    assert!(!error.contains("config.json"), "the key is one of the run's config: {error}");

    let path = bench.write("p.jsonl", json!({"prompt": "up"}).to_string());
    let ask = |config: &Json, frames| {
        let sampled = Sampled { size: Some("4x6".parse().unwrap()), frames: Some(frames), ..Sampled::default() };
        let flow = FlowOptions { sampled: Some(sampled), ..FlowOptions::default() };
        let maker = bench.maker_of(config.clone(), ProcessorOptions { flow, ..ProcessorOptions::default() }).unwrap();
        bench.dataset(maker, &path).unwrap().prompt(0).map_err(|bad| bad.reason)
    };
    assert_eq!(ask(&wan, 9).unwrap().meta.target.unwrap().grid.t, 3);
    assert!(ask(&wan, 10).unwrap_err().contains("sample.frames is 10, but this autoencoder needs one more"));
    assert!(ask(&qwen, 1).is_ok());
    assert!(ask(&qwen, 2).unwrap_err().contains("sample.frames is 2, but this model makes pictures"));
}

/// `take: uniform` goes from the first frame to the last one.
#[test]
fn frames_may_be_taken_evenly_from_all_of_a_clip() {
    let bench = Bench::new();
    let line = json!({"video": ["0.png", "1.png", "2.png", "3.png", "4.png", "5.png"], "caption": "up"});
    let taken = |frames| -> Vec<u32> {
        let video = VideoLimits { frames: Some(frames), take: Some(Take::Uniform), ..Default::default() };
        let maker = bench.wan(ProcessorOptions { video, ..ProcessorOptions::default() });
        let sample = bench.sample(maker, line.clone()).unwrap();
        // Frames have 8 rows and 24 columns; the first pixel of frame k is 10 k.
        let number = |frame: &[f32]| ((frame[0] + 1.0) * 127.5 / 10.0).round() as u32;
        sample.media[0].pixels.chunks(8 * 24).map(number).collect()
    };
    assert_eq!(taken(1), [0]);
    assert_eq!(taken(2), [0, 5]);
    assert_eq!(taken(3), [0, 3, 5]);
    assert_eq!(taken(6), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn buckets_leave_few_sizes() {
    let bench = Bench::new();
    let options = |image, video| ProcessorOptions {
        image: crate::config::ImageLimits { bucket: image, ..Default::default() },
        video: VideoLimits { bucket: video, ..Default::default() },
        ..ProcessorOptions::default()
    };
    // Of 9 rows and 25 columns, with tokens of 2×2.
    let picture = json!({"image": "0.png", "caption": "up"});
    let clip = json!({"video": ["0.png", "1.png"], "caption": "up"});
    let grid = |image, video, line: &Json| {
        let sample = bench.sample(bench.wan(options(image, video)), line.clone())?;
        Ok::<_, String>(sample.meta.target.unwrap().grid)
    };
    assert_eq!(grid(Some(6), None, &picture), Ok(Grid { t: 1, h: 3, w: 12 }));
    assert_eq!(grid(Some(6), None, &clip), Ok(Grid { t: 2, h: 4, w: 12 }));
    assert_eq!(grid(None, Some(6), &clip), Ok(Grid { t: 2, h: 3, w: 12 }));
    let small = grid(Some(10), None, &picture).unwrap_err();
    assert!(small.contains("is 25×9 pixels, less than 10×10, the smallest size"), "{small}");

    let open = |class: &str, image, video| {
        let transformer = json!({"_class_name": class, "in_channels": 1, "out_channels": 1});
        bench.maker(transformer, options(image, video)).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(open(WAN, Some(3), None).contains("data.image.bucket is 3, not a multiple of 2x2 pixels"));
    assert!(open(WAN, None, Some(5)).contains("data.video.bucket is 5, not a multiple of 2x2 pixels"));
    assert!(open(QWEN, None, Some(4)).contains("data.video.bucket applies to clips"));
    assert_eq!(open(QWEN, Some(4), None), "");
}

#[test]
fn short_clips_and_empty_captions_are_counted() {
    let bench = Bench::new();
    let frames = |count: usize| (0..count).map(|at| format!("{at}.png")).collect::<Vec<_>>();
    let lines = [
        json!({"video": frames(6), "caption": "up"}),
        json!({"video": frames(2), "caption": "up"}),
        json!({"video": frames(1), "caption": ""}),
        json!({"image": "0.png", "caption": " "}),
    ];
    let path = bench.write("clips.jsonl", lines.map(|line| line.to_string()).join("\n"));
    let notes = |frames: Option<usize>| {
        let video = VideoLimits { frames, ..Default::default() };
        let maker = bench.wan(ProcessorOptions { video, ..ProcessorOptions::default() });
        let dataset = bench.dataset(maker, &path).unwrap();
        (0..4).for_each(|at| drop(dataset.sample(at).unwrap()));
        let notes = dataset.maker().notes();
        notes.into_iter().filter(|note| !note.contains("sides were cut")).collect::<Vec<_>>()
    };
    let still = "clips too short for more than one frame at 16 frames per second, learned as pictures: 1";
    let empty = "empty captions, learned as the null prompt: 2";
    let short = "clips too short for data.video.frames = 5 at 16 frames per second, learned at their own length: 1";
    assert_eq!(notes(Some(5)), [short, still, empty]);
    // Where nobody says how long clips are to be, none is too short but one of a single frame.
    assert_eq!(notes(None), [still, empty]);
    assert_eq!(notes(Some(1)), [empty]);
}

#[test]
fn visits_with_the_same_choice_have_the_same_items() {
    let bench = Bench::new();
    let line = json!({"video": ["0.png", "1.png", "5.png"], "caption": ["up", "down"]});
    let path = bench.write("one.jsonl", line.to_string());
    let config =
        json!({"transformer": {"_class_name": WAN, "in_channels": 1, "out_channels": 1}, "expand_timesteps": true});
    let video = VideoLimits { first_frame: Some(0.3), ..Default::default() };
    let flow = FlowOptions { seed: 3, dropout: 0.2, ..FlowOptions::default() };
    let maker = bench.maker_of(config, ProcessorOptions { video, flow, ..ProcessorOptions::default() }).unwrap();
    let dataset = bench.dataset(maker, &path).unwrap();
    let mut pixels = std::collections::BTreeMap::new();
    for at in 0..100 {
        let media = dataset.sample(at).unwrap().media;
        let own: Vec<Vec<f32>> = media.into_iter().map(|item| item.pixels).collect();
        assert_eq!(pixels.entry(dataset.choice(at).unwrap()).or_insert_with(|| own.clone()), &own, "visit {at}");
    }
    // Two captions or none, with the first frame and without.
    assert_eq!(pixels.len(), 6);
}

#[test]
fn latents_without_a_distribution_are_not_drawn() {
    let bench = Bench::new();
    let open = |vae: Json| {
        let transformer = json!({"_class_name": WAN, "in_channels": 1, "out_channels": 1});
        let flow = FlowOptions { draws_latents: true, ..FlowOptions::default() };
        let options = ProcessorOptions { flow, ..ProcessorOptions::default() };
        bench.maker_of(json!({"transformer": transformer, "vae": vae}), options)
    };
    assert!(open(json!({"_class_name": "AutoencoderKLWan"})).is_ok());
    let error = open(json!({"_class_name": "PixelLatents", "channels": 1})).err().unwrap().to_string();
    assert!(error.contains("train.latents is sample, but the latents of PixelLatents have no distribution"), "{error}");
}

#[test]
fn an_animation_that_is_no_gif_is_no_picture_for_a_model_that_makes_clips() {
    let bench = Bench::new();
    let path = bench.write("a.webp", b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0");
    let path = path.with_file_name("a.jsonl");
    std::fs::write(&path, json!({"image": "a.webp", "caption": "up"}).to_string()).unwrap();
    let reason = |maker| bench.dataset(maker, &path).unwrap().sample(0).unwrap_err().reason;
    let options = ProcessorOptions::default;
    let of_clips = reason(bench.wan(options()));
    assert!(of_clips.contains("a.webp") && of_clips.contains("convert it to GIF or MP4"), "{of_clips}");
    assert!(!reason(bench.qwen(options())).contains("convert it to GIF"));
}

#[test]
fn samples_without_a_picture_to_edit_are_counted() {
    let bench = Bench::new();
    let text = json!({"model_type": "qwen2_5_vl", "vocab_size": 1000, "image_token_id": 262, "hidden_size": 8,
        "rope_scaling": {"mrope_section": [1, 1, 2]}, "vision_config": {"patch_size": 8, "spatial_merge_size": 2}});
    let transformer = json!({"_class_name": QWEN, "patch_size": 2});
    let config = json!({"transformer": transformer, "pipeline": "QwenImageEditPlusPipeline", "text_encoder": text});
    let image = crate::config::ImageLimits { area: Some(Area::new(32 * 64)), ..Default::default() };
    let maker = bench.maker_of(config, ProcessorOptions { image, ..ProcessorOptions::default() }).unwrap();
    let lines =
        [json!({"prompt": "one", "image": "1.png", "edit_image": "2.png"}), json!({"prompt": "one", "image": "1.png"})];
    let path = bench.write("e.jsonl", lines.map(|line| line.to_string()).join("\n"));
    let dataset = bench.dataset(maker, &path).unwrap();
    for position in 0..2 {
        dataset.sample(position).unwrap_or_else(|bad| panic!("{bad}"));
    }
    let notes = dataset.maker().notes();
    let note = "samples without a picture to edit, learned from their prompts alone: 1";
    assert!(notes.iter().any(|line| line == note), "{notes:?}");
}
