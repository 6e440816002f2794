//! The tensors of a GGUF file, their types, and the tensors that each is made of.

use super::container::{Description, Q8_0_VALUES, TensorType};
use super::names::{Architecture, Goes, destination, order};
use loongforge_torch::train::Adapters;
use loongforge_torch::train::hf::Checkpoint;
use std::collections::BTreeMap;
use tch::Tensor;

/// Names that one error lists.
const MAX_NAMES: usize = 4;
/// The name of the divisors of the frequencies of rotary embeddings.
const FREQUENCIES: &str = "rope_freqs.weight";

/// A tensor of the file.
pub struct Planned {
    pub description: Description,
    /// Tensors of the checkpoint whose values follow each other: experts in their order, else one.
    pub sources: Vec<String>,
    /// Values that stand in no checkpoint.
    pub made: Option<Vec<f32>>,
    /// True of norms whose factor is one plus the weight in the checkpoint, and the weight in the file.
    pub adds_one: bool,
    /// Heads whose channels are put in the order of [`neighbors`].
    pub heads: Option<i64>,
}

/// All tensors of a file, in their order.
pub struct Plan(Vec<Planned>);

impl Plan {
    /// `adapters` are those that are added to the checkpoint; `heads`: those of queries and keys where their channels lie in another
    /// order; `frequencies`: what divides those of rotary embeddings; `kind`: the type of matrices.
    ///
    /// # Errors
    /// A tensor has no place in llama.cpp's architecture, or an expert is missing.
    pub fn new(
        architecture: Architecture,
        (checkpoint, adapters): (&Checkpoint, Option<&Adapters>),
        is_tied: bool,
        heads: Option<[i64; 2]>,
        frequencies: Option<&[f32]>,
        kind: TensorType,
    ) -> Result<Self, String> {
        let mut whole: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
        let (mut stacks, mut unknown) = (Vec::new(), Vec::new());
        for (name, _) in checkpoint.tensors() {
            match destination(architecture, name) {
                Some(Goes::To(to)) if is_tied && to == "output.weight" => {}
                Some(Goes::To(to)) => drop(whole.entry(to).or_default().insert(0, name.to_owned())),
                Some(Goes::Expert(to, number)) => {
                    stacks.push(to.clone());
                    whole.entry(to).or_default().insert(number, name.to_owned());
                }
                Some(Goes::Nowhere) => {}
                None => unknown.push(name),
            }
        }
        if !unknown.is_empty() {
            let more = unknown.len().saturating_sub(MAX_NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let names = unknown[..unknown.len().min(MAX_NAMES)].join(", ");
            return Err(format!("llama.cpp's architecture has no tensors for {names}{more}"));
        }
        let mut planned = Vec::new();
        for (name, sources) in whole {
            let is_stack = stacks.contains(&name);
            let shape = |source: &String| {
                let grown = adapters.and_then(|adapters| adapters.grown().get(source)).cloned();
                grown.or_else(|| Some(checkpoint.get(source)?.plain_shape())).unwrap_or_default()
            };
            let first = sources.values().next().map(shape).unwrap_or_default();
            if sources.keys().enumerate().any(|(at, number)| at != *number)
                || sources.values().any(|it| shape(it) != first)
            {
                return Err(format!("{name}: experts are missing, or differ in shape"));
            }
            let shape = if is_stack { [&[sources.len() as i64], first.as_slice()].concat() } else { first };
            let heads = heads.and_then(|[queries, keys]| match name.split('.').nth(2) {
                Some("attn_q") => Some(queries),
                Some("attn_k") => Some(keys),
                _ => None,
            });
            let kind = kind_of(&name, &shape, kind);
            let adds_one = architecture.is_gemma() && name.ends_with("_norm.weight");
            let description = Description { name, shape, kind };
            planned.push(Planned {
                description,
                sources: sources.into_values().collect(),
                made: None,
                adds_one,
                heads,
            });
        }
        if let Some(frequencies) = frequencies {
            let shape = vec![frequencies.len() as i64];
            let description = Description { name: FREQUENCIES.to_owned(), shape, kind: TensorType::F32 };
            planned.push(Planned {
                description,
                sources: Vec::new(),
                made: Some(frequencies.to_vec()),
                adds_one: false,
                heads: None,
            });
        }
        planned.sort_by_key(|planned| order(&planned.description.name));
        Ok(Self(planned))
    }

    /// Returns the planned tensors, in the order of the file.
    pub fn tensors(&self) -> &[Planned] {
        &self.0
    }

    /// Returns the description of each tensor in the file's header, in the order of the file.
    pub fn descriptions(&self) -> Vec<Description> {
        self.0.iter().map(|planned| planned.description.clone()).collect()
    }

    /// Returns a sentence about the matrices whose rows are no whole blocks.
    pub fn said(&self) -> Option<String> {
        let has = |kind: TensorType| self.0.iter().filter(move |planned| planned.description.kind == kind).count();
        let whole = has(TensorType::F16);
        (has(TensorType::Q8_0) > 0 && whole > 0).then(|| {
            format!(
                "{whole} tensors are float16: their rows are not a multiple of {Q8_0_VALUES} values, which q8_0 needs"
            )
        })
    }
}

/// Vectors, norms and routers are float32 in every file; rows that are no whole blocks are float16.
fn kind_of(name: &str, shape: &[i64], kind: TensorType) -> TensorType {
    let is_exact = shape.len() < 2 || name.ends_with("_norm.weight") || name.ends_with(".ffn_gate_inp.weight");
    match kind {
        _ if is_exact || !name.ends_with(".weight") => TensorType::F32,
        TensorType::Q8_0 if shape.last().is_some_and(|width| width % Q8_0_VALUES != 0) => TensorType::F16,
        kind => kind,
    }
}

/// Returns the rows of queries or keys `[heads · C, in]`, or their bias `[heads · C]`, in the order of rotary embeddings that turn
/// channels 2i and 2i + 1 together: channel i and i + half of each head become neighbors. The shape and type stay.
pub fn neighbors(values: &Tensor, heads: i64) -> Tensor {
    let shape = values.size();
    let half = shape[0] / heads / 2;
    let apart = [&[heads, 2, half], &shape[1..]].concat();
    values.reshape(apart.as_slice()).transpose(1, 2).reshape(shape.as_slice()).contiguous()
}
