mod areas;
mod clips;
mod dropped;
mod files;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{GrayImage, Luma, RgbImage};
use serde_json::{Value as Json, json};

use super::*;
use crate::config::{Area, Data, Take, TrainFile};
use crate::data::column::ColumnValues;
use crate::data::dataset::Dataset;
use crate::data::digits::{MODEL, write_model};
use crate::data::in_process::InProcess;
use crate::data::processor::Sampled;
use crate::message::Tower;

/// A folder with pictures of 9 rows and 25 columns, gray, and the digits' tokenizer.
struct Bench {
    dir: tempfile::TempDir,
}

const QWEN: &str = "QwenImageTransformer2DModel";
const WAN: &str = "WanTransformer3DModel";

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_model(&dir.path().join("model"), &MODEL).unwrap();
        for at in 0..6u8 {
            let name = dir.path().join(format!("{at}.png"));
            GrayImage::from_fn(25, 9, |x, y| Luma([at * 10 + (x + y) as u8])).save(name).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn maker(&self, transformer: Json, options: ProcessorOptions) -> Result<DiffusionMaker, DataError> {
        self.maker_of(json!({"transformer": transformer}), options)
    }

    /// Opens a maker for the model of a config, of which `own` are keys of its own.
    fn maker_of(&self, own: Json, options: ProcessorOptions) -> Result<DiffusionMaker, DataError> {
        let mut config = json!({
            "model_type": "loongforge_diffusion",
            "vae": {"_class_name": "PixelLatents", "channels": 1},
            "text_encoder": {"model_type": "qwen3", "vocab_size": 1000},
        });
        own.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        let model = self.path("model");
        let folders = ProcessorFolders::of(&model);
        DiffusionMaker::open(folders, &config, &options, Arc::new(InProcess))
    }

    fn qwen(&self, options: ProcessorOptions) -> DiffusionMaker {
        self.maker(json!({"_class_name": QWEN, "patch_size": 2}), options).unwrap()
    }

    fn wan(&self, options: ProcessorOptions) -> DiffusionMaker {
        let transformer = json!({"_class_name": WAN, "patch_size": [1, 2, 2], "in_channels": 3, "out_channels": 1});
        self.maker(transformer, options).unwrap()
    }

    fn dataset(&self, maker: DiffusionMaker, path: &Path) -> Result<Dataset, DataError> {
        let data = Data { train: vec![TrainFile::new(path)], shuffle: false, ..Data::of_files(Vec::new()) };
        Dataset::open(&data, Box::new(maker) as Box<dyn SampleMaker>, 0)
    }

    fn sample(&self, maker: DiffusionMaker, line: Json) -> Result<Sample, String> {
        let path = self.write("one.jsonl", line.to_string());
        self.dataset(maker, &path).unwrap().sample(0).map_err(|bad| bad.reason)
    }
}

fn items(sample: &Sample) -> Vec<(Tower, [u32; 3], usize)> {
    let item = |item: &Media| (item.tower, [item.grid.t, item.grid.h, item.grid.w], item.num_features);
    sample.media.iter().map(item).collect()
}

