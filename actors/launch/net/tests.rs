//! Real sockets: who gets in, who does not, and what they are told.

use super::admit::{Stranger, admit};
use super::error::Refusal;
use super::*;
use crate::launch::join::{Down, Up};
use loongforge_core::config::Address;
use loongforge_core::message::Role;
use loongforge_core::transport::link;
use rustls::pki_types::UnixTime;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DAY: Duration = Duration::from_secs(24 * 3600);
const SCHEDULER: Party = Party::Actor(Role::Scheduler);
const ENCODER: Party = Party::Actor(Role::Encoder);

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Returns a folder with the certificates of a run.
fn certificates(run: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    new_authority(dir.path(), run, DAY).unwrap();
    Party::ALL.into_iter().for_each(|party| issue(dir.path(), run, party, DAY).unwrap());
    dir
}

fn security(run: &str, party: Party, dir: &Path) -> Security {
    Security::with_certificates(run, party, dir).unwrap()
}

fn hello(role: Role) -> Up {
    Up::Hello { config: "abc".into(), role, pool: loongforge_core::message::ActorId::new(role, 0).pool, index: None }
}

fn loopback() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn a_file_at_the_address_stays_and_a_socket_that_nobody_has_is_replaced() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let [file, folder, socket] = ["file", "folder", "socket"].map(|name| dir.path().join(name));
        std::fs::write(&file, "mine").unwrap();
        std::fs::create_dir(&folder).unwrap();
        let plain = Security::plain("a");
        for path in [&file, &folder] {
            let error = Listener::bind(&Address::Unix(path.clone()), &plain).await.err().unwrap();
            assert!(error.to_string().contains("a file of this name exists, and it is not a socket"), "{error}");
        }
        assert!(std::fs::read_to_string(&file).unwrap() == "mine" && folder.is_dir());
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        Listener::bind(&Address::Unix(socket), &plain).await.unwrap();
    });
}

/// Lets everyone in who may come, and says `Assigned` to each.
async fn serve(security: &Security, at: &Address) -> (Address, tokio::task::JoinHandle<()>) {
    let listener = Listener::bind(at, security).await.unwrap();
    let address = listener.address().clone();
    let task = tokio::spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let (mut sender, mut receiver) = link::<Down, Up>(stream);
            if let Ok(Some(Up::Hello { role, .. })) = receiver.recv().await {
                let _ = sender.send(&Down::Assigned(loongforge_core::message::ActorId::new(role, 0))).await;
                let _ = receiver.recv().await;
            }
        }
    });
    (address, task)
}

/// Says `role` to a scheduler, and returns its first answer or an error.
async fn try_join(address: &Address, security: &Security, role: Role) -> Result<Down, String> {
    let stream = connect(address, security, Some(Role::Scheduler)).await.map_err(|error| error.to_string())?;
    let (mut sender, mut receiver) = link::<Up, Down>(stream);
    // Where the peer has closed already, its answer is worth more than this error.
    let _ = sender.send(&hello(role)).await;
    let said = receiver.recv().await.map_err(|error| error.to_string())?;
    said.ok_or_else(|| "closed without a word".into())
}

fn assigned(role: Role) -> Result<Down, String> {
    Ok(Down::Assigned(loongforge_core::message::ActorId::new(role, 0)))
}

