//! Tests of folders whose tensors do not fit, whose index leads nowhere, or whose files are damaged.

use super::*;

#[test]
fn everything_that_does_not_fit_is_in_one_table() {
    let folder = tempfile::tempdir().unwrap();
    let float = |shape: &[i64]| numbers(shape, Kind::Float);
    let mut tensors: Vec<(String, Tensor)> =
        (0..4).map(|layer| (format!("layers.{layer}.extra"), float(&[2]))).collect();
    for (name, shape) in [("embed_tokens.weight", [6, 4]), ("wrong", [2, 3])] {
        tensors.push((name.to_owned(), float(&shape)));
    }
    tensors.push(("integer".into(), Tensor::zeros([3], (Kind::Int64, Device::Cpu))));
    tensors.push(("layers.0.rotary_emb.inv_freq".into(), float(&[2])));
    write_tensor_file(&tensors, &[], folder.path(), SINGLE_FILE).unwrap();
    let mut specs = vec![
        ParamSpec::new("embed_tokens.weight", &[8, 4], Init::Zeros),
        ParamSpec::new("wrong", &[3, 2], Init::Zeros),
        ParamSpec::new("integer", &[3], Init::Zeros),
    ];
    specs.extend((0..3).map(|layer| ParamSpec::new(format!("layers.{layer}.w"), &[5], Init::Zeros)));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let error = refused(compare_weights(&specs, &checkpoint, &LoadOptions::default()));
    let want = "\
  missing (3):
    layers.{0..2}.w  model [5]  (3 tensors)
  shape mismatch (2):
    embed_tokens.weight  checkpoint [6, 4], model [8, 4]
    wrong                checkpoint [2, 3], model [3, 2]
  unsupported type (1):
    integer  is I64, but must be a float
  unexpected (4):
    layers.{0..3}.extra  checkpoint [2]  (4 tensors)
  hint: if the tokenizer has grown, set model.resize_embeddings=true
";
    assert!(error.ends_with(want), "{error}");
    let options =
        LoadOptions { ignore: vec!["*.extra".into()], optional: vec!["layers.*".into()], ..Default::default() };
    let WeightsError::Mismatch { mismatches, .. } = compare_weights(&specs, &checkpoint, &options).unwrap_err() else {
        panic!("a mismatch");
    };
    assert_eq!((mismatches.missing.len(), mismatches.extra.len(), mismatches.misshaped.len()), (0, 0, 2));
    let params = store(specs, Kind::Float);
    assert!(load_weights(&params, folder.path()).is_err());
    assert_eq!(params.flat().abs().sum(Kind::Float).double_value(&[]), 0.0, "nothing is partly loaded");
}

#[test]
fn folders_and_indices_that_lead_nowhere_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let open = || refused(Checkpoint::open(path));
    assert!(open().contains("has no model.safetensors"));
    fs::write(path.join("pytorch_model.bin"), b"\x80\x02").unwrap();
    let error = open();
    assert!(error.contains("pickle files (pytorch_model.bin)") && error.contains("save_pretrained"), "{error}");

    let shard = "model-00001-of-00001.safetensors";
    write(path, shard, &[("a", numbers(&[2], Kind::Float)), ("b", numbers(&[2], Kind::Float))]);
    write(path, "second.safetensors", &[("a", numbers(&[2], Kind::Float))]);
    let with_index = |text: &str| {
        fs::write(path.join(INDEX_FILE), text).unwrap();
        open()
    };
    for (index, words) in [
        (r#"{"weight_map": {"a": "../model.safetensors"}}"#, "weight_map.a points outside the folder"),
        (r#"{"weight_map": {"a": "/etc/passwd"}}"#, "points outside the folder"),
        (r#"{"weight_map": {"a": 1}}"#, "weight_map.a is not a file name"),
        (r#"{"weight_map": {"a": "gone.safetensors"}}"#, "gone.safetensors, which is not in"),
        (r#"{"weight_map": {"c": "model-00001-of-00001.safetensors"}}"#, "which has no such tensor"),
        (r#"{"weight_map": {"b": "model-00001-of-00001.safetensors", "a": "second.safetensors"}}"#, "a is both in"),
        (r#"{"weight_map": {}}"#, "is empty"),
        (r#"{"weight_map": []}"#, "no `weight_map` object"),
        ("{", INDEX_FILE),
    ] {
        let error = with_index(index);
        assert!(error.contains(words) && error.contains(INDEX_FILE), "{error} lacks {words}");
    }
}

#[test]
fn damaged_files_are_errors_and_never_panics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SINGLE_FILE);
    write(
        folder.path(),
        SINGLE_FILE,
        &[
            ("layers.0.w", numbers(&[3, 5], Kind::Float)),
            ("b", numbers(&[7], Kind::BFloat16)),
            ("c", numbers(&[], Kind::Half)),
        ],
    );
    let whole = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize + 8;
    let mut state = 0x1234_5678_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut num_refused, mut num_read) = (0, 0);
    for round in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(3) {
            let at = random(header);
            match round % 4 {
                0 => bytes[at] ^= 1 << random(8),
                1 => bytes[at] = b"0123456789[]{},:\"-eE.\\"[random(22)],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"0123456789[]{},:\""[random(17)]),
            }
        }
        if round % 7 == 0 {
            bytes.truncate(random(bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        match Checkpoint::open(folder.path()) {
            Err(_) => num_refused += 1,
            Ok(checkpoint) => {
                num_read += 1;
                for file in checkpoint.files() {
                    file.tensors().keys().for_each(|name| drop(file.read(name)));
                }
            }
        }
    }
    assert!(num_refused > 2000 && num_read > 0, "{num_refused} refused, {num_read} read");
    for len in [u64::MAX, u64::MAX - 7, 1 << 40, 100_000_001] {
        fs::write(&path, [&len.to_le_bytes()[..], &whole[8..]].concat()).unwrap();
        assert!(refused(Checkpoint::open(folder.path())).contains("its header ends at byte"), "{len}");
    }
}

#[test]
fn rows_without_values_are_copied_however_many_there_are() {
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let header = r#"{"a":{"dtype":"F32","shape":[72057594037927936,0],"data_offsets":[0,0]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(folder.path().join(SINGLE_FILE), file).unwrap();
    let rename = |name: &str| Some(name.to_owned());
    let how = Rewrite { dtype: None, float32: &[], max_shard_size: u64::MAX, rename: &rename, stem: "model" };
    rewrite(&Checkpoint::open(folder.path()).unwrap(), None, out.path(), &how).unwrap();
    assert_eq!(Checkpoint::open(out.path()).unwrap().get("a").unwrap().shape, [1 << 56, 0]);
}

#[test]
fn one_file_is_read_though_an_index_is_there_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (stem, ours) in [("model", "new"), ("diffusion_pytorch_model", "old")] {
        let shard = format!("{stem}-00001-of-00001.safetensors");
        write(path, &shard, &[("old", numbers(&[2], Kind::Float))]);
        write(path, &format!("{stem}.safetensors"), &[("new", numbers(&[3], Kind::Float))]);
        let index = format!(r#"{{"weight_map": {{"old": "{shard}"}}}}"#);
        fs::write(path.join(format!("{stem}.safetensors.index.json")), index).unwrap();
        let files = opening::open_in(path, stem).unwrap();
        let names: Vec<&String> = files.iter().flat_map(|file| file.tensors().keys()).collect();
        assert_eq!(names, [ours], "{stem}");
    }
}