#[test]
fn what_cannot_be_used_is_named() {
    let bench = Bench::new();
    let bad = |line: Json| bench.sample(bench.qwen(ProcessorOptions::default()), line).unwrap_err();
    assert!(bad(json!({"prompt": "x", "image": "gone.png"})).contains("gone.png"));
    assert!(bad(json!({"prompt": "x", "image": 5})).contains("`image` must name a file"));
    assert!(bad(json!({"prompt": 5, "image": "1.png"})).contains("`prompt` must be text or a list of texts"));
    assert!(bad(json!({"image": "1.png", "mood": "x"})).contains("no caption"));
    assert!(bad(json!({"prompt": "x"})).contains("no picture or clip"));
    assert!(bad(json!({"prompt": "x", "image": "1.png", "mask": "2.png"})).contains("set data.masks=true"));
    assert!(bad(json!({"prompt": "x", "video": ["1.png", "2.png"]})).contains("this model makes pictures"));
    RgbImage::new(1, 30).save(bench.path("thin.png")).unwrap();
    assert!(
        bad(json!({"prompt": "x", "image": "thin.png"})).contains("is 1×30 pixels, less than 2×2, the smallest size")
    );
    let few = ProcessorOptions { max_tokens: 47, ..ProcessorOptions::default() };
    let long = bench.sample(bench.qwen(few), json!({"prompt": "x", "image": "1.png"})).unwrap_err();
    assert!(long.contains("48 tokens") && long.contains("data.pack.max_tokens = 47"), "{long}");
    let edit = json!({"prompt": "x", "image": "1.png", "edit_image": "2.png"});
    assert!(bench.sample(bench.wan(ProcessorOptions::default()), edit.clone()).unwrap_err().contains("takes none"));
    let edited = bench.sample(bench.qwen(ProcessorOptions::default()), edit).unwrap();
    assert_eq!((items(&edited).len(), edited.meta.num_tokens), (3, 96));

    bench.write("folder/a.png", fs::read(bench.path("3.png")).unwrap());
    let lonely = bench.dataset(bench.qwen(ProcessorOptions::default()), &bench.path("folder")).unwrap();
    let reason = lonely.sample(0).unwrap_err().to_string();
    assert!(
        reason.contains("a.png: has no caption: write ") && reason.contains("a.txt or take it out of the folder"),
        "{reason}"
    );
    let chat = bench.write("chat.jsonl", json!({"messages": []}).to_string());
    let data = Data::of_files(vec![TrainFile { format: Format::Messages, ..TrainFile::new(chat) }]);
    let maker: Box<dyn SampleMaker> = Box::new(bench.qwen(ProcessorOptions::default()));
    let error = Dataset::open(&data, maker, 0).err().unwrap().to_string();
    assert!(error.contains("has the format messages, but diffusion models learn from"), "{error}");
    let error = bench.maker(json!({"_class_name": "X", "patch_size": 2}), ProcessorOptions::default());
    assert!(error.err().unwrap().to_string().contains("transformer._class_name"));
}

#[test]
fn a_mask_weighs_the_tokens_of_its_picture() {
    let bench = Bench::new();
    let (white, black) = (Luma([255u8]), Luma([0u8]));
    // The last column of 25 is cut, and the ninth row: 4 rows of 12 tokens are left.
    let half = |width| GrayImage::from_fn(width, 9, |x, _| if x < 12 { white } else { black });
    half(25).save(bench.path("half.png")).unwrap();
    half(24).save(bench.path("narrow.png")).unwrap();
    GrayImage::from_pixel(25, 9, black).save(bench.path("black.png")).unwrap();
    let sample = |line: Json, per_token| {
        let flow = FlowOptions { masks: true, per_token, ..FlowOptions::default() };
        bench.sample(bench.qwen(ProcessorOptions { flow, ..ProcessorOptions::default() }), line)
    };
    let line = |mask: &str| json!({"prompt": "x", "image": "1.png", "edit_image": "2.png", "mask": mask});
    let weights = |sample: &Sample| sample.columns[0].values.clone();
    let found = sample(line("half.png"), true).unwrap();
    let row = [[1.0f32; 6], [0.0; 6]].concat();
    let expected = [row.repeat(4), vec![0.0; 48]].concat();
    assert_eq!(weights(&found), ColumnValues::F32(expected));
    assert_eq!((found.meta.num_targets, found.meta.column_bytes), (24, 4 * 96));
    assert_eq!(sample(line("half.png"), false).unwrap().meta.num_targets, 1);
    let whole = sample(json!({"prompt": "x", "image": "1.png"}), false).unwrap();
    assert_eq!(weights(&whole), ColumnValues::F32(vec![1.0; 48]));
    let narrow = sample(line("narrow.png"), false).unwrap_err();
    assert!(narrow.contains("a mask of 24×9 pixels, but the picture or clip has 25×9"), "{narrow}");
    assert!(sample(line("black.png"), false).unwrap_err().contains("its mask is black"));
}

