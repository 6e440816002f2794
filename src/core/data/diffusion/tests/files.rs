//! Tests of the files that pictures and clips with captions come in, and of the names that fields have there.

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::data::source::tar;

/// Returns a table of one row as `datasets` writes it: a picture as bytes with a path, and a text.
fn parquet(picture: &[u8], text: &str) -> Vec<u8> {
    let schema = "message m { required group image { required binary bytes; required binary path (UTF8); } \
        required binary text (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for value in [picture, &b"3.png"[..], text.as_bytes()] {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&[ByteArray::from(value.to_vec())], None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn a_captioned_picture_is_the_same_sample_from_every_kind_of_file() {
    let bench = Bench::new();
    let png = fs::read(bench.path("3.png")).unwrap();
    bench.write("folder/a.png", &png);
    bench.write("folder/a.txt", "three one\n");
    bench.write("folder/lost.txt", "no picture");
    bench.write("folder/notes.md", "nothing");
    bench.write("scans/a.txt", "three one");
    image::open(bench.path("3.png")).unwrap().save(bench.path("scans/a.tif")).unwrap();
    bench.write("scans/a.caption", "another one");
    bench.write("kohya/a.png", &png);
    bench.write("kohya/a.caption", "three one");
    let members: [(&str, &[u8]); 2] = [("k.png", &png), ("k.txt", b"three one")];
    let with_json: [(&str, &[u8]); 2] = [("k.png", &png), ("k.json", br#"{"cap": "three one", "image": "k.png"}"#)];
    let files = [
        bench.write("a.jsonl", json!({"image": "3.png", "prompt": "three one"}).to_string()),
        bench.write("b.jsonl", json!({"file_name": "3.png", "text": ["three one"]}).to_string()),
        bench.write("metadata.csv", "image,prompt\n3.png,three one\n"),
        bench.write("c.csv", "file_name,caption\n3.png,three one\n"),
        bench.write("d.tar", tar(&members)),
        bench.write("e.tar", tar(&with_json)),
        bench.path("folder"),
        bench.path("scans"),
        bench.path("kohya"),
        bench.write("g.parquet", parquet(&png, "three one")),
    ];
    let samples = files.iter().map(|file| {
        let dataset = bench.dataset(bench.qwen(ProcessorOptions::default()), file).unwrap();
        assert_eq!(dataset.len(), 1, "{}", file.display());
        (
            dataset.sample(0).unwrap_or_else(|bad| panic!("{bad}")),
            dataset.left_out().join("; "),
            dataset.maker().notes(),
        )
    });
    let samples: Vec<_> = samples.collect();
    let (first, _, notes) = &samples[0];
    // 9 rows and 25 columns are cut to whole tokens of 2 by 2.
    assert_eq!(items(first), [(Tower::Vae, [1, 8, 24], 48), (Tower::Text, [9, 1, 1], 9)]);
    assert_eq!(notes, &["pictures and clips whose sides were cut to multiples of 2×2 pixels: 1"]);
    assert_eq!((first.meta.num_tokens, first.meta.num_targets, first.meta.column_bytes), (48, 1, 0));
    assert_eq!(first.meta.target.unwrap().grid, Grid { t: 1, h: 4, w: 12 });
    // Of 9 rows and 25 columns the first are kept: half of what is left over is none.
    assert!((first.media[0].pixels[0] - (30.0 / 127.5 - 1.0)).abs() < 1e-6);
    assert!(samples.iter().all(|(sample, ..)| sample == first));
    let left_out = &samples[6].1;
    assert!(left_out.contains("captions without a picture are left out: lost.txt"), "{left_out}");
    assert!(left_out.contains("neither pictures nor captions are left out: notes.md"), "{left_out}");
    assert!(samples[7].1.contains("captions of a picture that has another caption are left out: a.caption"));
    assert_eq!(samples[8].1, "");

    // A parameter of the set: columns of other names.
    let path = bench.write("f.jsonl", json!({"pic": "3.png", "said": "three one"}).to_string());
    let columns = [("image", "pic"), ("prompt", "said")].map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned()));
    let file = TrainFile { columns: columns.into(), ..TrainFile::new(path) };
    let data = Data { shuffle: false, ..Data::of_files(vec![file]) };
    let maker: Box<dyn SampleMaker> = Box::new(bench.qwen(ProcessorOptions::default()));
    assert_eq!(&Dataset::open(&data, maker, 0).unwrap().sample(0).unwrap(), first);
}

#[test]
fn fields_have_the_names_that_other_trainers_give_them() {
    let bench = Bench::new();
    let sample = |line: Json| bench.sample(bench.qwen(ProcessorOptions::default()), line).unwrap();
    let expected = sample(json!({"image": "3.png", "prompt": "three one"}));
    for picture in ["image", "file_name", "image_path"] {
        for caption in ["prompt", "text", "caption", "cap"] {
            let mut line = json!({});
            (line[picture], line[caption]) = (json!("3.png"), json!("three one"));
            assert_eq!(sample(line), expected, "{picture}, {caption}");
        }
    }
    let clip = |key: &str| {
        let mut line = json!({"caption": "up"});
        line[key] = json!(["0.png", "1.png", "2.png"]);
        bench.sample(bench.wan(ProcessorOptions::default()), line).unwrap()
    };
    assert_eq!(clip("video_path"), clip("video"));

    let edited = |references: Json| {
        let mut line = json!({"image": "1.png", "prompt": "x"});
        line.as_object_mut().unwrap().extend(references.as_object().unwrap().clone());
        sample(line)
    };
    let both = edited(json!({"edit_image": ["2.png", "3.png"]}));
    assert_eq!(items(&both).len(), 4);
    for references in [
        json!({"reference_image": ["2.png", "3.png"]}),
        json!({"control_path": ["2.png", "3.png"]}),
        json!({"control_path_0": "2.png", "control_path_1": "3.png"}),
        json!({"control_image": "2.png", "control_path_0": "3.png"}),
    ] {
        assert_eq!(edited(references.clone()), both, "{references}");
    }
}
