//! Requests that are read, and a table of those that are refused.

use serde_json::{Value as Json, json};

use super::*;
use crate::data::{Locator, MediaSource, Part, Question, Written};

fn read(endpoint: Endpoint, body: &Json) -> Result<Asked, ApiError> {
    Asked::read(endpoint, body.to_string().as_bytes())
}

#[test]
fn every_field_of_a_chat_is_read() {
    let asked = Asked::read(Endpoint::Chat, &fuzz::bodies()[0]).unwrap();
    let [Question::Chat(conversation)] = &asked.questions[..] else { panic!("a chat") };
    let [system, user, assistant, tool] = &conversation.turns[..] else { panic!("four turns") };
    assert_eq!((system.role.as_str(), system.written, system.tools.len()), ("system", Written::Text, 1));
    // A word that stands for a picture in training data is a word here.
    assert_eq!(user.parts, [Part::Text { text: "<image>?".into() }, Part::Image, Part::Audio]);
    assert_eq!(assistant.fields["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
    assert_eq!(tool.fields["tool_call_id"], "c");
    assert_eq!(system.kwargs["enable_thinking"], false);
    assert_eq!(conversation.media[0], MediaSource::Image(Locator::bytes("data.png", *b"hi")));
    let chance = &asked.chance;
    assert_eq!((chance.temperature, chance.top_p, chance.top_k, chance.min_p), (0.5, 0.9, 0, 0.1));
    assert_eq!((chance.repetition_penalty, chance.seed), (Some(1.1), Some(-3i64 as u64)));
    assert_eq!(chance.logit_bias, std::collections::BTreeMap::from([(5, -100.0), (7, 0.5)]));
    assert_eq!((asked.max_tokens, asked.stops.len(), asked.streams, asked.includes_usage), (Some(9), 2, true, true));
    assert_eq!((asked.n, asked.max_tokens_field), (1, "max_completion_tokens"));
    let text = Asked::read(Endpoint::Completions, &fuzz::bodies()[1]).unwrap();
    assert_eq!(text.questions, ["Once", "Then"].map(|text| Question::Text(text.into())));
    assert_eq!((text.num_answers(), text.max_tokens, text.stops), (2, Some(3), vec!["\n".into()]));
    assert_eq!(text.max_tokens_field, "max_tokens");
}

#[test]
fn what_is_wrong_or_not_done_is_named() {
    let chat = |field: &str, value: Json| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body[field] = value;
        (Endpoint::Chat, body, field.to_owned())
    };
    let text = |field: &str, value: Json| {
        let mut body = json!({"prompt": "x"});
        body[field] = value;
        (Endpoint::Completions, body, field.to_owned())
    };
    let message = |message: Json, param: &str| (Endpoint::Chat, json!({"messages": [message]}), param.to_owned());
    for (endpoint, body, param) in [
        chat("messages", json!("x")),
        chat("messages", json!([])),
        chat("n", json!(0)),
        chat("logprobs", json!(1)),
        chat("top_logprobs", json!(3)),
        (
            Endpoint::Chat,
            json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 21}),
            "top_logprobs".to_owned(),
        ),
        chat("response_format", json!({"type": "json_object"})),
        chat("temperature", json!(3)),
        chat("temperature", json!("hot")),
        chat("top_p", json!(-0.1)),
        chat("max_tokens", json!(0)),
        chat("max_tokens", json!(1.5)),
        chat("stop", json!(vec!["a"; 17])),
        chat("stop", json!([""])),
        chat("stop", json!([1])),
        chat("stream", json!("yes")),
        chat("stream_options", json!({"include_usage": true})),
        (
            Endpoint::Chat,
            json!({"messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": {"usage": true}}),
            "stream_options.usage".to_owned(),
        ),
        chat("tool_choice", json!("required")),
        chat("tools", json!({"name": "f"})),
        (
            Endpoint::Chat,
            json!({"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]}),
            "tools[0]".to_owned(),
        ),
        chat("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
        chat("parallel_tool_calls", json!("yes")),
        (
            Endpoint::Chat,
            json!({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"add_generation_prompt": false}}),
            "chat_template_kwargs.add_generation_prompt".to_owned(),
        ),
        chat("presence_penalty", json!(2.5)),
        chat("frequency_penalty", json!("often")),
        chat("logit_bias", json!([5])),
        chat("logit_bias", json!({"5": 100.5})),
        chat("logit_bias", json!({"5": "more"})),
        chat("logit_bias", json!({"the": 1})),
        chat("logit_bias", json!({"-1": 1})),
        chat("logit_bias", json!({"+5": 1})),
        chat("logit_bias", json!({"05": 1})),
        chat("logit_bias", json!({"99999999999999999999": 1})),
        chat("logit_bias", (0..1025).map(|id: i32| (id.to_string(), json!(1))).collect::<Json>()),
        chat("reasoning_effort", json!("high")),
        chat("audio", json!({"voice": "alloy"})),
        chat("store", json!(true)),
        chat("prompt", json!("x")),
        message(json!("x"), "messages[0]"),
        message(json!({"role": "robot", "content": "x"}), "messages[0].role"),
        message(json!({"role": "user", "content": "x", "weight": 0}), "messages[0].weight"),
        message(json!({"role": "user"}), "messages[0].content"),
        message(json!({"role": "system", "content": null}), "messages[0].content"),
        message(json!({"role": "user", "content": []}), "messages[0].content"),
        message(json!({"role": "user", "content": 5}), "messages[0].content"),
        message(json!({"role": "assistant", "tool_calls": []}), "messages[0].content"),
        message(json!({"role": "tool", "tool_call_id": "c"}), "messages[0].content"),
        chat("metadata", json!("x")),
        chat("chat_template_kwargs", json!(r#"{"enable_thinking": false}"#)),
        message(json!({"role": "user", "content": [{"type": "file", "file": {}}]}), "messages"),
        message(
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}),
            "messages",
        ),
        text("prompt", json!(["a", ""])),
        text("prompt", json!([])),
        text("prompt", json!(vec!["a"; 129])),
        text("prompt", json!(["a", ["b"]])),
        text("prompt", json!([1, 2])),
        (Endpoint::Completions, json!({"prompt": ["a", "b"], "n": 65}), "n".to_owned()),
        text("prompt", json!("")),
        text("echo", json!(true)),
        text("best_of", json!(2)),
        text("suffix", json!("z")),
        text("logprobs", json!(21)),
        text("logprobs", json!(true)),
        text("max_completion_tokens", json!(5)),
        text("messages", json!([])),
    ] {
        let error = read(endpoint, &body).expect_err(&body.to_string());
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param.as_str())), "{body}: {error}");
        assert_eq!(error.json()["error"]["type"], "invalid_request_error");
        assert!(!error.message.contains("not a sample"), "{error}");
    }
    for body in ["", "[]", "{", "\u{feff}{}"] {
        assert_eq!(Asked::read(Endpoint::Chat, body.as_bytes()).unwrap_err().status, 400, "{body}");
    }
    // Fields that ask for nothing, and what a client repeats of an answer.
    let repeated = json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "refusal": null,
        "annotations": [], "audio": null, "function_call": null}, {"role": "assistant", "content": null, "tool_calls": [{"id": "c",
        "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "user", "content": ""}], "n": 1, "logprobs": false,
        "stop": null, "presence_penalty": 0, "frequency_penalty": -0.5, "metadata": {"session": "a"}, "service_tier": "auto", "user": "u"});
    let chance = read(Endpoint::Chat, &repeated).unwrap().chance;
    assert_eq!((chance.temperature, chance.presence_penalty, chance.frequency_penalty), (1.0, 0.0, -0.5));
}