#[test]
fn captions_are_chosen_and_dropped_by_the_visit() {
    let bench = Bench::new();
    let options = |dropout, seed| ProcessorOptions {
        flow: FlowOptions { dropout, seed, ..FlowOptions::default() },
        ..ProcessorOptions::default()
    };
    let path = bench.write("a.jsonl", json!({"image": "1.png", "prompt": ["one", "a figure of one"]}).to_string());
    let texts = |dropout, seed| {
        let dataset = bench.dataset(bench.qwen(options(dropout, seed)), &path).unwrap();
        (0..300).map(|at| dataset.sample(at).unwrap().media[1].num_features).collect::<Vec<usize>>()
    };
    // The null prompt of this model is a space.
    let count = |texts: &[usize], len| texts.iter().filter(|&&text| text == len).count();
    let all = texts(0.3, 1);
    let (one, figure, null) = (count(&all, 3), count(&all, 15), count(&all, 1));
    assert_eq!(one + figure + null, 300);
    assert!(
        (60..120).contains(&null) && (75..135).contains(&one) && (75..135).contains(&figure),
        "{null} {one} {figure}"
    );
    assert_eq!(all, texts(0.3, 1));
    assert_ne!(all, texts(0.3, 2));
    assert_eq!(count(&texts(0.0, 1), 1), 0);
    // Wan's is empty, or a space where the tokenizer puts nothing around a text; an empty caption is that, too.
    let path = bench.write("b.jsonl", json!({"image": "1.png", "prompt": " "}).to_string());
    let dataset = bench.dataset(bench.wan(options(1.0, 1)), &path).unwrap();
    assert_eq!(dataset.sample(0).unwrap().media[2].num_features, 1);
    assert_eq!(dataset.prompt(0).unwrap().media[1].num_features, 1);
}

#[test]
fn a_clip_has_its_first_frame_as_condition() {
    let bench = Bench::new();
    let line = json!({"video": ["0.png", "1.png", "2.png", "3.png", "4.png", "5.png"], "caption": "up"});
    let options = |video: crate::config::VideoLimits| ProcessorOptions { video, ..ProcessorOptions::default() };
    let five = crate::config::VideoLimits { frames: Some(5), ..Default::default() };
    let sample = bench.sample(bench.wan(options(five)), line.clone()).unwrap();
    let expected = [(Tower::Vae, [5, 8, 24], 240), (Tower::Vae, [5, 8, 24], 240), (Tower::Text, [2, 1, 1], 2)];
    assert_eq!((items(&sample).as_slice(), sample.meta.num_tokens), (&expected[..], 240));
    let (clip, condition) = (&sample.media[0].pixels, &sample.media[1].pixels);
    assert_eq!(clip[..8 * 24], condition[..8 * 24]);
    assert!(condition[8 * 24..].iter().all(|&value| value == 0.0) && clip[8 * 24] != 0.0);

    let firsts = |take| -> BTreeSet<i32> {
        let limits = crate::config::VideoLimits { frames: Some(2), take: Some(take), ..Default::default() };
        let path = bench.write("one.jsonl", line.to_string());
        let dataset = bench.dataset(bench.wan(options(limits)), &path).unwrap();
        // The first pixel of frame k is 10 k.
        let first = |at| (dataset.sample(at).unwrap().media[0].pixels[0] + 1.0) * 127.5 / 10.0;
        (0..60).map(|at| first(at).round() as i32).collect()
    };
    assert_eq!(firsts(Take::Head), [0].into());
    assert_eq!(firsts(Take::Middle), [2].into());
    assert_eq!(firsts(Take::Sliding), [0, 1, 2, 3, 4].into());
    assert_eq!(firsts(Take::Chunks), [0, 2, 4].into());
    let whole = crate::config::VideoLimits { frames: Some(5), take: Some(Take::Whole), ..Default::default() };
    assert!(bench.sample(bench.wan(options(whole)), line.clone()).unwrap_err().contains("data.video.take is whole"));
    // A picture is a clip of one frame; a limit of pixels reduces frames.
    let small = crate::config::VideoLimits { area: Some(Area::new(60)), ..Default::default() };
    let reduced = bench.sample(bench.wan(options(small)), line).unwrap();
    assert_eq!(reduced.meta.target.unwrap().grid, Grid { t: 6, h: 2, w: 6 });
    let picture = json!({"image": "0.png", "caption": "up"});
    let picture = bench.sample(bench.wan(ProcessorOptions::default()), picture).unwrap();
    assert_eq!(picture.meta.target.unwrap().grid, Grid { t: 1, h: 4, w: 12 });
}

