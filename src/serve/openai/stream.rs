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

/// The pieces of an answer as they come, and `[DONE]`. The answer stops when the body is dropped: its client has gone.
pub fn events(answer: Receiver<Event>, reply: Reply, prompt_tokens: usize, includes_usage: bool) -> Body {
    // A chat begins by saying who speaks.
    let first = line(&reply.piece("", true));
    let first = futures_util::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(first)))]);
    // Nothing is waited for behind the end: the engine has the way here until the longest answer of the batch has ended.
    let rest = unfold(Some((answer, reply)), move |going| async move {
        let (answer, reply) = going?;
        let (text, goes_on) = match answer.recv_async().await {
            Ok(Event::Begun { .. }) => (String::new(), true),
            Ok(Event::Text(text)) => (line(&reply.piece(&text, false)), true),
            Ok(Event::End { finish, num_tokens }) => {
                let usage = Usage { prompt_tokens, completion_tokens: num_tokens };
                let usage = if includes_usage { line(&reply.usage(usage)) } else { String::new() };
                (format!("{}{usage}data: [DONE]\n\n", line(&reply.end(finish))), false)
            }
            Ok(Event::Refused(error)) => (line(&error.json()), false),
            Err(_) => (line(&ApiError::new(500, "the answer ended early").json()), false),
        };
        Some((Ok(Frame::data(Bytes::from(text))), goes_on.then_some((answer, reply))))
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
        let (engine, answer) = flume::bounded(4);
        engine.send(Event::Text("a".to_owned())).unwrap();
        engine.send(Event::End { finish: Finish::Stop, num_tokens: 1 }).unwrap();
        let body = timeout(Duration::from_secs(30), events(answer, reply, 3, true).collect()).await;
        let body = body.expect("the response ends").unwrap().to_bytes();
        let lines: Vec<&str> = std::str::from_utf8(&body).unwrap().split_terminator("\n\n").collect();
        assert!(lines.len() == 5 && lines[1].contains("\"a\"") && lines[2].contains("\"stop\""), "{lines:?}");
        assert!(lines[3].contains("\"completion_tokens\":1") && lines[4] == "data: [DONE]", "{lines:?}");
        assert!(engine.is_disconnected(), "nobody listens any more");
    }
}
