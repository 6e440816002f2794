//! The answers of a batch: made together, and told as they come.

use crate::answer::{Piece, Wanted, answer_each};
use crate::eval::generator::Reader;
use flume::Sender;
use loongforge_core::data::Sample;
use loongforge_core::openai::{ApiError, Call, CallStream, Finish, Likely, Said};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Tells what a request hears of its answer.
#[derive(Clone, Debug)]
pub enum Event {
    /// There is no answer, or no more of it.
    Refused(ApiError),
    /// The model reads the prompt, of so many tokens.
    Begun {
        prompt_tokens: usize,
    },
    /// A token of answer `index`, whose text comes next or is part of a later piece.
    Likely {
        index: usize,
        likely: Likely,
    },
    /// A piece of answer `index`.
    Text {
        index: usize,
        text: String,
    },
    /// Call `number` of answer `index`.
    Call {
        index: usize,
        number: usize,
        call: Call,
    },
    End {
        index: usize,
        finish: Finish,
        num_tokens: usize,
    },
}

/// An answer that is being made.
pub struct Begun {
    /// The answer's number among those to the same request.
    pub index: usize,
    pub sample: Arc<Sample>,
    pub wanted: Wanted,
    /// Finds calls of tools in it; `None`: they are text.
    pub calls: Option<CallStream>,
    pub events: Sender<Event>,
}

/// The end of a batch whose answers are not made, or not all of them.
struct Failed {
    reason: String,
    /// A part of an answer was told.
    is_told: bool,
}

/// Makes answers together. Where that fails before a token, those to each request are made without the others, which are the same: a
/// picture of a size that nobody thought of, or a batch that needs too much memory, costs nobody else the answer.
/// Returns whether all are made.
pub fn answer_or_refuse(reader: &Reader, begun: &[Begun]) -> bool {
    let mut make = |begun: &[Begun]| answer(reader, begun);
    make_or_refuse(begun, are_of_one_request, &mut make, &mut |begun, reason| {
        for answer in begun {
            let _ = answer.events.try_send(Event::Refused(ApiError::new(500, reason)));
        }
    })
}

fn are_of_one_request(one: &Begun, other: &Begun) -> bool {
    one.events.same_channel(&other.events)
}

/// Makes `all`, or those of each request; `refuse` is told of those that are not made. Those of one request stand side by side. Returns
/// whether all are made, at the first try.
fn make_or_refuse<T>(
    all: &[T],
    are_of_one: fn(&T, &T) -> bool,
    make: &mut dyn FnMut(&[T]) -> Result<(), Failed>,
    refuse: &mut dyn FnMut(&[T], &str),
) -> bool {
    let Err(Failed { reason, is_told }) = make(all) else { return true };
    let requests: Vec<&[T]> = all.chunk_by(are_of_one).collect();
    if is_told || requests.len() == 1 {
        refuse(all, &reason);
        return false;
    }
    for request in requests {
        if let Err(Failed { reason, .. }) = make(request) {
            refuse(request, &reason);
        }
    }
    false
}

fn answer(reader: &Reader, begun: &[Begun]) -> Result<(), Failed> {
    let questions: Vec<_> = begun.iter().map(|answer| (&*answer.sample, &answer.wanted)).collect();
    let mut calls: Vec<Option<CallStream>> = begun.iter().map(|answer| answer.calls.clone()).collect();
    let mut is_told = false;
    let mut hear = |at: usize, piece: Piece| {
        is_told = true;
        tell((&begun[at].events, begun[at].index), calls[at].as_mut(), piece)
    };
    let answered = catch_unwind(AssertUnwindSafe(|| answer_each(reader, &questions, &mut hear)));
    let is_alone = begun.windows(2).all(|two| are_of_one_request(&two[0], &two[1]));
    let reason = match answered {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) if is_alone => "the model failed on this request (see the server's log)".to_owned(),
        Err(_) => "the model failed on this request or on another one in its batch (see the server's log)".to_owned(),
    };
    Err(Failed { reason, is_told })
}

