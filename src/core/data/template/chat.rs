//! Chat templates: messages to one string, as Hugging Face's `apply_chat_template` renders them.
//!
//! A template comes with a model somebody else made, so it runs with bounded work, depth and output and reads no files.
//! What it makes in between is bounded by work alone: one that doubles a text again and again takes memory.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::error::DataError;
use super::source::{Part, Turn};
use super::tokenizer::token_text;
use crate::config::Template;

/// ChatML with Qwen-VL's picture placeholders: the built-in template `qwen`.
pub const QWEN: &str = include_str!("templates/qwen.jinja");

/// The source of a built-in template, without any default system prompt; `None` for the model's own.
pub fn built_in(template: Template) -> Option<&'static str> {
    Some(match template {
        Template::FromModel => return None,
        Template::Qwen => QWEN,
        Template::Chatml => include_str!("templates/chatml.jinja"),
        Template::Llama2 => include_str!("templates/llama2.jinja"),
        Template::Llama3 => include_str!("templates/llama3.jinja"),
        Template::DeepseekV2 => include_str!("templates/deepseek_v2.jinja"),
        Template::Deepseek => include_str!("templates/deepseek.jinja"),
        Template::Kimi => include_str!("templates/kimi.jinja"),
        Template::Internlm2 => include_str!("templates/internlm2.jinja"),
        Template::Ernie => include_str!("templates/ernie.jinja"),
        Template::Minimax => include_str!("templates/minimax.jinja"),
        Template::Glm => include_str!("templates/glm.jinja"),
    })
}

/// The longest published template has 40 kB.
const MAX_SOURCE: usize = 256 << 10;
/// Minijinja's parser and compiler call themselves for each of a chain of operators, of which a source may be full.
const STACK: usize = 512 << 20;
/// Bytes of a rendered conversation.
const MAX_OUTPUT: usize = 16 << 20;
/// Spaces of the filter `indent`.
const MAX_INDENT: usize = 1000;
/// Instructions that one rendering may take; a long conversation takes about 100 000.
const FUEL: u64 = 5_000_000;
const RECURSION_LIMIT: usize = 100;
/// What stands around the assistant's text while a template is rendered: noncharacters, which texts do not have.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';
/// A content by which a template is tried.
const PROBE: &str = "loongforge-probe";

pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The template's variables `bos_token`, `eos_token` and so on.
    tokens: BTreeMap<String, String>,
    /// The template does not know a plain string as content.
    parts_only: bool,
    /// The template says itself what is the assistant's, by `{% generation %}`.
    marks_answers: bool,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: Content<'a>,
    #[serde(flatten)]
    fields: &'a Map<String, Json>,
}

/// Plain text goes as a string, since templates of text models know nothing else.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(String),
    Parts(&'a [Part]),
}

