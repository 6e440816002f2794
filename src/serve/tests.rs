//! A whole server over real sockets: clients of every kind, and messages that are wrong.

use super::actor::MAX_CONNECTIONS;
use super::connection::talk;
use super::server::{SILENCE, keep_alive};
use super::{Actor, Door, ServeError, Server};
use futures_util::{SinkExt, StreamExt};
use loongforge_core::robot::pads::{self, CHUNK_SIZE, Expert};
use loongforge_core::robot::wire::{Dialogue, Heard, MAX_MESSAGE, Names, Offer, Protocol, Reply, Timing};
use loongforge_core::robot::{Actions, Moment, Observation, Policy, PolicySpec};
use rustix::net::sockopt::{socket_keepalive, tcp_keepidle};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

type Socket = WebSocketStream<TcpStream>;

/// Panics when it is asked to go to a pad that is not there.
struct Brittle(Expert);

impl Policy for Brittle {
    fn spec(&self) -> &PolicySpec {
        self.0.spec()
    }

    fn execute(&mut self, num_executed: usize) {
        self.0.execute(num_executed);
    }

    fn act(&mut self, observation: &Observation, moment: Moment) -> Result<Actions, String> {
        assert!(observation.prompt != "panic", "as it was told");
        self.0.act(observation, moment)
    }
}

/// Serves while `client` runs.
async fn served<F: Future<Output = ()>>(protocol: Protocol, key: Option<&str>, client: impl FnOnce(SocketAddr) -> F) {
    let (actor, spec) = Actor::start(|| Ok(Box::new(Brittle(Expert::new())))).unwrap();
    let names = Names::new(&spec, &[], &[], None).unwrap();
    let door = Door { host: "127.0.0.1".into(), port: 0, key: key.map(str::to_owned), is_open: false };
    let door = door.reserve().await.unwrap();
    let server = Server::open(door, protocol, Offer { spec, names }, actor, Box::new(|_| ())).unwrap();
    let address = server.address().unwrap();
    server.run(client(address)).await.unwrap();
}

/// Fails for good.
struct Broken(Expert);

impl Policy for Broken {
    fn spec(&self) -> &PolicySpec {
        self.0.spec()
    }

    fn execute(&mut self, num_executed: usize) {
        self.0.execute(num_executed);
    }

    fn act(&mut self, _observation: &Observation, _moment: Moment) -> Result<Actions, String> {
        Err("the GPU is gone".to_owned())
    }

