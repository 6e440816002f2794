//! Tests of samples with sound.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::{Processor, ProcessorOptions};
use crate::config::{AudioAugment, AudioLimits, Phase, Template, VideoLimits};
use crate::data::audio::Segment;
use crate::data::audio::tests::sine;
use crate::data::audio::wav;
use crate::data::digits::{MODEL, write_model};
use crate::data::error::DataError;
use crate::data::media::MediaKind;
use crate::data::packed::{PackedKind, PackedMedia, PackedSample};
use crate::data::sample::Sample;
use crate::data::source::Conversation;
use crate::data::template::qwen_with_sound;
use crate::data::tokenizer_file::read_json;
use crate::message::{SampleId, Tower};

const RATE: u32 = 16_000;

/// Opens the digits' model, which sees pictures, with an audio tower of `model_type` and its tokens.
fn open(dir: &Path, model_type: &str, tokens: [&str; 3], options: ProcessorOptions) -> Result<Processor, DataError> {
    write_model(dir, &MODEL).unwrap();
    let edit = |name: &str, change: &dyn Fn(&mut Json)| {
        let mut json = read_json(&dir.join(name)).unwrap();
        change(&mut json);
        std::fs::write(dir.join(name), json.to_string()).unwrap();
    };
    let first = read_json(&dir.join("config.json")).unwrap()["text_config"]["vocab_size"].as_i64().unwrap();
    edit("tokenizer.json", &|tokenizer| {
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        added.extend(tokens.iter().zip(first..).map(|(token, id)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        }));
    });
    edit("config.json", &|config| {
        config["text_config"]["vocab_size"] = (first + 3).into();
        config["audio_token_id"] = (first + 1).into();
        config["audio_config"] =
            json!({"model_type": format!("{model_type}_encoder"), "num_mel_bins": 16, "max_source_positions": 50});
    });
    edit("preprocessor_config.json", &|settings| {
        settings["feature_size"] = 16.into();
        settings["chunk_length"] = 1.into();
    });
    let config = read_json(&dir.join("config.json")).unwrap();
    Processor::open(dir, &config, &ProcessorOptions { learned: Phase::Sft.into(), ..options })
}

fn qwen2_audio(dir: &Path) -> Processor {
    open(dir, "qwen2_audio", ["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"], ProcessorOptions::default()).unwrap()
}

fn write_wav(path: &Path, num_samples: usize) {
    let samples = sine(500.0, RATE, num_samples as f64 / f64::from(RATE) + 0.5 / f64::from(RATE));
    std::fs::write(path, wav(&samples, 1, RATE)).unwrap();
}

fn sample(processor: &Processor, line: &str, base: &Path) -> Result<Sample, String> {
    let conversation = Conversation::parse(line).map_err(|error| error.to_string())?;
    processor.training_sample(SampleId(0), &conversation, base).map_err(|error| error.to_string())
}

/// Returns the text of the tokens; a run of placeholders is its length.
fn text(processor: &Processor, sample: &Sample) -> String {
    let tokenizer = processor.tokenizer();
    let special = tokenizer.special();
    let mut text = String::new();
    for ids in sample.input_ids.chunk_by(|a, b| a == b) {
        let token = tokenizer.token(ids[0]).unwrap().replace('Ġ', " ").replace('Ċ', "\n");
        match [special.image, special.audio].contains(&Some(ids[0])) {
            true => text.push_str(&format!("{token}×{}", ids.len())),
            false => text.push_str(&token.repeat(ids.len())),
        }
    }
    text
}

