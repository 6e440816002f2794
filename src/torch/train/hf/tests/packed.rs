//! Weights of a few bits with their scales.

use super::*;

#[test]
fn packed_weights_are_those_of_the_published_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packed");
    for scheme in ["fp8", "int4", "mxfp4", "deepseek_v4"] {
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
        let (dtype, stem) = (Some(Dtype::F32), "model");
        let how = Rewrite { dtype, float32: &[], max_shard_size: 5000, rename: &rename, stem };
        rewrite(&checkpoint, None, out.path(), &how).unwrap();
        let plain = Checkpoint::open(out.path()).unwrap();
        assert!(!plain.is_quantized() && plain.files().len() > 1);
        for name in expected.tensors().keys() {
            let stored = plain.get(&format!("new.{name}")).unwrap();
            let want = expected.read(name).unwrap().unwrap();
            // Stacks of MXFP4 are turned, as transformers turns what it unpacks.
            let want = if checkpoint.get(name).unwrap().is_turned() { want.transpose(1, 2) } else { want };
            assert!(plain.read(stored, Kind::Float).unwrap() == want, "{name}");
        }
    }
}

#[test]
fn fp8_of_one_file_is_read_with_and_without_scales() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("comfy.safetensors");
    let prefix = "model.diffusion_model.";
    let fp8 = |tensor: &Tensor| tensor.to_kind(Kind::Float8e4m3fn);
    let [a, b, c] = [3i64, 4, 6].map(|rows| numbers(&[rows, 5], Kind::Float));
    let bias = numbers(&[6], Kind::Float);
    let rows = Tensor::from_slice(&[0.5f32, 0.3, 2.0, 0.01]);
    let tensors = [
        // A name by which the network is known.
        ("patch_embedding.weight", numbers(&[2, 2, 1, 2, 2], Kind::BFloat16)),
        ("blocks.0.self_attn.q.weight", fp8(&a)),
        ("blocks.0.self_attn.q.scale_weight", Tensor::from(0.0123f32)),
        ("blocks.0.self_attn.q.scale_input", Tensor::from(1f32)),
        ("blocks.0.self_attn.k.weight", fp8(&b)),
        ("blocks.0.self_attn.k.weight_scale", rows.view([4, 1])),
        ("blocks.0.self_attn.v.weight", fp8(&c)),
        ("blocks.0.self_attn.v.bias", fp8(&bias)),
        ("scaled_fp8", fp8(&numbers(&[2], Kind::Float))),
    ];
    let tensors = tensors.map(|(name, tensor)| (format!("{prefix}{name}"), tensor));
    write_tensor_file(&tensors, &[], folder.path(), "comfy.safetensors").unwrap();

    let checkpoint = Checkpoint::open(&path).unwrap();
    let attn = |name: &str| format!("transformer.blocks.0.attn1.{name}");
    let value = |tensor: &Tensor| fp8(tensor).to_kind(Kind::Float);
    let expected = [
        (attn("to_q.weight"), value(&a) * Tensor::from(0.0123f32)),
        (attn("to_k.weight"), value(&b) * rows.unsqueeze(1)),
        (attn("to_v.weight"), value(&c)),
        (attn("to_v.bias"), value(&bias)),
    ];
    let specs = |fp8: bool| -> Vec<ParamSpec> {
        let spec = |(name, value): &(String, Tensor)| {
            let spec = ParamSpec::new(name, &value.size(), Init::Zeros).frozen();
            let is_linear = value.dim() > 1;
            let rounding = if fp8 && is_linear { Rounding::Float8 } else { Rounding::None };
            ParamSpec { is_linear, held: Held { rounding, on_host: false }, ..spec }
        };
        expected.iter().map(spec).collect()
    };
    let mut all = specs(false);
    all.push(ParamSpec::new("transformer.patch_embedding.weight", &[2, 2, 1, 2, 2], Init::Zeros));
    compare_weights(&all, &checkpoint, &LoadOptions::default()).unwrap();
    // Values are those of the file, bit for bit, whether they are float8 here or not.
    for (fp8, kind) in [(false, Kind::Float), (true, Kind::Float), (false, Kind::BFloat16)] {
        let params = store(specs(fp8), kind);
        load_weights(&params, &path).unwrap();
        for (name, value) in &expected {
            assert_eq!(params.value(params.id(name)), value.to_kind(kind), "{name}, float8: {fp8}, {kind:?}");
        }
    }
    let q = checkpoint.get(&attn("to_k.weight")).unwrap();
    assert_eq!(checkpoint.read_rows(q, 1, 2, Kind::Float).unwrap(), expected[1].1.narrow(0, 1, 2));
}

