//! Tests against the texts that transformers renders of chats and features, and the parts of them that are learned:
//! `tests/oracle/templates.py`.

use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::environment::environment;
use super::{ChatTemplate, FLORENCE2, built_in};
use crate::config::{Learn, Template as Known};
use crate::data::learned::{answers, mask};
use crate::data::source::Conversation;
use crate::data::tiktoken::byte_letters;
use crate::data::tokenizer::Tokenizer;

#[path = "../../../../tests/support/soak.rs"]
mod soak;

#[derive(Deserialize)]
struct Oracle {
    templates: Vec<Template>,
    /// A source, and what it becomes: `None` where it fails.
    features: Vec<(String, Option<String>)>,
    context: Json,
}

#[derive(Deserialize)]
struct Template {
    name: String,
    source: String,
    tokens: Json,
    special: Vec<String>,
    closing: Vec<String>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    record: Json,
    text: Option<String>,
    prompt: Option<String>,
    ranges: Option<Vec<[usize; 2]>>,
}

fn read(folder: &Path) -> Oracle {
    let path = folder.join("templates.json.gz");
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut json = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut json).expect("gzip");
    serde_json::from_str(&json).expect("cases")
}

/// Returns a token for each byte, and the special ones.
fn tokenizer(template: &Template) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let vocab: Map<String, Json> =
        byte_letters().iter().enumerate().map(|(byte, letter)| (letter.to_string(), json!(byte))).collect();
    let mut special: Vec<&String> = template.special.iter().chain(&template.closing).collect();
    special.sort();
    special.dedup();
    let id = |token: &String| 256 + special.iter().position(|other| *other == token).unwrap();
    let added = special.iter().map(|token| {
        json!({"id": id(token), "content": token, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let end: Vec<usize> = template.closing.iter().map(id).collect();
    Tokenizer::open(folder.path(), &json!({"eos_token_id": end}), &Json::Null).unwrap()
}

/// # Errors
/// Tells how the chat is rendered or learned in another way.
fn check(template: &ChatTemplate, tokenizer: &Tokenizer, chat: &Chat) -> Result<(), String> {
    let turns = Conversation::parse(&chat.record.to_string()).map_err(|error| error.to_string())?.turns;
    let rendered = template.render_marked(&turns);
    let same = |ours: Option<&str>, theirs: &Option<String>| match ours == theirs.as_deref() {
        true => Ok(()),
        false => Err(format!("{}\n{ours:?}\n{theirs:?}", chat.record)),
    };
    same(rendered.as_ref().ok().map(|(text, _)| text.as_str()), &chat.text)?;
    let (Ok((text, marked)), Some(ranges)) = (rendered, &chat.ranges) else { return Ok(()) };
    same(template.render_prompt(&turns).ok().as_deref(), &chat.prompt)?;
    let mut expected = vec![false; text.len()];
    ranges.iter().for_each(|&[begin, end]| expected[begin..end].fill(true));
    let tokens = tokenizer.encode(&text).unwrap();
    let ours = answers(template, &turns, &text, marked, (Learn::All, tokenizer.closing()))
        .and_then(|answers| mask(&answers, (text.as_str(), true), &tokens, tokenizer, |at| at));
    let learned = match ours {
        Ok(learned) => learned,
        // An answer that says nothing is a bad sample.
        Err(_) if says_nothing(&turns, ranges, &text, tokenizer) => return Ok(()),
        Err(error) => return Err(format!("{}\n{error}", chat.record)),
    };
    let mut ours = vec![false; text.len()];
    for (index, _) in learned.iter().enumerate().filter(|(_, learned)| **learned) {
        let end = tokens.get(index + 1).map_or(text.len(), |token| token.start);
        ours[tokens[index].start..end].fill(true);
    }
    match ours == expected {
        true => Ok(()),
        false => {
            Err(format!("{}\nlearned {:?}\nnot     {:?}", chat.record, parts(&text, &ours), parts(&text, &expected)))
        }
    }
}

fn says_nothing(turns: &[crate::data::source::Turn], ranges: &[[usize; 2]], text: &str, tokenizer: &Tokenizer) -> bool {
    let is_blank = |text: &str| {
        tokenizer.closing().iter().fold(text.to_owned(), |text, token| text.replace(token, "")).trim().is_empty()
    };
    let is_empty = turns.iter().any(|turn| turn.role == "assistant" && turn.learn != Some(false) && turn.is_empty());
    is_empty || ranges.iter().any(|&[begin, end]| is_blank(&text[begin..end]))
}

/// Returns the learned parts of a text.
fn parts(text: &str, learned: &[bool]) -> Vec<String> {
    let runs = learned.chunk_by(|left, right| left == right).scan(0, |at, run| {
        let begin = *at;
        *at += run.len();
        Some((begin, run))
    });
    let learned = runs.filter(|(_, run)| run[0]);
    learned
        .map(|(begin, run)| String::from_utf8_lossy(&text.as_bytes()[begin..begin + run.len()]).into_owned())
        .collect()
}

/// Returns how many of a template's chats are wrong, and the first ones.
fn check_template(template: &Template) -> Result<usize, String> {
    let chat_template = ChatTemplate::new(&template.source, &template.tokens).map_err(|error| error.to_string())?;
    let tokenizer = tokenizer(template);
    let wrong: Vec<String> =
        template.chats.iter().filter_map(|chat| check(&chat_template, &tokenizer, chat).err()).collect();
    match wrong.len() {
        0 => Ok(template.chats.len()),
        count => Err(format!("{count} of {} chats:\n{}", template.chats.len(), wrong[..count.min(3)].join("\n\n"))),
    }
}

fn check_features(oracle: &Oracle) -> Result<usize, String> {
    let render = |source: &str| -> Option<String> {
        environment(source).ok()?.0.get_template("chat").ok()?.render(minijinja::value::Serde(&oracle.context)).ok()
    };
    // A template that panics spoils a sample, as one that fails.
    let wrong = oracle.features.iter().filter_map(|(source, theirs)| {
        let ours = std::panic::catch_unwind(|| render(source)).unwrap_or(Some("a panic".to_owned()));
        (ours != *theirs).then(|| format!("{source:?}\n{ours:?}\n{theirs:?}"))
    });
    let wrong: Vec<String> = wrong.collect();
    match wrong.len() {
        0 => Ok(oracle.features.len()),
        count => Err(format!("{count} of {}:\n{}", oracle.features.len(), wrong[..count.min(40)].join("\n\n"))),
    }
}

fn golden() -> Oracle {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens"))
}

#[test]
fn chats_are_rendered_and_learned_as_by_transformers() {
    let oracle = golden();
    assert_eq!(oracle.templates.len(), 8);
    let check = |template| check_template(template).map_err(|wrong| format!("{}: {wrong}", template.name)).err();
    let wrong: Vec<String> = oracle.templates.iter().filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

const CHATS: [&str; 6] = [
    r#"{"messages":[{"role":"system","content":"other-1"},{"role":"user","content":"other-2"},
        {"role":"assistant","content":"own-3"},{"role":"user","content":"other-4"},{"role":"assistant","content":"own-5"}]}"#,
    r#"{"messages":[{"role":"user","content":"other"},{"role":"assistant","content":"own"},
        {"role":"user","content":"other"},{"role":"assistant","content":"own"},{"role":"user","content":"other"}]}"#,
    r#"{"messages":[{"role":"system","content":"other-1"},{"role":"user","content":"other-2"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"call_0003","type":"function","function":{"name":"own-3",
        "arguments":{"q":"own-3"}}}]},{"role":"tool","tool_call_id":"call_0003","name":"f","content":"other-4"},
        {"role":"assistant","content":"own-5"},{"role":"user","content":"other-6"},{"role":"assistant","content":"own-7"}],
        "tools":[{"type":"function","function":{"name":"other","description":"other","parameters":{}}}]}"#,
    r#"{"messages":[{"role":"user","content":"other-1"},{"role":"assistant","content":"own-2","reasoning_content":"own"},
        {"role":"user","content":"other-3"},{"role":"assistant","content":"own-4","reasoning_content":"own"}],
        "chat_template_kwargs":{"enable_thinking":false}}"#,
    r#"{"messages":[{"role":"assistant","content":"own-1"},{"role":"user","content":"other-2"},
        {"role":"assistant","content":"own-3"}]}"#,
    r#"{"messages":[{"role":"user","content":"other-1"},{"role":"assistant","content":"own-2"},
        {"role":"assistant","content":"own-3"},{"role":"user","content":"other-4"},{"role":"user","content":"other-5"}],
        "chat_template_kwargs":{"enable_thinking":true}}"#,
];

