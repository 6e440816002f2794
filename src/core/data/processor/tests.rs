//! Tests of all parts of a processor together.

use std::path::Path;

use serde::Deserialize;

use super::{Learned, Processor, ProcessorOptions};
use crate::config::{Learn, Phase, Template};
use crate::data::digits::{Digits, MODEL, compose, write_model};
use crate::data::error::DataError;
use crate::data::packed::PackedSample;
use crate::data::sample::{IGNORE_INDEX, Sample};
use crate::data::source::{Conversation, MediaSource, Part, TextPiece, Turn};
use crate::data::tokenizer_file::read_json;
use crate::message::SampleId;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<(String, Vec<i64>)>,
    samples: Vec<GoldenSample>,
}

#[derive(Deserialize)]
struct GoldenSample {
    input_ids: Vec<i64>,
    grid: [u32; 3],
    pixel_sum: f64,
    stride: usize,
    pixels: Vec<f32>,
}

fn open(dir: &Path, max_tokens: usize) -> Processor {
    write_model(dir, &MODEL).unwrap();
    reopen(dir, Template::FromModel, max_tokens).unwrap()
}

fn reopen(dir: &Path, template: Template, max_tokens: usize) -> Result<Processor, DataError> {
    let config = read_json(&dir.join("config.json"))?;
    let options = ProcessorOptions { template, max_tokens, learned: Phase::Sft.into(), ..Default::default() };
    Processor::open(dir, &config, &options)
}

fn read_targets(processor: &Processor, sample: &Sample) -> String {
    let ids: Vec<i64> = sample.targets.iter().copied().filter(|&id| id != IGNORE_INDEX).collect();
    let special = processor.tokenizer.special();
    let ends = ids.iter().filter(|id| special.end.contains(id)).count();
    format!("{}+{ends}", processor.tokenizer.decode(&ids).unwrap())
}

/// Compares the digits of seed 3 through transformers' `AutoProcessor` and through ours.
#[test]
fn equal_to_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    compose(&data, &Digits { seed: 3, num_train: 8, num_held_out: 1 }).unwrap();
    let processor = open(&folder.path().join("model"), 2048);
    let golden: Golden = serde_json::from_str(include_str!("../goldens/processor.json")).unwrap();
    for (text, ids) in golden.texts {
        let ours: Vec<i64> = processor.tokenizer.encode(&text).unwrap().iter().map(|token| token.id).collect();
        assert_eq!(ours, ids, "{text}");
    }
    let lines = std::fs::read_to_string(data.join("train.jsonl")).unwrap();
    assert_eq!(golden.samples.len(), 4);
    for (line, golden) in lines.lines().zip(golden.samples) {
        let conversation = Conversation::parse(line).unwrap();
        let sample = processor.training_sample(SampleId(0), &conversation, &data).unwrap();
        assert_eq!(sample.input_ids, golden.input_ids);
        let image = &sample.media[0];
        assert_eq!([image.grid.t, image.grid.h, image.grid.w], golden.grid);
        let sum: f64 = image.pixels.iter().map(|&value| f64::from(value)).sum();
        assert!((sum - golden.pixel_sum).abs() / image.pixels.len() as f64 <= 1e-4);
        for (ours, theirs) in image.pixels.iter().step_by(golden.stride).zip(golden.pixels) {
            assert!((ours - theirs).abs() <= 2.1 / 255.0, "{ours} {theirs}");
        }
        let answer = conversation.turns[1].joined_text();
        assert_eq!(read_targets(&processor, &sample), format!("{answer}+1"));
        assert_eq!(sample.meta.num_targets as usize, answer.len() + 1);

        let (question, expected) = conversation.split_answer().unwrap();
        let prompt = processor.prompt(SampleId(0), &question, &data).unwrap();
        assert_eq!((expected, prompt.meta.num_targets), (answer, 0));
        assert_eq!(sample.input_ids[..prompt.input_ids.len()], prompt.input_ids);
    }
}

#[test]
fn every_assistant_turn_is_learned_and_targets_are_the_next_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let processor = open(folder.path(), 2048);
    let turns = vec![
        Turn::text("system", "Be brief."),
        Turn::text("user", "assistant?"),
        Turn::text("assistant", "yes"),
        Turn::text("user", "é"),
        Turn::text("assistant", "no"),
    ];
    let conversation = Conversation::text(turns);
    let sample = processor.training_sample(SampleId(9), &conversation, folder.path()).unwrap();
    assert_eq!(read_targets(&processor, &sample), "yesno+2");
    for (at, &target) in sample.targets.iter().enumerate().filter(|(_, target)| **target != IGNORE_INDEX) {
        assert_eq!(target, sample.input_ids[at + 1]);
    }
    let row: Vec<f32> = (0..sample.input_ids.len()).map(|at| at as f32).collect();
    assert_eq!(sample.position_ids, row.repeat(3));
    assert_eq!((sample.meta.id, sample.meta.num_tokens as usize), (SampleId(9), row.len()));
}

