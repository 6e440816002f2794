//! Folders in and out: shards, pieces, types, packed tensors, and every way in which a folder can be wrong.

use super::*;
use crate::nn::{Init, ParamSpec, ParamStore, Piece, Role};
use std::fs;
use std::path::Path;
use tch::{Device, Kind, Tensor};

fn write(folder: &Path, name: &str, tensors: &[(&str, Tensor)]) {
    let tensors: Vec<(String, Tensor)> =
        tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.shallow_clone())).collect();
    write_tensor_file(&tensors, &[("format", "pt")], folder, name).unwrap();
}

fn numbers(shape: &[i64], kind: Kind) -> Tensor {
    let count: i64 = shape.iter().product();
    ((Tensor::arange(count, (Kind::Double, Device::Cpu)) * 0.61).sin() * 3.0).view(shape).to_kind(kind)
}

fn store(specs: Vec<ParamSpec>, kind: Kind) -> ParamStore {
    ParamStore::new(specs, kind, Device::Cpu)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

/// The error's text.
fn refused<T>(result: Result<T, WeightsError>) -> String {
    result.err().expect("an error").to_string()
}

fn specs() -> Vec<ParamSpec> {
    vec![
        ParamSpec::new("norm", &[3], Init::Ones),
        ParamSpec::new("weight", &[40, 3], Init::Normal(0.5)),
        ParamSpec::new("other", &[7, 5], Init::Normal(0.5)),
        ParamSpec::new("bias", &[4], Init::Normal(1.0)).with_role(Role::Buffer),
    ]
}

#[test]
fn shards_come_back() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let folder = tempfile::tempdir().unwrap();
        let saved = store(self::specs(), kind);
        saved.init_random(5);
        let specs = specs();
        let kind_of = |spec: &ParamSpec| if spec.role == Role::Buffer { Kind::Float } else { kind };
        let pieces = specs.iter().flat_map(|spec| spec.pieces.iter().map(move |piece| (piece, kind_of(spec))));
        let count = num_shards(pieces, 100);
        let shards = Shards { first: 2, count, total: count + 1, max_size: 100 };
        let files = save_weights(&saved, folder.path(), &shards).unwrap();
        assert!(files.len() == count && count >= 2, "{count}");
        assert_eq!(files[0].name, format!("model-00002-of-{:05}.safetensors", count + 1));
        let index = index_of(&files, 1).to_string();
        fs::write(folder.path().join(INDEX_FILE), index).unwrap();
        let loaded = store(specs.clone(), kind);
        load_weights(&loaded, folder.path()).unwrap();
        for name in saved.names() {
            assert_eq!(values(&saved.get(name)), values(&loaded.get(name)), "{name}");
        }
        for file in files {
            let bytes = fs::read(folder.path().join(&file.name)).unwrap();
            assert_eq!(file.bytes, bytes.len() as u64);
            // The format's own reader takes it, too.
            safetensors::SafeTensors::deserialize(&bytes).unwrap();
        }
    }
}

#[test]
fn pieces_are_read_where_they_belong() {
    let folder = tempfile::tempdir().unwrap();
    let (up, down, turned) =
        (numbers(&[2, 3], Kind::Float), numbers(&[2, 3], Kind::Half), numbers(&[3, 4], Kind::Float));
    write(
        folder.path(),
        SINGLE_FILE,
        &[("up", up.shallow_clone()), ("down", down.shallow_clone()), ("turned", turned.shallow_clone())],
    );
    let piece = |name: &str, rows, index, transposed, shape: &[i64]| Piece {
        name: name.into(),
        shape: shape.to_vec(),
        index,
        rows,
        transposed,
        repeats: false,
    };
    let specs = vec![ParamSpec::new("stack", &[2, 4, 3], Init::Zeros).stored_as(vec![
        piece("up", Some((0, 2)), Some(1), false, &[2, 3]),
        piece("down", Some((2, 2)), Some(1), false, &[2, 3]),
        piece("turned", None, Some(0), true, &[3, 4]),
    ])];
    let params = store(specs, Kind::Float);
    load_weights(&params, folder.path()).unwrap();
    let stack = params.get("stack");
    assert_eq!(values(&stack.get(1).narrow(0, 0, 2)), values(&up));
    assert_eq!(values(&stack.get(1).narrow(0, 2, 2)), values(&down));
    assert_eq!(values(&stack.get(0).transpose(0, 1)), values(&turned));
    let out = tempfile::tempdir().unwrap();
    save_weights(&params, out.path(), &Shards::single()).unwrap();
    let again = TensorFile::open(&out.path().join(SINGLE_FILE)).unwrap();
    assert_eq!(again.read("turned").unwrap().unwrap(), turned);
}