/// The masks are right even where no token is known that ends an answer.
#[test]
fn what_others_say_is_never_learned() {
    let oracle = golden();
    let built_ins = [Known::Qwen, Known::Llama2, Known::Llama3, Known::DeepseekV2, Known::Deepseek]
        .into_iter()
        .chain([
            Known::Kimi,
            Known::Internlm2,
            Known::Ernie,
            Known::Minimax,
            Known::Glm,
            Known::Gemma,
            Known::Paligemma,
        ])
        .map(|template| (format!("{template:?}"), built_in(template).unwrap().to_owned(), Json::Null))
        .chain([("Florence2".to_owned(), FLORENCE2.to_owned(), Json::Null)]);
    let published = oracle.templates.into_iter().map(|template| (template.name, template.source, template.tokens));
    let (mut checked, mut wrong) = (0, Vec::new());
    for (name, source, tokens) in published.chain(built_ins) {
        let template = ChatTemplate::new(&source, &tokens).unwrap();
        for chat in CHATS {
            let turns = Conversation::parse(chat).unwrap().turns;
            let Ok(text) = template.render(&turns) else { continue };
            let learned = match answers(&template, &turns, &text, Vec::new(), (Learn::All, &[])) {
                Ok(answers) => answers,
                Err(error) => {
                    wrong.push(format!("{name}: {error}: {text:?}"));
                    continue;
                }
            };
            for answer in learned {
                let (said, own) = (&text[answer.begin..answer.limit], turns[answer.turn].joined_text());
                checked += 1;
                // Where another answer follows, its header may be in it: a closing token that is known would end it before.
                let header = said.split("own").next().unwrap_or_default();
                if said.contains("other") || header.contains("assistant") || !said.contains(&own) {
                    wrong.push(format!("{name}: {said:?} of {text:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty() && checked > 150, "{checked}\n{}", wrong.join("\n"));
}

#[test]
fn features_are_those_of_transformers() {
    check_features(&golden()).unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
#[ignore = "soak"]
fn soak_templates() {
    let folder = std::env::var_os("LOONGFORGE_TEMPLATES");
    let oracle = folder.map(|folder| read(Path::new(&folder)));
    let cells: Vec<(String, usize)> = match &oracle {
        None => vec![("all".to_owned(), 0)],
        Some(oracle) => {
            let templates = oracle.templates.iter().map(|template| template.name.clone());
            templates.chain(["features".to_owned()]).enumerate().map(|(index, name)| (name, index)).collect()
        }
    };
    soak::run("templates", &cells, |&index| {
        let Some(oracle) = &oracle else {
            let why = "LOONGFORGE_TEMPLATES is not set: the folder that tests/oracle/templates.py FOLDER writes";
            return Ok(soak::Cell::NotRun(why.to_owned()));
        };
        let count = match oracle.templates.get(index) {
            Some(template) => check_template(template)?,
            None => check_features(oracle)?,
        };
        Ok(soak::Cell::Passed(format!("{count} equal")))
    });
}
