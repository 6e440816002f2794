//! NumPy arrays in messages: a map of type, shape and bytes, under keys of bytes or of text.

use super::msgpack::Value;

/// Axes of an array at most.
pub const MAX_AXES: usize = 4;

/// Says how a client writes the keys of an array's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Bytes, as `openpi-client` writes them.
    Bytes,
    /// Text, as `vla-eval` writes them.
    Text,
}

impl Keys {
    /// Returns a key as the client writes it.
    pub fn key(self, name: &str) -> Value<'_> {
        match self {
            Self::Bytes => Value::Bytes(name.as_bytes()),
            Self::Text => Value::Text(name),
        }
    }
}

/// The type of an array's values. All others are refused by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
}

impl DType {
    /// Parses NumPy's code (`<f4`) or its name (`float32`).
    ///
    /// # Errors
    /// The reason: another type, or the other byte order.
    pub fn parse(text: &str) -> Result<Self, String> {
        let code = text.strip_prefix(['<', '|', '=']).unwrap_or(text);
        Ok(match code {
            "b1" | "bool" => Self::Bool,
            "u1" | "uint8" => Self::U8,
            "i1" | "int8" => Self::I8,
            "u2" | "uint16" => Self::U16,
            "i2" | "int16" => Self::I16,
            "u4" | "uint32" => Self::U32,
            "i4" | "int32" => Self::I32,
            "u8" | "uint64" => Self::U64,
            "i8" | "int64" => Self::I64,
            "f4" | "float32" => Self::F32,
            "f8" | "float64" => Self::F64,
            _ => {
                let reason =
                    "only booleans, integers and floats of 32 or 64 bits are supported, in little-endian order";
                return Err(format!(
                    "array has the unsupported type {:?}: {reason}",
                    text.chars().take(32).collect::<String>()
                ));
            }
        })
    }

    /// Bytes of a value.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// An array in a message, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<'a> {
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// The bytes, as many as type and shape say.
    pub data: &'a [u8],
}

impl<'a> Array<'a> {
    /// Reads the array of a map; `None`: the map is of another kind. NumPy's scalars are arrays without axes.
    ///
    /// # Errors
    /// The reason: a key is missing, a type is not taken, or the bytes are not those of type and shape.
    pub fn of(value: &Value<'a>, keys: Keys) -> Result<Option<Self>, String> {
        let entry = |name: &str| value.entry(&keys.key(name));
        if entry("__ndarray__").is_none() {
            return Ok(None);
        }
        let Some(&Value::Text(dtype)) = entry("dtype") else { return Err("array has no `dtype`".to_owned()) };
        let Some(&Value::Bytes(data)) = entry("data") else { return Err("array has no `data`".to_owned()) };
        let Some(Value::List(axes)) = entry("shape") else { return Err("array has no `shape`".to_owned()) };
        if axes.len() > MAX_AXES {
            return Err(format!("array has {} axes, more than the limit of {MAX_AXES}", axes.len()));
        }
        let axis = |axis: &Value<'_>| match axis {
            Value::Int(size) => usize::try_from(*size).ok(),
            _ => None,
        };
        let shape: Option<Vec<usize>> = axes.iter().map(axis).collect();
        let shape = shape.ok_or("every size in `shape` must be an integer of at least 0")?;
        let dtype = DType::parse(dtype)?;
        let num_bytes = shape.iter().try_fold(dtype.size(), |product, &size| product.checked_mul(size));
        if num_bytes != Some(data.len()) {
            return Err(format!("array of shape {shape:?} and type {dtype:?} does not match its {} bytes", data.len()));
        }
        Ok(Some(Self { dtype, shape, data }))
    }

    /// Returns its values.
    ///
    /// # Errors
    /// The reason: a value is not finite.
    pub fn numbers(&self) -> Result<Vec<f64>, String> {
        fn all<const N: usize>(data: &[u8], number: fn([u8; N]) -> f64) -> Vec<f64> {
            data.as_chunks::<N>().0.iter().map(|bytes| number(*bytes)).collect()
        }
        let numbers = match self.dtype {
            DType::Bool | DType::U8 => all(self.data, |bytes| u8::from_le_bytes(bytes).into()),
            DType::I8 => all(self.data, |bytes| i8::from_le_bytes(bytes).into()),
            DType::U16 => all(self.data, |bytes| u16::from_le_bytes(bytes).into()),
            DType::I16 => all(self.data, |bytes| i16::from_le_bytes(bytes).into()),
            DType::U32 => all(self.data, |bytes| u32::from_le_bytes(bytes).into()),
            DType::I32 => all(self.data, |bytes| i32::from_le_bytes(bytes).into()),
            DType::U64 => all(self.data, |bytes| u64::from_le_bytes(bytes) as f64),
            DType::I64 => all(self.data, |bytes| i64::from_le_bytes(bytes) as f64),
            DType::F32 => all(self.data, |bytes| f32::from_le_bytes(bytes).into()),
            DType::F64 => all(self.data, f64::from_le_bytes),
        };
        match numbers.iter().find(|number| !number.is_finite()) {
            Some(number) => Err(format!("array contains {number}")),
            None => Ok(numbers),
        }
    }
}

