//! Tokens with an index, as Megatron keeps them; `goldens/peers.py` wrote some by the description of the format.

use super::*;
use crate::data::source::TokenPiece;

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/peers")
}

fn ids(source: &Source) -> Vec<Vec<i64>> {
    let ids = |index| match source.read(index) {
        Ok(Content::Tokens(TokenPiece { ids })) => ids,
        other => panic!("{other:?}"),
    };
    (0..source.len()).map(ids).collect()
}

/// Returns an index of documents, each of sequences of these lengths, end to end.
fn index(documents: &[&[i32]], code: u8, width: i64) -> Vec<u8> {
    let lengths: Vec<i32> = documents.concat();
    let mut bytes = b"MMIDIDX\0\0".to_vec();
    bytes.extend(1u64.to_le_bytes());
    bytes.push(code);
    bytes.extend((lengths.len() as u64).to_le_bytes());
    bytes.extend((documents.len() as u64 + 1).to_le_bytes());
    lengths.iter().for_each(|length| bytes.extend(length.to_le_bytes()));
    let mut place = 0i64;
    for length in &lengths {
        bytes.extend(place.to_le_bytes());
        place += i64::from(*length) * width;
    }
    let mut boundary = 0u64;
    bytes.extend(boundary.to_le_bytes());
    for document in documents {
        boundary += document.len() as u64;
        bytes.extend(boundary.to_le_bytes());
    }
    bytes
}

#[test]
fn documents_are_read_as_they_were_written() {
    let expected = [vec![5, 6, 7], vec![8, 9, 10], vec![11, 12, 13, 14, 15], vec![300]];
    for path in ["tokens", "tokens.bin", "tokens.idx", "tokens32"] {
        let source = of(peers().join(path));
        assert_eq!((ids(&source), source.format()), (expected.to_vec(), "tokens"), "{path}");
    }
    let source = of(peers().join("tokens"));
    assert_eq!(source.bad(1, String::new()).at, "document 2");
    // Longer documents are cut into pieces of nearly one size.
    let cut = Source::open(&TrainFile::new(peers().join("tokens").as_path()), Phase::Pretrain, 2, str::len).unwrap();
    let pieces = [vec![5], vec![6, 7], vec![8], vec![9, 10], vec![11], vec![12, 13], vec![14, 15], vec![300]];
    assert_eq!(ids(&cut), pieces);
    let error = Source::open(&TrainFile::new(peers().join("tokens").as_path()), Phase::Sft, 8, str::len).err().unwrap();
    assert!(error.to_string().contains("train.phase"), "{error}");
    let text = TrainFile { format: Format::Text, ..TrainFile::new(peers().join("tokens").as_path()) };
    assert!(open(&text).err().unwrap().to_string().contains("leave format and columns out"));
}

#[test]
fn a_change_of_either_file_is_seen() {
    let folder = Folder::new();
    folder.write("a.idx", index(&[&[2]], 4, 4));
    folder.write("a.bin", [0; 8]);
    let size = |folder: &Folder| {
        let found =
            crate::data::fingerprint(&crate::config::Data::of_files(vec![TrainFile::new(folder.path("a").as_str())]));
        serde_json::to_value(found.unwrap()).unwrap()
    };
    let before = size(&folder);
    folder.write("a.bin", [0; 12]);
    assert_ne!(before, size(&folder));
    std::fs::remove_file(folder.path("a.bin")).unwrap();
    let error = open(&TrainFile::new(folder.path("a").as_str())).err().unwrap().to_string();
    assert!(error.contains("a.bin"), "{error}");
}

