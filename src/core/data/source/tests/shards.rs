//! Shards: samples and their files, counts, and the order in which they are read.

use std::collections::BTreeSet;

use super::*;
use crate::config::Select;
use crate::data::source::index::Index;
use crate::data::source::open::{Found, count};
use crate::data::source::shard::Shard;

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
    folder.write("kinds.tar", tar(&[("1.JPG", b"A"), ("1.txt", b"a"), ("2.bmp", b"B"), ("2.txt", b"b")]));
    let kinds = of(folder.path("kinds.tar"));
    assert_eq!([0, 1].map(|index| shown(&kinds, index)), ["user: assistant:a [A]", "user: assistant:b [B]"]);
    for more in ["1.wav", "1.mp4"] {
        let shard = folder.write("more.tar", tar(&[(more, b"A"), ("1.txt", b"a")]));
        let error = open(&TrainFile::new(shard)).err().unwrap();
        assert!(error.to_string().contains("a recording needs json"), "{error}");
    }
    let captions = folder.write("captions.tar", tar(&[("1.json", br#"{"text": "a"}"#), ("1.jpg", b"A")]));
    let error = open(&TrainFile::new(captions.as_path())).err().unwrap().to_string();
    assert!(error.contains("has text beside \"jpg\"") && error.contains("format: text"), "{error}");
    let file = TrainFile { format: Format::Text, ..TrainFile::new(captions) };
    assert_eq!(shown(&open(&file).unwrap(), 0), "a");
    folder.write("text.tar", tar(&[("1.txt", b"hello")]));
    assert_eq!(shown(&of(folder.path("text.tar")), 0), "hello");
    let error = open(&TrainFile::new(folder.write("x.tar", tar(&[("1.cls", b"3"), ("1.jpg", b"A")])))).err().unwrap();
    assert!(error.to_string().contains("[\"cls\", \"jpg\"]"), "{error}");
}

#[test]
fn samples_that_are_lost_behind_damage_are_counted() {
    let folder = Folder::new();
    let mut archive = tar(&[("a.txt", b"a"), ("b.txt", b"b"), ("c.txt", b"c"), ("d.txt", b"d")]);
    archive[2048..2560].fill(7);
    folder.write("x.tar", archive);
    folder.write("x.json", json!({"wids_version": 1, "shardlist": [{"url": "x.tar", "nsamples": 4}]}).to_string());
    let source = of(folder.path("x.json"));
    assert_eq!((source.len(), shown(&source, 1).as_str()), (4, "b"));
    let reasons = [2, 3].map(|index| source.read(index).unwrap_err().reason);
    assert!(reasons[0].starts_with("the archive is damaged from here on: no header at byte 2048"), "{reasons:?}");
    assert!(reasons[1].ends_with("; 2 of the 4 samples of this part of the file cannot be read"), "{reasons:?}");
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
    let split = |exclude: &str| {
        let text = format!("exclude: [{exclude}]\nsplit_parts:\n  train: ['s-{{0..2}}.tar']\n");
        folder.write("set/.nv-meta/split.yaml", text);
        open(&TrainFile::new(folder.path("set").as_str())).map(|source| source.len())
    };
    assert_eq!((split("").unwrap(), split("'s-{1..2}.tar', gone.tar").unwrap()), (3, 1));
    assert!(split("s-0.tar/1").unwrap_err().to_string().contains("excludes the sample s-0.tar/1"));
    assert!(split("[s-0.tar]").unwrap_err().to_string().contains("[\"s-0.tar\"] where a name of a shard must be"));
    split("s-2.tar").unwrap();
    let known = std::fs::read(folder.path("set/.nv-meta/dataset.yaml")).unwrap();
    folder.write("set/.nv-meta/dataset.yaml", "field_map: {image: [png, jpg], caption: txt}\n");
    let error = open(&TrainFile::new(folder.path("set").as_str())).err().unwrap().to_string();
    assert!(error.contains("maps the field image to [\"png\",\"jpg\"]"), "{error}");
    folder.write("set/.nv-meta/dataset.yaml", "field_map: {image: png, text: txt}\n");
    let error = open(&TrainFile::new(folder.path("set").as_str())).err().unwrap().to_string();
    assert!(error.contains("maps the fields [\"image\", \"text\"]"), "{error}");
    folder.write("set/.nv-meta/dataset.yaml", known);
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

/// A short text beside a long description is one sample; a long one is cut, whatever the map calls its member.
#[test]
fn a_text_is_cut_by_the_length_of_its_own_member() {
    let folder = Folder::new();
    let long = [b'x'; 1000];
    folder.write("t/a.tar", tar(&[("1.txt", b"short"), ("1.meta.json", &long), ("1.page.txt", &long)]));
    let len = || {
        let file = TrainFile::new(folder.path("t").as_str());
        Source::open(&file, Phase::Pretrain, 100, str::len).unwrap().len()
    };
    assert_eq!(len(), 1);
    folder.write("t/.nv-meta/.info.yaml", "shard_counts:\n  a.tar: 1\n");
    folder.write("t/.nv-meta/dataset.yaml", "field_map: {text: page.txt}\n");
    assert_eq!(len(), 14);
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

/// A count of texts that could not be read is not kept, since the cause may have passed.
#[test]
fn texts_that_cannot_be_read_are_measured_again() {
    let folder = Folder::new();
    let index_dir = folder.0.path().join("index");
    let count = || {
        let file = TrainFile::new(folder.path("t").as_str());
        Source::open_with(&file, Phase::Pretrain, 1000, &str::len, 2, Some(&index_dir)).unwrap().len()
    };
    folder.write("t/a.jsonl", "{\"text\": \"a\"}\n".repeat(2));
    // Size and time of change stay the same.
    let write = |bytes: &[u8]| {
        let file = std::fs::File::options().write(true).open(folder.write("t/b.jsonl", bytes)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000)).unwrap();
    };
    let texts = "{\"text\": \"b\"}\n".repeat(3);
    write(&[&[0x1f, 0x8b, 8][..], &texts.as_bytes()[3..]].concat());
    assert_eq!(count(), 3, "what cannot be read is one sample, which is bad");
    write(texts.as_bytes());
    assert_eq!(count(), 5);
}

/// A shard that counted as one bad sample would move all samples behind it, until it can be read.
#[test]
fn a_shard_that_the_system_does_not_give_is_no_bad_sample() {
    let folder = Folder::new();
    folder.write("a.jsonl", "{\"text\": \"a\"}\n".repeat(2));
    let shard = |name: &str| Shard { name: folder.path(name), size: 14, tag: String::new() };
    let found = Found { shards: vec![shard("a.jsonl"), shard("b.jsonl")], counts: vec![None; 2], ..Found::default() };
    let mut index = Index::open(None, &found.shards);
    let error = count(&found, Format::Auto, &mut index).unwrap_err().to_string();
    assert!(error.contains("b.jsonl: cannot be opened: ") && error.contains("(os error 2); "), "{error}");
    assert!(error.ends_with("make it readable, or leave it out of the data"), "{error}");
    assert_eq!(index.get(&found.shards[0], "records that are not blank"), Some(&vec![2]), "the others are known then");
    // What is damaged is so for everybody.
    folder.write("b.jsonl", "PK\u{3}\u{4}");
    let counted = count(&found, Format::Auto, &mut Index::open(None, &found.shards));
    assert_eq!(counted.unwrap(), [[2], [1]]);
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
        let orders =
            sources.iter().zip([2.0, 1.0]).map(|(source, weight)| (source.order_without(&[]), weight)).collect();
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
    // Also where the others have a single one.
    folder.write("n/000.tar", tar(&[("a.txt", b"0")]));
    assert_eq!(open(&file).unwrap().len(), 3);
    numbered(&folder, &[2]);
    let list = Paths(vec![folder.path("n/000.tar"), folder.path("n/{001..002}.tar"), folder.path("n/000.tar")]);
    assert_eq!(open(&TrainFile::new(list)).unwrap().len(), 6);
}

#[test]
fn a_limit_leaves_the_first_samples_or_some_of_all_shards() {
    let folder = Folder::new();
    let (file, len) = numbered(&folder, &[40, 1, 0, 60, 99]);
    let limited = |max_samples: u64, select: Select| {
        let source = open(&TrainFile { max_samples: Some(max_samples), select, ..file.clone() }).unwrap();
        let texts: Vec<usize> = (0..source.len()).map(|index| shown(&source, index).parse().unwrap()).collect();
        // Without the second one, which may be held out.
        let order = source.order_without(&[1]);
        let visited: BTreeSet<u64> = (0..order.len()).map(|draw| order.index(draw, &[5])).collect();
        assert!(visited.into_iter().eq(0..source.len() as u64 - 1), "{max_samples}");
        texts
    };
    assert_eq!(limited(50, Select::First), (0..50).collect::<Vec<_>>());
    let random = limited(20, Select::Random);
    assert!(random.len() == 20 && random.iter().enumerate().all(|(part, text)| text / 10 == part), "{random:?}");
    for select in [Select::First, Select::Random] {
        assert_eq!(limited(500, select), (0..len).collect::<Vec<_>>());
    }
}