#[test]
fn a_prompt_has_condition_and_negative_but_no_target() {
    let bench = Bench::new();
    let sampled = |size: Option<&str>, frames, negative| {
        let size = size.map(|size| size.parse().unwrap());
        let flow = FlowOptions {
            sampled: Some(Sampled { size, frames, negative, ..Sampled::default() }),
            ..FlowOptions::default()
        };
        ProcessorOptions { flow, ..ProcessorOptions::default() }
    };
    let ask = |maker: DiffusionMaker, line: Json| {
        let path = bench.write("p.jsonl", line.to_string());
        bench.dataset(maker, &path).unwrap().prompt(0).map_err(|bad| bad.reason)
    };
    let picture = json!({"image": "1.png", "prompt": "one"});
    let prompt = ask(bench.qwen(sampled(None, None, Some(None))), picture.clone()).unwrap();
    assert_eq!(items(&prompt), [(Tower::Text, [3, 1, 1], 3), (Tower::Text, [1, 1, 1], 1)]);
    assert_eq!(prompt.meta.target.unwrap().grid, Grid { t: 1, h: 4, w: 12 });
    let alone = json!({"prompt": "one"});
    let prompt = ask(bench.qwen(sampled(Some("4x6"), None, None)), alone.clone()).unwrap();
    assert_eq!((items(&prompt).len(), prompt.meta.target.unwrap().grid), (1, Grid { t: 1, h: 2, w: 3 }));
    assert!(ask(bench.qwen(sampled(None, None, None)), alone.clone()).unwrap_err().contains("set sample.size"));
    assert!(
        ask(bench.qwen(sampled(Some("5x6"), None, None)), alone.clone()).unwrap_err().contains("a multiple of 2x2")
    );
    // One picture begins a clip.
    let clip = ask(bench.wan(sampled(Some("4x6"), Some(5), Some(Some("bad".into())))), picture).unwrap();
    let expected = [(Tower::Vae, [5, 4, 6], 30), (Tower::Text, [3, 1, 1], 3), (Tower::Text, [3, 1, 1], 3)];
    assert_eq!(items(&clip), expected);
    assert!(clip.media[0].pixels[24..].iter().all(|&value| value == 0.0));
    assert!(ask(bench.wan(sampled(Some("4x6"), Some(5), None)), alone).unwrap_err().contains("no picture or clip"));
}