#[test]
fn a_token_that_the_model_lacks_is_not_biased() {
    let expected = |biases: Json, vocab_size: i64| {
        let asked = read(Endpoint::Completions, &json!({"prompt": "x", "logit_bias": biases})).unwrap();
        asked.chance.expect_tokens(vocab_size).map_err(|error| (error.param.unwrap(), error.message))
    };
    for biases in [json!(null), json!({}), json!({"0": 1, "9": -1})] {
        assert_eq!(expected(biases, 10), Ok(()));
    }
    let (param, message) = expected(json!({"10": 1, "2": 1}), 10).unwrap_err();
    assert_eq!(param, "logit_bias");
    assert_eq!(message, "`logit_bias` names token 10, but the model's tokens have the ids 0 to 9");
}

#[test]
fn log_probabilities_are_asked_for_in_two_ways() {
    let chat = |more: Json| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        read(Endpoint::Chat, &body).unwrap().top_logprobs
    };
    assert_eq!(chat(json!({})), None);
    assert_eq!(chat(json!({"logprobs": false, "top_logprobs": 0})), None);
    assert_eq!(chat(json!({"logprobs": true})), Some(0));
    assert_eq!(chat(json!({"logprobs": true, "top_logprobs": 20})), Some(20));
    let text = |count: Json| read(Endpoint::Completions, &json!({"prompt": "x", "logprobs": count})).unwrap();
    assert_eq!([json!(null), json!(0), json!(5)].map(|count| text(count).top_logprobs), [None, Some(0), Some(5)]);
}

