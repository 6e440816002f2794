//! Arrow files and folders of `datasets.save_to_disk`; `goldens/peers.py` wrote them with datasets and pyarrow.

use std::sync::Arc;

use super::*;
use crate::data::source::arrow::Batches;
use crate::data::source::blob::Blob;
use crate::data::source::block::{Block, Body};

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/peers")
}

fn rows(bytes: &[u8]) -> Result<Vec<Json>, String> {
    let blob = Blob::Memory(bytes.into());
    let mut rows = Vec::new();
    for block in 0..Batches::lens(&blob)?.len() {
        let batches = Batches::open(&blob, block as u32)?;
        for row in 0..batches.len() {
            match batches.read(row)?.body {
                Body::Json(json) => rows.push(json),
                other => panic!("{other:?}"),
            }
        }
    }
    Ok(rows)
}

#[test]
fn rows_are_pyarrows() {
    let expected: Json = serde_json::from_slice(&std::fs::read(peers().join("kinds.json")).unwrap()).unwrap();
    for name in ["kinds.arrow", "stream.arrow"] {
        let found = rows(&std::fs::read(peers().join(name)).unwrap()).unwrap();
        assert_eq!(Json::Array(found), expected, "{name}");
    }
    let compressed = rows(&std::fs::read(peers().join("compressed.arrow")).unwrap()).unwrap_err();
    assert!(compressed.contains("compressed Arrow, which is not supported"), "{compressed}");
}

#[test]
fn a_saved_data_set_is_read_in_the_order_of_its_files() {
    let source = of(peers().join("saved"));
    assert_eq!(source.len(), 5);
    assert_eq!(Source::left_out(std::slice::from_ref(&source)), [""; 0], "what describes the set holds no samples");
    for index in 0..5 {
        let found = conversation(&source, index);
        let image = found.images().next().unwrap().clone();
        let picture = crate::data::read_rgb(&image, source.base(), &crate::data::Limits::NONE).unwrap();
        assert_eq!(usize::from(picture.get_pixel(0, 0).0[0]), index);
        assert_eq!(found.turns[1].joined_text(), index.to_string());
    }
    assert_eq!(source.bad(4, String::new()).at, "row 2", "of the second file");
    // A file of it alone, and a folder with nothing but such files.
    assert_eq!(of(peers().join("saved/data-00000-of-00002.arrow")).len(), 3);
    let folder = Folder::new();
    for name in ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"] {
        folder.write(&format!("plain/{name}"), std::fs::read(peers().join("saved").join(name)).unwrap());
    }
    assert_eq!(of(folder.path("plain")).len(), 5);
}

#[test]
fn what_is_wrong_with_a_folder_is_named() {
    let folder = Folder::new();
    let wrong = |name: &str| open(&TrainFile::new(folder.path(name).as_str())).err().unwrap().to_string();
    folder.write("several/dataset_dict.json", r#"{"splits": ["train", "test"]}"#);
    assert!(wrong("several").contains("with several splits (train, test)"), "{}", wrong("several"));
    folder.write("a/dataset_info.json", "{}");
    for (state, part) in [
        ("{", "state.json"),
        ("{}", "has no _data_files"),
        (r#"{"_data_files": [{"filename": "../x.arrow"}]}"#, "names \"../x.arrow\""),
        (r#"{"_data_files": [{"filename": "gone.arrow"}]}"#, "gone.arrow"),
        (r#"{"_data_files": [{}]}"#, "a file without a name"),
        (r#"{"_data_files": [{"filename": "x"}], "_indices_files": [{}]}"#, "a file of indices"),
    ] {
        folder.write("a/state.json", state);
        assert!(wrong("a").contains(part), "{state}: {}", wrong("a"));
    }
}

#[test]
fn a_damaged_file_costs_its_own_rows() {
    let whole = std::fs::read(peers().join("stream.arrow")).unwrap();
    assert_eq!(rows(&whole).unwrap().len(), 3);
    let folder = Folder::new();
    // In the middle of the second batch: what is before it can be read.
    let file = TrainFile { format: Format::Text, ..TrainFile::new(folder.path("a.arrow").as_str()) };
    folder.write("a.arrow", &whole[..whole.len() - 200]);
    let source = open(&file).unwrap();
    assert_eq!(source.len(), 3);
    assert!(source.read(0).is_ok() && source.read(2).is_err());
    assert!(source.read(2).unwrap_err().reason.contains("damaged Arrow"), "{:?}", source.read(2));
    for (bytes, part) in [
        (&b"ARROW1\0\0"[..], "no schema"),
        (b"", "no schema"),
        (b"\xff\xff\xff\xff\x08\0\0\0abcdefgh", "metadata is invalid"),
    ] {
        let error = rows(bytes).unwrap_err();
        assert!(error.contains("is not an Arrow file") && error.contains(part), "{error}");
    }
}

#[test]
fn blocks_are_some_batches_each() {
    use arrow_array::{ArrayRef, Int32Array, RecordBatch, StringArray};
    let mut bytes = Vec::new();
    let batch = |first: i32, rows: i32| {
        let texts: StringArray = (first..first + rows).map(|row| Some(format!("text {row}"))).collect();
        let numbers = Int32Array::from_iter_values(first..first + rows);
        RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef), ("n", Arc::new(numbers) as ArrayRef)])
            .unwrap()
    };
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &batch(0, 1).schema()).unwrap();
    (0..5).for_each(|at| writer.write(&batch(at * 20_000, 20_000)).unwrap());
    writer.finish().unwrap();
    drop(writer);
    assert_eq!(Batches::lens(&Blob::Memory(bytes.clone().into())).unwrap(), [60_000, 40_000]);
    let folder = Folder::new();
    folder.write("a.arrow", &bytes);
    let source = of(folder.path("a.arrow"));
    assert_eq!((source.len(), source.units()), (100_000, 2));
    for index in [0, 19_999, 20_000, 59_999, 60_000, 99_999] {
        assert_eq!(shown(&source, index), format!("text {index}"));
    }
    assert_eq!(source.bad(60_000, String::new()).at, "row 60001");
}