#[test]
fn answers_are_learned_as_their_weights_say() {
    let folder = tempfile::tempdir().unwrap();
    let all = open(folder.path(), 2048);
    let config = read_json(&folder.path().join("config.json")).unwrap();
    let learned = Learned { phase: Phase::Sft, learn: Learn::Last };
    let last = Processor::open(folder.path(), &config, &ProcessorOptions { learned, ..Default::default() }).unwrap();
    let learned = |processor: &Processor, line: &str| {
        let conversation = Conversation::parse(line).unwrap();
        let sample = processor.training_sample(SampleId(0), &conversation, folder.path());
        sample.map_or_else(|error| error.to_string(), |sample| read_targets(processor, &sample))
    };
    let line = |first: &str, second: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":"a"{first}}},
                {{"role":"user","content":"r"}},{{"role":"assistant","content":{second}}}]}}"#
        )
    };
    let of_call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>+1";
    let of_all_call = "a<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>+2";
    for (first, second, of_all, of_last) in [
        ("", r#""b""#, "ab+2", "b+1"),
        (r#","weight":0"#, r#""b""#, "b+1", "b+1"),
        (r#","weight":1,"train":true"#, r#""b","loss_mask":0"#, "a+1", "no assistant message to learn from"),
        (r#","training":false"#, r#""b","weight":0"#, "none that counts in the loss", "none that counts in the loss"),
        // All closing tokens of an answer, the text's own too.
        ("", r#""x<|im_end|>y<|im_end|>""#, "axy+4", "xy+3"),
        ("", r#""""#, "number 4 of the conversation, is empty", "is empty: only"),
        ("", r#"null"#, "is empty: only", "is empty: only"),
        ("", r#""","weight":0"#, "a+1", "no assistant message"),
        ("", r#"null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]"#, of_all_call, of_call),
    ] {
        let line = line(first, second);
        let (ours, ours_last) = (learned(&all, &line), learned(&last, &line));
        assert!(ours.contains(of_all) && ours_last.contains(of_last), "{line}: {ours}; {ours_last}");
    }
    assert!(all.notes().is_empty());
    // A call that the template does not render is no answer.
    let body = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), body).unwrap();
    let blind = reopen(folder.path(), Template::FromModel, 2048).unwrap();
    let call = line("", r#"null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]"#);
    let reason = learned(&blind, &call);
    assert!(reason.contains("is empty: only"), "{reason}");
    assert_eq!(
        blind.notes(),
        ["1 of 1 conversations have the message key \"tool_calls\", which the chat template does not render"]
    );
}

#[test]
fn what_the_template_does_not_render_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), 2048));
    let processor = reopen(folder.path(), Template::Chatml, 2048).unwrap();
    let line = r#"{"messages":[{"role":"user","content":"q","mask":1,"train":true},{"role":"assistant","content":"a",
        "reasoning_content":"t","mask":0}],"tools":[{"name":"f"}],"chat_template_kwargs":{"enable_thinkin":true}}"#;
    for _ in 0..12 {
        processor.training_sample(SampleId(0), &Conversation::parse(line).unwrap(), folder.path()).unwrap();
    }
    let notes = processor.notes().join("\n");
    assert!(
        notes.contains("12 of 12 conversations have the message key \"mask\"")
            && notes.contains("keys of the loss are weight")
    );
    assert!(notes.contains("set \"enable_thinkin\"") && notes.contains("not the assistant's"), "{notes}");
    assert!(!notes.contains("reasoning") && !notes.contains("`tools`"), "{notes}");
    // The link of a tool's answer to its call says nothing that the order does not.
    let linked = r#"{"messages":[{"role":"user","content":"q"},{"role":"tool","tool_call_id":"c","content":"2"},
        {"role":"assistant","content":"a"}]}"#;
    let linking = reopen(folder.path(), Template::Chatml, 2048).unwrap();
    linking.training_sample(SampleId(0), &Conversation::parse(linked).unwrap(), folder.path()).unwrap();
    assert!(linking.notes().is_empty(), "{:?}", linking.notes());
    // So it is of prompts, of parts of messages, and of more keys than anybody reads about.
    let asking = reopen(folder.path(), Template::Chatml, 2048).unwrap();
    let ask = |keys: &str, part: &str| {
        let line =
            format!(r#"{{"messages":[{{"role":"user"{keys},"content":[{{"type":"text","text":"q"{part}}}]}}]}}"#);
        asking.prompt(SampleId(0), &Conversation::parse(&line).unwrap(), folder.path()).unwrap();
    };
    ask(r#","name":"Ann""#, r#","detail":"low""#);
    ask("", "");
    let expected = [
        "1 of 2 conversations have the key \"detail\" in a part of a message, which is not read",
        "1 of 2 conversations have the message key \"name\", which the chat template does not render",
    ];
    assert_eq!(asking.notes(), expected);
    (0..99).for_each(|number| ask("", &format!(r#","key{number}":1"#)));
    let notes = asking.notes();
    assert!(notes.len() == 65 && notes.iter().any(|note| note.starts_with("37 of 101 conversations have other keys")));
    ask("", r#","one":1,"two":2"#);
    assert!(asking.notes().iter().any(|note| note.starts_with("38 of 102 conversations have other keys")));
    let template_kwargs = serde_json::from_str(r#"{"enable_thinkin": true}"#).unwrap();
    let options = ProcessorOptions { template: Template::Chatml, template_kwargs, ..Default::default() };
    let config = read_json(&folder.path().join("config.json")).unwrap();
    let error = Processor::open(folder.path(), &config, &options).err().unwrap().to_string();
    assert!(error.contains("no variable \"enable_thinkin\""), "{error}");
}

/// Qwen3 adds an empty thought to the last answer only, so rendering a part is no prefix of rendering all.
#[test]
fn templates_that_treat_the_last_turn_differently_are_understood() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}\
        <think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let processor = reopen(folder.path(), Template::FromModel, 99).unwrap();
    let turn = |role: &str, text: &str| Turn::text(role, text);
    let turns = vec![turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")];
    let sample = processor.training_sample(SampleId(0), &Conversation::text(turns), folder.path());
    assert_eq!(read_targets(&processor, &sample.unwrap()), "b<think></think>d+2");
}

#[test]
fn what_is_wrong_with_a_sample_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let processor = open(folder.path(), 60);
    image::RgbImage::new(100, 40).save(folder.path().join("a.png")).unwrap();
    let reason = |parts: Vec<Part>, answer: &str, images: &[&str]| {
        let turns = vec![Turn::new("user", parts), Turn::text("assistant", answer)];
        let media = images.iter().map(|name| MediaSource::Image((*name).into())).collect();
        let conversation = Conversation { turns, media };
        processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap_err().to_string()
    };
    let text = |text: &str| Part::Text { text: text.into() };
    let long = reason(vec![Part::Image], &"1".repeat(60), &["a.png"]);
    assert!(long.contains("(12 of images)") && long.contains("pack.max_tokens = 60"), "{long}");
    std::fs::write(folder.path().join("c.png"), b"").unwrap();
    assert!(reason(vec![Part::Image], &"1".repeat(60), &["c.png"]).contains("c.png"));
    assert!(reason(vec![Part::Image], "1", &["b.png"]).contains("b.png"));
    let forged = reason(vec![text("<|image_pad|>")], "1", &[]);
    assert!(forged.contains("0 pictures") && forged.contains("for 1 picture "), "{forged}");
    let turns = vec![Turn::text("user", "hello")];
    let conversation = Conversation::text(turns);
    let error = processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap_err();
    assert!(error.to_string().contains("no assistant message to learn from"));
    // Roles of another format are named.
    let conversation = Conversation::text(vec![Turn::text("human", "hello"), Turn::text("gpt", "1")]);
    let error = processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap_err().to_string();
    assert!(error.contains("the roles are gpt, human"), "{error}");
}

#[test]
fn what_is_wrong_with_a_model_folder_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let error = |template| reopen(dir, template, 60).err().unwrap().to_string();
    assert!(error(Template::FromModel).contains("config.json"));
    write_model(dir, &MODEL).unwrap();
    std::fs::remove_file(dir.join("chat_template.jinja")).unwrap();
    assert!(error(Template::FromModel).contains("data.template"));
    let mut json = read_json(&dir.join("preprocessor_config.json")).unwrap();
    json["patch_size"] = 14.into();
    std::fs::write(dir.join("preprocessor_config.json"), json.to_string()).unwrap();
    assert!(error(Template::Qwen).contains("patch_size is 14, but config.json says 8"));
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
    std::fs::write(dir.join("config.json"), config.replace("\"vocab_size\": 264", "\"vocab_size\": 100")).unwrap();
    assert!(error(Template::Qwen).contains("vocab_size 100"));
    std::fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    assert!(error(Template::Qwen).contains("tokenizer.json"));
}
/// The sample is a picture of one feature and a video of 2 × 1 × 1 between texts, in the model of the digits.
#[test]
fn pictures_and_videos_become_placeholders_positions_and_media() {
    let folder = tempfile::tempdir().unwrap();
    let processor = open(folder.path(), 200);
    for index in 0..3 {
        image::RgbImage::new(16, 16).save(folder.path().join(format!("{index}.png"))).unwrap();
    }
    let line = r#"{"messages":[{"role":"user","content":"a<image>b<video>"},{"role":"assistant","content":"c"}],
        "images":["0.png"],"videos":[{"video":["0.png","1.png","2.png"],"fps":2}]}"#;
    let conversation = Conversation::parse(line).unwrap();
    let sample = processor.training_sample(SampleId(0), &conversation, folder.path()).unwrap();
    let grids: Vec<_> = sample.media.iter().map(|item| (item.grid.t, item.grid.h, item.grid.w)).collect();
    assert_eq!(grids, [(1, 2, 2), (2, 2, 2)]);
    let text: String = sample
        .input_ids
        .iter()
        .map(|&id| match processor.tokenizer.token(id).unwrap() {
            token if token == "Ċ" => "\n".to_owned(),
            token => token.replace('Ġ', " "),
        })
        .collect();
    assert_eq!(
        text,
        "<|im_start|>user\na<|vision_start|><|image_pad|><|vision_end|>b\
         <|vision_start|><0.2 seconds><|vision_start|><|image_pad|><|vision_end|>\
         <1.0 seconds><|vision_start|><|image_pad|><|vision_end|><|vision_end|><|im_end|>\n\
         <|im_start|>assistant\nc<|im_end|>\n"
    );
    // Every box is of one place, so that positions count on.
    let row: Vec<f32> = (0..sample.input_ids.len()).map(|at| at as f32).collect();
    assert_eq!(sample.position_ids, row.repeat(3));
    assert_eq!(read_targets(&processor, &sample), "c+1");

    let whole = ProcessorOptions { learned: Phase::Pretrain.into(), ..Default::default() };
    let config = read_json(&folder.path().join("config.json")).unwrap();
    let whole = Processor::open(folder.path(), &config, &whole).unwrap();
    let sample = whole.training_sample(SampleId(0), &conversation, folder.path()).unwrap();
    // All but the first token and the placeholders, and the end of the document.
    assert_eq!(sample.meta.num_targets as usize, sample.input_ids.len() - 4);
    assert_eq!(sample.input_ids.last(), whole.tokenizer.special().eos.as_ref());
    let error = whole.text_prompt(SampleId(0), "<|image_pad|>").unwrap_err().to_string();
    assert!(error.contains("1 placeholder"), "{error}");
}

/// DeepSeek-R1 and others end the header in a thought that training turns may lack.
#[test]
fn only_what_is_generated_is_learned_whatever_the_header() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    let turns = |answer: &str| {
        let turn = |role: &str, text: &str| Turn::text(role, text);
        Conversation::text(vec![
            turn("user", "a"),
            turn("assistant", answer),
            turn("user", "b"),
            turn("assistant", "<t>"),
        ])
    };
    let learned = |template: &str, answer: &str| {
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        let processor = reopen(folder.path(), Template::FromModel, 99).unwrap();
        let sample = processor.training_sample(SampleId(0), &turns(answer), folder.path()).unwrap();
        read_targets(&processor, &sample)
    };
    let body = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let think = format!("{body}{{% if add_generation_prompt %}}<|im_start|>assistant\n<think>\n{{% endif %}}");
    assert_eq!(learned(&think, "x"), "x<t>+2");
    assert_eq!(learned(&think, "<think>\nx"), "x<t>+2");
    // No generation prompt at all: the content is found by itself.
    assert_eq!(learned(body, "x"), "x<t>+2");
    // No closing token that the tokenizer knows: up to the end of the turn.
    let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }};\n{% endfor %}\
        {% if add_generation_prompt %}assistant: {% endif %}";
    assert_eq!(learned(plain, "x"), "x;\n<t>;\n+0");
}