/// Returns whether the answer goes on: somebody is left to hear it, which a token without text finds out as well, and it has not made the
/// only call that it may make, with which it ends.
fn tell((events, index): (&Sender<Event>, usize), mut calls: Option<&mut CallStream>, piece: Piece) -> bool {
    let mut number = calls.as_ref().map_or(0, |calls| calls.num_calls());
    let end_of = |finish, num_tokens| Some(Event::End { index, finish, num_tokens });
    let (said, end) = match (piece, &mut calls) {
        (Piece::Likely(likely), _) => return events.try_send(Event::Likely { index, likely }).is_ok(),
        (Piece::Text { text, num_tokens }, Some(calls)) => {
            let said = calls.push(&text);
            let end = if calls.has_ended() { end_of(Finish::ToolCalls, num_tokens) } else { None };
            (said, end)
        }
        (Piece::Text { text, .. }, None) => (vec![Said::Text(text)], None),
        (Piece::End { finish, num_tokens }, calls) => {
            let said = calls.as_mut().map(|calls| calls.finish()).unwrap_or_default();
            // Behind the only call nothing is cut that was told.
            let is_called = |calls: &CallStream| calls.has_ended() || (calls.num_calls() > 0 && finish == Finish::Stop);
            let finish = if calls.as_deref().is_some_and(is_called) { Finish::ToolCalls } else { finish };
            (said, end_of(finish, num_tokens))
        }
    };
    for part in said {
        let event = match part {
            Said::Text(text) if text.is_empty() => continue,
            Said::Text(text) => Event::Text { index, text },
            Said::Call(call) => {
                number += 1;
                Event::Call { index, number: number - 1, call }
            }
        };
        if events.try_send(event).is_err() {
            return false;
        }
    }
    if let Some(end) = end {
        let _ = events.try_send(end);
        return false;
    }
    !events.is_disconnected()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_costs_the_others_nothing_unless_they_have_begun() {
        let all = ["a1", "a2", "b", "c"];
        let of_one = |one: &&str, other: &&str| one[..1] == other[..1];
        for (fails, is_told, made, refused) in [
            ("", false, vec!["a1 a2 b c"], vec![]),
            ("b", false, vec!["a1 a2", "c"], vec!["b"]),
            ("a2", false, vec!["b", "c"], vec!["a1 a2"]),
            ("b", true, vec![], vec!["a1 a2 b c"]),
        ] {
            let (mut found, mut lost) = (Vec::new(), Vec::new());
            let mut make = |some: &[&str]| {
                if some.contains(&fails) {
                    return Err(Failed { reason: "no".to_owned(), is_told });
                }
                found.push(some.join(" "));
                Ok(())
            };
            let is_whole = make_or_refuse(&all, of_one, &mut make, &mut |some, reason| {
                assert_eq!(reason, "no");
                lost.push(some.join(" "));
            });
            assert_eq!(is_whole, fails.is_empty());
            assert_eq!(found, made);
            assert_eq!(lost, refused);
        }
    }

    fn text(text: &str) -> Piece {
        Piece::Text { text: text.to_owned(), num_tokens: 7 }
    }

    #[test]
    fn a_token_without_text_is_no_event_and_notices_who_has_left() {
        let (events, answer) = flume::bounded(1);
        assert!(tell((&events, 0), None, text("")) && answer.is_empty());
        assert!(tell((&events, 0), None, text("a")) && answer.len() == 1);
        drop(answer);
        assert!(!tell((&events, 0), None, text("")));
    }

    #[test]
    fn an_answer_with_calls_ends_for_their_sake_unless_it_is_cut() {
        let f = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
        // One that may have a single call stops behind it.
        let (events, answer) = flume::bounded(8);
        let mut only = CallStream::new(false);
        assert!(tell((&events, 0), Some(&mut only), text("Wait. ")));
        assert!(!tell((&events, 0), Some(&mut only), text(&format!("{f} and"))));
        let told: Vec<Event> = answer.drain().collect();
        let [Event::Text { .. }, Event::Call { .. }, end] = &told[..] else { panic!("{told:?}") };
        assert!(matches!(end, Event::End { finish: Finish::ToolCalls, num_tokens: 7, .. }), "{end:?}");
        // The end of the call may be missing.
        let mut only = CallStream::new(false);
        assert!(tell((&events, 0), Some(&mut only), text(f.strip_suffix("</tool_call>").unwrap())));
        assert!(!tell((&events, 0), Some(&mut only), Piece::End { finish: Finish::Length, num_tokens: 9 }));
        let told: Vec<Event> = answer.drain().collect();
        let [Event::Call { .. }, Event::End { finish: Finish::ToolCalls, .. }] = &told[..] else { panic!("{told:?}") };
        for (finish, expected) in [(Finish::Stop, Finish::ToolCalls), (Finish::Length, Finish::Length)] {
            let (events, answer) = flume::bounded(8);
            let mut calls = CallStream::new(true);
            let mut hear = |piece| tell((&events, 0), Some(&mut calls), piece);
            assert!(hear(text(&format!("a {f}"))));
            assert!(hear(text(f)));
            assert!(!hear(Piece::End { finish, num_tokens: 5 }));
            let told: Vec<Event> = answer.drain().collect();
            let [Event::Text { text, .. }, one, other, end] = &told[..] else { panic!("{told:?}") };
            assert_eq!(text, "a");
            assert!(matches!(one, Event::Call { number: 0, call, .. } if call.name == "f"), "{one:?}");
            assert!(matches!(other, Event::Call { number: 1, call, .. } if call.arguments == "{}"), "{other:?}");
            assert!(matches!(end, Event::End { finish, num_tokens: 5, .. } if *finish == expected), "{end:?}");
        }
    }
}