impl ChatTemplate {
    /// The special tokens of `tokenizer_config` are the template's variables of the same names.
    pub fn new(source: &str, tokenizer_config: &Json) -> Result<Self, DataError> {
        if source.len() > MAX_SOURCE {
            return Err(DataError::Template(format!("has {} bytes; at most {MAX_SOURCE} are read", source.len())));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(describe)?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter(ANSWER_FILTER, |text: String| format!("{BEGIN}{text}{END}"));
        // These make as much of little as they are asked for.
        environment.add_filter("indent", indent);
        ["batch", "slice", "format"].into_iter().for_each(|filter| environment.remove_filter(filter));
        // minijinja's own escapes `<`, `>` and `&`; Hugging Face's does not.
        environment.add_filter("tojson", |value: Serde<Json>| serde_json::to_string(&value.0).unwrap_or_default());
        // Python's `None` is not iterable.
        environment
            .add_test("iterable", |value: Value| !value.is_none() && !value.is_undefined() && value.try_iter().is_ok());
        let environment = compile(environment, with_answer_filter(source))?;
        let mut tokens: BTreeMap<String, String> =
            ["bos_token", "eos_token"].map(|key| (key.to_owned(), String::new())).into();
        let keys = tokenizer_config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
        tokens.extend(keys.filter_map(|(key, token)| Some((key.clone(), token_text(token)?.to_owned()))));
        let mut template = Self { environment, tokens, parts_only: false, marks_answers: false };
        let probe = [Turn::text("user", PROBE)];
        let shows = |template: &Self| template.render(&probe, false).is_ok_and(|text| text.contains(PROBE));
        if !shows(&template) {
            template.parts_only = true;
            template.parts_only = shows(&template);
        }
        template.marks_answers = source.contains("endgeneration");
        Ok(template)
    }

    /// The template in a model folder, or `None`: `chat_template.jinja`, `chat_template.json` or the key
    /// `chat_template` of `tokenizer_config.json`.
    pub fn find(model_dir: &Path, tokenizer_config: &Json) -> Result<Option<String>, DataError> {
        let path = model_dir.join("chat_template.jinja");
        if path.exists() {
            return std::fs::read_to_string(&path).map(Some).map_err(|error| DataError::read(&path, error));
        }
        let path = model_dir.join("chat_template.json");
        let holder = if path.exists() { super::tokenizer::read_json(&path)? } else { tokenizer_config.clone() };
        Ok(match &holder["chat_template"] {
            Json::String(source) => Some(source.clone()),
            Json::Array(named) => named
                .iter()
                .find(|template| template["name"] == "default")
                .and_then(|template| template["template"].as_str())
                .map(str::to_owned),
            _ => None,
        })
    }

    /// Whether the template says itself what is the assistant's.
    pub fn marks_answers(&self) -> bool {
        self.marks_answers
    }

    /// The conversation as one string; with `add_generation_prompt` it ends where the assistant is to speak.
    pub fn render(&self, turns: &[Turn], add_generation_prompt: bool) -> Result<String, DataError> {
        self.render_marked(turns, add_generation_prompt).map(|(text, _)| text)
    }

    /// The conversation as one string, and where the template says that the assistant speaks: `{% generation %}`, from which
    /// transformers' `return_assistant_tokens_mask` is made.
    pub fn render_marked(
        &self,
        turns: &[Turn],
        add_generation_prompt: bool,
    ) -> Result<(String, Vec<Range<usize>>), DataError> {
        let messages: Vec<Message<'_>> = turns
            .iter()
            .map(|turn| Message {
                role: &turn.role,
                content: if turn.num_media() > 0 || self.parts_only {
                    Content::Parts(&turn.parts)
                } else {
                    Content::Text(turn.joined_text())
                },
                fields: &turn.fields,
            })
            .collect();
        let tools: Vec<&Json> = turns.iter().flat_map(|turn| &turn.tools).collect();
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(&tools)) };
        let template = self.environment.get_template("chat").map_err(describe)?;
        let context = context! {
            messages => Value::from(Serde(&messages)),
            add_generation_prompt,
            tools,
            ..Value::from(Serde(&self.tokens))
        };
        let mut output = Output::default();
        match template.render_captured_to(context, &mut output) {
            _ if output.is_full => {
                Err(DataError::Template(format!("makes more than {} MiB of text", MAX_OUTPUT >> 20)))
            }
            Ok(_) => {
                let text = String::from_utf8(output.text).expect("templates write text");
                Ok(if self.marks_answers { take_marks(&text) } else { (text, Vec::new()) })
            }
            Err(error) => Err(describe(error)),
        }
    }
}

/// The environment with the template, on a thread with a large stack.
fn compile(mut environment: Environment<'static>, source: String) -> Result<Environment<'static>, DataError> {
    let compile = move || environment.add_template_owned("chat", source).map(|()| environment).map_err(describe);
    let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK).spawn(compile);
    let compiled = thread.map_err(|error| DataError::Template(format!("cannot be compiled: {error}")))?.join();
    compiled.unwrap_or_else(|_| Err(DataError::Template("cannot be compiled".to_owned())))
}

