//! System messages of conversations that have none.

use std::path::Path;

use super::{Processor, ProcessorOptions};
use crate::config::{Phase, Template};
use crate::data::digits::{MODEL, write_model};
use crate::data::source::Conversation;
use crate::data::tokenizer_file::read_json;
use crate::message::SampleId;

fn open(dir: &Path, template: Template, system: Option<&str>) -> Processor {
    let (config, system) = (read_json(&dir.join("config.json")).unwrap(), system.map(str::to_owned));
    let options = ProcessorOptions { template, system, learned: Phase::Sft.into(), ..Default::default() };
    Processor::open(dir, &config, &options).unwrap()
}

/// Returns a question and an answer, with a description of a function; `first` stands before them.
fn chat(first: &str, answer: &str) -> Conversation {
    let turns = format!(r#"{first}{{"role":"user","content":"q"}},{{"role":"assistant","content":"{answer}"}}"#);
    Conversation::parse(&format!(r#"{{"messages":[{turns}],"tools":[{{"name":"f"}}]}}"#)).unwrap()
}

#[test]
fn a_conversation_without_a_system_message_gets_that_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    let brief = r#"{"role":"system","content":"Be brief."},"#;
    let (given, plain) =
        (open(folder.path(), Template::Chatml, Some("Be brief.")), open(folder.path(), Template::Chatml, None));
    let learned = |processor: &Processor, first: &str| {
        let sample = processor.training_sample(SampleId(0), &chat(first, "a"), folder.path()).unwrap();
        (sample.input_ids, sample.targets)
    };
    let asked = |processor: &Processor, first: &str| {
        processor.prompt(SampleId(0), &chat(first, "a"), folder.path()).unwrap().input_ids
    };
    assert_eq!(learned(&given, ""), learned(&plain, brief));
    assert_eq!(asked(&given, ""), asked(&plain, brief));
    assert_ne!(learned(&given, ""), learned(&plain, ""));
    for own in [r#"{"role":"system","content":"Be kind."},"#, r#"{"role":"developer","content":"d"},"#] {
        assert_eq!(learned(&given, own), learned(&plain, own));
    }
    assert_eq!(given.notes(), ["3 of 5 conversations have no system message and get that of `system`"]);
    assert!(plain.notes().is_empty(), "{:?}", plain.notes());
    // Turns are counted as in the record.
    let error = given.training_sample(SampleId(0), &chat("", ""), folder.path()).unwrap_err().to_string();
    assert!(error.contains("the assistant's message, number 2 of the conversation"), "{error}");
}

#[test]
fn a_template_that_leaves_the_system_message_out_is_told() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    for chosen in ["m.role != 'system'", "m.role in ['user', 'assistant']"] {
        let template = format!(
            "{{% if tools %}}{{{{ tools }}}}{{% endif %}}{{% for m in messages if {chosen} %}}\
            <|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n{{% endfor %}}"
        );
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        let processor = open(folder.path(), Template::FromModel, Some("Be brief."));
        processor.training_sample(SampleId(0), &chat("", "a"), folder.path()).unwrap();
        let said =
            "1 of 1 conversations have no system message, and the chat template does not render that of `system`";
        assert_eq!(processor.notes(), [said], "{chosen}");
    }
}

#[test]
fn an_answer_may_have_begun() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    let processor = open(folder.path(), Template::Chatml, None);
    let asked = |start: &str| {
        let sample = processor.prompt_begun(SampleId(0), &chat("", "a"), folder.path(), start);
        sample.unwrap().input_ids
    };
    let begun: Vec<i64> = processor.tokenizer().encode("so").unwrap().iter().map(|token| token.id).collect();
    assert_eq!(asked("so"), [asked(""), begun].concat());
}