#[test]
fn an_error_repeats_little_of_a_request() {
    let url = format!("data:{},x", "é".repeat(5000));
    let part = json!({"type": "image_url", "image_url": {"url": url}});
    let error = read(Endpoint::Chat, &json!({"messages": [{"role": "user", "content": [part]}]})).unwrap_err();
    assert!(error.message.starts_with("a data: URI of \"é") && error.message.ends_with("é…"), "{error}");
    assert_eq!(error.message.chars().count(), 1001);
}

#[test]
fn a_field_that_is_there_twice_is_refused() {
    let body = br#"{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "max_tokens": 2}"#;
    let error = Asked::read(Endpoint::Chat, body).unwrap_err().to_string();
    assert!(error.contains("duplicate key `max_tokens`"), "{error}");
}

#[test]
fn files_are_those_below_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("in")).unwrap();
    std::fs::write(at("in/a.png"), "x").unwrap();
    std::fs::write(at("b.png"), "x").unwrap();
    std::os::unix::fs::symlink(at("b.png"), at("in/link.png")).unwrap();
    let ask = |url: &str, files: Option<&std::path::Path>| {
        let part = json!({"type": "image_url", "image_url": {"url": url}});
        let asked = read(Endpoint::Chat, &json!({"messages": [{"role": "user", "content": [part]}]})).unwrap();
        let Some(Question::Chat(mut conversation)) = asked.questions.into_iter().next() else { panic!("a chat") };
        confine(&mut conversation, files).map_err(|error| error.to_string())
    };
    let folder = at("in");
    let files = Some(folder.as_path());
    let inside = format!("file://{}", at("in/a.png").display());
    for url in ["a.png", "../in/a.png", inside.as_str(), "data:image/png;base64,aGk="] {
        assert_eq!(ask(url, files), Ok(()), "{url}");
    }
    let outside = format!("file://{}", at("b.png").display());
    for url in ["../b.png", "link.png", "gone.png", "/etc/passwd", outside.as_str()] {
        assert_eq!(ask(url, files).unwrap_err(), "a file is not inside the folder of --files", "{url}");
        assert!(ask(url, None).unwrap_err().contains("files cannot be named"));
    }
    assert!(ask("https://example.com/a.png", files).unwrap_err().contains("are not fetched"));
    // A video may be a folder of frames.
    std::fs::create_dir(at("in/clip")).unwrap();
    std::fs::write(at("in/clip/0.png"), "x").unwrap();
    assert_eq!(ask("clip", files), Ok(()));
    std::os::unix::fs::symlink(at("b.png"), at("in/clip/1.png")).unwrap();
    assert_eq!(ask("clip", files).unwrap_err(), "a file is not inside the folder of --files");
}

