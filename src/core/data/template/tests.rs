//! Templates in the wild, hostile ones, and what transformers makes of them.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::environment::MAX_SOURCE;
use super::{ChatTemplate, FLORENCE2, NAMED_TEMPLATES, QWEN, TOOLS_TEMPLATE, built_in};
use crate::config::Template;
use crate::data::source::{Conversation, Part, Turn};

fn turns() -> Vec<Turn> {
    vec![Turn::new("user", vec![Part::Image, Part::Text { text: "Read <b>.".into() }]), Turn::text("assistant", "12")]
}

#[test]
fn the_built_in_template_renders_pictures_and_text() {
    let template = ChatTemplate::new(QWEN, &Json::Null).unwrap();
    let prompt = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Read <b>.<|im_end|>\n";
    assert_eq!(template.render_prompt(&turns()[..1]).unwrap(), format!("{prompt}<|im_start|>assistant\n"));
    assert_eq!(template.render(&turns()).unwrap(), format!("{prompt}<|im_start|>assistant\n12<|im_end|>\n"));
}

#[test]
fn what_templates_in_the_wild_use_works() {
    let source = "{%- set ns = namespace(n=0) -%}\n{% for m in messages %}\n    {% generation %}{% set ns.n = ns.n + 1 %}\n\
        {{ m.content.strip().split('.')[0].lstrip('\\n') if m.content is string else m.content[1]['text'] }}\
        {%- endgeneration -%}\n{% endfor %}{{ ns.n }}{{ messages[::-1][0].role | tojson }}{{ eos_token }}";
    let template = ChatTemplate::new(source, &json!({"eos_token": {"content": "E"}, "x": 1})).unwrap();
    assert_eq!(template.render(&turns()).unwrap(), "Read <b>.122\"assistant\"E");
}

#[test]
fn variables_that_are_set_later_take_precedence() {
    let kwargs = |json: Json| json.as_object().unwrap().clone();
    let template = ChatTemplate::new("{{ a }} {{ b }} {{ c }}", &Json::Null).unwrap();
    let template = template.with_kwargs(kwargs(json!({"a": 1, "b": 2}))).unwrap();
    let template = template.with_kwargs(kwargs(json!({"b": 3, "c": "x"}))).unwrap();
    assert_eq!(template.render(&turns()).unwrap(), "1 3 x");
    assert!(template.with_kwargs(kwargs(json!({"d": 1}))).is_err());
}

#[test]
fn endless_and_failing_templates_are_errors() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(endless, &Json::Null).unwrap();
    assert!(template.render(&turns()).unwrap_err().to_string().contains("fuel"));
    let template = ChatTemplate::new("\n{{ raise_exception('roles must alternate') }}", &Json::Null).unwrap();
    let error = template.render(&turns()).unwrap_err().to_string();
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
        (Template::Ernie, "<|begin_of_sentence|>S\nUser: U\nAssistant: A<|end_of_sentence|>User: V\n", "Assistant: "),
        (Template::Minimax, "]~!b[]~b]system\nS[e~[\n]~b]user\nU[e~[\n]~b]ai\nA[e~[\n]~b]user\nV[e~[\n", "]~b]ai\n"),
        (Template::Glm, "[gMASK]<sop><|system|>\nS<|user|>\nU<|assistant|>\nA<|user|>\nV", "<|assistant|>\n"),
        (
            Template::Gemma,
            "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nV<end_of_turn>\n",
            "<start_of_turn>model\n",
        ),
    ] {
        let chat = ChatTemplate::new(built_in(template).unwrap(), &Json::Null).unwrap();
        assert_eq!(chat.render_prompt(&turns).unwrap(), format!("{text}{prompt}"), "{template:?}");
    }
    let paligemma = ChatTemplate::new(built_in(Template::Paligemma).unwrap(), &Json::Null).unwrap();
    let pictured = Turn::new("user", vec![Part::Text { text: "U".to_owned() }, Part::Image, Part::Image]);
    let (text, answers) = paligemma.render_marked(&[pictured.clone(), turns[2].clone()]).unwrap();
    assert_eq!((text.as_str(), &text[answers[0].clone()]), ("<image><image><bos>U\nA<eos>", "A<eos>"));
    assert_eq!(paligemma.render_prompt(&[pictured]).unwrap(), "<image><image><bos>U\n");
    for others in [&turns[..2], &turns[1..]] {
        let refused = paligemma.render(others).unwrap_err().to_string();
        assert!(refused.contains("PaliGemma has one prompt"), "{refused}");
    }
    florence2(&turns);
    let internlm = ChatTemplate::new(built_in(Template::Internlm2).unwrap(), &Json::Null).unwrap();
    assert_eq!(internlm.render(&turns[1..2]).unwrap(), "<s><|im_start|>user\nU<|im_end|>\n");
}