#[test]
fn types_are_converted_as_libtorch_does() {
    let kinds = [Kind::Double, Kind::Float, Kind::Half, Kind::BFloat16];
    for from in kinds {
        let folder = tempfile::tempdir().unwrap();
        // Enough for several blocks of a converted read, and a last one that is not whole.
        let tensor = numbers(&[1001, 700], from);
        write(folder.path(), SINGLE_FILE, &[("w", tensor.shallow_clone())]);
        for to in kinds {
            let params = store(vec![ParamSpec::new("w", &[1001, 700], Init::Zeros)], to);
            load_weights(&params, folder.path()).unwrap();
            assert!(params.get("w").detach() == tensor.to_kind(to), "{from:?} to {to:?}");
        }
    }
}

#[test]
fn rows_are_read_alone() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = numbers(&[9, 2, 5], Kind::BFloat16);
    write(folder.path(), SINGLE_FILE, &[("w", tensor.shallow_clone())]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let stored = checkpoint.get("w").unwrap();
    for (start, len) in [(0, 9), (3, 4), (8, 1), (9, 0)] {
        let rows = checkpoint.read_rows(stored, start, len, Kind::Float).unwrap();
        assert_eq!(rows, tensor.narrow(0, start, len).to_kind(Kind::Float));
    }
}