#[test]
fn given_frames_are_pictures_for_the_image_tower() {
    let bench = Bench::new();
    fs::remove_file(bench.path("model/preprocessor_config.json")).unwrap();
    let open = |positions: Json| {
        let transformer = json!({"_class_name": WAN, "in_channels": 3, "out_channels": 1, "image_dim": 8,
            "pos_embed_seq_len": positions});
        let clip = json!({"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4});
        bench.maker_of(json!({"transformer": transformer, "image_encoder": clip}), ProcessorOptions::default()).unwrap()
    };
    let line = json!({"video": ["0.png", "1.png", "5.png"], "caption": "up"});
    let clip = [(Tower::Vae, [3, 8, 24], 144), (Tower::Vae, [3, 8, 24], 144), (Tower::Text, [2, 1, 1], 2)];
    // Four patches and the class token.
    let picture = (Tower::Vision, [1, 2, 2], 5);
    let first = bench.sample(open(Json::Null), line.clone()).unwrap();
    assert_eq!(items(&first), [&clip[..], &[picture]].concat());
    let both = bench.sample(open(json!(10)), line.clone()).unwrap();
    assert_eq!(items(&both), [&clip[..], &[picture, picture]].concat());
    assert_eq!(both.media[3].pixels, first.media[3].pixels);
    assert!(both.media[4].pixels[0] > both.media[3].pixels[0], "the last frame is brighter");
    // In the middle of 8 rows and 24 columns are 8 of both; the first frame's pixel there is 8.
    let value = (8.0 / 255.0 - 0.481_454_66) / 0.268_629_54;
    assert!((first.media[3].pixels[0] - value).abs() < 1e-5, "{} {value}", first.media[3].pixels[0]);
    // Two pictures of a prompt are the ends of its clip, whatever a latent's frames.
    let sampled = Sampled { size: Some("4x6".parse().unwrap()), frames: Some(5), ..Sampled::default() };
    let flow = FlowOptions { sampled: Some(sampled), ..FlowOptions::default() };
    let path = bench.write("p.jsonl", json!({"video": ["0.png", "5.png"], "caption": "up"}).to_string());
    let transformer =
        json!({"_class_name": WAN, "in_channels": 12, "out_channels": 4, "image_dim": 8, "pos_embed_seq_len": 10});
    let vae = json!({"_class_name": "AutoencoderKLWan", "dim_mult": [1], "temperal_downsample": [true, true]});
    let clip = json!({"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4});
    let config = json!({"transformer": transformer, "vae": vae, "image_encoder": clip});
    let maker = bench.maker_of(config, ProcessorOptions { flow, ..ProcessorOptions::default() }).unwrap();
    let prompt = bench.dataset(maker, &path).unwrap().prompt(0).unwrap();
    let expected = [(Tower::Vae, [5, 4, 6], 12), (Tower::Text, [2, 1, 1], 2), picture, picture];
    assert_eq!(items(&prompt), expected);
    let condition = prompt.media[0].pixels.as_chunks::<72>().0;
    assert!(condition[1..4].iter().flatten().all(|&value| value == 0.0) && condition[4][0] > condition[0][0]);
}

#[test]
fn some_visits_of_a_clip_are_given_its_first_frame() {
    let bench = Bench::new();
    let open = |share: Option<f64>, more: Json, per_token: bool, sampled| {
        let mut config = json!({"transformer": {"_class_name": WAN, "in_channels": 1, "out_channels": 1}});
        config["expand_timesteps"] = more;
        let video = crate::config::VideoLimits { first_frame: share, ..Default::default() };
        let flow = FlowOptions { seed: 3, per_token, sampled, ..FlowOptions::default() };
        bench.maker_of(config, ProcessorOptions { video, flow, ..ProcessorOptions::default() })
    };
    let line = json!({"video": ["0.png", "1.png", "5.png"], "caption": "up"});
    let path = bench.write("one.jsonl", line.to_string());
    let visits = |share, per_token| {
        let dataset = bench.dataset(open(share, json!(true), per_token, None).unwrap(), &path).unwrap();
        (0..200).map(|at| dataset.sample(at).unwrap()).collect::<Vec<_>>()
    };
    let given = |samples: &[Sample]| samples.iter().map(|sample| sample.media.len() == 3).collect::<Vec<_>>();
    let some = visits(Some(0.3), true);
    let count = given(&some).into_iter().filter(|&given| given).count();
    assert!((40..80).contains(&count), "{count}");
    assert_eq!(given(&some), given(&visits(Some(0.3), false)));
    assert!(!given(&visits(None, false)).contains(&true) && !given(&visits(Some(1.0), false)).contains(&false));
    for sample in &some {
        // Tokens that are given are not in the loss.
        let (num_items, counted) = if sample.media.len() == 3 { (3, 96) } else { (2, 144) };
        assert_eq!((sample.media.len(), sample.meta.num_targets, sample.meta.num_tokens), (num_items, counted, 144));
    }
    let one = some.iter().find(|sample| sample.media.len() == 3).unwrap();
    assert_eq!(items(one)[1], (Tower::Vae, [1, 8, 24], 48));
    assert_eq!(one.media[1].pixels, one.media[0].pixels[..8 * 24]);
    let picture = json!({"image": "0.png", "caption": "up"});
    let alone = bench.sample(open(Some(1.0), json!(true), false, None).unwrap(), picture.clone()).unwrap();
    assert_eq!(alone.media.len(), 2, "of a single frame nothing would be left to make");
    // A prompt's picture begins its clip where clips are learned so.
    let path = bench.write("p.jsonl", picture.to_string());
    for (share, num_items) in [(Some(0.3), 2), (None, 1)] {
        let sampled = Sampled { frames: Some(3), ..Sampled::default() };
        let maker = open(share, json!(true), false, Some(sampled)).unwrap();
        assert_eq!(bench.dataset(maker, &path).unwrap().prompt(0).unwrap().media.len(), num_items);
    }
    let error = open(Some(0.3), Json::Null, false, None).err().unwrap().to_string();
    assert!(error.contains("data.video.first_frame is for models that take clips with a first frame"), "{error}");
}

#[test]
fn pictures_to_edit_stand_in_the_prompt() {
    let bench = Bench::new();
    let open = |pipeline: &str, image: crate::config::ImageLimits| {
        let text = json!({"model_type": "qwen2_5_vl", "vocab_size": 1000, "image_token_id": 262, "hidden_size": 8,
            "rope_scaling": {"mrope_section": [1, 1, 2]}, "vision_config": {"patch_size": 8, "spatial_merge_size": 2}});
        let config =
            json!({"transformer": {"_class_name": QWEN, "patch_size": 2}, "pipeline": pipeline, "text_encoder": text});
        bench.maker_of(config, ProcessorOptions { image, ..ProcessorOptions::default() }).unwrap()
    };
    let small = crate::config::ImageLimits { area: Some(Area::new(32 * 64)), ..Default::default() };
    let line = |edit: Json| json!({"prompt": "one", "image": "1.png", "edit_image": edit});
    let plus = || open("QwenImageEditPlusPipeline", small);
    let sample = bench.sample(plus(), line(json!(["2.png", "3.png"]))).unwrap();
    // Of 25 columns and 9 rows: 64 × 32 pixels for the autoencoder, 640 × 224 for the text tower, which become 256 × 80 within
    // its own limit of 256 × 256.
    let sizes: Vec<_> = items(&sample).into_iter().filter(|item| item.0 == Tower::Vae).collect();
    assert_eq!(sizes, [(Tower::Vae, [1, 8, 24], 48), (Tower::Vae, [1, 32, 64], 512), (Tower::Vae, [1, 32, 64], 512)]);
    assert_eq!(sample.meta.num_tokens, 48 + 2 * 512);
    let item = sample.media.last().unwrap();
    let num_sizes = crate::message::PicturedText::len_of_sizes(item.pixels[0]).unwrap();
    let len = crate::message::PicturedText::len_of_head(&item.pixels[..num_sizes]).unwrap();
    let text = crate::message::PicturedText::of_head(&item.pixels[..len], num_sizes).unwrap();
    let num_patches: usize = text.grids.iter().map(|grid| grid.num_cells()).sum();
    let [tokens, frames] = [text.ids.len(), (len + num_patches * 3 * 2 * 8 * 8).div_ceil(text.ids.len())];
    assert_eq!((items(&sample)[3].1, item.pixels.len()), ([frames as u32, tokens as u32, 1], frames * tokens));
    let num_places = text.ids.iter().filter(|&&id| id == 262).count();
    assert_eq!((num_places * 4, tokens - 64, text.grids.len()), (num_patches, item.num_features, 2));
    let bad = |maker, edit: Json| bench.sample(maker, line(edit)).unwrap_err();
    let one = || open("QwenImageEditPipeline", small);
    assert!(bad(one(), json!(["2.png", "3.png"])).contains("has 2 pictures to edit, but this model takes one"));
    let forged = json!({"prompt": "<|image_pad|>", "image": "1.png", "edit_image": "2.png"});
    let error = bench.sample(plus(), forged).unwrap_err();
    assert!(error.contains("has 2 placeholder tokens of pictures, but 1 picture"), "{error}");
    // Shown as large as it is encoded.
    let sample = bench.sample(one(), line(json!("2.png"))).unwrap();
    let shown = sample.media.last().unwrap();
    assert_eq!((shown.pixels[0], &shown.pixels[2..5]), (-1.0, &[1.0, 4.0, 8.0][..]));
    let blind = json!({"transformer": {"_class_name": QWEN}, "pipeline": "QwenImageEditPipeline",
        "text_encoder": {"model_type": "qwen2_5_vl", "vocab_size": 1000}});
    let error = bench.maker_of(blind, ProcessorOptions::default()).err().unwrap().to_string();
    assert!(error.contains("QwenImageEditPipeline: text_encoder has no vision_config"), "{error}");
    // Without pictures the prompt is plain.
    let plain = bench.sample(plus(), json!({"prompt": "one", "image": "1.png"})).unwrap();
    assert!(plain.media[1].pixels.iter().all(|&id| id >= 0.0));
}