/// A call, its result and what was thought are in the text, or the template refuses.
#[test]
fn built_in_templates_render_tools_calls_and_reasoning() {
    let line = r#"{"messages":[{"role":"system","content":"S"},{"role":"user","content":"U"},{"role":"assistant","content":null,
        "reasoning_content":"think1","tool_calls":[{"id":"call_1","function":{"name":"f","arguments":{"a":"bé"}}}]},
        {"role":"tool","content":"result1","tool_call_id":"call_1"},{"role":"assistant","content":"A","reasoning_content":"think2"}],
        "tools":[{"type":"function","function":{"name":"f","description":"tool1"}}]}"#;
    let turns = Conversation::parse(line).unwrap().turns;
    for (template, has_thoughts, call) in [
        (
            Template::Qwen,
            true,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"bé\"}}\n</tool_call><|im_end|>",
        ),
        (
            Template::Chatml,
            true,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"bé\"}}\n</tool_call><|im_end|>",
        ),
        (Template::Llama3, false, "{\"name\": \"f\", \"parameters\": {\"a\": \"bé\"}}<|eot_id|>"),
        (
            Template::Deepseek,
            true,
            "<｜tool▁sep｜>f\n```json\n{\"a\": \"bé\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (Template::Kimi, true, "<|tool_call_begin|>call_1<|tool_call_argument_begin|>{\"a\": \"bé\"}<|tool_call_end|>"),
        (Template::Internlm2, false, "<|plugin|>\n{\"name\": \"f\", \"parameters\": {\"a\": \"bé\"}}<|action_end|>"),
        (Template::Minimax, true, "<invoke name=\"f\">\n<parameter name=\"a\">bé</parameter>\n</invoke>"),
        (Template::Glm, true, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>bé</arg_value>\n</tool_call>"),
    ] {
        let chat = ChatTemplate::new(built_in(template).unwrap(), &Json::Null).unwrap();
        let text = chat.render(&turns).unwrap();
        let thoughts = ["think1", "think2"].iter().all(|thought| text.contains(thought));
        assert_eq!((chat.takes_tools(), chat.tags_calls()), (true, call.starts_with("<tool_call>\n{")), "{template:?}");
        assert!(["result1", "tool1", call].iter().all(|part| text.contains(part)), "{template:?}: {text}");
        assert_eq!(thoughts, has_thoughts, "{template:?}: {text}");
    }
}

/// Compares texts with those that transformers' `apply_chat_template` renders, and the begins and ends of its
/// `return_assistant_tokens_mask`.
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
        let ours = ChatTemplate::new(&template, &tokens).and_then(|template| template.render_marked(&turns));
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
    equals_transformers(include_str!("../goldens/masks.json"));
}

#[test]
#[ignore = "needs the second file of goldens/make_masks.py: TEMPLATES=FILE"]
fn other_templates() {
    let path = std::env::var_os("TEMPLATES").expect("TEMPLATES");
    equals_transformers(&std::fs::read_to_string(path).unwrap());
}

/// Every hostile template must end soon, in an error or in a text.
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
        let render = |template: &ChatTemplate| template.render_prompt(&turns()).map_err(|error| error.to_string());
        if let Ok(template) = ChatTemplate::new(&source, &Json::Null) {
            let first = render(&template);
            assert_eq!(first, render(&template), "{}", &source[..source.len().min(60)]);
            assert!(first.is_err() || first.is_ok_and(|text| text.len() < 2000), "{}", &source[..source.len().min(60)]);
        }
    }
    let full = ChatTemplate::new("{{ 'x' * 90000000 }}", &Json::Null).unwrap().render_prompt(&turns());
    assert!(full.unwrap_err().to_string().contains("more than 16 MiB"));
}

#[test]
fn content_goes_as_the_template_expects_it() {
    let source = "{% for m in messages %}{% for c in m.content %}{{ c['text'] }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, &Json::Null).unwrap();
    assert_eq!(template.render(&[Turn::text("user", "hi")]).unwrap(), "hi");
}

