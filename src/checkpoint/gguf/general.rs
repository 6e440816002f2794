//! The keys `general.*`: what a file is called, its size, and how its model samples.

use super::container::{Description, Metadata, TensorType, Value};
use super::names::Architecture;
use serde_json::Value as Json;

/// Version of the layouts of packed blocks.
const QUANTIZATION_VERSION: u32 = 2;

/// Keys of `generation_config.json`, and llama.cpp's.
const SAMPLING: [(&str, &str); 4] =
    [("top_p", "top_p"), ("min_p", "min_p"), ("temperature", "temp"), ("repetition_penalty", "penalty_repeat")];

/// Returns the keys that stand before those of the architecture; `generation` is `generation_config.json` or null.
pub fn general(
    architecture: Architecture,
    name: &str,
    generation: &Json,
    kind: TensorType,
    tensors: &[Description],
) -> Metadata {
    let mut metadata: Metadata = vec![
        ("general.architecture".to_owned(), architecture.name().into()),
        ("general.type".to_owned(), "model".into()),
    ];
    let mut put = |key: &str, value: Value| metadata.push((format!("general.{key}"), value));
    if let Some(top_k) = generation["top_k"].as_i64().and_then(|top_k| i32::try_from(top_k).ok()) {
        put("sampling.top_k", Value::I32(top_k));
    }
    for (key, theirs) in SAMPLING {
        if let Some(value) = generation[key].as_f64() {
            put(&format!("sampling.{theirs}"), Value::F32(value as f32));
        }
    }
    put("name", name.into());
    put("size_label", Value::Text(size_label(tensors)));
    put("file_type", Value::U32(kind.file_type()));
    put("quantization_version", Value::U32(QUANTIZATION_VERSION));
    metadata
}

/// Returns the number of parameters as files are named by it: `7.2B`, `8x7B`.
fn size_label(tensors: &[Description]) -> String {
    let experts = |tensor: &&Description| tensor.name.contains("_exps.");
    let shared: u64 = tensors.iter().filter(|tensor| !experts(tensor)).map(Description::num_values).sum();
    let count = tensors.iter().find(experts).map_or(0, |tensor| tensor.shape[0] as u64);
    let each: u64 = tensors.iter().filter(experts).map(|tensor| tensor.num_values() / count.max(1)).sum();
    let pretty = rounded(shared + each);
    if count > 0 { format!("{count}x{pretty}") } else { pretty }
}

fn rounded(parameters: u64) -> String {
    let parameters = parameters as f64;
    let (scaled, unit) = match parameters {
        _ if parameters > 1e12 => (parameters * 1e-12, "T"),
        _ if parameters > 1e9 => (parameters * 1e-9, "B"),
        _ if parameters > 1e6 => (parameters * 1e-6, "M"),
        _ => (parameters * 1e-3, "K"),
    };
    // Two digits at least.
    let digits = match scaled.round_ties_even() {
        0.0 => 2,
        whole if whole < 10.0 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_digits() {
        assert_eq!(
            [7_241_732_096, 596_049_920, 12_345, 999, 400].map(rounded),
            ["7.2B", "596M", "12K", "1.0K", "0.40K"]
        );
        let tensor =
            |name: &str, shape: &[i64]| Description { name: name.into(), shape: shape.to_vec(), kind: TensorType::F32 };
        let tensors = [tensor("token_embd.weight", &[1000, 1000]), tensor("blk.0.ffn_up_exps.weight", &[8, 1000, 500])];
        assert_eq!(size_label(&tensors), "8x1.5M");
    }
}