#[test]
fn recordings_and_pictures_become_placeholders_and_frames() {
    let folder = tempfile::tempdir().unwrap();
    let processor = qwen2_audio(folder.path());
    write_wav(&folder.path().join("a.wav"), 16_000);
    write_wav(&folder.path().join("b.wav"), 9_700);
    image::RgbImage::new(16, 16).save(folder.path().join("0.png")).unwrap();
    let line = r#"{"messages":[{"role":"user","content":"<audio>and<image>then<audio>?"},
        {"role":"assistant","content":"c"}],"audios":["a.wav","b.wav"],"images":["0.png"]}"#;
    let one = sample(&processor, line, folder.path()).unwrap();
    let expected = "<|im_start|>user\n<|audio_bos|><|AUDIO|>×25<|audio_eos|>and\
         <|vision_start|><|image_pad|>×1<|vision_end|>then<|audio_bos|><|AUDIO|>×15<|audio_eos|>?<|im_end|>\n\
         <|im_start|>assistant\nc<|im_end|>\n";
    assert_eq!(text(&processor, &one), expected);
    // 100 and ⌈9700 / 160⌉ = 61 frames, and two behind each, which the convolutions see.
    let items: Vec<_> = one.media.iter().map(|item| (item.tower, item.grid.t, item.num_features)).collect();
    assert_eq!(items, [(Tower::Audio, 102, 25), (Tower::Vision, 1, 1), (Tower::Audio, 63, 15)]);
    assert_eq!(one.media[2].pixels.len(), 63 * 16);
    assert_eq!(one.media[2].grid.num_cells(), 63);
    // Nothing of the placeholders is learned.
    let special = processor.tokenizer().special();
    assert!(one.targets.iter().all(|target| ![special.image, special.audio].contains(&Some(*target))));
    assert_eq!(one.meta.num_targets, 2);

    // Packed ahead of time, and read again.
    let narrow = |ids: &[i64]| ids.iter().map(|&id| id as i32).collect::<Vec<i32>>();
    let file = |name: &str| vec![(name.to_owned(), std::fs::read(folder.path().join(name)).unwrap().into())];
    let media = |kind, name| PackedMedia { kind, files: file(name) };
    let pack = PackedSample {
        ids: vec![0],
        lens: vec![one.meta.num_tokens],
        samples: vec!["a".into()],
        input_ids: narrow(&one.input_ids),
        targets: narrow(&one.targets),
        position_ids: Some(one.position_ids.clone()),
        media: vec![
            media(PackedKind::Audio { segment: Segment::WHOLE }, "a.wav"),
            media(PackedKind::Image, "0.png"),
            media(PackedKind::Audio { segment: Segment::WHOLE }, "b.wav"),
        ],
        items: one.meta.items.clone(),
    };
    let read = PackedSample::from_members(&pack.members()).unwrap();
    assert_eq!(read, pack);
    assert_eq!(processor.packed_sample(SampleId(0), &read).unwrap(), one);

    // A part of a recording, packed too; and a limit of tokens.
    let part = r#"{"messages":[{"role":"user","content":[{"type":"audio","audio":"a.wav","start":0.25,"end":0.5}]},
        {"role":"assistant","content":"c"}]}"#;
    let part = sample(&processor, part, folder.path()).unwrap();
    assert_eq!((part.media[0].grid.t, part.media[0].num_features), (27, 6));
    let segment = Segment::new(0.25, Some(0.5)).unwrap();
    let pack = PackedSample {
        lens: vec![part.meta.num_tokens],
        input_ids: narrow(&part.input_ids),
        targets: narrow(&part.targets),
        position_ids: None,
        media: vec![media(PackedKind::Audio { segment }, "a.wav")],
        items: part.meta.items.clone(),
        ..pack
    };
    let read = PackedSample::from_members(&pack.members()).unwrap();
    assert_eq!((&read, processor.packed_sample(SampleId(0), &read).unwrap()), (&pack, part));
    let audio = AudioLimits { max_tokens: Some(24), ..AudioLimits::default() };
    let options = ProcessorOptions { audio, learned: Phase::Sft.into(), ..Default::default() };
    let config = read_json(&folder.path().join("config.json")).unwrap();
    let bounded = Processor::open(folder.path(), &config, &options).unwrap();
    let error = sample(&bounded, line, folder.path()).unwrap_err();
    assert!(error.contains("a.wav") && error.contains("25 tokens, more than data.audio.max_tokens = 24"), "{error}");
    let gone = sample(&processor, &line.replace("a.wav", "gone.wav"), folder.path()).unwrap_err();
    assert!(gone.starts_with("audio ") && gone.contains("gone.wav: No such file"), "{gone}");

    // The other ways to say it.
    let bytes = std::fs::read(folder.path().join("a.wav")).unwrap();
    let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    for part in [
        r#"{"type":"audio","audio":"a.wav"}"#.to_owned(),
        r#"{"type":"audio","path":"a.wav"}"#.to_owned(),
        r#"{"type":"audio","url":"a.wav"}"#.to_owned(),
        r#"{"type":"audio_url","audio_url":{"url":"a.wav"}}"#.to_owned(),
        r#"{"type":"audio","audio_url":"a.wav"}"#.to_owned(),
        format!(r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}"#),
    ] {
        let line = format!(
            r#"{{"messages":[{{"role":"user","content":[{part},{{"type":"text","text":"?"}}]}},{{"role":"assistant","content":"c"}}]}}"#
        );
        let other = sample(&processor, &line, folder.path()).unwrap();
        assert_eq!(other.media[0], one.media[0], "{part}");
    }
}