/// Compares prompts with those that `Florence2Processor` of transformers 5.17 makes.
fn florence2(turns: &[Turn]) {
    let florence = ChatTemplate::new(FLORENCE2, &Json::Null).unwrap();
    let ask = |text: &str| Turn::new("user", vec![Part::Text { text: text.to_owned() }, Part::Image]);
    for (prompt, expected) in [
        ("U", "U"),
        ("", ""),
        ("<CAPTION>", "What does the image describe?"),
        ("<OD>", "Locate the objects with category name in the image."),
        ("\n<OD>", "Locate the objects with category name in the image."),
        ("<OCR_WITH_REGION>", "What is the text in the image, with regions?"),
        ("<CAPTION_TO_PHRASE_GROUNDING> a green car ", "Locate the phrases in the caption: a green car"),
        (
            "<REGION_TO_CATEGORY><loc_52><loc_332><loc_932><loc_774>",
            "What is the region <loc_52><loc_332><loc_932><loc_774>?",
        ),
        ("a <REGION_TO_OCR> b", "What text is in the region a  b?"),
        ("<OPEN_VOCABULARY_DETECTION>x<REGION_TO_OCR>", "Locate x<REGION_TO_OCR> in the image."),
    ] {
        assert_eq!(florence.render_prompt(&[ask(prompt)]).unwrap(), format!("<image><s>{expected}</s>"), "{prompt}");
    }
    let (text, answers) = florence.render_marked(&[ask("<OD>"), turns[2].clone()]).unwrap();
    assert_eq!(&text[answers[0].clone()], "<s>A</s>");
    assert!(text.ends_with("</s><s>A</s>"), "{text}");
    // Without a picture nothing is around a prompt.
    assert_eq!(florence.render_prompt(&turns[1..2]).unwrap(), "U");
    let two = Turn::new("user", vec![Part::Image, Part::Image]);
    for (turns, expected) in [
        (vec![ask("<OD> car")], "the task <OD> of Florence-2 stands alone in its prompt"),
        (vec![two], "Florence-2 takes one picture with a prompt"),
        (turns.to_vec(), "Florence-2 has one prompt and one answer"),
        (vec![ask("U"), ask("V")], "Florence-2 has one prompt and one answer"),
    ] {
        let refused = florence.render(&turns).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

/// The folder has templates as Hermes 2 Pro and Command R have them; the one that transformers would choose is taken.
#[test]
fn a_template_for_tools_renders_conversations_with_tools() {
    let body = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let config = json!({"chat_template": [{"name": "default", "template": body},
        {"name": "tool_use", "template": format!("{{{{ tools | tojson }}}}{body}")}]});
    let folder = tempfile::tempdir().unwrap();
    let own = ChatTemplate::find(folder.path(), &config).unwrap().unwrap();
    let other = ChatTemplate::find_tool_use(folder.path(), &config).unwrap().unwrap();
    let open = |source: &str| ChatTemplate::new(source, &config).unwrap();
    let template = open(&own).with_tool_use(open(&other));
    let called = Conversation::parse(r#"{"messages":[{"role":"user","content":"Q"}],"tools":[{"name":"f"}]}"#);
    for (turns, text) in [(called.unwrap().turns, r#"[{"name": "f"}]Q"#), (vec![Turn::text("user", "Q")], "Q")] {
        assert_eq!(template.of(&turns).render(&turns).unwrap(), text);
    }
    assert_eq!(ChatTemplate::find_tool_use(folder.path(), &json!({"chat_template": body})).unwrap(), None);
    std::fs::write(folder.path().join("chat_template.jinja"), body).unwrap();
    assert_eq!(ChatTemplate::find_tool_use(folder.path(), &config).unwrap(), None);
    // As newer versions of transformers save such a list.
    std::fs::create_dir(folder.path().join(NAMED_TEMPLATES)).unwrap();
    std::fs::write(folder.path().join(TOOLS_TEMPLATE), "with tools").unwrap();
    let found = [ChatTemplate::find, ChatTemplate::find_tool_use].map(|find| find(folder.path(), &config).unwrap());
    assert_eq!(found, [Some(body.to_owned()), Some("with tools".to_owned())]);
}

#[test]
fn variables_that_are_set_later_are_those_of_a_template_for_tools_too() {
    let [own, other] = ["{{ a }}", "with tools {{ a }}"].map(|source| ChatTemplate::new(source, &Json::Null).unwrap());
    let kwargs = json!({"a": 1}).as_object().unwrap().clone();
    let template = own.with_tool_use(other).with_kwargs(kwargs).unwrap();
    let called = Conversation::parse(r#"{"messages":[{"role":"user","content":"Q"}],"tools":[{"name":"f"}]}"#);
    for (turns, text) in [(called.unwrap().turns, "with tools 1"), (turns(), "1")] {
        assert_eq!(template.of(&turns).render(&turns).unwrap(), text);
    }
}