    fn has_failed(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_policy_that_never_acts_again_ends_its_server() {
    let (actor, spec) = Actor::start(|| Ok(Box::new(Broken(Expert::new())))).unwrap();
    let names = Names::new(&spec, &[], &[], None).unwrap();
    let door = Door { host: "127.0.0.1".into(), port: 0, key: None, is_open: false };
    let offer = Offer { spec, names };
    let door = door.reserve().await.unwrap();
    let server = Server::open(door, Protocol::OpenPi, offer, actor, Box::new(|_| ())).unwrap();
    let address = server.address().unwrap();
    let client = async {
        let message = Message::Binary(observation("go to the red pad").into());
        assert!(refused(address, message).await.contains("the GPU is gone"));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = server.run(std::future::pending()) => assert!(matches!(ended, Err(ServeError::Ended))),
        () = client => {}
    }
}

async fn connect(address: SocketAddr, key: Option<&str>) -> Result<Socket, Error> {
    let mut request = format!("ws://{address}/").into_client_request().unwrap();
    if let Some(key) = key {
        request.headers_mut().insert("authorization", format!("Api-Key {key}").parse().unwrap());
    }
    let limits = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let stream = TcpStream::connect(address).await.unwrap();
    client_async_with_config(request, stream, Some(limits)).await.map(|(socket, _)| socket)
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Returns the observation of `openpi-client` at the beginning of a layout, as its packer writes it.
fn observation(prompt: &str) -> Vec<u8> {
    let scene = pads::Scene::begin(pads::SceneLayout::draw(1, pads::Part::HeldOut, 0));
    let text = |text: &str| [&[0xd9, text.len() as u8][..], text.as_bytes()].concat();
    let bytes = |bytes: &[u8]| [&[0xc6][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let array = |dtype: &str, shape: &[u8], data: &[u8]| {
        let axes = [&[0x90 | shape.len() as u8][..], shape].concat();
        let entries =
            [(&b"__ndarray__"[..], vec![0xc3]), (b"data", bytes(data)), (b"dtype", text(dtype)), (b"shape", axes)];
        let entries = entries.map(|(key, value)| [bytes(key), value].concat()).concat();
        [vec![0x84], entries].concat()
    };
    let state: Vec<u8> = scene.state().iter().flat_map(|value| value.to_le_bytes()).collect();
    let picture = array("|u1", &[32, 32, 3], pads::picture(&scene).as_raw());
    let entries =
        [("observation/image", picture), ("observation/state", array("<f4", &[2], &state)), ("prompt", text(prompt))];
    let entries = entries.map(|(key, value)| [text(key), value].concat()).concat();
    [vec![0x83], entries].concat()
}

/// Returns the next message, which must be there.
async fn hear(socket: &mut Socket) -> Message {
    socket.next().await.expect("a message").expect("a whole message")
}

/// Sends what is refused; returns the reason, after which the connection must end.
async fn refused(address: SocketAddr, message: Message) -> String {
    let mut socket = connect(address, None).await.unwrap();
    hear(&mut socket).await;
    socket.send(message).await.unwrap();
    let Message::Text(reason) = hear(&mut socket).await else { panic!("no reason") };
    let Message::Close(Some(frame)) = hear(&mut socket).await else { panic!("no end") };
    assert_eq!(u16::from(frame.code), 1011);
    reason.to_string()
}

async fn is_answered(socket: &mut Socket) {
    socket.send(Message::Binary(observation("go to the blue pad").into())).await.unwrap();
    let Message::Binary(answer) = hear(socket).await else { panic!("no actions") };
    let values = 4 * 2 * CHUNK_SIZE;
    assert!(answer.windows(7).any(|window| window == b"actions") && answer.len() > values, "{answer:?}");
}

#[tokio::test]
async fn bad_messages_end_their_connection_and_no_other() {
    served(Protocol::OpenPi, None, |address| async move {
        let mut patient = connect(address, None).await.unwrap();
        assert!(matches!(hear(&mut patient).await, Message::Binary(_)), "the server speaks first");
        let good = observation("go to the red pad");
        let cut = Message::Binary(good[..good.len() / 2].to_vec().into());
        assert!(refused(address, cut).await.contains("cut off"));
        assert!(refused(address, Message::Text("hello".into())).await.contains("MessagePack"));
        assert!(refused(address, Message::Binary(vec![0x91; 4096].into())).await.contains("nested"));
        let other = String::from_utf8_lossy(&good).contains("|u1");
        assert!(other);
        let at = good.windows(3).position(|window| window == b"|u1").unwrap();
        let mut objects = good.clone();
        objects[at..at + 3].copy_from_slice(b"|O1");
        assert!(refused(address, Message::Binary(objects.into())).await.contains("|O1"));
        let large = Message::Binary(vec![0; MAX_MESSAGE + 1].into());
        assert!(refused(address, large).await.contains("more than the limit of 67108864"));
        assert!(refused(address, Message::Binary(observation("panic").into())).await.contains("failed"));
        // Who was there before all of that is still served.
        is_answered(&mut patient).await;
        is_answered(&mut patient).await;
        assert!(get(address, "/healthz").await.ends_with("OK\n"));
        assert!(get(address, "/secrets").await.starts_with("HTTP/1.1 404"));
        assert!(get(address, "/").await.starts_with("HTTP/1.1 426"));
    })
    .await;
}

/// Returns a client in memory that has sent what an openpi server refuses, and that server.
async fn refused_in_memory() -> (WebSocketStream<DuplexStream>, JoinHandle<Result<(), String>>) {
    let (actor, spec) = Actor::start(|| Ok(Box::new(Expert::new()))).unwrap();
    let names = Names::new(&spec, &[], &[], None).unwrap();
    let dialogue = Protocol::OpenPi.begin(Arc::new(Offer { spec, names }));
    let (here, there) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(talk(there, dialogue, actor));
    let mut socket = WebSocketStream::from_raw_socket(here, Role::Client, None).await;
    assert!(matches!(socket.next().await, Some(Ok(Message::Binary(_)))), "the server speaks first");
    socket.send(Message::Text("hello".into())).await.unwrap();
    (socket, server)
}

/// A client that answers the close waits for the server to hang up. On this clock, which stands still while anything can go on, a
/// wait of the server's would show.
#[tokio::test(start_paused = true)]
async fn who_closes_as_told_is_hung_up_on_at_once() {
    let (mut socket, server) = refused_in_memory().await;
    let begun = tokio::time::Instant::now();
    assert!(matches!(socket.next().await, Some(Ok(Message::Text(_)))));
    assert!(matches!(socket.next().await, Some(Ok(Message::Close(Some(_))))));
    // The close is answered while the end is awaited.
    assert!(!matches!(socket.next().await, Some(Ok(_))));
    assert!(server.await.unwrap().unwrap_err().contains("MessagePack"));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

/// Hears a message once it is let.
struct Slow(flume::Receiver<()>);

impl Dialogue for Slow {
    fn greeting(&self) -> Option<Vec<u8>> {
        None
    }

    fn hear(&mut self, _: &[u8], _: f64) -> Heard {
        let is_let = self.0.recv_timeout(Duration::from_secs(20)).is_ok();
        Heard::Reply(if is_let { Reply::none() } else { Reply::end("nothing went on meanwhile") })
    }

    fn answer(&mut self, _: Result<Actions, String>, _: Timing, _: f64) -> Reply {
        Reply::none()
    }

    fn refuse(&mut self, _: &str, _: f64) -> Reply {
        Reply::none()
    }
}

#[tokio::test]
async fn a_message_that_is_read_for_long_delays_no_other() {
    let (actor, _) = Actor::start(|| Ok(Box::new(Expert::new()))).unwrap();
    let (go, wait) = flume::bounded(1);
    let (here, there) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(talk(there, Box::new(Slow(wait)), actor));
    let mut socket = WebSocketStream::from_raw_socket(here, Role::Client, None).await;
    socket.send(Message::Binary(vec![0].into())).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    go.send(()).unwrap();
    drop(socket);
    server.await.unwrap().unwrap();
}

/// The server reads what comes behind a refused message to its end, also where it is no message: a socket that is closed with bytes
/// unread takes the answer from its client.
#[tokio::test]
async fn bytes_behind_a_refused_message_are_read() {
    let (mut socket, server) = refused_in_memory().await;
    // More than is buffered in between.
    socket.get_mut().write_all(&[0xff; 1 << 20]).await.unwrap();
    socket.get_mut().shutdown().await.unwrap();
    assert!(server.await.unwrap().unwrap_err().contains("MessagePack"));
}

#[tokio::test]
async fn vla_eval_is_told_of_errors_and_goes_on() {
    served(Protocol::VlaEval, None, |address| async move {
        let mut socket = connect(address, None).await.unwrap();
        for _ in 0..2 {
            socket.send(Message::Binary(vec![0xc1].into())).await.unwrap();
            let Message::Binary(answer) = hear(&mut socket).await else { panic!("no error") };
            assert!(answer.windows(5).any(|window| window == b"error"));
        }
        assert!(get(address, "/health").await.contains(r#"{"status": "ok"}"#));
    })
    .await;
}

#[tokio::test]
async fn clients_need_the_key_and_health_does_not() {
    served(Protocol::OpenPi, Some("secret"), |address| async move {
        for key in [None, Some("other")] {
            let Err(Error::Http(refused)) = connect(address, key).await else { panic!("let in with {key:?}") };
            assert_eq!(refused.status(), 401);
        }
        let mut socket = connect(address, Some("secret")).await.unwrap();
        hear(&mut socket).await;
        is_answered(&mut socket).await;
        assert!(get(address, "/healthz").await.ends_with("OK\n"));
    })
    .await;
}

#[tokio::test]
async fn health_is_answered_where_all_places_are_taken() {
    served(Protocol::OpenPi, None, |address| async move {
        let mut sockets = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let mut socket = connect(address, None).await.unwrap();
            hear(&mut socket).await;
            sockets.push(socket);
        }
        assert!(get(address, "/healthz").await.ends_with("OK\n"));
        let Err(Error::Http(refused)) = connect(address, None).await else { panic!("let in") };
        assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (503, true));
        is_answered(&mut sockets[0]).await;
    })
    .await;
}

#[tokio::test]
async fn the_machine_of_a_silent_client_is_asked_whether_it_is_there() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    keep_alive(&stream).unwrap();
    assert!(socket_keepalive(&stream).unwrap());
    assert_eq!(tcp_keepidle(&stream).unwrap(), SILENCE);
}

#[tokio::test]
async fn other_machines_are_not_let_in_unless_that_is_said() {
    let door = Door { host: "0.0.0.0".into(), port: 0, key: Some("secret".into()), is_open: false };
    assert!(door.reserve().await.err().unwrap().to_string().contains("--insecure-allow-plaintext"));
}

/// A policy is loaded meanwhile.
#[tokio::test]
async fn connections_are_refused_at_an_address_that_is_reserved() {
    let door = |port| Door { host: "127.0.0.1".into(), port, key: None, is_open: false };
    let reserved = door(0).reserve().await.unwrap();
    let address = reserved.address().unwrap();
    assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let (actor, spec) = Actor::start(|| Ok(Box::new(Expert::new()))).unwrap();
    let names = Names::new(&spec, &[], &[], None).unwrap();
    let server = Server::open(reserved, Protocol::OpenPi, Offer { spec, names }, actor, Box::new(|_| ())).unwrap();
    assert_eq!(server.address().unwrap(), address);
    let taken = door(address.port()).reserve().await.err().unwrap();
    assert!(matches!(taken, ServeError::Taken { .. }), "{taken}");
    server.run(async { assert!(get(address, "/healthz").await.ends_with("OK\n")) }).await.unwrap();
}

#[tokio::test]
async fn a_port_that_is_taken_is_said_with_the_option() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let door = Door { host: "127.0.0.1".into(), port, key: None, is_open: false };
    let error = super::openai::Server::open(door).await.err().unwrap().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}: another program listens there")), "{error}");
    assert!(error.contains("--port"), "{error}");
}
