//! The page of a run, over real sockets, and a run that is watched.

use crate::fake::{Script, engine, run_spec, spec};
use loongforge_actors::watch::{TRACE_FILE, Target, WATCH_FILE, Watch, get, has_ended};
use loongforge_actors::{Assignment, EngineFactory, Observer, Publisher, RunSpec, run_in_process};
use loongforge_core::config::{Address, Otlp, TimeSpan};
use loongforge_core::message::{Activity, ActorId, SkippedSample, Trace, TraceSpan};
use loongforge_core::observe::{Board, News, RunInfo, StepMetrics};
use loongforge_core::schedule::*;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

fn loopback() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn start(at: &Address, dir: &Path) -> Watch {
    let info = RunInfo { name: "a run".into(), num_steps: 3, ..RunInfo::default() };
    Watch::start(at, dir, Board::new(info, 100, 10)).unwrap()
}

fn step(step: u64) -> News {
    News::Step(Box::new(StepMetrics { step, loss: 0.5, step_ms: 1.0, ..StepMetrics::default() }), Vec::new())
}

fn json(target: &Target, path: &str) -> serde_json::Value {
    serde_json::from_slice(&get(target, path).unwrap()).unwrap()
}

/// News are taken when the server gets to it.
fn wait_for(target: &Target, done: u64) -> serde_json::Value {
    loop {
        let status = json(target, "/status.json");
        if status["done"] == done {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a collector that answers each body with `status`, and tells of it.
fn collector(status: &'static str) -> (Address, flume::Receiver<(String, serde_json::Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let (tell, told) = flume::bounded(100);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut path, mut len) = (String::new(), 0);
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if let Some(rest) = line.strip_prefix("POST ") {
                    path = rest.split(' ').next().unwrap().to_owned();
                }
                if let Some(count) = line.strip_prefix("Content-Length: ") {
                    len = count.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
            }
            let mut body = vec![0; len];
            stream.read_exact(&mut body).unwrap();
            write!(stream.get_mut(), "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
            if tell.send((path, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
        }
    });
    (address, told)
}

#[test]
fn a_collector_gets_the_last_figures_and_spans_when_the_run_ends() {
    let dir = tempfile::tempdir().unwrap();
    for (status, bodies) in [("200 OK", 2), ("503 Service Unavailable", 1)] {
        let (endpoint, told) = collector(status);
        let otlp = Otlp { endpoint, every: TimeSpan::from_secs(3600), traces: true };
        let board = Board::new(RunInfo { name: "a run".into(), num_steps: 3, ..RunInfo::default() }, 100, 10);
        let watch = Watch::start_with(&loopback(), Some(&otlp), dir.path(), board).unwrap();
        let span = TraceSpan { activity: Activity::Encode, step: 0, index: None, start: 1, end: 5 };
        watch.tell(News::Trace(ActorId::encoder(0), Trace { now: 6, spans: vec![span], ..Trace::default() }));
        watch.tell(step(0));
        drop(watch);
        let found: Vec<(String, serde_json::Value)> = told.drain().collect();
        let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["/v1/metrics", "/v1/traces"][..bodies]);
        let metrics = found[0].1["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
        let loss = metrics.iter().find(|metric| metric["name"] == "loongforge.loss").unwrap();
        assert_eq!(loss["gauge"]["dataPoints"][0]["asDouble"], 0.5);
        if let Some((_, traces)) = found.get(1) {
            assert_eq!(traces["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"], "encode");
        }
    }
}

fn say(target: &Target, words: &[u8]) -> String {
    let Address::Tcp { host, port } = &target.address else { unreachable!("it is TCP here") };
    let mut stream = TcpStream::connect((&**host, *port)).unwrap();
    stream.write_all(words).unwrap();
    let mut answer = Vec::new();
    // A server that closes on words it has not read resets the connection: what it said before is here already.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_run_s_folder_says_where_its_page_is_and_nobody_else_may_read_it() {
    let dir = tempfile::tempdir().unwrap();
    for at in [loopback(), Address::Unix(dir.path().join("page"))] {
        let watch = start(&at, dir.path());
        let word = dir.path().join(WATCH_FILE);
        assert_eq!(word.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let target = Target::find(dir.path().to_str().unwrap()).unwrap();
        watch.tell(step(0));
        assert_eq!(wait_for(&target, 1)["run"]["name"], "a run");
        assert_eq!(json(&target, "/history.json")["loss"], serde_json::json!([0.5]));
        let metrics = String::from_utf8(get(&target, "/metrics").unwrap()).unwrap();
        assert!(metrics.contains("loongforge_loss{run=\"a run\"} 0.5\n"), "{metrics}");
        let page = String::from_utf8(get(&target, "/").unwrap()).unwrap();
        assert!(page.contains("<script nonce=\"") && !page.contains("NONCE") && !page.contains("https:"));
        assert!(!has_ended(dir.path()) && json(&target, "/status.json")["memory_bytes"].as_u64().unwrap() > 1 << 20);
        drop(watch);
        assert!(has_ended(dir.path()) && dir.path().join(TRACE_FILE).exists());
        assert!(get(&target, "/").unwrap_err().to_string().starts_with("no answer from"));
        let ended = Target::find(dir.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(ended.ends_with("has ended"), "{ended}");
    }
}

#[test]
fn a_run_that_goes_on_keeps_token_and_port() {
    let dir = tempfile::tempdir().unwrap();
    let word = dir.path().join(WATCH_FILE);
    let before = start(&loopback(), dir.path()).url();
    let again = start(&loopback(), dir.path());
    assert_eq!(again.url(), before);
    // The port is taken: another one, and the same token.
    let beside = tempfile::tempdir().unwrap();
    fs::copy(&word, beside.path().join(WATCH_FILE)).unwrap();
    let other = start(&loopback(), beside.path());
    let token = |url: &str| url.split_once("token=").unwrap().1.to_owned();
    assert!(other.url() != before && token(&other.url()) == token(&before));
    drop((again, other));
    // What others may read, or no run has drawn, is not taken up.
    let open = || fs::set_permissions(&word, fs::Permissions::from_mode(0o644)).unwrap();
    let invent = || fs::write(&word, fs::read_to_string(&word).unwrap().replace("token\":\"", "token\":\"x")).unwrap();
    let spoilers: [&dyn Fn(); 2] = [&open, &invent];
    for spoil in spoilers {
        let before = start(&loopback(), dir.path()).url();
        spoil();
        assert_ne!(token(&start(&loopback(), dir.path()).url()), token(&before));
        assert_eq!(word.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn the_printed_address_opens_the_page_and_a_wrong_token_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(&loopback(), dir.path());
    let target = Target::find(&watch.url()).unwrap();
    assert_eq!(json(&target, "/status.json")["state"], "starting");
    for token in ["", "0", &target.token[1..], &format!("{}0", target.token)] {
        let wrong = Target { token: token.to_owned(), ..target.clone() };
        for path in ["/", "/status.json", "/metrics", "/trace.json", "/nothing"] {
            let error = get(&wrong, path).unwrap_err().to_string();
            assert!(error.ends_with("answers 401 Unauthorized"), "{error}");
        }
    }
    assert!(get(&target, "/nothing").unwrap_err().to_string().ends_with("404 Not Found"));
}

#[test]
fn what_is_no_question_is_refused_and_the_next_one_answered() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(&loopback(), dir.path());
    let target = Target::find(&watch.url()).unwrap();
    assert!(say(&target, b"POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(say(&target, b"\x16\x03\x01\x02\x00\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(say(&target, &[b'a'; 9000]).starts_with("HTTP/1.1 431"));
}

/// More connections than are served at a time each wait for a message that never comes.
#[test]
fn connections_that_say_nothing_keep_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(&loopback(), dir.path());
    let target = Target::find(&watch.url()).unwrap();
    let quiet: Vec<TcpStream> = (0..200)
        .map(|_| {
            let Address::Tcp { host, port } = &target.address else { unreachable!("it is TCP here") };
            let mut stream = TcpStream::connect((&**host, *port)).unwrap();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost");
            stream
        })
        .collect();
    // The client would not wait until they have all been cut off for their silence.
    assert_eq!(json(&target, "/status.json")["state"], "starting");
    drop(quiet);
}

#[test]
fn only_this_machine_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let at = "0.0.0.0:0".parse().unwrap();
    let error = Watch::start(&at, dir.path(), Board::new(RunInfo::default(), 1, 1)).err().unwrap();
    assert!(error.to_string().contains("this machine only"), "{error}");
}

#[test]
fn a_flood_of_news_is_dropped_and_counted_and_never_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let watch = start(&loopback(), dir.path());
    let target = Target::find(&watch.url()).unwrap();
    // Far more than the queue holds; this thread would hang here if it waited for a reader.
    let client = get(&target, "/status.json");
    (0..200_000).for_each(|index| watch.tell(step(index)));
    assert!(client.is_ok());
    let status = loop {
        std::thread::sleep(Duration::from_millis(5));
        watch.tell(step(200_000));
        let status = json(&target, "/status.json");
        if status["done"] == 200_001 {
            break status;
        }
    };
    let (applied, lost) = (status["applied"].as_u64().unwrap(), status["lost_news"].as_u64().unwrap());
    assert!(applied + lost >= 200_001, "{applied} and {lost}");
}

/// Tells a watch what a run does.
struct Telling(Watch);

impl Observer for Telling {
    fn step(&mut self, summary: &StepSummary) {
        let metrics = StepMetrics { step: summary.step.0, loss: summary.loss, step_ms: 1.0, ..StepMetrics::default() };
        self.0.tell(News::Step(Box::new(metrics), summary.timings.clone()));
    }

    fn bad(&mut self, _: &[SkippedSample]) {}

    fn trace(&mut self, actor: ActorId, trace: Trace) {
        self.0.tell(News::Trace(actor, trace));
    }

    fn publisher(&mut self) -> Publisher {
        Box::new(|draft| Ok(draft.dir.clone()))
    }
}

#[test]
fn the_timeline_of_a_run_that_has_ended_lies_in_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let pools = PoolSizes::of_roles(1, 2, 1);
    let spec = RunSpec { lease: Duration::from_secs(5), ..run_spec(dir.path(), spec(&pools, 12)) };
    let make_engine =
        |it: Assignment| -> EngineFactory { Box::new(move || Ok(engine(it.me, it.pools.data, &Script::default()))) };
    run_in_process(spec, make_engine, Box::new(Telling(start(&loopback(), dir.path())))).unwrap();
    let trace: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join(TRACE_FILE)).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for (pid, actor) in ["data/0", "encoder/0", "encoder/1", "foundation/0"].into_iter().enumerate() {
        let names: Vec<_> = events.iter().filter(|event| event["pid"] == pid).map(|event| &event["name"]).collect();
        assert!(events.iter().any(|event| event["pid"] == pid && event["args"]["name"] == actor), "{actor}");
        // The stand-in for data actors names no steps; what it does is long past.
        assert!(pid == 0 || names.len() > 3, "{actor}: {names:?}");
    }
}