#[test]
fn packed_weights_are_those_of_the_published_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packed");
    for scheme in ["fp8", "int4", "mxfp4"] {
        let folder = folder.join(scheme);
        let expected = TensorFile::open(&folder.join("expected.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        assert!(checkpoint.is_quantized());
        let specs: Vec<ParamSpec> =
            expected.tensors().iter().map(|(name, info)| ParamSpec::new(name, &info.shape, Init::Zeros)).collect();
        compare_weights(&specs, &checkpoint, &LoadOptions::default()).unwrap();
        let params = store(specs, Kind::Float);
        load_weights(&params, &folder).unwrap();
        for name in expected.tensors().keys() {
            let want = expected.read(name).unwrap().unwrap();
            assert!(want.numel() > 0 && params.get(name).detach() == want, "{scheme}: {name}");
            let stored = checkpoint.get(name).unwrap();
            if stored.shape.len() > 1 {
                let rows = stored.shape[0] - 1;
                let part = checkpoint.read_rows(stored, 1, rows, Kind::Float).unwrap();
                assert!(part == want.narrow(0, 1, rows), "{scheme}: rows of {name}");
            }
        }
        let out = tempfile::tempdir().unwrap();
        let how = Rewrite { dtype: Some(Dtype::F32), max_shard_size: 5000 };
        rewrite(&checkpoint, out.path(), &how).unwrap();
        let plain = Checkpoint::open(out.path()).unwrap();
        assert!(!plain.is_quantized() && plain.files().len() > 1);
        for name in expected.tensors().keys() {
            let stored = plain.get(name).unwrap();
            assert!(plain.read(stored, Kind::Float).unwrap() == expected.read(name).unwrap().unwrap(), "{name}");
        }
    }
}

#[test]
fn packed_tensors_without_their_parts_are_refused() {
    let refusal = |tensors: &[(&str, Tensor)], config: &str| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), SINGLE_FILE, tensors);
        fs::write(folder.path().join("config.json"), config).unwrap();
        refused(Checkpoint::open(folder.path()))
    };
    let ints = |shape: &[i64]| Tensor::zeros(shape, (Kind::Int, Device::Cpu));
    let floats = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let bytes = |shape: &[i64]| Tensor::zeros(shape, (Kind::Uint8, Device::Cpu));
    let shape = |rows: i32, cols: i32| Tensor::from_slice(&[rows, cols]);
    let cases: &[(&[(&str, Tensor)], &str)] = &[
        (&[("w_packed", ints(&[2, 1]))], "w_scale is missing"),
        (&[("w_packed", ints(&[2, 1])), ("w_scale", floats(&[2, 1]))], "w_shape is missing"),
        (&[("w_packed", ints(&[2, 1])), ("w_scale", floats(&[2, 1])), ("w_shape", shape(2, 9))], "packed as [2, 2]"),
        (&[("w_packed", ints(&[2, 1])), ("w_scale", floats(&[2, 3])), ("w_shape", shape(2, 8))], "do not divide"),
        (&[("w_packed", ints(&[2, 1])), ("w_scale", floats(&[2, 0])), ("w_shape", shape(2, 8))], "do not divide"),
        (&[("w_packed", ints(&[0, 0])), ("w_scale", floats(&[0, 1])), ("w_shape", shape(-1, 0))], "packed as"),
        (&[("w_blocks", bytes(&[2, 1, 16]))], "w_scales is missing"),
        (&[("w_blocks", bytes(&[2, 1, 8])), ("w_scales", bytes(&[2, 1]))], "MXFP4 needs"),
    ];
    for (tensors, words) in cases {
        let error = refusal(tensors, "{}");
        assert!(error.contains(words) && error.contains("w: "), "{error} lacks {words}");
    }
    for (config, words) in [
        (r#"{"quantization_config": {"quant_method": "gptq"}}"#, "quant_method is \"gptq\""),
        (r#"{"quantization_config": {"quant_method": "fp8"}}"#, "weight_block_size is missing"),
        (r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}}"#, "two sizes"),
        (r#"{"text_config": {"quantization_config": {"format": "marlin-24"}}}"#, "\"marlin-24\""),
        ("{", "config.json"),
    ] {
        let error = refusal(&[("w", floats(&[1]))], config);
        assert!(error.contains(words), "{error} lacks {words}");
    }
}

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
    layers.{0..2}.w  [5] by config.json  (3 tensors)
  of another shape (2):
    embed_tokens.weight  is [6, 4] there and [8, 4] by config.json
    wrong                is [2, 3] there and [3, 2] by config.json
  of another type (1):
    integer  is I64, must be a float
  not of the model (4):
    layers.{0..3}.extra  [2] there  (4 tensors)
  hint: the tokenizer grew? set model.resize_embeddings=true
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
fn a_tied_head_may_be_there_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let table = numbers(&[6, 4], Kind::Float);
    write(
        folder.path(),
        SINGLE_FILE,
        &[("model.embed_tokens.weight", table.shallow_clone()), ("lm_head.weight", table)],
    );
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut specs = vec![ParamSpec::new("model.embed_tokens.weight", &[6, 4], Init::Zeros)];
    compare_weights(&specs, &checkpoint, &LoadOptions::default()).unwrap();
    specs.push(ParamSpec::new("lm_head.weight", &[6, 4], Init::Zeros));
    compare_weights(&specs, &checkpoint, &LoadOptions::default()).unwrap();
    write(folder.path(), SINGLE_FILE, &[("model.embed_tokens.weight", numbers(&[6, 4], Kind::Float))]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(
        refused(compare_weights(&specs, &checkpoint, &LoadOptions::default())).contains("tie_word_embeddings=true")
    );
}

#[test]
fn tables_grow_by_the_mean_of_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let table = numbers(&[6, 4], Kind::Float);
    write(
        folder.path(),
        SINGLE_FILE,
        &[("embed_tokens.weight", table.shallow_clone()), ("up.weight", numbers(&[6, 4], Kind::Float))],
    );
    let grown = |name: &str| vec![ParamSpec::new(name, &[9, 4], Init::Zeros)];
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let options = LoadOptions { resize_embeddings: true, ..LoadOptions::default() };
    let params = store(grown("embed_tokens.weight"), Kind::Float);
    assert!(load_weights(&params, folder.path()).is_err());
    let origin = Origin::whole(checkpoint);
    load_weights_from(&params, &origin, &options).unwrap();
    let found = params.get("embed_tokens.weight").detach();
    assert_eq!(found.narrow(0, 0, 6), table);
    let mean = table.mean_dim([0i64].as_slice(), false, Kind::Double).to_kind(Kind::Float);
    for row in 6..9 {
        assert_eq!(found.get(row), mean);
    }
    let other = store(grown("up.weight"), Kind::Float);
    assert!(refused(load_weights_from(&other, &origin, &options)).contains("is [6, 4] there and [9, 4]"));
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
        (r#"{"weight_map": {"a": "../model.safetensors"}}"#, "weight_map.a leads out of the folder"),
        (r#"{"weight_map": {"a": "/etc/passwd"}}"#, "leads out of the folder"),
        (r#"{"weight_map": {"a": 1}}"#, "weight_map.a is not a file name"),
        (r#"{"weight_map": {"a": "gone.safetensors"}}"#, "gone.safetensors, which is not in"),
        (r#"{"weight_map": {"c": "model-00001-of-00001.safetensors"}}"#, "which has no such tensor"),
        (r#"{"weight_map": {"b": "model-00001-of-00001.safetensors", "a": "second.safetensors"}}"#, "a is in"),
        (r#"{"weight_map": {}}"#, "is empty"),
        (r#"{"weight_map": []}"#, "no object `weight_map`"),
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
fn parts_come_from_folders_of_their_own() {
    let (tower, language) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let float = |shape: &[i64], seed: i64| numbers(shape, Kind::Float) + seed;
    write(
        tower.path(),
        SINGLE_FILE,
        &[
            ("model.visual.blocks.0.w", float(&[3], 1)),
            ("model.visual.blocks.1.w", float(&[3], 2)),
            ("x.blocks.0.w", float(&[3], 9)),
        ],
    );
    write(
        language.path(),
        SINGLE_FILE,
        &[("model.language_model.norm.w", float(&[2], 3)), ("lm_head.weight", float(&[2, 2], 4))],
    );
    let names = [
        "image_encoder.blocks.0.w",
        "image_encoder.blocks.1.w",
        "image_projector.w",
        "foundation.model.norm.w",
        "foundation.lm_head.weight",
    ];
    let shapes: [&[i64]; 5] = [&[3], &[3], &[4], &[2], &[2, 2]];
    let specs: Vec<ParamSpec> =
        names.iter().zip(shapes).map(|(name, shape)| ParamSpec::new(*name, shape, Init::Ones)).collect();
    let open = |folder: &tempfile::TempDir| Checkpoint::open(folder.path()).unwrap();
    let origin = || {
        let origin = Origin::default().with_part("image_encoder.", open(&tower), names.into_iter());
        origin.with_part("foundation.", open(&language), names.into_iter())
    };
    let params = store(specs.clone(), Kind::Float);
    params.init_random(1);
    load_weights_from(&params, &origin(), &LoadOptions::default()).unwrap();
    let want = [
        float(&[3], 1),
        float(&[3], 2),
        Tensor::ones([4], (Kind::Float, Device::Cpu)),
        float(&[2], 3),
        float(&[2, 2], 4),
    ];
    for (name, want) in names.iter().zip(want) {
        assert_eq!(params.get(name).detach(), want, "{name}");
    }
    let more = [specs, vec![ParamSpec::new("foundation.model.gone", &[2], Init::Ones)]].concat();
    let error = refused(load_weights_from(&store(more, Kind::Float), &origin(), &LoadOptions::default()));
    assert!(error.contains("missing (1):\n    foundation.model.gone"), "{error}");
}

#[test]
fn experts_are_read_however_they_are_stored() {
    // Widths at which one of the two weights is square, so that its shape tells nothing.
    for [experts, width, inner] in [[3, 8, 6], [3, 8, 4], [2, 4, 4]] {
        let gate_up = numbers(&[experts, 2 * inner, width], Kind::Float);
        let down = numbers(&[experts, width, inner], Kind::Float) + 1000.0;
        let turned = |tensor: &Tensor| tensor.transpose(1, 2).contiguous();
        let stacked = |[gate_up, down]: [Tensor; 2]| {
            vec![("mlp.experts.gate_up_proj".to_owned(), gate_up), ("mlp.experts.down_proj".to_owned(), down)]
        };
        let each = (0..experts).flat_map(|expert| {
            let [both, down] = [&gate_up, &down].map(|tensor| tensor.get(expert));
            let parts = [
                ("gate_proj", both.narrow(0, 0, inner)),
                ("up_proj", both.narrow(0, inner, inner)),
                ("down_proj", down),
            ];
            parts.map(|(name, part)| (format!("mlp.experts.{expert}.{name}.weight"), part.contiguous()))
        });
        let each: Vec<(String, Tensor)> = each.collect();
        let own = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"];
        let whole =
            || own.iter().zip([&gate_up, &down]).map(|(name, of)| ParamSpec::new(*name, &of.size(), Init::Zeros));
        let split = || {
            whole().map(|spec| {
                let is_down = spec.name.ends_with("down_proj");
                let piece = |(name, tensor): &(String, Tensor)| {
                    let expert = name.split('.').nth(2).unwrap().parse().unwrap();
                    let start = if name.contains("up_proj") { inner } else { 0 };
                    let rows = (!is_down).then_some((start, inner));
                    Piece { index: Some(expert), rows, ..Piece::whole(name, &tensor.size()) }
                };
                let pieces = each.iter().filter(|(name, _)| name.contains("down_proj") == is_down).map(piece).collect();
                spec.stored_as(pieces)
            })
        };
        let copies = |tensors: &[(String, Tensor)]| {
            tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect()
        };
        let layouts: [Vec<(String, Tensor)>; 3] = [
            copies(&each),
            stacked([gate_up.shallow_clone(), down.shallow_clone()]),
            stacked([turned(&gate_up), turned(&down)]),
        ];
        for (layout, tensors) in layouts.iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            write_tensor_file(tensors, &[], folder.path(), SINGLE_FILE).unwrap();
            for specs in [whole().collect::<Vec<_>>(), split().collect()] {
                let checkpoint = Checkpoint::open(folder.path()).unwrap();
                compare_weights(&specs, &checkpoint, &LoadOptions::default()).unwrap();
                let params = store(specs, Kind::Float);
                load_weights(&params, folder.path()).unwrap();
                assert_eq!(params.get(own[0]).detach(), gate_up, "layout {layout} of {experts}, {width}, {inner}");
                assert_eq!(params.get(own[1]).detach(), down, "layout {layout} of {experts}, {width}, {inner}");
            }
        }
    }
}
