//! Data sets of every kind, from files to contents.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value as Json, json};

use super::archive::tests::tar;
use super::stream::{Content, Source};
use super::{Conversation, MediaSource, Mixture};
use crate::config::{Format, Paths, Phase, TrainFile};
use crate::data::error::DataError;
use crate::data::locator::Locator;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }
}

fn open(file: &TrainFile) -> Result<Source, DataError> {
    Source::open(file, Phase::Midtrain, usize::MAX, str::len)
}

fn of(path: impl AsRef<Path>) -> Source {
    open(&TrainFile::new(path.as_ref())).unwrap()
}

fn conversation(source: &Source, index: usize) -> Conversation {
    match source.read(index).unwrap() {
        Content::Messages(conversation) => conversation,
        other => panic!("{other:?}"),
    }
}

/// The words of a sample, and its files: names, or bytes.
fn shown(source: &Source, index: usize) -> String {
    match source.read(index) {
        Ok(Content::Text(piece)) => piece.text,
        Ok(Content::Messages(conversation)) => {
            let turns: Vec<String> =
                conversation.turns.iter().map(|turn| format!("{}:{}", turn.role, turn.joined_text())).collect();
            let files: Vec<String> = conversation.media.iter().map(file).collect();
            format!("{} {}", turns.join(" "), files.join(" ")).trim_end().to_owned()
        }
        Ok(other) => panic!("{other:?}"),
        Err(bad) => format!("bad {}", bad.at),
    }
}

fn file(source: &MediaSource) -> String {
    let text = |locator: &Locator| match locator {
        Locator::Bytes { bytes, .. } => format!("[{}]", String::from_utf8_lossy(bytes)),
        other => format!("({})", Path::new(other.name()).file_name().unwrap().to_string_lossy()),
    };
    match source {
        MediaSource::Image(locator) | MediaSource::Audio(locator) => text(locator),
        MediaSource::Video(video) => video.locators.iter().map(text).collect(),
    }
}

fn chat(user: &str) -> Json {
    json!({"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": "ok"}]})
}

#[test]
fn every_layout_is_told_by_its_first_sample() {
    let folder = Folder::new();
    let sharegpt = json!([{"conversations": [{"from": "human", "value": "<image>a"}, {"from": "gpt", "value": "ok"}], "image": "p.jpg"}]);
    for (name, text, expected) in [
        ("m.jsonl", chat("a").to_string(), "user:a assistant:ok"),
        ("s.json", serde_json::to_string_pretty(&sharegpt).unwrap(), "user:a assistant:ok (p.jpg)"),
        ("a.jsonl", json!({"instruction": "a", "output": "ok"}).to_string(), "user:a assistant:ok"),
        ("t.jsonl", json!({"text": "a"}).to_string(), "a"),
        ("p.txt", "a\nb".to_owned(), "a"),
        ("e.jsonl", json!({"texts": [{"role": "user", "content": "a"}], "media": "text"}).to_string(), "user:a"),
        ("bad.jsonl", format!("no json\n{}", chat("a")), "bad 1"),
    ] {
        assert_eq!(shown(&of(folder.write(name, text)), 0), expected, "{name}");
    }
    let conversation = conversation(&of(folder.path("s.json")), 0);
    assert_eq!(conversation.media, [MediaSource::Image(Locator::File(folder.path("p.jpg")))]);
    for (name, text, part) in [
        ("x.jsonl", "{\"question\": 1, \"picture\": 2}", "[\"question\", \"picture\"]"),
        ("y.jsonl", "[1, 2]", "its first sample is 1"),
        ("z.jsonl", "no json", "not a sample"),
        ("w.jsonl", "\n", "no samples"),
        ("v.tar", "no tar", "not a tar archive"),
        ("u.parquet", "PAR1", "u.parquet"),
    ] {
        let error = open(&TrainFile::new(folder.write(name, text))).err().unwrap().to_string();
        assert!(error.contains(part) && error.contains(name), "{error}");
    }
    let columns = [("messages".to_owned(), "dialogue".to_owned()), ("images".to_owned(), "picture".to_owned())];
    let text = json!({"dialogue": [{"role": "user", "content": "<image>"}], "picture": "a.png"}).to_string();
    let file = TrainFile { columns: columns.into(), ..TrainFile::new(folder.write("c.jsonl", text)) };
    assert_eq!(shown(&open(&file).unwrap(), 0), "user: (a.png)");
}