/// What is rendered, up to a length.
#[derive(Default)]
struct Output {
    text: Vec<u8>,
    is_full: bool,
}

impl Write for Output {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.is_full |= self.text.len() + text.len() > MAX_OUTPUT;
        if self.is_full {
            return Err(std::io::Error::other("too much text"));
        }
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// As Jinja's, with a bound.
fn indent(
    text: String,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(4);
    let (first, blank) = (first.or(kwargs.get("first")?), blank.or(kwargs.get("blank")?));
    kwargs.assert_all_used()?;
    if width > MAX_INDENT {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("indent of {width}, more than {MAX_INDENT}")));
    }
    let lines = text.split('\n').enumerate().map(|(index, line)| {
        let indented = if index == 0 { first == Some(true) } else { !line.is_empty() || blank == Some(true) };
        if indented { format!("{:width$}{line}", "") } else { line.to_owned() }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

const ANSWER_FILTER: &str = "loongforge_answer";

/// Makes `{% generation %}` a filter block, which takes and trims space around it alike.
fn with_answer_filter(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + len];
        let name = tag.trim_matches(|c: char| matches!(c, '-' | '+') || c.is_whitespace());
        let block = match name {
            "generation" => Some(format!("filter {ANSWER_FILTER}")),
            "endgeneration" => Some("endfilter".to_owned()),
            _ => None,
        };
        match block {
            Some(block) => {
                result.push_str(&rest[..start + 2]);
                result.push_str(&tag.replace(name, &format!(" {block} ")));
                result.push_str("%}");
            }
            None => result.push_str(&rest[..start + len + 2]),
        }
        rest = &rest[start + len + 2..];
    }
    result + rest
}

/// A text without the marks, and what stood between them.
fn take_marks(marked: &str) -> (String, Vec<Range<usize>>) {
    let (mut text, mut ranges, mut begin) = (String::with_capacity(marked.len()), Vec::new(), None);
    for letter in marked.chars() {
        match letter {
            BEGIN => begin = begin.or(Some(text.len())),
            END => ranges.extend(begin.take().map(|begin| begin..text.len())),
            letter => text.push(letter),
        }
    }
    (text, ranges)
}