/// Other programs know of recordings from the template alone.
#[test]
fn a_template_that_writes_recordings_makes_the_samples_of_one_that_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let without = qwen2_audio(folder.path());
    std::fs::write(folder.path().join("chat_template.jinja"), qwen_with_sound()).unwrap();
    let config = read_json(&folder.path().join("config.json")).unwrap();
    let with =
        Processor::open(folder.path(), &config, &ProcessorOptions { learned: Phase::Sft.into(), ..Default::default() });
    let with = with.unwrap();
    assert!(with.template_writes(MediaKind::Audio) && !without.template_writes(MediaKind::Audio));
    write_wav(&folder.path().join("a.wav"), 2_000);
    let line = r#"{"messages":[{"role":"user","content":"<audio>a<audio>"},{"role":"assistant","content":"b"}],
        "audios":["a.wav","a.wav"]}"#;
    let [with, without] = [&with, &without].map(|processor| sample(processor, line, folder.path()).unwrap());
    assert_eq!((with.input_ids, with.meta), (without.input_ids, without.meta));
}

/// The published template of Qwen2-Audio numbers recordings over the whole chat.
#[test]
fn templates_may_number_recordings() {
    let folder = tempfile::tempdir().unwrap();
    drop(qwen2_audio(folder.path()));
    // Published beside the code of transformers, in one line here as there.
    let template = "{% set audio_count = namespace(value=0) %}{% for message in messages %}\
        <|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n\
        {% else %}{% for content in message['content'] %}\
        {% if 'audio' in content or 'audio_url' in content or message['type'] == 'audio' or content['type'] == 'audio' %}\
        {% set audio_count.value = audio_count.value + 1 %}\
        Audio {{ audio_count.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n\
        {% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let config = read_json(&folder.path().join("config.json")).unwrap();
    let open = |template| {
        let options = ProcessorOptions { template, learned: Phase::Sft.into(), ..Default::default() };
        Processor::open(folder.path(), &config, &options).unwrap()
    };
    write_wav(&folder.path().join("a.wav"), 2_000);
    let line = r#"{"messages":[{"role":"user","content":"<audio>a<audio>"},{"role":"assistant","content":"b"},
        {"role":"user","content":"<audio>c"},{"role":"assistant","content":"d"}],"audios":["a.wav","a.wav","a.wav"]}"#;
    let clip = |number: u32| format!("Audio {number}: <|audio_bos|><|AUDIO|>×3<|audio_eos|>\n");
    let expected = format!(
        "<|im_start|>user\n{}a{}<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n\
         <|im_start|>user\n{}c<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n",
        clip(1),
        clip(2),
        clip(3)
    );
    for template in [Template::FromModel, Template::Qwen2Audio] {
        let processor = open(template);
        let sample = sample(&processor, line, folder.path()).unwrap();
        assert_eq!((text(&processor, &sample), sample.meta.num_targets), (expected.clone(), 4), "{template:?}");
    }
}

