//! Tests that a data set may have a size of its own.

use super::*;

/// Returns the tokens of the first samples of `data`, of each number once.
fn tokens(bench: &Bench, data: &Data, area: Option<u64>) -> BTreeSet<u32> {
    let image = crate::config::ImageLimits { area: area.map(Area::new), ..Default::default() };
    let maker: Box<dyn SampleMaker> = Box::new(bench.qwen(ProcessorOptions { image, ..ProcessorOptions::default() }));
    let dataset = Dataset::open(data, maker, 0).unwrap();
    (0..20).map(|at| dataset.sample(at).unwrap().meta.num_tokens).collect()
}

/// Pictures of 9 rows and 25 columns in tokens of two by two pixels.
#[test]
fn a_set_that_is_listed_twice_has_its_pictures_at_two_sizes() {
    let bench = Bench::new();
    let path = bench.write("a.jsonl", json!({"prompt": "x", "image": "1.png"}).to_string());
    let small = TrainFile { area: Some(Area::new(100)), ..TrainFile::new(path.as_path()) };
    let data = Data::of_files(vec![TrainFile::new(path.as_path()), small.clone()]);
    // 24x8 and 16x6 pixels; the limit of all sets is that of those without one: 10x4.
    assert_eq!(tokens(&bench, &data, None), BTreeSet::from([48, 24]));
    assert_eq!(tokens(&bench, &data, Some(50)), BTreeSet::from([10, 24]));
    // The pictures that a result is made from have the size of their set as well.
    let line = json!({"prompt": "x", "image": "1.png", "edit_image": "2.png"}).to_string();
    let edits = TrainFile { path: bench.write("b.jsonl", line).as_path().into(), ..small.clone() };
    assert_eq!(tokens(&bench, &Data::of_files(vec![edits]), None), BTreeSet::from([48]));
    // It is for pictures and clips alone.
    let chat = bench.write("c.jsonl", json!({"messages": [{"role": "user", "content": "x"}]}).to_string());
    let chat = TrainFile { path: chat.as_path().into(), format: Format::Messages, ..small };
    let maker: Box<dyn SampleMaker> = Box::new(bench.qwen(ProcessorOptions::default()));
    let error = Dataset::open(&Data::of_files(vec![chat]), maker, 0).err().unwrap().to_string();
    assert!(error.contains("to which alone `area` applies"), "{error}");
}