/// A template that marks answers itself: its words are learned, and nothing of what the headers would say.
#[test]
fn what_a_template_marks_is_learned() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}\
        {{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let processor = reopen(folder.path(), Template::FromModel, 99).unwrap();
    let learned = |learn: Option<bool>| {
        let turn = |role: &str, text: &str| Turn::text(role, text);
        let last = Turn { learn, ..turn("assistant", "") };
        let turns = vec![turn("user", "a"), turn("assistant", "數b"), turn("user", "c"), last];
        processor.training_sample(SampleId(0), &Conversation::text(turns), folder.path())
    };
    assert!(learned(None).unwrap_err().to_string().contains("is empty: only"));
    let sample = learned(Some(false)).unwrap();
    // The closing token lies outside; transformers' mask leaves it out as well.
    assert_eq!(read_targets(&processor, &sample), "數b+0");
}

#[test]
fn more_pictures_than_a_pack_holds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    image::RgbImage::new(16, 16).save(folder.path().join("a.png")).unwrap();
    let config = read_json(&folder.path().join("config.json")).unwrap();
    let reason = |max_images: usize, max_visual_tokens: usize| {
        let options = ProcessorOptions { max_images, max_visual_tokens, ..Default::default() };
        let processor = Processor::open(folder.path(), &config, &options).unwrap();
        let turns = vec![Turn::new("user", vec![Part::Image, Part::Image]), Turn::text("assistant", "b")];
        let media = vec![MediaSource::Image("a.png".into()), MediaSource::Image("a.png".into())];
        let sample = processor.training_sample(SampleId(0), &Conversation { turns, media }, folder.path());
        sample.map(|sample| sample.media.len()).map_err(|error| error.to_string())
    };
    assert_eq!(reason(2, 2), Ok(2));
    assert_eq!(reason(1, 2), Err("2 pictures and videos, more than data.pack.max_images = 1".to_owned()));
    assert_eq!(reason(2, 1), Err("2 tokens of images, more than data.pack.max_visual_tokens = 1".to_owned()));
}

