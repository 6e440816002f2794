//! Parquet tables, and sets that other libraries wrote.

use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::data::audio::Segment;
use crate::data::source::{blob, block, table};

/// Makes row groups of one row each: `text`, and a picture as bytes with a path.
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

    let rows = table::Table::open(&Arc::new(blob::Blob::Memory(bytes.clone().into())), 1).unwrap();
    let record = block::Block::read(&rows, 0).unwrap();
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

#[test]
fn lists_of_ids_are_documents_that_are_cut() {
    let folder = Folder::new();
    let mut bytes = Vec::new();
    let schema = "message m { required group input_ids (LIST) { repeated group list { required int32 element; } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    // A 0 begins a row.
    column.typed::<Int32Type>().write_batch(&[4, 5, 6, 7], Some(&[1; 4]), Some(&[0, 1, 1, 0])).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let file = TrainFile::new(folder.write("a.parquet", &bytes).as_path());
    let source = Source::open(&file, Phase::Pretrain, 2, str::len).unwrap();
    let ids = |index| match source.read(index) {
        Ok(Content::Tokens(piece)) => piece.ids,
        other => panic!("{other:?}"),
    };
    assert_eq!((0..source.len()).map(ids).collect::<Vec<_>>(), [vec![4], vec![5, 6], vec![7]]);
}

/// Texts that are not marked as such, as old writers have them.
#[test]
fn columns_of_bytes_are_texts_that_are_cut() {
    let folder = Folder::new();
    let long = "long ".repeat(20);
    let mut bytes = Vec::new();
    let schema = Arc::new(parse_message_type("message m { required binary text; }").unwrap());
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values = [long.as_bytes(), &b"caf\xe9"[..]].map(|value| ByteArray::from(value.to_vec()));
    column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let file = TrainFile::new(folder.write("text.parquet", &bytes));
    let source = Source::open(&file, Phase::Pretrain, 32, |text| text.len().div_ceil(2)).unwrap();
    let pieces: Vec<String> = (0..3).map(|index| shown(&source, index)).collect();
    assert_eq!((source.len(), pieces.concat()), (4, long));
    assert!(source.read(3).unwrap_err().reason.contains("`text` is not UTF-8"));
}

/// Messages as maps, as Spark and DuckDB write objects whose keys are not all the same.
#[test]
fn a_column_of_maps_has_objects() {
    let folder = Folder::new();
    let schema = "message m { optional group messages (LIST) { repeated group list { optional group element (MAP) { \
        repeated group key_value { required binary key (UTF8); optional binary value (UTF8); } } } } }";
    let mut bytes = Vec::new();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let cells = [("role", "user"), ("content", "hi"), ("role", "assistant"), ("content", "hello")];
    // The first cell of a row, of a message and of a pair of it.
    let repeated = [0, 2, 1, 2];
    for (values, defined) in [(cells.map(|(key, _)| key), 4), (cells.map(|(_, value)| value), 5)] {
        let mut column = group.next_column().unwrap().unwrap();
        let values = values.map(ByteArray::from);
        column.typed::<ByteArrayType>().write_batch(&values, Some(&[defined; 4]), Some(&repeated)).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    folder.write("maps.parquet", &bytes);
    let source = open(&TrainFile::new(folder.path("maps.parquet").as_str())).unwrap();
    assert_eq!(shown(&source, 0), "user:hi assistant:hello");
}

#[test]
fn speech_data_sets_and_manifests_are_recordings_with_transcripts() {
    let folder = Folder::new();
    let schema = "message m { required group audio { optional binary bytes; optional binary path (UTF8); }
        required binary sentence (UTF8); }";
    let mut bytes = Vec::new();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (value, levels) in [(&b"RIFF\xff"[..], Some([1])), (&b"a.wav"[..], Some([1])), (&b"hello"[..], None)] {
        let mut column = group.next_column().unwrap().unwrap();
        let levels = levels.as_ref().map(|levels| &levels[..]);
        column.typed::<ByteArrayType>().write_batch(&[ByteArray::from(value.to_vec())], levels, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    folder.write("speech.parquet", &bytes);
    let columns = [("text".to_owned(), "sentence".to_owned())].into();
    let speech = TrainFile { columns, ..TrainFile::new(folder.path("speech.parquet").as_str()) };
    let source = open(&speech).unwrap();
    let MediaSource::Audio(audio) = &conversation(&source, 0).media[0] else { panic!("a recording") };
    assert_eq!(audio.locator, Locator::bytes("row:0:a.wav", *b"RIFF\xff"));
    assert_eq!(conversation(&source, 0).turns[1].joined_text(), "hello");

    let lines = [
        r#"{"audio_filepath": "wavs/a.wav", "duration": 1.5, "text": "yes"}"#,
        r#"{"audio_filepath": "wavs/a.wav", "offset": 1.5, "duration": 2, "text": "no", "speaker": 3}"#,
    ];
    folder.write("manifest.json", lines.join("\n"));
    let named = TrainFile { format: Format::Transcripts, ..TrainFile::new(folder.path("manifest.json").as_str()) };
    for source in [open(&named).unwrap(), of(folder.path("manifest.json"))] {
        let segments: Vec<_> = (0..2)
            .map(|index| match &conversation(&source, index).media[0] {
                MediaSource::Audio(audio) => (audio.locator.name().to_owned(), audio.segment),
                other => panic!("{other:?}"),
            })
            .collect();
        let name = folder.path("wavs/a.wav");
        let segment = |start, end| Segment::new(start, Some(end)).unwrap();
        assert_eq!(segments, [(name.clone(), segment(0.0, 1.5)), (name, segment(1.5, 3.5))]);
        assert_eq!(shown(&source, 1), "user: assistant:no (a.wav)");
    }
}

#[test]
fn separated_values_are_samples_of_any_layout() {
    let folder = Folder::new();
    folder.write("set/a.csv", "instruction,input,output\nAdd.,\"1, 2\",3\nSay.,,hi\nSay.,\n");
    folder.write("set/b.tsv", "instruction\toutput\n\"a\nb\"\tc\n");
    let source = of(folder.path("set"));
    let all: Vec<String> = (0..source.len()).map(|index| shown(&source, index)).collect();
    assert_eq!(all, ["user:Add.\n1, 2 assistant:3", "user:Say. assistant:hi", "bad row 3", "user:a\nb assistant:c"]);
    let turns =
        folder.write("turns.csv", "id,messages\n7,\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"a\"\"}]\"\n");
    assert_eq!(shown(&of(turns), 0), "user:a");
    let manifest = "audio_filepath,offset,duration,text\na.wav,0.5,1,yes\nb.wav,,,no\n";
    let source = of(folder.write("manifest.csv", manifest));
    let MediaSource::Audio(audio) = &conversation(&source, 0).media[0] else { panic!("a recording") };
    assert_eq!(audio.segment, Segment::new(0.5, Some(1.5)).unwrap());
    let MediaSource::Audio(audio) = &conversation(&source, 1).media[0] else { panic!("a recording") };
    assert!(audio.segment.is_whole());
}

/// Reads the files that `goldens/peers.py` wrote with datasets, pyarrow, webdataset and megatron-energon.
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