#[test]
fn damaged_indexes_are_named_with_what_is_wrong() {
    let good = index(&[&[2, 1], &[1]], 4, 4);
    let change = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        bad
    };
    let huge = u64::MAX.to_le_bytes();
    for (bytes, part) in [
        (good[..20].to_vec(), "too short"),
        (change(0, b"X"), "does not begin with MMIDIDX"),
        (change(9, &[2]), "version 2"),
        (change(17, &[7]), "floating-point"),
        (change(17, &[9]), "the unknown type 9"),
        (change(18, &huge), "ends too early"),
        (change(26, &huge), "ends too early"),
        (change(26, &[0; 8]), "no document boundaries"),
        (good[..good.len() - 1].to_vec(), "ends too early"),
        ([good.clone(), vec![0; 9]].concat(), "9 more than its header says"),
        (change(34, &[0xff; 4]), "document 1: its sequences are out of order"),
        (change(46 + 8, &[0xf0]), "are not contiguous"),
        (change(46 + 16, &[0, 1]), "document 2 begins at byte 256"),
        (change(70, &[9]), "out of order"),
        (change(70 + 16, &[9]), "ends with sequence 9"),
    ] {
        let folder = Folder::new();
        folder.write("a.idx", bytes);
        folder.write("a.bin", [0; 16]);
        let error = match open(&TrainFile::new(folder.path("a.idx").as_str())) {
            Err(error) => error.to_string(),
            Ok(source) => source.read(source.len() - 1).unwrap_err().to_string(),
        };
        assert!(error.contains(part) && error.contains("a.idx"), "{part}: {error}");
    }
    // The byte of each sequence that says of which kind it is.
    let folder = Folder::new();
    folder.write("a.idx", [good, vec![0; 3]].concat());
    folder.write("a.bin", [1; 16]);
    assert_eq!(of(folder.path("a.idx")).len(), 2);
}

#[test]
fn ids_that_records_list_are_documents() {
    let folder = Folder::new();
    let lines = [
        json!({"input_ids": [5, 6, 7, 8, 9], "attention_mask": [1, 1, 1, 1, 1], "labels": [5, 6, 7, 8, 9]}),
        json!({"input_ids": [1]}),
        json!({"input_ids": [2, 3], "labels": [-100, 3]}),
        json!({"input_ids": [2, 0], "attention_mask": [1, 0]}),
        json!({"input_ids": [2, "a"]}),
        json!({"input_ids": []}),
        json!({"input_ids": [2, 3], "completion_mask": [0, 1]}),
    ];
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let file = folder.write("a.jsonl", text);
    let open = |max| Source::open(&TrainFile::new(file.as_path()), Phase::Pretrain, max, str::len).unwrap();
    let read = |source: &Source, index| match source.read(index) {
        Ok(Content::Tokens(TokenPiece { ids })) => Ok(ids),
        Ok(other) => panic!("{other:?}"),
        Err(bad) => Err(bad.reason),
    };
    let source = open(usize::MAX);
    assert_eq!((source.len(), source.format(), read(&source, 0)), (7, "tokens", Ok(vec![5, 6, 7, 8, 9])));
    for (index, part) in [
        (2, "`labels` differ"),
        (3, "marks padding"),
        (4, "not a whole number"),
        (5, "no tokens"),
        (6, "`completion_mask` leaves out"),
    ] {
        let reason = read(&source, index).unwrap_err();
        assert!(reason.contains(part), "{part}: {reason}");
    }
    // Longer documents are cut, and the length of their lines does not matter.
    let cut = open(2);
    let pieces: Vec<_> = (0..4).map(|index| read(&cut, index).unwrap()).collect();
    assert_eq!((cut.len(), pieces), (9, vec![vec![5], vec![6, 7], vec![8, 9], vec![1]]));
    let renamed = folder.write("b.jsonl", "{\"tokens\": [4, 5]}");
    let columns = [("input_ids".to_owned(), "tokens".to_owned())].into();
    let file = TrainFile { columns, ..TrainFile::new(renamed.as_path()) };
    let source = Source::open(&file, Phase::Pretrain, 1, str::len).unwrap();
    assert_eq!(ids(&source), [[4], [5]]);
}

#[test]
fn ids_beside_pictures_are_no_documents() {
    let folder = Folder::new();
    for (name, more) in [("a", json!({"images": ["a.png"]})), ("b", json!({"pixel_values": [0.5]}))] {
        let mut record = json!({"input_ids": [5, 6]});
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let file = folder.write(&format!("{name}.jsonl"), record.to_string());
        let error = open(&TrainFile::new(file.as_path())).err().unwrap().to_string();
        assert!(error.contains("has input_ids beside pictures"), "{error}");
    }
    // They keep the layout that they have without ids.
    let captioned = folder.write("c.jsonl", json!({"image": "a.png", "text": "a cat", "input_ids": [5]}).to_string());
    assert_eq!(of(captioned).format(), "captioned");
}
