//! Bodies of responses: whole ones, and answers as server-sent events.

use super::engine::Event;
use flume::Receiver;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use loongforge_core::openai::{ApiError, Reply, Usage};
use serde_json::Value as Json;
use std::convert::Infallible;

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Creates the body of a response that is sent in one piece.
pub fn whole(text: String) -> Body {
    Full::new(Bytes::from(text)).boxed_unsync()
}

/// The pieces of `n` answers as they come, and `[DONE]`. The answers stop when the body is dropped: their client has gone.
pub fn events(answer: Receiver<Event>, reply: Reply, n: usize, prompt_tokens: usize, includes_usage: bool) -> Body {
    // A chat begins by saying who speaks.
    let first: String = (0..n).map(|index| line(&reply.piece(index, "", true))).collect();
    let first = futures_util::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(first)))]);
    // Nothing is waited for behind the end: the engine has the way here until the longest answer of the batch has ended.
    let rest = unfold(Some((answer, reply, n, 0)), move |going| async move {
        let (answer, reply, mut left, mut completion_tokens) = going?;
        let text = match answer.recv_async().await {
            Ok(Event::Begun { .. }) => String::new(),
            Ok(Event::Text { index, text }) => line(&reply.piece(index, &text, false)),
            Ok(Event::Call { index, number, call }) => line(&reply.call(index, number, &call)),
            Ok(Event::End { index, finish, num_tokens }) => {
                (left, completion_tokens) = (left - 1, completion_tokens + num_tokens);
                let usage = match left == 0 && includes_usage {
                    true => line(&reply.usage(Usage { prompt_tokens, completion_tokens })),
                    false => String::new(),
                };
                let done = if left == 0 { "data: [DONE]\n\n" } else { "" };
                format!("{}{usage}{done}", line(&reply.end(index, finish)))
            }
            Ok(Event::Refused(error)) => {
                left = 0;
                line(&error.json())
            }
            Err(_) => {
                left = 0;
                line(&ApiError::new(500, "the answer ended early").json())
            }
        };
        Some((Ok(Frame::data(Bytes::from(text))), (left > 0).then_some((answer, reply, left, completion_tokens))))
    });
    StreamBody::new(first.chain(rest)).boxed_unsync()
}

fn line(json: &Json) -> String {
    format!("data: {json}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::openai::{Endpoint, Finish};
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_response_ends_with_its_answer_while_the_others_of_the_batch_go_on() {
        let reply = Reply { endpoint: Endpoint::Chat, id: "chatcmpl-1".into(), created: 1, model: "my".into() };
        let (engine, answer) = flume::bounded(8);
        engine.send(Event::Text { index: 1, text: "a".to_owned() }).unwrap();
        engine.send(Event::End { index: 1, finish: Finish::Stop, num_tokens: 1 }).unwrap();
        engine.send(Event::End { index: 0, finish: Finish::Length, num_tokens: 2 }).unwrap();
        let body = timeout(Duration::from_secs(30), events(answer, reply, 2, 3, true).collect()).await;
        let body = body.expect("the response ends").unwrap().to_bytes();
        let lines: Vec<&str> = std::str::from_utf8(&body).unwrap().split_terminator("\n\n").collect();
        assert_eq!(lines.len(), 7, "{lines:?}");
        for (line, words) in lines.iter().zip([
            ["\"index\":0", "assistant"],
            ["\"index\":1", "assistant"],
            ["\"index\":1", "\"a\""],
            ["\"index\":1", "\"stop\""],
            ["\"index\":0", "\"length\""],
            ["\"prompt_tokens\":3", "\"completion_tokens\":3"],
            ["data: ", "[DONE]"],
        ]) {
            assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
        }
        assert!(engine.is_disconnected(), "nobody listens any more");
    }
}