#[test]
fn every_role_of_the_run_comes_in_and_nobody_else() {
    let (ours, theirs) = (certificates("a run"), certificates("a run"));
    let (other_run, mixed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Signed by our authority for another run: one authority may serve a whole cluster.
    for name in ["ca.pem", "ca.key"] {
        std::fs::copy(ours.path().join(name), other_run.path().join(name)).unwrap();
    }
    let make = |party| issue_as(other_run.path(), "a run", "other", party);
    [SCHEDULER, ENCODER].into_iter().for_each(make);
    run(async {
        let (address, _task) = serve(&security("a run", SCHEDULER, ours.path()), &loopback()).await;
        for role in [Role::Data, Role::Encoder, Role::Foundation] {
            let mine = security("a run", Party::Actor(role), ours.path());
            assert_eq!(try_join(&address, &mine, role).await, assigned(role));
        }
        // An encoder that says it is a foundation.
        let encoder = security("a run", ENCODER, ours.path());
        let said = try_join(&address, &encoder, Role::Foundation).await.unwrap();
        let Down::Refused { reason } = said else { panic!("{said:?}") };
        assert_eq!(reason, "its certificate is for the role encoder, but it claims to be foundation");
        // Another authority: each finds the other out.
        let stranger = security("a run", ENCODER, theirs.path());
        let error = try_join(&address, &stranger, Role::Encoder).await.unwrap_err();
        assert!(error.contains("invalid peer certificate"), "{error}");
        // One that trusts us, with a certificate of somebody else's.
        for name in ["encoder.pem", "encoder.key"] {
            std::fs::copy(theirs.path().join(name), mixed.path().join(name)).unwrap();
        }
        std::fs::copy(ours.path().join("ca.pem"), mixed.path().join("ca.pem")).unwrap();
        let stranger = security("a run", ENCODER, mixed.path());
        let error = try_join(&address, &stranger, Role::Encoder).await.unwrap_err();
        assert!(error.contains("alert"), "{error}");
        let impostor = serve(&security("a run", SCHEDULER, theirs.path()), &loopback()).await.0;
        let error = try_join(&impostor, &encoder, Role::Encoder).await.unwrap_err();
        assert!(error.contains("invalid peer certificate"), "{error}");
        // Another run's, with our authority.
        let stranger = security("other", ENCODER, other_run.path());
        let error = try_join(&address, &stranger, Role::Encoder).await.unwrap_err();
        assert!(error.contains("for run `a run`, this is `other`"), "{error}");
        let other = serve(&security("other", SCHEDULER, other_run.path()), &loopback()).await.0;
        let error = try_join(&other, &encoder, Role::Encoder).await.unwrap_err();
        assert!(error.contains("for run `other`, this is `a run`"), "{error}");
        // A data actor's certificate does not make a scheduler; a foundation's is none, though it listens for edges.
        for party in [Party::Actor(Role::Data), Party::Actor(Role::Foundation), Party::Operator] {
            let impostor = serve(&security("a run", party, ours.path()), &loopback()).await.0;
            let error = try_join(&impostor, &encoder, Role::Encoder).await.unwrap_err();
            assert!(error.contains(&format!("for the role {party}")), "{error}");
        }
    });
}

/// The authority of run `of` signs for run `run`.
fn issue_as(dir: &Path, of: &str, run: &str, party: Party) {
    super::certs::issue_for(dir, of, run, party, DAY).unwrap();
}

#[test]
fn what_has_expired_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    new_authority(dir.path(), "a", DAY).unwrap();
    issue(dir.path(), "a", SCHEDULER, DAY).unwrap();
    // Its time was over an hour ago.
    super::certs::issue_expired(dir.path(), "a", ENCODER, 3600).unwrap();
    let error = Security::with_certificates("a", ENCODER, dir.path()).err().unwrap().to_string();
    assert!(error.contains("encoder.pem: certificate expired") && error.contains("loongforge certs add"), "{error}");
    // A process that was started while it was valid.
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let then = UnixTime::since_unix_epoch(since_epoch - Duration::from_secs(7200));
    let encoder = Security::with_certificates_at("a", ENCODER, dir.path(), then).unwrap();
    run(async {
        let (address, _task) = serve(&security("a", SCHEDULER, dir.path()), &loopback()).await;
        let error = try_join(&address, &encoder, Role::Encoder).await.unwrap_err();
        assert!(error.contains("CertificateExpired"), "{error}");
    });
}

#[test]
fn plain_text_and_tls_that_meet_are_told_so() {
    let dir = certificates("a");
    run(async {
        let secure = serve(&security("a", SCHEDULER, dir.path()), &loopback()).await.0;
        let said = try_join(&secure, &Security::plain("a"), Role::Encoder).await.unwrap();
        let Down::Refused { reason } = said else { panic!("{said:?}") };
        assert!(reason.contains("it uses plain text"), "{reason}");
        let plain = serve(&Security::plain("a"), &loopback()).await.0;
        let error = try_join(&plain, &security("a", ENCODER, dir.path()), Role::Encoder).await.unwrap_err();
        assert!(error.contains("this run plain text"), "{error}");
    });
}

#[test]
fn loopback_and_unix_sockets_need_no_login_and_nothing_else_does_without() {
    let dir = tempfile::tempdir().unwrap();
    let plain = Security::plain("a");
    run(async {
        for at in [loopback(), "[::1]:0".parse().unwrap(), Address::Unix(dir.path().join("run"))] {
            // A machine may be without IPv6.
            if Listener::bind(&at, &plain).await.is_err() && at.to_string().starts_with('[') {
                continue;
            }
            let (address, _task) = serve(&plain, &at).await;
            assert_eq!(try_join(&address, &plain, Role::Encoder).await, assigned(Role::Encoder));
        }
        for at in ["0.0.0.0:0", "[::]:0", "10.1.2.3:6001", "head:6001"] {
            let at = at.parse().unwrap();
            let error = Listener::bind(&at, &plain).await.err().unwrap().to_string();
            assert!(error.starts_with("error[LF0501]") && error.contains("--tls"), "{error}");
            let error = connect(&at, &plain, None).await.err().unwrap().to_string();
            assert!(error.starts_with("error[LF0501]"), "{error}");
        }
        let anywhere = "0.0.0.0:0".parse().unwrap();
        assert!(Listener::bind(&anywhere, &Security::plain("a").on_any_network(true)).await.is_ok());
        let certified = certificates("a");
        assert!(Listener::bind(&anywhere, &security("a", SCHEDULER, certified.path())).await.is_ok());
    });
}