#[test]
fn long_texts_are_cut_and_nothing_is_lost() {
    let folder = Folder::new();
    let long = "one two three four five sechs sieben ächtzehn ".repeat(9);
    let json = json!({"text": format!("{long}\n\"end\"")}).to_string();
    let plain = format!("short\n\n{long}\nlast");
    for (name, text) in [("a.txt", plain.as_str()), ("a.jsonl", json.as_str())] {
        let file = TrainFile::new(folder.write(name, text));
        // Two bytes a token, at most.
        let source = Source::open(&file, Phase::Pretrain, 32, |text| text.len().div_ceil(2)).unwrap();
        let mut documents = vec![String::new()];
        for index in 0..source.len() {
            let Content::Text(piece) = source.read(index).unwrap() else { panic!("a text") };
            assert!(piece.text.len() <= 54 && piece.begins == documents.last().unwrap().is_empty());
            documents.last_mut().unwrap().push_str(&piece.text);
            if piece.ends {
                documents.push(String::new());
            }
        }
        assert!(source.len() > 5);
        let expected = match name {
            "a.txt" => vec!["short".to_owned(), long.clone(), "last".to_owned(), String::new()],
            _ => vec![format!("{long}\n\"end\""), String::new()],
        };
        assert_eq!(documents, expected);
        assert_eq!(source.bad(source.len() - 1, String::new()).at, if name == "a.txt" { "4" } else { "1" });
    }
    let source = of(folder.write("e.jsonl", "{\"text\": \"\"}\n{\"text\": 1}\n{\"a\": 1}"));
    assert_eq!(source.read(0).unwrap_err().reason, "not a sample: an empty text");
    assert!((1..3).all(|index| source.read(index).unwrap_err().reason.contains("`text`")));
    let sft = |file: &TrainFile| Source::open(file, Phase::Sft, 9, str::len).err().unwrap().to_string();
    let error = sft(&TrainFile { format: Format::Plain, ..TrainFile::new("a.txt") });
    assert!(error.contains("train.phase") && error.contains("a.txt"), "{error}");
    assert!(sft(&TrainFile::new(folder.path("e.jsonl").as_str())).contains("train.phase"));
}

#[test]
fn shards_hold_samples_and_their_files() {
    let folder = Folder::new();
    let json = |value: Json| value.to_string().into_bytes();
    let crude = json(
        json!({"texts": [{"role": "user", "content": "<image><video>a"}], "media": "mix", "name": ["0_p.jpg", {"video": ["1_0.png", "1_1.png"]}]}),
    );
    let llava = json(
        json!({"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "ok"}], "image": "coco/1.png"}),
    );
    let chat = json(json!({"messages": [{"role": "user", "content": "<image>c"}]}));
    let leak = json(json!({"messages": [{"role": "user", "content": "<image>"}], "images": ["/etc/passwd"]}));
    folder
        .write("crude.tar", tar(&[("k.json", &crude), ("k.0_p.jpg", b"P"), ("k.1_0.png", b"F"), ("k.1_1.png", b"G")]));
    assert_eq!(shown(&of(folder.path("crude.tar")), 0), "user:a [P] [F][G]");
    let gz = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, bytes).unwrap();
        encoder.finish().unwrap()
    };
    folder.write("llava.tar.gz", gz(&tar(&[("1.json", &llava), ("1.jpg", b"Q")])));
    assert_eq!(shown(&of(folder.path("llava.tar.gz")), 0), "user:\nb assistant:ok [Q]");
    folder.write(
        "chat.tar.zst",
        zstd::encode_all(&tar(&[("a.json", &chat), ("a.webp", b"W"), ("b.json", &leak)])[..], 1).unwrap(),
    );
    let source = of(folder.path("chat.tar.zst"));
    assert_eq!(shown(&source, 0), "user:c [W]");
    let bad = source.read(1).unwrap_err();
    assert!(bad.at == "b" && bad.reason.contains("not in the archive"), "{bad}");
    folder.write("caption.tar", tar(&[("1.jpg", b"A"), ("1.txt", b"a cat")]));
    assert_eq!(shown(&of(folder.path("caption.tar")), 0), "user: assistant:a cat [A]");
    folder.write("text.tar", tar(&[("1.txt", b"hello")]));
    assert_eq!(shown(&of(folder.path("text.tar")), 0), "hello");
    let error = open(&TrainFile::new(folder.write("x.tar", tar(&[("1.cls", b"3"), ("1.jpg", b"A")])))).err().unwrap();
    assert!(error.to_string().contains("[\"cls\", \"jpg\"]"), "{error}");
}