#[test]
fn what_is_wrong_with_a_recording_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let processor = qwen2_audio(dir);
    write_wav(&dir.join("long.wav"), 16_001);
    write_wav(&dir.join("short.wav"), 1_000);
    std::fs::write(dir.join("text.wav"), "hello, world").unwrap();
    std::fs::write(dir.join("empty.wav"), "").unwrap();
    let reason = |file: &str| {
        let line = format!(
            r#"{{"messages":[{{"role":"user","content":"<audio>?"}},{{"role":"assistant","content":"c"}}],"audios":["{file}"]}}"#
        );
        sample(&processor, &line, dir).unwrap_err()
    };
    for (file, part) in [
        ("long.wav", "at most 1 s (chunk_length)"),
        ("short.wav", "less than data.audio.min_seconds = 0.1"),
        ("text.wav", "not a supported audio file"),
        ("empty.wav", "not an audio file"),
        ("none.wav", "No such file"),
    ] {
        assert!(reason(file).contains(part) && reason(file).contains(file), "{}", reason(file));
    }
    write_wav(&dir.join("good.wav"), 16_000);
    let many = |num: usize| {
        let (words, files) = ("<audio>".repeat(num), vec!["good.wav"; num]);
        let messages = json!([{"role": "user", "content": words}, {"role": "assistant", "content": "c"}]);
        json!({ "messages": messages, "audios": files }).to_string()
    };
    let options = ProcessorOptions { max_tokens: 60, learned: Phase::Sft.into(), ..Default::default() };
    let config = read_json(&dir.join("config.json")).unwrap();
    let small = Processor::open(dir, &config, &options).unwrap();
    let too_long = |num: usize| sample(&small, &many(num), dir).unwrap_err();
    assert!(too_long(2).contains("(50 of audio), more than data.pack.max_tokens = 60"), "{}", too_long(2));
    // Of many no more are decoded than a pack has tokens.
    assert!(too_long(9).starts_with("75 tokens (75 of audio)"), "{}", too_long(9));
    let forged = r#"{"messages":[{"role":"user","content":"<|AUDIO|>"},{"role":"assistant","content":"c"}]}"#;
    let forged = sample(&processor, forged, dir).unwrap_err();
    assert!(forged.contains("0 audio") && forged.contains("1 audio"), "{forged}");
    let mut settings = read_json(&dir.join("preprocessor_config.json")).unwrap();
    settings["feature_size"] = 80.into();
    std::fs::write(dir.join("preprocessor_config.json"), settings.to_string()).unwrap();
    let config = read_json(&dir.join("config.json")).unwrap();
    let error = Processor::open(dir, &config, &ProcessorOptions::default()).err().unwrap().to_string();
    assert!(error.contains("feature_size is 80, but num_mel_bins of config.json is 16"), "{error}");
}

#[test]
fn recordings_of_training_samples_are_changed_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let plain = qwen2_audio(dir);
    let config = read_json(&dir.join("config.json")).unwrap();
    let with = |augment: AudioAugment| {
        let options =
            ProcessorOptions { changes: Some((augment, 7)), learned: Phase::Sft.into(), ..Default::default() };
        Processor::open(dir, &config, &options).unwrap()
    };
    write_wav(&dir.join("a.wav"), 8_000);
    let line = r#"{"messages":[{"role":"user","content":"<audio>?<audio>"},{"role":"assistant","content":"c"}],
        "audios":["a.wav","a.wav"]}"#;
    let conversation = Conversation::parse(line).unwrap();
    let of = |processor: &Processor, id| processor.training_sample(id, &conversation, dir).unwrap();
    let masked = with(AudioAugment { mask_time_prob: 0.3, ..AudioAugment::default() });
    let (own, changed) = (of(&plain, SampleId(3)), of(&masked, SampleId(3)));
    assert_eq!(own.media[0].pixels, own.media[1].pixels);
    assert_eq!((&own.input_ids, &own.meta), (&changed.input_ids, &changed.meta), "masks change no length");
    assert_ne!(changed.media[0].pixels, own.media[0].pixels);
    assert_ne!(changed.media[0].pixels, changed.media[1].pixels, "each file has a change of its own");
    assert_eq!(changed, of(&masked, SampleId(3)));
    assert_ne!(changed.media[0].pixels, of(&masked, SampleId(4)).media[0].pixels);
    let held_out = SampleId::held_out(0, 3);
    assert_eq!(of(&masked, held_out), of(&plain, held_out));
    let asked = |processor: &Processor| processor.prompt(SampleId(3), &conversation, dir).unwrap();
    assert_eq!(asked(&masked), asked(&plain));

    // Another speed is another number of tokens, which a pack made ahead of time cannot have.
    let faster = with(AudioAugment { speed: 0.2, ..AudioAugment::default() });
    let lens: Vec<u32> =
        (0..20).map(|id| of(&faster, SampleId(id)).media[0].num_features).map(|it| it as u32).collect();
    // 8,000 samples, and 10,000 and 6,667 of them.
    assert!(
        [12, 16, 10].iter().all(|len| lens.contains(len)) && lens.iter().all(|len| [12, 16, 10].contains(len)),
        "{lens:?}"
    );
    let media = PackedMedia {
        kind: PackedKind::Audio { segment: Segment::WHOLE },
        files: vec![("a.wav".to_owned(), std::fs::read(dir.join("a.wav")).unwrap().into())],
    };
    let narrow = |ids: &[i64]| ids.iter().map(|&id| id as i32).collect::<Vec<i32>>();
    let pack = PackedSample {
        ids: vec![0],
        lens: vec![own.meta.num_tokens],
        samples: vec!["a".into()],
        input_ids: narrow(&own.input_ids),
        targets: narrow(&own.targets),
        position_ids: None,
        media: vec![media.clone(), media],
        items: own.meta.items.clone(),
    };
    assert_eq!(masked.packed_sample(SampleId(3), &pack).unwrap(), changed);
    let error = faster.packed_sample(SampleId(3), &pack).unwrap_err().to_string();
    assert!(error.contains("set data.audio.augment.speed to 0"), "{error}");
}