#[test]
fn garbage_and_long_hellos_do_not_come_in_and_the_next_one_does() {
    let dir = certificates("a");
    run(async {
        for security in [Security::plain("a"), security("a", SCHEDULER, dir.path())] {
            let (address, _task) = serve(&security, &loopback()).await;
            let Address::Tcp { port, .. } = address else { unreachable!("it is TCP") };
            let mut long = b"LFRG\x02\x00".to_vec();
            long.extend_from_slice(&(1u32 << 20).to_le_bytes());
            long.extend_from_slice(&[0; 64]);
            let mut torn = b"LFRG\x02\x00".to_vec();
            torn.extend_from_slice(&100u32.to_le_bytes());
            for words in
                [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], &[0x16; 100], &[0xff; 70_000], &long, &torn, b"L", b""]
            {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                // The peer may hang up on the first byte.
                let _ = stream.write_all(words).await;
                let _ = stream.shutdown().await;
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer).await;
                assert!(answer.len() < 1000, "{} bytes of answer", answer.len());
            }
            let role = Role::Encoder;
            let mine = if security.tls.is_some() {
                super::tests::security("a", ENCODER, dir.path())
            } else {
                security.clone()
            };
            assert_eq!(try_join(&address, &mine, role).await, assigned(role));
        }
    });
}

#[test]
fn a_probe_that_looks_whether_somebody_listens_is_no_peer_that_is_refused() {
    let dir = certificates("a");
    run(async {
        for security in [Security::plain("a"), security("a", SCHEDULER, dir.path())] {
            let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            drop(TcpStream::connect(socket.local_addr().unwrap()).await.unwrap());
            let stranger = Stranger::Tcp(socket.accept().await.unwrap().0);
            let refusal = admit(stranger, &loopback(), &security).await.err().unwrap();
            assert_eq!(refusal, Refusal::Left);
        }
    });
}

#[test]
fn nobody_waits_for_more_of_words_that_begin_wrong() {
    run(async {
        let listener = Listener::bind(&loopback(), &Security::plain("a")).await.unwrap();
        let Address::Tcp { port, .. } = listener.address().clone() else { unreachable!("it is TCP") };
        for words in [&b"\r\n\r\n"[..], b"L\n"] {
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stranger.write_all(words).await.unwrap();
            let mut stream = listener.accept().await.unwrap();
            // Fewer bytes than a header has, and the connection stays open.
            let said = tokio::time::timeout(Duration::from_secs(10), first_message::<Up>(&mut stream)).await;
            assert!(said.expect("the first wrong byte ends it").is_err());
        }
    });
}

#[test]
fn who_says_nothing_is_put_out_and_makes_room() {
    let dir = certificates("a");
    run(async {
        let impatient = security("a", SCHEDULER, dir.path()).patient_for(Duration::from_millis(300));
        let (address, _task) = serve(&impatient, &loopback()).await;
        let Address::Tcp { port, .. } = address else { unreachable!("it is TCP") };
        // More than may be strangers at a time, some of them half way.
        let mut quiet = Vec::new();
        for at in 0..100 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            if at % 2 == 0 {
                stream.write_all(&[0x16, 3, 1, 2]).await.unwrap();
            }
            quiet.push(stream);
        }
        // It waits until the first are put out. A member tries again and again, too.
        let mine = security("a", ENCODER, dir.path());
        let joined = async {
            loop {
                if let Ok(Down::Assigned(actor)) = try_join(&address, &mine, Role::Encoder).await {
                    return actor;
                }
            }
        };
        assert_eq!(joined.await.role, Role::Encoder);
        let mut byte = [0];
        assert!(matches!(quiet[0].read(&mut byte).await, Ok(0) | Err(_)));
    });
}