#[test]
fn energon_folders_say_what_they_hold() {
    let folder = Folder::new();
    let question = |text: &str| json!([{"q": text, "a": ["yes", "no"]}]).to_string().into_bytes();
    for (shard, text) in [("s-0.tar", "first?"), ("s-1.tar", "second?"), ("s-2.tar", "held out?")] {
        folder.write(&format!("set/{shard}"), tar(&[("1.json", &question(text)), ("1.png", b"I")]));
    }
    folder.write(
        "set/.nv-meta/.info.yaml",
        "energon_version: 7\nshard_counts:\n  s-0.tar: 1\n  s-1.tar: 1\n  s-2.tar: 1\n",
    );
    folder.write(
        "set/.nv-meta/split.yaml",
        "exclude: []\nsplit_parts:\n  train: ['s-{0..1}.tar']\n  val: [s-2.tar]\n  test: []\n",
    );
    folder.write(
        "set/.nv-meta/dataset.yaml",
        "__module__: megatron.energon\n__class__: VQASample\nfield_map:\n  image: png\n  context: json[0][q]\n  answers: json[0][a]\n",
    );
    let source = of(folder.path("set"));
    assert_eq!(source.len(), 2);
    assert_eq!(shown(&source, 1), "user:second? assistant:yes [I]");
    // A shard that has lost samples since it was counted.
    folder.write("set/s-1.tar", tar(&[]));
    assert!(of(folder.path("set")).read(1).unwrap_err().reason.contains("it has changed"));
    std::fs::remove_file(folder.path("set/s-1.tar")).unwrap();
    assert!(open(&TrainFile::new(folder.path("set").as_str())).err().unwrap().to_string().contains("s-1.tar"));
    folder.write("set/.nv-meta/.info.yaml", "shard_counts: {}");
    assert!(open(&TrainFile::new(folder.path("set").as_str())).err().unwrap().to_string().contains("does not count"));

    let index = json!({"wids_version": 1, "shardlist": [{"url": "s-2.tar", "nsamples": 1}]});
    folder.write("set/wids.json", index.to_string());
    let file = TrainFile { format: Format::Sharegpt, ..TrainFile::new(folder.path("set/wids.json").as_str()) };
    assert_eq!(open(&file).unwrap().len(), 1);
}