#[test]
fn fp8_of_compressed_tensors_is_read_with_its_scales() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}"#;
    fs::write(folder.path().join("config.json"), config).unwrap();
    let values = numbers(&[4, 5], Kind::Float).to_kind(Kind::Float8e4m3fn);
    let rows = Tensor::from_slice(&[0.5f32, 0.3, 2.0, 0.01]).view([4, 1]);
    let tensors = [
        ("a.weight", values.shallow_clone()),
        ("a.weight_scale", rows.shallow_clone()),
        ("a.input_scale", Tensor::from(1f32)),
    ];
    write(folder.path(), SINGLE_FILE, &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let specs = [ParamSpec::new("a.weight", &[4, 5], Init::Zeros)];
    compare_weights(&specs, &checkpoint, &LoadOptions::default()).unwrap();
    let read = checkpoint.read(checkpoint.get("a.weight").unwrap(), Kind::Float).unwrap();
    assert_eq!(read, values.to_kind(Kind::Float) * rows);
    write(folder.path(), SINGLE_FILE, &[("a.weight", values)]);
    let error = refused(Checkpoint::open(folder.path()));
    assert!(error.contains("a.weight: a.weight_scale is missing"), "{error}");
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
    let int8 = |shape: &[i64]| Tensor::zeros(shape, (Kind::Int8, Device::Cpu));
    let float8 = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float8e4m3fn, Device::Cpu));
    let shape = |rows: i32, cols: i32| Tensor::from_slice(&[rows, cols]);
    let cases: &[(&[(&str, Tensor)], &str)] = &[
        (&[("w", float8(&[2, 3])), ("w_scale", floats(&[3]))], "must be one number, or one for each row of [2, 3]"),
        (&[("w", float8(&[2, 3])), ("w_scale", ints(&[1]))], "w_scale is I32, but must be a float"),
        (&[("w_packed", ints(&[2, 1]))], "w_scale is missing"),
        (&[("w_packed", ints(&[2, 1])), ("w_scale", floats(&[2, 1]))], "w_shape is missing"),
        (&[("w_packed", ints(&[2, 1])), ("w_scale", floats(&[2, 1])), ("w_shape", shape(2, 9))], "packed as [2, 2]"),
        (&[("w_packed", ints(&[2, 1])), ("w_scale", floats(&[2, 3])), ("w_shape", shape(2, 8))], "does not divide"),
        (&[("w_packed", ints(&[2, 1])), ("w_scale", floats(&[2, 0])), ("w_shape", shape(2, 8))], "does not divide"),
        (&[("w_packed", ints(&[0, 0])), ("w_scale", floats(&[0, 1])), ("w_shape", shape(-1, 0))], "packed as"),
        (&[("w.weight", int8(&[2, 16])), ("w.scale", bytes(&[2, 2]))], "FP4 needs bytes"),
        (&[("w.weight", int8(&[2, 16])), ("w.scale", bytes(&[2, 1]))], "its scales are U8, but must be F8_E8M0"),
        (&[("w_blocks", bytes(&[2, 1, 16]))], "w_scales is missing"),
        (&[("w_blocks", bytes(&[2, 1, 8])), ("w_scales", bytes(&[2, 1]))], "MXFP4 needs"),
    ];
    for (tensors, words) in cases {
        let error = refusal(tensors, "{}");
        assert!(
            error.contains(words) && (error.contains("w: ") || error.contains("w.weight: ")),
            "{error} lacks {words}"
        );
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

/// Experts of gpt-oss in MXFP4 are the parameters that a plain folder gives, before and after a conversion; downs are square.
#[test]
fn packed_experts_of_gpt_oss_are_those_of_a_plain_folder() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt_oss-seed1/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(fixture).unwrap()).unwrap();
    (config["hidden_size"], config["intermediate_size"]) = (32.into(), 32.into());
    let specs = crate::model::ModelConfig::from_hf(&config).unwrap().specs();
    let (packed, plain, converted) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut in_packed, mut in_plain) = (Vec::new(), Vec::new());
    for (seed, spec) in (1i64..).zip(&specs) {
        let [piece] = spec.pieces.as_slice() else { panic!("{} is one tensor", spec.name) };
        let shape: [i64; 3] = match piece.shape[..] {
            [experts, inputs, outputs] => [experts, outputs, inputs],
            _ => {
                let values = numbers(&piece.shape, Kind::Float);
                in_packed.push((piece.name.clone(), values.shallow_clone()));
                in_plain.push((piece.name.clone(), values));
                continue;
            }
        };
        let blocks = (Tensor::arange(shape.iter().product::<i64>() / 2, (Kind::Int64, Device::Cpu)) * (37 + seed))
            .remainder(256);
        let blocks = blocks.to_kind(Kind::Uint8).view([shape[0], shape[1], shape[2] / 32, 16]);
        let scales = Tensor::full([shape[0], shape[1], shape[2] / 32], 126, (Kind::Uint8, Device::Cpu));
        let mut values = vec![0f32; shape.iter().product::<i64>() as usize];
        let [blocks_of, scales_of] = [&blocks, &scales].map(|x| Vec::<u8>::try_from(x.flatten(0, -1)).unwrap());
        crate::train::hf::packed::unpack_mxfp4(&blocks_of, &scales_of, &mut values);
        in_packed.push((format!("{}_blocks", piece.name), blocks));
        in_packed.push((format!("{}_scales", piece.name), scales));
        // As transformers' `convert_moe_packed_tensors` turns it.
        in_plain.push((piece.name.clone(), Tensor::from_slice(&values).view(shape).transpose(1, 2).contiguous()));
    }
    write_tensor_file(&in_packed, &[("format", "pt")], packed.path(), SINGLE_FILE).unwrap();
    write_tensor_file(&in_plain, &[("format", "pt")], plain.path(), SINGLE_FILE).unwrap();
    config["quantization_config"] = serde_json::json!({"quant_method": "mxfp4"});
    fs::write(packed.path().join("config.json"), config.to_string()).unwrap();
    let rename = |name: &str| Some(name.to_owned());
    let (dtype, stem) = (Some(Dtype::F32), "model");
    let how = Rewrite { dtype, float32: &[], max_shard_size: u64::MAX, rename: &rename, stem };
    rewrite(&Checkpoint::open(packed.path()).unwrap(), None, converted.path(), &how).unwrap();
    let loaded = |folder: &Path| {
        compare_weights(&specs, &Checkpoint::open(folder).unwrap(), &LoadOptions::default()).unwrap();
        let params = store(specs.clone(), Kind::Float);
        load_weights(&params, folder).unwrap();
        params.flat().copy()
    };
    let expected = loaded(plain.path());
    assert_eq!(loaded(packed.path()), expected);
    assert_eq!(loaded(converted.path()), expected);
}

