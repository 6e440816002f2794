//! One client's connection: messages in, answers out, one after another.

use super::actor::Actor;
use futures_util::{SinkExt, StreamExt};
use loongforge_core::clock::since_epoch;
use loongforge_core::robot::wire::{Dialogue, Frame, Heard, MAX_MESSAGE, Reply, Timing};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// The time that a client may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time for which a client may go on sending after its message was refused.
const DRAIN: Duration = Duration::from_secs(5);

/// Talks with a client until one of both ends it; returns why, where that was an error.
pub async fn talk<S>(stream: S, mut dialogue: Box<dyn Dialogue>, actor: Actor) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limits = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(limits)).await;
    if let Some(greeting) = dialogue.greeting() {
        send(&mut socket, Message::Binary(greeting.into())).await?;
    }
    let mut before = None;
    while let Some(message) = socket.next().await {
        let begun = Instant::now();
        let reply = match message {
            Ok(Message::Binary(message)) => {
                // Large pictures take their time, in which others are answered; they are copied out of the message.
                let hear = spawn_blocking(move || {
                    let heard = dialogue.hear(&message, now());
                    (dialogue, heard)
                });
                let Ok((same, heard)) = hear.await else {
                    return Err("a message cannot be read (see the server's log)".to_owned());
                };
                dialogue = same;
                match heard {
                    Heard::Reply(reply) => reply,
                    Heard::Ask(observation, moment) => {
                        let (outcome, infer) = actor.act(*observation, moment).await;
                        dialogue.answer(outcome, Timing { infer, before }, now())
                    }
                }
            }
            Ok(Message::Text(_)) => {
                dialogue.refuse("expected a binary message with MessagePack, found a text message", now())
            }
            // What closes the connection is answered while the end of it is read.
            Ok(_) => continue,
            // Many clients just go.
            Err(
                Error::ConnectionClosed
                | Error::AlreadyClosed
                | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
            ) => return Ok(()),
            Err(Error::Capacity(CapacityError::MessageTooLong { size, max_size })) => {
                let reason = format!("message has {size} bytes, more than the limit of {max_size}");
                let reply = Reply { ends: true, ..dialogue.refuse(&reason, now()) };
                return end(&mut socket, reply, false).await;
            }
            Err(error) => return Err(error.to_string()),
        };
        if reply.ends {
            return end(&mut socket, reply, true).await;
        }
        if let Some(frame) = reply.frame {
            send(&mut socket, message_of(frame)).await?;
        }
        before = Some(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}

/// Sends the last message, and ends the connection. Bytes that the client still sends are read and thrown away for a while: a socket that
/// is closed with bytes unread would take the answer from it. Where there are whole messages to read, the client's own close is the last
/// one: it waits then for the server to hang up.
async fn end<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    reply: Reply,
    has_messages: bool,
) -> Result<(), String> {
    let reason = match &reply.frame {
        Some(Frame::Text(reason)) => reason.clone(),
        _ => "message is too large".to_owned(),
    };
    if let Some(frame) = reply.frame {
        send(socket, message_of(frame)).await?;
    }
    let close = CloseFrame { code: CloseCode::Error, reason: "see the previous message for the reason".into() };
    send(socket, Message::Close(Some(close))).await?;
    let mut buffer = vec![0; 1 << 16];
    let drain = async {
        if has_messages {
            loop {
                match socket.next().await {
                    Some(Ok(_)) => {}
                    None | Some(Err(Error::ConnectionClosed | Error::AlreadyClosed)) => return,
                    // Behind what is no message there may be bytes to read.
                    Some(Err(_)) => break,
                }
            }
        }
        while socket.get_mut().read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    };
    let _ = timeout(DRAIN, drain).await;
    Err(reason)
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    message: Message,
) -> Result<(), String> {
    match timeout(PATIENCE, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the client does not read its answer".to_owned()),
    }
}

fn message_of(frame: Frame) -> Message {
    match frame {
        Frame::Binary(bytes) => Message::Binary(bytes.into()),
        Frame::Text(text) => Message::Text(text.into()),
    }
}

fn now() -> f64 {
    since_epoch().as_secs_f64()
}