#[test]
fn calls_of_tools_have_the_form_that_clients_read() {
    let reply = Reply {
        endpoint: Endpoint::Chat,
        id: "chatcmpl-1f".into(),
        created: 1,
        model: "my".into(),
        has_logprobs: false,
        includes_usage: false,
    };
    let call = Call { name: "f".into(), arguments: r#"{"a":1}"#.into() };
    let answer =
        Answer { text: String::new(), calls: vec![call.clone()], likely: Vec::new(), finish: Finish::ToolCalls };
    let whole = reply.whole(&[answer.clone(), Answer { text: "Wait.".into(), ..answer }], Usage::default());
    let written = |index: usize| json!({"id": format!("call-1f-{index}-0"), "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
    for (index, content) in [(0, json!(null)), (1, json!("Wait."))] {
        let choice = &whole["choices"][index];
        let message = json!({"role": "assistant", "content": content, "refusal": null, "tool_calls": [written(index)]});
        assert_eq!((&choice["message"], &choice["finish_reason"]), (&message, &json!("tool_calls")), "{whole}");
        // What a client repeats of it is a message.
        let turns = json!({"messages": [{"role": "user", "content": "x"}, message, {"role": "tool", "tool_call_id": "c", "content": "2"}]});
        let asked = read(Endpoint::Chat, &turns).unwrap();
        let [Question::Chat(conversation)] = &asked.questions[..] else { panic!("a chat") };
        assert_eq!(conversation.turns[1].fields["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
    }
    let mut expected = written(2);
    expected["id"] = "call-1f-2-1".into();
    expected["index"] = 1.into();
    let chunk = reply.call(2, 1, &call, &[]);
    assert_eq!(chunk["choices"][0]["delta"], json!({"tool_calls": [expected]}), "{chunk}");
    assert_eq!(chunk["choices"][0]["finish_reason"], json!(null));
    let none = Answer { text: String::new(), calls: Vec::new(), likely: Vec::new(), finish: Finish::Stop };
    assert_eq!(reply.whole(&[none], Usage::default())["choices"][0]["message"]["content"], "");
}

#[test]
fn pieces_have_no_usage_unless_it_comes_behind_them() {
    for includes_usage in [true, false] {
        let (id, model) = ("cmpl-1".to_owned(), "my".to_owned());
        let reply =
            Reply { endpoint: Endpoint::Completions, id, created: 1, model, has_logprobs: false, includes_usage };
        let null = includes_usage.then_some(Json::Null);
        for piece in [reply.begin(0), reply.piece(0, "a", &[]), reply.end(0, Finish::Stop, &[])] {
            assert_eq!(piece.get("usage"), null.as_ref(), "{piece}");
        }
        let usage = Usage { prompt_tokens: 2, completion_tokens: 1 };
        assert_eq!(reply.usage(usage)["usage"]["total_tokens"], 3);
    }
}

#[test]
fn json_of_more_values_than_are_taken_is_not_read() {
    let many = vec!["1"; 1 << 18].join(",");
    let body = format!(r#"{{"messages": [{many}]}}"#);
    let error = Asked::read(Endpoint::Chat, body.as_bytes()).unwrap_err();
    assert!(error.message.contains("more than 262144 JSON values"), "{error}");
    let call = json!({"type": "function", "function": {"name": "f", "arguments": format!(r#"{{"a": [{many}]}}"#)}});
    let asks = json!({"role": "user", "content": "x"});
    let body = json!({"messages": [asks, {"role": "assistant", "content": null, "tool_calls": [call]}]});
    let error = read(Endpoint::Chat, &body).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[1].tool_calls"), "{error}");
    // Commas of a text are none of these.
    let text = json!({"prompt": format!("\\\"[{}", ",".repeat(1 << 19))});
    assert!(read(Endpoint::Completions, &text).is_ok());
}