#[test]
fn a_model_that_hears_nothing_says_so() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    let config = read_json(&folder.path().join("config.json")).unwrap();
    let options = ProcessorOptions { learned: Phase::Sft.into(), ..Default::default() };
    let processor = Processor::open(folder.path(), &config, &options).unwrap();
    let line =
        r#"{"messages":[{"role":"user","content":"<audio>"},{"role":"assistant","content":"c"}],"audios":["a.wav"]}"#;
    let error = sample(&processor, line, folder.path()).unwrap_err();
    assert_eq!(error, "audio a.wav: this model takes no audio");
}

/// Qwen2.5-Omni's thinker: its sections lie in `thinker_config`, and a video is heard as it is seen.
#[test]
fn the_sound_of_a_video_is_between_its_frames() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let tokens = ["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"];
    drop(open(dir, "qwen2_audio", tokens, ProcessorOptions::default()).unwrap());
    let mut thinker = read_json(&dir.join("config.json")).unwrap();
    thinker["model_type"] = "qwen2_5_omni_thinker".into();
    thinker["vision_config"]["model_type"] = "qwen2_5_omni_vision_encoder".into();
    thinker["audio_config"]["model_type"] = "qwen2_5_omni_audio_encoder".into();
    thinker["position_id_per_seconds"] = 25.into();
    thinker["seconds_per_chunk"] = 2.into();
    let config = json!({"model_type": "qwen2_5_omni", "thinker_config": thinker});
    let mut settings = read_json(&dir.join("preprocessor_config.json")).unwrap();
    settings["chunk_length"] = 300.into();
    std::fs::write(dir.join("preprocessor_config.json"), settings.to_string()).unwrap();
    let of = |sound: bool, clip: &[u8]| {
        std::fs::write(dir.join("clip.mp4"), clip).unwrap();
        let video = VideoLimits { sound, max_pixels: Some(16 * 16), min_pixels: Some(16), ..VideoLimits::default() };
        let options = ProcessorOptions { video, learned: Phase::Sft.into(), ..Default::default() };
        let processor = Processor::open(dir, &config, &options).unwrap();
        let line = r#"{"messages":[{"role":"user","content":"<video>?"},{"role":"assistant","content":"c"}],
            "videos":["clip.mp4"]}"#;
        let made = sample(&processor, line, dir).unwrap();
        (text(&processor, &made), made)
    };
    let clip = include_bytes!("../audio/goldens/clip.mp4");
    let (seen, silent) = of(false, clip);
    assert!(seen.contains("<|vision_start|><|image_pad|>×3<|vision_end|>"), "{seen}");
    assert_eq!(silent.media.len(), 1);
    assert_eq!(of(true, include_bytes!("../goldens/clip.mp4")).1.media.len(), 1, "a clip without sound");
    let (heard, sample) = of(true, clip);
    // Six frames a half second from each other are three patches, a second from each other; of the sound, two seconds and
    // the rest.
    let expected = "<|vision_start|><|audio_bos|><|image_pad|>×2<|AUDIO|>×50<|image_pad|>×1<|AUDIO|>×";
    assert!(heard.contains(expected) && heard.contains("<|audio_eos|><|vision_end|>?"), "{heard}");
    let towers: Vec<_> = sample.media.iter().map(|item| item.tower).collect();
    assert_eq!(towers, [Tower::Vision, Tower::Audio]);
    assert!(sample.media[1].num_features >= 75, "{}", sample.media[1].num_features);
    let begin = sample.input_ids.windows(2).position(|ids| ids[0] == ids[1]).expect("two frames");
    let row = &sample.position_ids[..sample.input_ids.len()];
    let at = row[begin];
    // Frames at 0 and 25, then sound from 0 to 49, a frame at 50, sound from 50 on.
    assert_eq!(row[begin..begin + 4], [at, at + 25.0, at, at + 1.0]);
    assert_eq!(row[begin + 51..begin + 55], [at + 49.0, at + 50.0, at + 50.0, at + 51.0]);
    // Both markers before it share a position.
    assert_eq!(row[begin - 2..begin], [at - 1.0, at - 1.0]);
}