#[test]
fn a_bias_of_experts_that_is_float32_is_not_narrowed_with_the_rest() {
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [bias, narrow] = ["mlp.gate.e_score_correction_bias", "other.e_score_correction_bias"];
    let tensors = [
        (bias, Tensor::from_slice(&[0.501f32, 0.5])),
        (narrow, numbers(&[2], Kind::BFloat16)),
        ("mlp.gate.weight", numbers(&[2, 3], Kind::Float)),
    ];
    write(folder.path(), SINGLE_FILE, &tensors);
    let rename = |name: &str| Some(name.to_owned());
    let (float32, stem) = (&["e_score_correction_bias"][..], "model");
    let how = Rewrite { dtype: Some(Dtype::BF16), float32, max_shard_size: u64::MAX, rename: &rename, stem };
    rewrite(&Checkpoint::open(folder.path()).unwrap(), None, out.path(), &how).unwrap();
    let written = Checkpoint::open(out.path()).unwrap();
    let types = [bias, narrow, "mlp.gate.weight"].map(|name| written.get(name).unwrap().dtype);
    assert_eq!(types, [Dtype::F32, Dtype::BF16, Dtype::BF16]);
    assert!(written.read(written.get(bias).unwrap(), Kind::Float).unwrap() == tensors[0].1);
}
