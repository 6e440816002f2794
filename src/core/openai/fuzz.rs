//! Bodies of requests for the fuzzer.

use super::{Asked, Endpoint, Transcription, confine};
use crate::data::Question;

/// A body, asked of all interfaces.
pub fn completions(bytes: &[u8]) {
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        match Asked::read(endpoint, bytes) {
            Ok(mut asked) => {
                assert!(asked.stops.iter().all(|stop| !stop.is_empty()));
                assert!((1..=128).contains(&asked.num_answers()));
                for question in &mut asked.questions {
                    if let Question::Chat(conversation) = question {
                        let _ = confine(conversation, None);
                    }
                }
            }
            Err(error) => assert!(error.status == 400 && !error.json().to_string().is_empty()),
        }
    }
    match Transcription::read(Some("multipart/form-data; boundary=b"), bytes) {
        Ok(wanted) => {
            if let Ok(asked) = wanted.asked("qwen3_asr") {
                assert_eq!(asked.num_answers(), 1);
            }
        }
        Err(error) => assert!(error.status == 400 && !error.json().to_string().is_empty()),
    }
}

/// Returns a valid body of a request for each endpoint, from which mutations begin.
pub fn bodies() -> Vec<Vec<u8>> {
    let chat = r#"{"model":"m","messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"<image>?"},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,aGk=","detail":"auto"}},{"type":"input_audio","input_audio":
        {"data":"aGk=","format":"wav"}}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":
        {"name":"f","arguments":"{\"a\": 1}"}}]},{"role":"tool","content":"2","tool_call_id":"c"}],"tools":[{"type":"function",
        "function":{"name":"f"}}],"tool_choice":"auto","max_completion_tokens":9,"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,
        "repetition_penalty":1.1,"seed":-3,"stop":["a","b"],"stream":true,"stream_options":{"include_usage":true},"n":1,"user":"u",
        "response_format":{"type":"text"},"logprobs":false,"logit_bias":{"5":-100,"7":0.5},"chat_template_kwargs":{"enable_thinking":false}}"#;
    let text = r#"{"model":"m","prompt":["Once","Then"],"max_tokens":3,"temperature":0,"stop":"\n","echo":false,"best_of":1,"suffix":null}"#;
    let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nsound\r\n--b\r\n\
        Content-Disposition: form-data; name=\"temperature\"\r\n\r\n0\r\n--b--\r\n";
    [chat, text, form].map(|text| text.as_bytes().to_vec()).into()
}