fn describe(error: Error) -> DataError {
    let reason = match (error.detail(), error.line()) {
        (Some(detail), Some(line)) => format!("line {line}: {detail}"),
        _ => error.to_string(),
    };
    DataError::Template(reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn turns() -> Vec<Turn> {
        vec![
            Turn::new("user", vec![Part::Image, Part::Text { text: "Read <b>.".into() }]),
            Turn::text("assistant", "12"),
        ]
    }

    #[test]
    fn the_built_in_template_renders_pictures_and_text() {
        let template = ChatTemplate::new(QWEN, &Json::Null).unwrap();
        let prompt = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Read <b>.<|im_end|>\n";
        assert_eq!(template.render(&turns()[..1], true).unwrap(), format!("{prompt}<|im_start|>assistant\n"));
        assert_eq!(template.render(&turns(), false).unwrap(), format!("{prompt}<|im_start|>assistant\n12<|im_end|>\n"));
    }

    #[test]
    fn what_templates_in_the_wild_use_works() {
        let source = "{%- set ns = namespace(n=0) -%}\n{% for m in messages %}\n    {% generation %}{% set ns.n = ns.n + 1 %}\n\
            {{ m.content.strip().split('.')[0].lstrip('\\n') if m.content is string else m.content[1]['text'] }}\
            {%- endgeneration -%}\n{% endfor %}{{ ns.n }}{{ messages[::-1][0].role | tojson }}{{ eos_token }}";
        let template = ChatTemplate::new(source, &json!({"eos_token": {"content": "E"}, "x": 1})).unwrap();
        assert_eq!(template.render(&turns(), false).unwrap(), "Read <b>.122\"assistant\"E");
    }

    #[test]
    fn endless_and_failing_templates_are_errors() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(endless, &Json::Null).unwrap();
        assert!(template.render(&turns(), false).unwrap_err().to_string().contains("fuel"));
        let template = ChatTemplate::new("\n{{ raise_exception('roles must alternate') }}", &Json::Null).unwrap();
        let error = template.render(&turns(), false).unwrap_err().to_string();
        assert_eq!(error, "chat template: line 2: roles must alternate");
        assert!(ChatTemplate::new("{% for %}", &Json::Null).is_err());
    }
    #[test]
    fn built_in_templates_are_those_of_the_families() {
        let turns =
            [Turn::text("system", "S"), Turn::text("user", "U"), Turn::text("assistant", "A"), Turn::text("user", "V")];
        for (template, text, prompt) in [
            (
                Template::Chatml,
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n",
                "<|im_start|>assistant\n",
            ),
            (Template::Llama2, "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]", ""),
            (
                Template::Llama3,
                "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>",
                "<|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                Template::DeepseekV2,
                "<｜begin▁of▁sentence｜>S\n\nUser: U\n\nAssistant: A<｜end▁of▁sentence｜>User: V\n\n",
                "Assistant:",
            ),
            (
                Template::Deepseek,
                "<｜begin▁of▁sentence｜>S<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V",
                "<｜Assistant｜>",
            ),
            (
                Template::Kimi,
                "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>U<|im_end|><|im_assistant|>assistant<|im_middle|>A<|im_end|><|im_user|>user<|im_middle|>V<|im_end|>",
                "<|im_assistant|>assistant<|im_middle|>",
            ),
            (
                Template::Ernie,
                "<|begin_of_sentence|>S\nUser: U\nAssistant: A<|end_of_sentence|>User: V\n",
                "Assistant: ",
            ),
            (
                Template::Minimax,
                "]~!b[]~b]system\nS[e~[\n]~b]user\nU[e~[\n]~b]ai\nA[e~[\n]~b]user\nV[e~[\n",
                "]~b]ai\n",
            ),
            (Template::Glm, "[gMASK]<sop><|system|>\nS<|user|>\nU<|assistant|>\nA<|user|>\nV", "<|assistant|>\n"),
        ] {
            let chat = ChatTemplate::new(built_in(template).unwrap(), &Json::Null).unwrap();
            assert_eq!(chat.render(&turns, true).unwrap(), format!("{text}{prompt}"), "{template:?}");
        }
        let internlm = ChatTemplate::new(built_in(Template::Internlm2).unwrap(), &Json::Null).unwrap();
        assert_eq!(internlm.render(&turns[1..2], false).unwrap(), "<s><|im_start|>user\nU<|im_end|>\n");
    }

    /// What transformers' `apply_chat_template` renders, and where its `return_assistant_tokens_mask` begins and ends.
    fn equals_transformers(cases: &str) {
        #[derive(serde::Deserialize)]
        struct Case {
            name: String,
            template: String,
            messages: Vec<BTreeMap<String, String>>,
            /// `None` where it fails.
            text: Option<String>,
            ranges: Vec<[usize; 2]>,
        }
        let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
        let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
        let mut wrong = Vec::new();
        for Case { name, template, messages, text, ranges } in cases {
            let turns: Vec<Turn> = messages.iter().map(|turn| Turn::text(&turn["role"], &turn["content"])).collect();
            let ours = ChatTemplate::new(&template, &tokens).and_then(|template| template.render_marked(&turns, false));
            let ranges = ranges.into_iter().map(|[begin, end]| begin..end).collect::<Vec<_>>();
            let equal = match (&ours, &text) {
                (Ok(ours), Some(text)) => ours.0 == *text && ours.1 == ranges,
                (ours, text) => ours.is_err() == text.is_none(),
            };
            if !equal {
                wrong.push(format!("{name}:\n{ours:?}\n{text:?} {ranges:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }

    #[test]
    fn equal_to_transformers() {
        equals_transformers(include_str!("goldens/masks.json"));
    }

    #[test]
    #[ignore = "needs the second file of goldens/make_masks.py: TEMPLATES=FILE"]
    fn other_templates() {
        let path = std::env::var_os("TEMPLATES").expect("TEMPLATES");
        equals_transformers(&std::fs::read_to_string(path).unwrap());
    }

    /// What must end soon, in an error or in a text.
    #[test]
    fn hostile_templates_end() {
        let deep = |open: &str, close: &str, n: usize| format!("{}x{}", open.repeat(n), close.repeat(n));
        for source in [
            "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}".to_owned(),
            "{% set x = namespace(t='ab') %}{% for i in range(99999) %}{% for j in range(999) %}{{ 'x' * 99999 }}{% endfor %}{% endfor %}".to_owned(),
            "{{ 'x' * 90000000 }}".to_owned(),
            "{{ 'x' * 9000000000000 }}".to_owned(),
            "{{ ('x' * 1000)|replace('x', 'y' * 100000) }}".to_owned(),
            "{{ 'a\nb'|indent(10 ** 15) }}".to_owned(),
            "{{ [1]|batch(10 ** 12, 'x')|list }}".to_owned(),
            "{{ '%1000000000d'|format(1) }}".to_owned(),
            "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".to_owned(),
            "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".to_owned(),
            "{{ 2 ** 1000000000 }}".to_owned(),
            "{{ range(10 ** 12)|list }}".to_owned(),
            "{% include '/etc/passwd' %}".to_owned(),
            "{% import '/etc/passwd' as p %}".to_owned(),
            "{% extends 'chat' %}".to_owned(),
            "{{ messages.__class__.__mro__ }}".to_owned(),
            "{{ self.__init__.__globals__ }}".to_owned(),
            "{% for m in messages recursive %}{{ loop([m]) }}{% endfor %}".to_owned(),
            deep("{{ ", " }}", 2),
            format!("{{{{ {} }}}}", deep("(", ")", 100_000)),
            format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
            format!("{{{{ {}1 }}}}", "not ".repeat(60_000)),
            format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
            format!("{{{{ 1{} }}}}", "|abs".repeat(50_000)),
            format!("{{{{ a{} }}}}", ".b".repeat(100_000)),
            deep("{% if true %}", "{% endif %}", 9_000),
            "{% if".to_owned(),
            "{{ 'a".to_owned(),
            "{% generation %}{% generation %}".to_owned(),
            "x".repeat(MAX_SOURCE + 1),
            "\0\u{feff}{{ messages[99999999999999999999].role }}".to_owned(),
        ] {
            // Twice: the second rendering finds nothing changed by the first.
            let render = |template: &ChatTemplate| template.render(&turns(), true).map_err(|error| error.to_string());
            if let Ok(template) = ChatTemplate::new(&source, &Json::Null) {
                let first = render(&template);
                assert_eq!(first, render(&template), "{}", &source[..source.len().min(60)]);
                assert!(first.is_err() || first.is_ok_and(|text| text.len() < 2000), "{}", &source[..source.len().min(60)]);
            }
        }
        let full = ChatTemplate::new("{{ 'x' * 90000000 }}", &Json::Null).unwrap().render(&turns(), true);
        assert!(full.unwrap_err().to_string().contains("more than 16 MiB"));
    }

    #[test]
    fn content_goes_as_the_template_expects_it() {
        let source = "{% for m in messages %}{% for c in m.content %}{{ c['text'] }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(source, &Json::Null).unwrap();
        assert_eq!(template.render(&[Turn::text("user", "hi")], false).unwrap(), "hi");
    }
}
