//! Shards that lie elsewhere.

use std::sync::Arc;

use super::*;
use crate::data::source::patience::is_of_system;

#[test]
fn buckets_are_listed_and_read_by_ranges() {
    use object_store::ObjectStore;
    use object_store::memory::InMemory;

    use crate::data::source::remote::{Object, put, stat};
    use crate::store::register;

    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    register("s3://bucket", store.clone());
    put(&store, "d/a-0.tar", tar(&[("1.txt", b"zero")]));
    put(&store, "d/a-1.tar", tar(&[("1.txt", b"one")]));
    put(&store, "d/deep/a-2.tar", tar(&[("1.txt", b"two")]));
    put(&store, "d/p.png", b"P".to_vec());
    put(
        &store,
        "d/chat.jsonl",
        (json!({"messages": [{"role": "user", "content": "<image>"}], "images": ["p.png"]}).to_string() + "\n").into(),
    );
    put(&store, "d/m.png", b"M".to_vec());
    let masked = json!({"image": "p.png", "caption": "a", "mask": "m.png"});
    put(&store, "d/masked.jsonl", (masked.to_string() + "\n").into());
    let texts = |path: &str| {
        let source = open(&TrainFile::new(path)).unwrap();
        (0..source.len()).map(|index| shown(&source, index)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(texts("s3://bucket/d/a-{0..1}.tar"), "zero one");
    assert_eq!(texts("s3://bucket/d/*.tar"), "zero one");
    assert_eq!(texts("s3://bucket/d/"), "zero one");
    assert_eq!(texts("s3://bucket/d/**/*.tar"), "zero one two");
    assert_eq!(texts("s3://bucket/d/chat.jsonl"), "user: [P]");
    let masked = open(&TrainFile::new("s3://bucket/d/masked.jsonl")).unwrap().read(0).unwrap();
    assert_eq!(masked.media().into_iter().map(file).collect::<Vec<_>>(), ["[P]", "[M]"]);
    for (path, part) in [("s3://bucket/none.tar", "AWS_ACCESS_KEY_ID"), ("s3://bucket/e/*.tar", "no object matches")] {
        let error = open(&TrainFile::new(path)).err().unwrap().to_string();
        assert!(error.contains(part) && error.contains(path), "{error}");
    }
    // Chunks and ranges are the same bytes.
    let bytes: Vec<u8> = (0..9_000_000u32).map(|at| (at / 7) as u8).collect();
    put(&store, "big", bytes.clone());
    let object = Object::open(&stat("s3://bucket/big").unwrap()).unwrap();
    for (at, len) in [(0, 10), (4_194_300, 100), (4_194_304, 5), (8_999_990, 10), (3, 8_900_000)] {
        assert_eq!(object.scan_at(at, len).unwrap(), &bytes[at as usize..at as usize + len]);
        assert_eq!(object.read_at(at, len).unwrap(), &bytes[at as usize..at as usize + len]);
    }
}

/// Starts a server of one file, which knows ranges.
fn serve(bytes: Vec<u8>) -> String {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let Some(request) = lines.first() else { continue };
            let range =
                lines.iter().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
            let (status, extra, body) = match range.as_deref().and_then(|range| range.split_once('-')) {
                _ if request.contains("gone") => ("404 Not Found", String::new(), &b""[..]),
                Some((from, to)) => {
                    let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
                    let extra = format!("Content-Range: bytes {from}-{to}/{}\r\n", bytes.len());
                    ("206 Partial Content", extra, &bytes[from..=to])
                }
                None => ("200 OK", String::new(), &bytes[..]),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"v1\"\r\nLast-Modified: Tue, 01 Oct 2024 12:00:00 GMT\r\nConnection: close\r\n{extra}\r\n",
                body.len()
            );
            let body = if request.starts_with("HEAD") { &[] } else { body };
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    format!("http://{address}")
}

#[test]
fn shards_are_read_over_http() {
    let server = serve(tar(&[("1.txt", b"one"), ("2.txt", b"two")]));
    let source = open(&TrainFile::new(format!("{server}/d/s-{{0..1}}.tar").as_str())).unwrap();
    assert_eq!((0..4).map(|index| shown(&source, index)).collect::<Vec<_>>(), ["one", "two", "one", "two"]);
    let error = open(&TrainFile::new(format!("{server}/gone.tar").as_str())).err().unwrap().to_string();
    assert!(error.contains("gone.tar") && error.contains("cannot be read"), "{error}");
    // Of a part of an object, this ends a count too.
    assert!(is_of_system(&error), "{error}");
}
