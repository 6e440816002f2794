//! Bodies of responses: whole ones, and answers as server-sent events.

use super::batch::Event;
use flume::Receiver;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use loongforge_core::openai::{ApiError, Likely, Reply, Usage};
use serde_json::Value as Json;
use std::convert::Infallible;
use std::mem::take;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Stands behind the last piece.
const DONE: &str = "data: [DONE]\n\n";
/// The time after which a silent stream sends a comment: proxies end connections that are silent for longer, 60 s for example, and a call
/// of a tool comes when all of it is there.
const SILENCE: Duration = Duration::from_secs(15);
/// A comment in server-sent events, which clients pass over.
const COMMENT: &str = ": the answer goes on\n\n";

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Creates the body of a response that is sent in one piece.
pub fn whole(text: String) -> Body {
    Full::new(Bytes::from(text)).boxed_unsync()
}

/// Returns the pieces of `n` answers as they come, and `[DONE]`; `prompt_tokens` are told later if the model has not begun. The answers
/// stop when the body is dropped: their client has gone.
pub fn events(answer: Receiver<Event>, reply: Reply, n: usize, prompt_tokens: usize) -> Body {
    // A chat begins by saying who speaks.
    let first: String = (0..n).map(|index| line(&reply.begin(index))).collect();
    let first = futures_util::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(first)))]);
    // Nothing is waited for behind the end: the engine has the way here until the longest answer of the batch has ended.
    let going = Going { answer, reply, left: n, prompt_tokens, completion_tokens: 0, tokens: vec![Vec::new(); n] };
    let rest = unfold(Some(going), |going| async move {
        let mut going = going?;
        let text = going.next().await;
        Some((Ok(Frame::data(Bytes::from(text))), (going.left > 0).then_some(going)))
    });
    StreamBody::new(first.chain(rest)).boxed_unsync()
}

/// Answers that go on.
struct Going {
    answer: Receiver<Event>,
    reply: Reply,
    /// The number of answers that have not ended.
    left: usize,
    prompt_tokens: usize,
    completion_tokens: usize,
    /// The tokens of each answer since its last piece, where they are told.
    tokens: Vec<Vec<Likely>>,
}

impl Going {
    /// Returns the next lines.
    async fn next(&mut self) -> String {
        let silent = Instant::now() + SILENCE;
        loop {
            let Self { answer, reply, tokens, .. } = self;
            let Ok(event) = timeout_at(silent, answer.recv_async()).await else { return COMMENT.to_owned() };
            let error = match event {
                Ok(Event::Begun { prompt_tokens }) => {
                    self.prompt_tokens = prompt_tokens;
                    continue;
                }
                Ok(Event::Likely { index, likely }) => {
                    tokens[index].push(likely);
                    continue;
                }
                Ok(Event::Text { index, text }) => return line(&reply.piece(index, &text, &take(&mut tokens[index]))),
                Ok(Event::Call { index, number, call }) => {
                    return line(&reply.call(index, number, &call, &take(&mut tokens[index])));
                }
                Ok(Event::End { index, finish, num_tokens }) => {
                    let end = line(&reply.end(index, finish, &take(&mut tokens[index])));
                    self.left -= 1;
                    self.completion_tokens += num_tokens;
                    let Self { prompt_tokens, completion_tokens, .. } = *self;
                    let usage = Usage { prompt_tokens, completion_tokens };
                    return match self.left {
                        0 if self.reply.includes_usage => format!("{end}{}{DONE}", line(&self.reply.usage(usage))),
                        0 => format!("{end}{DONE}"),
                        _ => end,
                    };
                }
                Ok(Event::Refused(error)) => error,
                Err(_) => ApiError::new(500, "the answer ended early"),
            };
            self.left = 0;
            return line(&error.json());
        }
    }
}

fn line(json: &Json) -> String {
    format!("data: {json}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::openai::{Endpoint, Finish, TokenLogprob};
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_response_ends_with_its_answer_while_the_others_of_the_batch_go_on() {
        let (engine, answer) = flume::bounded(8);
        let reply = Reply { includes_usage: true, ..reply() };
        engine.send(Event::Text { index: 1, text: "a".to_owned() }).unwrap();
        engine.send(Event::End { index: 1, finish: Finish::Stop, num_tokens: 1 }).unwrap();
        engine.send(Event::End { index: 0, finish: Finish::Length, num_tokens: 2 }).unwrap();
        let body = timeout(Duration::from_secs(30), events(answer, reply, 2, 3).collect()).await;
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

    fn reply() -> Reply {
        let (id, model) = ("chatcmpl-1".to_owned(), "my".to_owned());
        Reply { endpoint: Endpoint::Chat, id, created: 1, model, has_logprobs: true, includes_usage: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_sends_comments() {
        let (engine, answer) = flume::bounded(8);
        let mut body = events(answer, Reply { includes_usage: true, ..reply() }, 1, 0);
        let mut lines = Vec::new();
        for _ in 0..3 {
            let frame = body.frame().await.unwrap().unwrap();
            lines.push(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap());
        }
        assert!(lines[0].contains("assistant"), "{lines:?}");
        assert_eq!(lines[1..], [COMMENT; 2]);
        engine.send(Event::Begun { prompt_tokens: 3 }).unwrap();
        engine.send(Event::End { index: 0, finish: Finish::Stop, num_tokens: 1 }).unwrap();
        let rest = body.collect().await.unwrap().to_bytes();
        assert!(rest.starts_with(b"data: {") && rest.ends_with(DONE.as_bytes()), "{rest:?}");
        assert!(rest.windows(17).any(|window| window == b"\"prompt_tokens\":3"), "{rest:?}");
    }

    #[tokio::test]
    async fn tokens_come_with_the_next_piece_of_their_answer() {
        let (engine, answer) = flume::bounded(8);
        let likely = |token: &str| {
            let of = TokenLogprob { token: token.to_owned(), logprob: -1.0 };
            Event::Likely { index: 0, likely: Likely { of, top: Vec::new(), offset: 0 } }
        };
        // The first is a part of what the second completes; a stop string has cut off the last.
        engine.send(likely("t1")).unwrap();
        engine.send(likely("t2")).unwrap();
        engine.send(Event::Text { index: 0, text: "é".to_owned() }).unwrap();
        engine.send(likely("t3")).unwrap();
        engine.send(Event::End { index: 0, finish: Finish::Stop, num_tokens: 3 }).unwrap();
        let body = events(answer, reply(), 1, 3).collect().await.unwrap().to_bytes();
        let lines = std::str::from_utf8(&body).unwrap().split_terminator("\n\n");
        let choice = |line: &str| serde_json::from_str::<Json>(line.strip_prefix("data: ")?).ok();
        let chunks: Vec<Json> = lines.filter_map(choice).collect();
        let tokens = |chunk: &Json| {
            let content = chunk["choices"][0]["logprobs"]["content"].as_array()?;
            Some(content.iter().map(|it| it["token"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        let found: Vec<_> = chunks.iter().map(tokens).collect();
        assert_eq!(found, [None, Some(vec!["t1".to_owned(), "t2".to_owned()]), Some(vec!["t3".to_owned()])]);
        assert_eq!(chunks[1]["choices"][0]["delta"]["content"], "é");
        assert_eq!(chunks[2]["choices"][0]["finish_reason"], "stop");
    }
}