/// Returns the map of an array of 32-bit floats, `bytes` little end first.
pub fn floats<'a>(keys: Keys, dtype: &'a str, shape: &[usize], bytes: &'a [u8]) -> Value<'a> {
    let axes = shape.iter().map(|&size| Value::Int(size as i128)).collect();
    Value::Map(vec![
        (keys.key("__ndarray__"), Value::Bool(true)),
        (keys.key("data"), Value::Bytes(bytes)),
        (keys.key("dtype"), Value::Text(dtype)),
        (keys.key("shape"), Value::List(axes)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array<'a>(dtype: &'a str, shape: &[i128], data: &'a [u8]) -> Result<Array<'a>, String> {
        let shape = Value::List(shape.iter().copied().map(Value::Int).collect());
        let entries = [("__ndarray__", Value::Bool(true)), ("data", Value::Bytes(data)), ("dtype", Value::Text(dtype))];
        let mut entries: Vec<_> = entries.map(|(key, value)| (Keys::Bytes.key(key), value)).into();
        entries.push((Keys::Bytes.key("shape"), shape));
        let map = Value::Map(entries);
        assert_eq!(Array::of(&map, Keys::Text), Ok(None), "keys of the other kind make no array");
        Array::of(&map, Keys::Bytes).map(|array| array.expect("an array"))
    }

    #[test]
    fn arrays_of_every_type_have_their_values() {
        let values = |dtype: &str, bytes: &[u8]| array(dtype, &[2], bytes).unwrap().numbers().unwrap();
        assert_eq!(values("|u1", &[1, 255]), [1.0, 255.0]);
        assert_eq!(values("int8", &[1, 255]), [1.0, -1.0]);
        assert_eq!(values("<i2", &[1, 0, 0, 0x80]), [1.0, -32768.0]);
        assert_eq!(values("<f4", &[0.5f32.to_le_bytes(), (-2f32).to_le_bytes()].concat()), [0.5, -2.0]);
        assert_eq!(values("float64", &[0.1f64.to_le_bytes(), 3f64.to_le_bytes()].concat()), [0.1, 3.0]);
        assert_eq!(values("<i8", &[7i64.to_le_bytes(), (-7i64).to_le_bytes()].concat()), [7.0, -7.0]);
    }

    #[test]
    fn other_types_and_wrong_shapes_are_refused() {
        for dtype in ["|O", "|V8", "<c8", ">f4", "<f2", "<M8[ns]", "|S4", "object"] {
            assert!(array(dtype, &[1], &[0; 8]).unwrap_err().contains(&format!("{dtype:?}")));
        }
        assert!(array("<f4", &[2, 3], &[0; 23]).unwrap_err().contains("[2, 3]"));
        assert!(array("<f4", &[1 << 62, 1 << 62], &[0; 4]).is_err(), "the product does not fit");
        assert!(array("<f4", &[-1], &[0; 4]).unwrap_err().contains("size"));
        assert!(array("|u1", &[1; 5], &[0]).unwrap_err().contains("5 axes"));
        let endless = f32::NAN.to_le_bytes();
        assert!(array("<f4", &[1], &endless).unwrap().numbers().unwrap_err().contains("NaN"));
    }
}
