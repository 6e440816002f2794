//! Bodies of responses: whole ones, and answers as server-sent events.

use super::engine::Event;
use flume::Receiver;
use futures_util::StreamExt;
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
    let mut has_ended = false;
    // A chat begins by saying who speaks.
    let first = futures_util::stream::iter([Some(Event::Text(String::new()))]);
    // After the last event comes one `None`, which tells an answer that was cut off.
    let rest = answer.into_stream().map(Some).chain(futures_util::stream::iter([None]));
    let mut is_first = true;
    let pieces = first.chain(rest).map(move |event| {
        let text = match event {
            Some(Event::Text(text)) => line(&reply.piece(&text, std::mem::take(&mut is_first))),
            Some(Event::End { finish, num_tokens }) => {
                has_ended = true;
                let usage = Usage { prompt_tokens, completion_tokens: num_tokens };
                let usage = if includes_usage { line(&reply.usage(usage)) } else { String::new() };
                format!("{}{usage}data: [DONE]\n\n", line(&reply.end(finish)))
            }
            Some(Event::Refused(error)) => {
                has_ended = true;
                line(&error.json())
            }
            None if !has_ended => line(&ApiError::new(500, "the answer ended early").json()),
            Some(Event::Begun { .. }) | None => String::new(),
        };
        Ok(Frame::data(Bytes::from(text)))
    });
    let pieces = pieces.filter(|frame: &Result<Frame<Bytes>, Infallible>| {
        let says = frame.as_ref().is_ok_and(|frame| frame.data_ref().is_some_and(|data| !data.is_empty()));
        std::future::ready(says)
    });
    StreamBody::new(pieces).boxed_unsync()
}

fn line(json: &Json) -> String {
    format!("data: {json}\n\n")
}