/// Row groups of one row each: `text`, and a picture as bytes with a path.
fn table(rows: &[(&str, &[u8])]) -> Vec<u8> {
    let schema = "message m { required binary messages (UTF8); required group images { optional binary bytes; optional binary path (UTF8); } }";
    let mut bytes = Vec::new();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::default()).unwrap();
    for (text, picture) in rows {
        let mut group = writer.next_row_group().unwrap();
        for (value, levels) in [(text.as_bytes(), None), (picture, Some([1])), (&b"p.png"[..], Some([1]))] {
            let mut column = group.next_column().unwrap().unwrap();
            let levels = levels.as_ref().map(|levels| &levels[..]);
            column.typed::<ByteArrayType>().write_batch(&[ByteArray::from(value.to_vec())], levels, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

#[test]
fn row_groups_are_blocks_and_bytes_are_pictures() {
    let folder = Folder::new();
    let text = "hello";
    let bytes = table(&[(text, b"\xffA"), (text, b"\xffB"), (text, b"\xffC")]);
    let columns = |name: &str| [("text".to_owned(), name.to_owned())];
    let file = |name: &str| TrainFile {
        columns: columns("messages").into(),
        format: Format::Text,
        ..TrainFile::new(folder.path(name).as_str())
    };
    folder.write("a.parquet", &bytes);
    let source = open(&file("a.parquet")).unwrap();
    assert_eq!((source.len(), shown(&source, 2)), (3, "hello".to_owned()));
    assert_eq!(source.bad(2, String::new()).at, "row 3");

    let rows = super::table::Table::open(&Arc::new(super::blob::Blob::Memory(bytes.clone().into())), 1).unwrap();
    let record = super::block::Block::read(&rows, 0).unwrap();
    let name = record.field("images").unwrap().as_str().unwrap().to_owned();
    assert_eq!((&**record.member(&name).unwrap(), name.as_str()), (&b"\xffB"[..], "row:0:p.png"));

    // A damaged row group is bad, the others are not.
    let mut damaged = bytes.clone();
    let at = damaged.windows(5).position(|window| window == b"hello").unwrap();
    damaged[at - 12..at].fill(0xff);
    folder.write("b.parquet", &damaged);
    let source = open(&file("b.parquet")).unwrap();
    let read: Vec<bool> = (0..3).map(|index| source.read(index).is_ok()).collect();
    assert_eq!((read.len(), read[2]), (3, true));
    for cut in [0, 4, 8, bytes.len() / 2, bytes.len() - 1] {
        folder.write("c.parquet", &bytes[..cut]);
        assert!(open(&file("c.parquet")).is_err());
    }
}

/// What `goldens/peers.py` wrote with datasets, pyarrow, webdataset and megatron-energon.
#[test]
fn sets_of_other_libraries_are_read() {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/peers");
    let sample = |source: &Source, index| {
        let conversation = conversation(source, index);
        let image = conversation.images().next().unwrap().clone();
        let picture = crate::data::read_rgb(&image, source.base(), &crate::data::Limits::NONE).unwrap();
        let turns = conversation.turns.iter().map(|turn| turn.joined_text().trim().to_owned()).collect::<Vec<_>>();
        (turns.join(" "), picture.get_pixel(0, 0).0[0])
    };
    let table = of(peers.join("hf.parquet"));
    assert_eq!((table.len(), table.units()), (5, 3));
    assert_eq!(sample(&table, 4), ("What is 4? 4".to_owned(), 4));
    let texts = of(peers.join("text.parquet"));
    assert_eq!((texts.units(), shown(&texts, 5)), (2, "text 5".to_owned()));
    let shard = of(peers.join("wds.tar.gz"));
    assert_eq!((shard.len(), sample(&shard, 2)), (3, ("What? 2".to_owned(), 2)));
    let energon = of(peers.join("energon"));
    assert_eq!((energon.len(), sample(&energon, 2)), (3, ("What is 2? 2".to_owned(), 2)));
}

/// Counts of samples are kept, and made anew for a file that changed.
#[test]
fn counts_are_remembered() {
    let folder = Folder::new();
    let index_dir = folder.0.path().join("index");
    let count = || {
        let file = TrainFile::new(folder.path("n").as_str());
        Source::open_with(&file, Phase::Pretrain, usize::MAX, &str::len, 2, Some(&index_dir)).unwrap().len()
    };
    numbered(&folder, &[2, 3]);
    assert_eq!(count(), 5);
    let index = std::fs::read_dir(&index_dir).unwrap().next().unwrap().unwrap().path();
    let known = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, known.replace("[3]", "[2]")).unwrap();
    assert_eq!(count(), 4, "the index is asked");
    folder.write("n/001.tar", tar(&[("a.txt", b"a"), ("b.txt", b"b"), ("c.txt", b"c"), ("d.txt", b"d")]));
    assert_eq!(count(), 6, "the file is another now");
}

/// Shards of unequal lengths, each sample a number.
fn numbered(folder: &Folder, lens: &[usize]) -> (TrainFile, usize) {
    let mut next = 0..;
    for (shard, &len) in lens.iter().enumerate() {
        let names: Vec<(String, String)> =
            (0..len).map(|_| next.next().unwrap()).map(|n: usize| (format!("{n:04}.txt"), n.to_string())).collect();
        let files: Vec<(&str, &[u8])> = names.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
        folder.write(&format!("n/{shard:03}.tar"), tar(&files));
    }
    (TrainFile::new(folder.path("n").as_str()), lens.iter().sum())
}

#[test]
fn the_stream_is_the_same_for_any_readers_and_wherever_it_is_resumed() {
    let folder = Folder::new();
    let (file, len) = numbered(&folder, &[5, 1, 9, 0, 3, 7, 2]);
    let text = folder
        .write("t.jsonl", (0..11).map(|n| json!({"text": format!("t{n}")}).to_string() + "\n").collect::<String>());
    let stream = |positions: &mut dyn Iterator<Item = u64>| -> Vec<(u64, String)> {
        let open = |file: &TrainFile| Source::open_with(file, Phase::Pretrain, usize::MAX, &str::len, 2, None).unwrap();
        let sources = [open(&file), open(&TrainFile::new(text.as_path()))];
        let orders = sources.iter().zip([2.0, 1.0]).map(|(source, weight)| (source.order(), weight)).collect();
        let mixture = Mixture::of_orders(orders, 7, true);
        let read = |position| {
            let place = mixture.place(position);
            (position, shown(&sources[place.source], place.index as usize))
        };
        positions.map(read).collect()
    };
    let whole = stream(&mut (0..300));
    for readers in [1, 2, 3, 5] {
        let mut merged: Vec<_> =
            (0..readers).flat_map(|reader| stream(&mut (reader..300).step_by(readers as usize))).collect();
        merged.sort();
        assert_eq!(merged, whole, "{readers} readers");
    }
    for from in [1, 27, 28, 150, 299] {
        assert_eq!(stream(&mut (from..300)), whole[from as usize..]);
    }
    // One epoch of the shards has every sample once.
    let shards: Vec<&String> = whole.iter().map(|(_, text)| text).filter(|text| !text.starts_with('t')).collect();
    for epoch in shards.chunks_exact(len) {
        assert_eq!(epoch.iter().collect::<BTreeSet<_>>().len(), len);
    }
    assert_ne!(shards[..len], shards[len..2 * len]);
}

#[test]
fn a_shard_that_is_gone_costs_its_own_samples() {
    let folder = Folder::new();
    let (file, len) = numbered(&folder, &[2, 3, 1]);
    let source = Source::open_with(&file, Phase::Midtrain, usize::MAX, &str::len, 1, None).unwrap();
    std::fs::remove_file(folder.path("n/001.tar")).unwrap();
    let shown: Vec<String> = (0..len).map(|index| shown(&source, index)).collect();
    assert_eq!(shown, ["0", "1", "bad sample 1", "bad sample 2", "bad sample 3", "5"]);
    // One that cannot be read at all is one bad sample.
    folder.write("n/001.tar", b"junk".repeat(200));
    let source = open(&file).unwrap();
    assert_eq!((source.len(), source.read(2).unwrap_err().reason.contains("not a tar")), (4, true));
    let list = Paths(vec![folder.path("n/000.tar"), folder.path("n/{001..002}.tar"), folder.path("n/000.tar")]);
    assert_eq!(open(&TrainFile::new(list)).unwrap().len(), 6);
}

#[cfg(feature = "cloud")]
#[test]
fn buckets_are_listed_and_read_by_ranges() {
    use object_store::ObjectStore;
    use object_store::memory::InMemory;

    use super::remote::{Object, put, register, stat};

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
    let texts = |path: &str| {
        let source = open(&TrainFile::new(path)).unwrap();
        (0..source.len()).map(|index| shown(&source, index)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(texts("s3://bucket/d/a-{0..1}.tar"), "zero one");
    assert_eq!(texts("s3://bucket/d/*.tar"), "zero one");
    assert_eq!(texts("s3://bucket/d/"), "zero one");
    assert_eq!(texts("s3://bucket/d/**/*.tar"), "zero one two");
    assert_eq!(texts("s3://bucket/d/chat.jsonl"), "user: [P]");
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

/// A server of one file, which knows ranges.
#[cfg(feature = "cloud")]
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

#[cfg(feature = "cloud")]
#[test]
fn shards_are_read_over_http() {
    let server = serve(tar(&[("1.txt", b"one"), ("2.txt", b"two")]));
    let source = open(&TrainFile::new(format!("{server}/d/s-{{0..1}}.tar").as_str())).unwrap();
    assert_eq!((0..4).map(|index| shown(&source, index)).collect::<Vec<_>>(), ["one", "two", "one", "two"]);
    let error = open(&TrainFile::new(format!("{server}/gone.tar").as_str())).err().unwrap().to_string();
    assert!(error.contains("gone.tar") && error.contains("cannot be read"), "{error}");
}