#[test]
fn a_prompt_with_more_tokens_than_are_taken_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let processor = open(folder.path(), usize::MAX).with_max_tokens(11);
    image::RgbImage::new(100, 40).save(folder.path().join("a.png")).unwrap();
    let (turns, media) = (vec![Turn::new("user", vec![Part::Image])], vec![MediaSource::Image("a.png".into())]);
    let refused = processor.prompt(SampleId(0), &Conversation { turns, media }, folder.path());
    assert!(matches!(refused, Err(DataError::TooLong { max_tokens: 11, .. })), "{refused:?}");
    // Of a text that is far too long not all is encoded.
    let refused = processor.text_prompt(SampleId(0), &"a".repeat(200_000));
    assert!(matches!(refused, Err(DataError::TooLong { num_tokens: 12..100_000, .. })));
}

#[test]
fn a_pack_with_tokens_that_the_model_lacks_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let processor = open(folder.path(), 2048);
    let own = processor.tokenizer.encode("7").unwrap()[0].id as i32;
    let rows = processor.tokenizer.vocab_size() as i32;
    let packed = |token: i32, target: i32| {
        let pack = PackedSample {
            ids: vec![0],
            lens: vec![2],
            samples: vec!["a.jsonl:1".into()],
            input_ids: vec![own, token],
            targets: vec![target, -100],
            position_ids: None,
            media: Vec::new(),
            items: Vec::new(),
        };
        processor.packed_sample(SampleId(0), &pack).map_err(|error| error.to_string())
    };
    assert_eq!(packed(own, own).unwrap().meta.num_targets, 1);
    for (token, target, unknown) in [(rows, own, rows), (-1, own, -1), (own, rows, rows), (own, -2, -2)] {
        let error = packed(token, target).unwrap_err();
        assert!(
            error.contains(&format!("the pack has the token {unknown}, but the model has {rows} tokens")),
            "{error}"
        );
    }
}

/// A piece of a text may be blanks, which some tokenizers drop.
#[test]
fn a_text_without_tokens_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), 60));
    let path = folder.path().join("tokenizer.json");
    let mut json = read_json(&path).unwrap();
    json["normalizer"] = serde_json::json!({"type": "Replace", "pattern": {"String": "~"}, "content": ""});
    std::fs::write(&path, json.to_string()).unwrap();
    let processor = reopen(folder.path(), Template::FromModel, 60).unwrap();
    let of = |ends| {
        let piece = TextPiece { text: "~~".to_owned(), begins: false, ends };
        processor.text_sample(SampleId(0), &piece).map(|sample| sample.meta.num_tokens)
    };
    assert!(of(false).unwrap_err().to_string().contains("the text has no tokens"));
    assert_eq!(of(true).unwrap(), 1, "the token that ends a document");
}
