//! Weights of a few bits with their scales.

use super::*;

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
        let rename = |name: &str| Some(format!("new.{name}"));
        let how = Rewrite { dtype: Some(Dtype::F32), max_shard_size: 5000, rename: &rename, stem: "model" };
        rewrite(&checkpoint, None, out.path(), &how).unwrap();
        let plain = Checkpoint::open(out.path()).unwrap();
        assert!(!plain.is_quantized() && plain.files().len() > 1);
        for name in expected.tensors().keys() {
            let stored = plain.get(&format!("new.{name}")).unwrap();
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
        (r#"{"llm_config": {"quantization_config": {"format": "marlin-24"}}}"#, "\"marlin-24\""),
        ("{", "config.json"),
    ] {
        let error = refusal(&[("w", floats(&[1]))], config);
        assert!(error.contains(words), "{error} lacks {words}");
    }
}
