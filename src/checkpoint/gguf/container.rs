//! The GGUF container, version 3: metadata, descriptions of tensors, and their bytes, each tensor's at a multiple of 32 bytes.
//!
//! ```text
//! "GGUF" u32 version, u64 tensors, u64 pairs │ pairs: key, u32 type, value │ tensors: name, u32 axes, u64 sizes, u32 type,
//! u64 offset from the first tensor's byte │ zeros up to a multiple of 32 │ bytes, each tensor's followed by such zeros
//! ```
//!
//! Numbers are little-endian; a text is its length in bytes (u64) and UTF-8; an array is its type (u32), its length (u64) and
//! its values. Sizes of axes stand in the opposite order of libtorch's: that of the axis whose values lie side by side first.

use std::io::{self, Write};

const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;
const ALIGNMENT: u64 = 32;
/// Bytes of a block of `Q8_0`, and values in it.
const Q8_0_BYTES: u64 = 34;
pub const Q8_0_VALUES: i64 = 32;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Integers(Vec<i32>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Keys with their values, in order.
pub type Metadata = Vec<(String, Value)>;

/// The type of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    F32,
    F16,
    /// Blocks of 32 whole numbers of 8 bits with one scale, a float16.
    Q8_0,
    Bf16,
}

impl TensorType {
    fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }

    /// Returns the number under which llama.cpp knows a file whose matrices are of this type.
    pub fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    fn num_bytes(self, values: u64) -> u64 {
        match self {
            Self::F32 => values * 4,
            Self::F16 | Self::Bf16 => values * 2,
            Self::Q8_0 => values / Q8_0_VALUES as u64 * Q8_0_BYTES,
        }
    }
}

/// Describes a tensor; `shape` is libtorch's.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    pub name: String,
    pub shape: Vec<i64>,
    pub kind: TensorType,
}

impl Description {
    /// Returns the product of the shape's dimensions.
    pub fn num_values(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64
    }

    /// Returns the bytes that the values take in the file, in the tensor's type.
    pub fn num_bytes(&self) -> u64 {
        self.kind.num_bytes(self.num_values())
    }
}

/// Writes everything before the first tensor's bytes.
///
/// # Errors
/// It cannot be written.
pub fn write_header(out: &mut impl Write, metadata: &Metadata, tensors: &[Description]) -> io::Result<()> {
    let mut header = Vec::new();
    header.extend_from_slice(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut header, key);
        header.extend(type_code(value).to_le_bytes());
        put_value(&mut header, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        put_text(&mut header, &tensor.name);
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|size| header.extend((*size as u64).to_le_bytes()));
        header.extend(tensor.kind.code().to_le_bytes());
        header.extend(offset.to_le_bytes());
        offset += tensor.num_bytes().next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    out.write_all(&header)
}

/// Writes the zeros behind the bytes of a tensor.
///
/// # Errors
/// They cannot be written.
pub fn write_padding(out: &mut impl Write, tensor: &Description) -> io::Result<()> {
    let len = tensor.num_bytes().next_multiple_of(ALIGNMENT) - tensor.num_bytes();
    out.write_all(&vec![0; len as usize])
}

fn type_code(value: &Value) -> u32 {
    match value {
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Text(_) => 8,
        Value::Integers(_) | Value::Floats(_) | Value::Texts(_) => 9,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push(u8::from(*value)),
        Value::Text(text) => put_text(out, text),
        Value::Integers(values) => {
            put_array(out, 5, values.len());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Value::Floats(values) => {
            put_array(out, 6, values.len());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Value::Texts(texts) => {
            put_array(out, 8, texts.len());
            texts.iter().for_each(|text| put_text(out, text));
        }
    }
}

fn put_array(out: &mut Vec<u8>, kind: u32, len: usize) {
    out.extend(kind.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
