//! Tests that what is in the files is what is read, whatever shape it is stored in.

use super::*;

#[test]
fn shards_come_back() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let folder = tempfile::tempdir().unwrap();
        let saved = store(self::specs(), kind);
        saved.init_random(5);
        let specs = specs();
        let count = num_shards(specs.iter(), kind, 100);
        let shards = Shards { of: FilesOf::Whole, first: 2, count, total: count + 1, max_size: 100 };
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
    let piece = |name: &str, rows, index, transposed, shape: &[i64]| StoredTensor {
        index,
        rows,
        transposed,
        ..StoredTensor::whole(name, shape)
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
    assert!(refused(load_weights_from(&other, &origin, &options)).contains("checkpoint [6, 4], model [9, 4]"));
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
    // As `CLIPTextModel` of transformers 5 saves itself; before, all was within `text_model`.
    let texts = tempfile::tempdir().unwrap();
    write(texts.path(), SINGLE_FILE, &[("encoder.layers.0.w", float(&[3], 5)), ("final_layer_norm.w", float(&[2], 6))]);
    let names = [
        "text_encoder.text_model.encoder.layers.0.w",
        "text_encoder.text_model.final_layer_norm.w",
        "image_encoder.blocks.0.w",
        "image_encoder.blocks.1.w",
        "image_projector.w",
        "foundation.model.norm.w",
        "foundation.lm_head.weight",
    ];
    let shapes: [&[i64]; 7] = [&[3], &[2], &[3], &[3], &[4], &[2], &[2, 2]];
    let specs: Vec<ParamSpec> =
        names.iter().zip(shapes).map(|(name, shape)| ParamSpec::new(*name, shape, Init::Ones)).collect();
    let open = |folder: &tempfile::TempDir| Checkpoint::open(folder.path()).unwrap();
    let origin = || {
        let origin = Origin::default().with_part("image_encoder.", open(&tower), names.into_iter());
        let origin = origin.with_part("text_encoder.", open(&texts), names.into_iter());
        origin.with_part("foundation.", open(&language), names.into_iter())
    };
    let params = store(specs.clone(), Kind::Float);
    params.init_random(1);
    load_weights_from(&params, &origin(), &LoadOptions::default()).unwrap();
    let want = [
        float(&[3], 5),
        float(&[2], 6),
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
                    StoredTensor { index: Some(expert), rows, ..StoredTensor::whole(name, &tensor.size()) }
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

#[test]
fn a_tower_is_read_with_and_without_its_inner_name() {
    let specs = || vec![ParamSpec::new("vision_tower.vision_model.norm.weight", &[3], Init::Zeros)];
    for name in ["vision_tower.vision_model.norm.weight", "vision_tower.norm.weight"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), SINGLE_FILE, &[(name, numbers(&[3], Kind::Float))]);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        compare_weights(&specs(), &checkpoint, &LoadOptions::default()).unwrap();
        let params = store(specs(), Kind::Float);
        load_weights(&params, folder.path()).unwrap();
        assert_eq!(values(&params.get("vision_tower.vision_model.norm.weight")), values(&numbers(&[3], Kind::Float)));
    }
}