#[test]
fn keys_that_others_may_read_and_certificates_of_others_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let dir = certificates("a");
    let load =
        |run: &str, party| Security::with_certificates(run, party, dir.path()).err().map(|error| error.to_string());
    assert_eq!(load("a", ENCODER), None);
    let other = load("b", ENCODER).unwrap();
    assert!(other.contains("encoder.pem: its certificate is for run `a`, this is `b`; give `--tls`"), "{other}");
    let copy = |from: &str, to: &str| {
        std::fs::copy(dir.path().join(from), dir.path().join(to)).unwrap();
    };
    copy("encoder.pem", "data.pem");
    let data = Party::Actor(Role::Data);
    assert!(load("a", data).unwrap().contains("data.pem: its certificate is for the role encoder"));
    std::fs::write(dir.path().join("data.pem"), "nothing").unwrap();
    assert!(load("a", data).unwrap().contains("data.pem: no usable certificate or key"));
    copy("ca.pem", "operator.pem");
    let nobody = Security::of_party(Party::Operator, dir.path()).err().unwrap().to_string();
    assert!(nobody.contains("operator.pem: its certificate names no run and role"), "{nobody}");
    copy("operator.key", "scheduler.key");
    let mixed = load("a", SCHEDULER).unwrap();
    let names = ["scheduler.key: no usable certificate or key: it cannot be used with ", "scheduler.pem: "];
    assert!(names.iter().all(|name| mixed.contains(name)), "{mixed}");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(dir.path().join("encoder.key"), open).unwrap();
    assert!(load("a", ENCODER).unwrap().contains("encoder.key is readable by others"));
    // As Kubernetes has them.
    for (from, to) in [("ca.pem", "ca.crt"), ("foundation.pem", "tls.crt"), ("foundation.key", "tls.key")] {
        copy(from, to);
    }
    assert_eq!(load("a", Party::Actor(Role::Foundation)), None);
    assert!(matches!(new_authority(dir.path(), "a", DAY), Err(NetError::File { .. })));
}

#[test]
fn certificates_are_replaced_only_by_new_ones() {
    use std::os::unix::fs::PermissionsExt;
    let dir = certificates("a");
    let read = || ["scheduler.pem", "scheduler.key"].map(|name| std::fs::read(dir.path().join(name)).unwrap());
    let old = read();
    // Left by a call that was killed.
    std::fs::write(dir.path().join(".scheduler.pem.part"), "half").unwrap();
    renew(dir.path(), "a", SCHEDULER, DAY).unwrap();
    security("a", SCHEDULER, dir.path());
    let new = read();
    // The key fits the old certificate and the new one: there is no moment at which the two files are no pair.
    assert!(old[0] != new[0] && old[1] == new[1]);
    // A key that no process would take is replaced.
    let key = dir.path().join("scheduler.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    renew(dir.path(), "a", SCHEDULER, DAY).unwrap();
    security("a", SCHEDULER, dir.path());
    std::fs::remove_file(key).unwrap();
    renew(dir.path(), "a", SCHEDULER, DAY).unwrap();
    security("a", SCHEDULER, dir.path());
    let new = read();
    assert_ne!(old[1], new[1]);
    let error = renew(dir.path(), "b", SCHEDULER, DAY).unwrap_err().to_string();
    assert!(error.contains("scheduler.pem is the certificate of run `a`, not of `b`"), "{error}");
    assert_eq!(read(), new);
    assert!(std::fs::read_dir(dir.path()).unwrap().all(|found| found.unwrap().path().extension().unwrap() != "part"));
    // The authority's key is kept elsewhere, as the examples advise.
    std::fs::rename(dir.path().join("ca.key"), dir.path().join("elsewhere")).unwrap();
    assert!(matches!(renew(dir.path(), "a", SCHEDULER, DAY), Err(NetError::File { .. })));
    assert_eq!(read(), new);
}

#[test]
fn a_second_listener_does_not_take_the_first_ones_socket() {
    let dir = tempfile::tempdir().unwrap();
    let at = Address::Unix(dir.path().join("run"));
    let plain = Security::plain("a");
    run(async {
        let first = Listener::bind(&at, &plain).await.unwrap();
        assert!(Listener::bind(&at, &plain).await.is_err());
        drop(first);
        assert!(!dir.path().join("run").exists());
        assert!(Listener::bind(&at, &plain).await.is_ok());
    });
}

#[test]
fn refusals_are_told_in_words() {
    for (refusal, words) in [
        (Refusal::TooSlow { seconds: 5 }, "within 5 s"),
        (Refusal::TooLong { len: 9, max: 8 }, "9 bytes"),
        (Refusal::OtherUser { uid: 7 }, "user 7"),
    ] {
        assert!(refusal.to_string().contains(words), "{refusal}");
    }
}
