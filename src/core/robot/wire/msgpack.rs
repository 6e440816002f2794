//! The part of MessagePack that clients of policies send: everything but extension types. A message is read in place: texts and
//! bytes are slices of it. What is allocated is bounded by the number of values, whatever lengths the message claims.

/// Lists and maps within each other at most.
pub const MAX_DEPTH: usize = 16;
/// Values of one message at most, lists, maps and keys included.
pub const MAX_VALUES: usize = 1 << 16;
/// Characters of a client's text that an error repeats.
const MAX_SHOWN: usize = 32;

/// A value of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    Nil,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(Vec<Value<'a>>),
    /// A map in the message's order, without a key twice.
    Map(Vec<(Value<'a>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// Returns the value of a map under a text; `None` where it lacks it or is no map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(&Value::Text(key))
    }

    /// Works like [`Value::get`] for any key.
    pub fn entry(&self, key: &Value<'_>) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Returns the text; `None` if the value is not text.
    pub fn text(&self) -> Option<&'a str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Returns a number of either kind.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the value as an error names it, which must not be as long as the message.
    pub fn shown(&self) -> String {
        match self {
            Self::Nil => "nil".to_owned(),
            Self::Bool(flag) => flag.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Text(text) => format!("{:?}", cut(text)),
            Self::Bytes(bytes) => format!("b{:?}", cut(&String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN)]))),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a map".to_owned(),
        }
    }
}

/// Returns the beginning of a client's text.
pub fn cut(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// Reads one value that fills the message.
///
/// # Errors
/// The reason: the message is cut off, has more than one value, too many or too deep ones, an extension type, text that is not
/// UTF-8, a key twice, or a key that is neither text nor bytes.
pub fn read(message: &[u8]) -> Result<Value<'_>, String> {
    let mut reader = Reader { rest: message, num_values: 0 };
    let value = reader.value(0)?;
    match reader.rest.len() {
        0 => Ok(value),
        more => Err(format!("message has {more} extra bytes after its value")),
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    num_values: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value<'a>, String> {
        self.num_values += 1;
        if self.num_values > MAX_VALUES {
            return Err(format!("message has more than {MAX_VALUES} values: send numbers as arrays"));
        }
        let [tag] = self.array()?;
        Ok(match tag {
            0x00..=0x7f => Value::Int(tag.into()),
            0x80..=0x8f => self.map(usize::from(tag & 0x0f), depth)?,
            0x90..=0x9f => self.list(usize::from(tag & 0x0f), depth)?,
            0xa0..=0xbf => self.text(usize::from(tag & 0x1f))?,
            0xc0 => Value::Nil,
            0xc2 => Value::Bool(false),
            0xc3 => Value::Bool(true),
            0xc4 => Value::Bytes(self.sized::<1>()?),
            0xc5 => Value::Bytes(self.sized::<2>()?),
            0xc6 => Value::Bytes(self.sized::<4>()?),
            0xca => Value::Float(f32::from_be_bytes(self.array()?).into()),
            0xcb => Value::Float(f64::from_be_bytes(self.array()?)),
            0xcc => Value::Int(u8::from_be_bytes(self.array()?).into()),
            0xcd => Value::Int(u16::from_be_bytes(self.array()?).into()),
            0xce => Value::Int(u32::from_be_bytes(self.array()?).into()),
            0xcf => Value::Int(u64::from_be_bytes(self.array()?).into()),
            0xd0 => Value::Int(i8::from_be_bytes(self.array()?).into()),
            0xd1 => Value::Int(i16::from_be_bytes(self.array()?).into()),
            0xd2 => Value::Int(i32::from_be_bytes(self.array()?).into()),
            0xd3 => Value::Int(i64::from_be_bytes(self.array()?).into()),
            0xd9 => self.length::<1>().and_then(|len| self.text(len))?,
            0xda => self.length::<2>().and_then(|len| self.text(len))?,
            0xdb => self.length::<4>().and_then(|len| self.text(len))?,
            0xdc => self.length::<2>().and_then(|len| self.list(len, depth))?,
            0xdd => self.length::<4>().and_then(|len| self.list(len, depth))?,
            0xde => self.length::<2>().and_then(|len| self.map(len, depth))?,
            0xdf => self.length::<4>().and_then(|len| self.map(len, depth))?,
            0xe0..=0xff => Value::Int((tag as i8).into()),
            0xc1 => return Err("message contains the byte 0xc1, which MessagePack never uses".to_owned()),
            0xc7..=0xc9 | 0xd4..=0xd8 => return Err("extension types of MessagePack are not supported".to_owned()),
        })
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let cut = || format!("the message is cut off: {len} bytes are announced, {} are left", self.rest.len());
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(cut)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().expect("as many bytes as were taken"))
    }

    /// Returns a length of `N` bytes, big end first.
    fn length<const N: usize>(&mut self) -> Result<usize, String> {
        Ok(self.array::<N>()?.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)))
    }

    fn sized<const N: usize>(&mut self) -> Result<&'a [u8], String> {
        let len = self.length::<N>()?;
        self.take(len)
    }

    fn text(&mut self, len: usize) -> Result<Value<'a>, String> {
        let text = std::str::from_utf8(self.take(len)?);
        text.map(Value::Text).map_err(|_| "text is not valid UTF-8".to_owned())
    }

    /// Checks that there is room for `len` values: a value takes a byte at least.
    fn room(&self, len: usize, depth: usize) -> Result<usize, String> {
        if depth >= MAX_DEPTH {
            return Err(format!("lists and maps are nested more than {MAX_DEPTH} deep"));
        }
        match len <= self.rest.len() {
            true => Ok(len.min(MAX_VALUES)),
            false => {
                Err(format!("the message is cut off: {len} values are announced, {} bytes are left", self.rest.len()))
            }
        }
    }

    fn list(&mut self, len: usize, depth: usize) -> Result<Value<'a>, String> {
        let mut values = Vec::with_capacity(self.room(len, depth)?.min(64));
        for _ in 0..len {
            values.push(self.value(depth + 1)?);
        }
        Ok(Value::List(values))
    }

    fn map(&mut self, len: usize, depth: usize) -> Result<Value<'a>, String> {
        let mut entries: Vec<(Value<'a>, Value<'a>)> = Vec::with_capacity(self.room(len, depth)?.min(64));
        let mut keys = std::collections::BTreeSet::new();
        for _ in 0..len {
            let key = self.value(depth + 1)?;
            let is_new = match &key {
                Value::Text(text) => keys.insert((false, text.as_bytes())),
                Value::Bytes(bytes) => keys.insert((true, *bytes)),
                _ => return Err("a key of a map must be text or bytes".to_owned()),
            };
            if !is_new {
                return Err(format!("map has the key {} twice", key.shown()));
            }
            entries.push((key, self.value(depth + 1)?));
        }
        Ok(Value::Map(entries))
    }
}

/// Writes values; the shortest form of each, as Python's `msgpack` does.
pub fn write(value: &Value<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, value);
    bytes
}

fn append(to: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Nil => to.push(0xc0),
        Value::Bool(value) => to.push(0xc2 + u8::from(*value)),
        Value::Int(number) => append_int(to, *number),
        Value::Float(number) => {
            to.push(0xcb);
            to.extend(number.to_be_bytes());
        }
        Value::Text(text) => {
            match text.len() {
                len @ 0..32 => to.push(0xa0 | len as u8),
                len @ 32..=0xff => to.extend([0xd9, len as u8]),
                len => append_length(to, [0xda, 0xdb], len),
            }
            to.extend(text.as_bytes());
        }
        Value::Bytes(bytes) => {
            match bytes.len() {
                len @ 0..=0xff => to.extend([0xc4, len as u8]),
                len => append_length(to, [0xc5, 0xc6], len),
            }
            to.extend_from_slice(bytes);
        }
        Value::List(values) => {
            match values.len() {
                len @ 0..16 => to.push(0x90 | len as u8),
                len => append_length(to, [0xdc, 0xdd], len),
            }
            values.iter().for_each(|value| append(to, value));
        }
        Value::Map(entries) => {
            match entries.len() {
                len @ 0..16 => to.push(0x80 | len as u8),
                len => append_length(to, [0xde, 0xdf], len),
            }
            for (key, value) in entries {
                append(to, key);
                append(to, value);
            }
        }
    }
}

/// Appends a length of two or four bytes behind its tag.
fn append_length(to: &mut Vec<u8>, tags: [u8; 2], len: usize) {
    match u16::try_from(len) {
        Ok(len) => {
            to.push(tags[0]);
            to.extend(len.to_be_bytes());
        }
        Err(_) => {
            to.push(tags[1]);
            to.extend(u32::try_from(len).expect("a message is below 4 GiB").to_be_bytes());
        }
    }
}

fn append_int(to: &mut Vec<u8>, number: i128) {
    match number {
        0..=0x7f => to.push(number as u8),
        -32..0 => to.push(number as i8 as u8),
        0x80..=0xff => to.extend([0xcc, number as u8]),
        -0x80..-32 => to.extend([0xd0, number as i8 as u8]),
        0x100..=0xffff => append_number(to, 0xcd, &(number as u16).to_be_bytes()),
        -0x8000..-0x80 => append_number(to, 0xd1, &(number as i16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => append_number(to, 0xce, &(number as u32).to_be_bytes()),
        -0x8000_0000..-0x8000 => append_number(to, 0xd2, &(number as i32).to_be_bytes()),
        0x1_0000_0000.. => append_number(to, 0xcf, &u64::try_from(number).unwrap_or(u64::MAX).to_be_bytes()),
        _ => append_number(to, 0xd3, &i64::try_from(number).unwrap_or(i64::MIN).to_be_bytes()),
    }
}

fn append_number(to: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    to.push(tag);
    to.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_to_pythons_msgpack() {
        // msgpack 1.1 of {"a": [1, -1, 200, -200, 70000, 2**40, True, None, 0.5], b"d": b"xy", "n": {}}
        let expected = [
            0x83, 0xa1, b'a', 0x99, 1, 0xff, 0xcc, 200, 0xd1, 0xff, 0x38, 0xce, 0, 1, 0x11, 0x70, 0xcf, 0, 0, 1, 0, 0,
            0, 0, 0, 0xc3, 0xc0, 0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0, 0xc4, 1, b'd', 0xc4, 2, b'x', b'y', 0xa1, b'n',
            0x80,
        ];
        let numbers = [1, -1, 200, -200, 70_000, 1 << 40].map(Value::Int);
        let list = [&numbers[..], &[Value::Bool(true), Value::Nil, Value::Float(0.5)]].concat();
        let value = Value::Map(vec![
            (Value::Text("a"), Value::List(list)),
            (Value::Bytes(b"d"), Value::Bytes(b"xy")),
            (Value::Text("n"), Value::Map(Vec::new())),
        ]);
        assert_eq!(write(&value), expected);
        assert_eq!(read(&expected).unwrap(), value);
        for len in 0..expected.len() {
            assert!(read(&expected[..len]).unwrap_err().contains("cut off"), "{len}");
        }
        assert_eq!(value.get("d"), None, "a key of bytes is another key");
        assert_eq!(value.entry(&Value::Bytes(b"d")), Some(&Value::Bytes(b"xy")));
    }

    #[test]
    fn what_is_not_taken_is_said() {
        let error = |bytes: &[u8]| read(bytes).unwrap_err();
        assert!(error(&[0x91; 17]).contains("more than 16 deep"));
        assert!(error(&[0x81, 1, 1]).contains("must be text or bytes"));
        // Two thousand million values, and text, in a few bytes.
        assert!(error(&[0xdd, 0x7f, 0xff, 0xff, 0xff, 0]).contains("2147483647 values are announced"));
        assert!(error(&[0xdb, 0xff, 0xff, 0xff, 0xff, 0]).contains("4294967295 bytes are announced"));
        assert!(error(&[0xd4, 0, 0]).contains("extension type"));
        assert!(error(&[0xc1]).contains("0xc1"));
        assert!(error(&[0xa1, 0xff]).contains("UTF-8"));
        assert!(error(&[0x82, 0xa1, b'a', 0, 0xa1, b'a', 0]).contains("key \"a\" twice"));
        let long = [&[0xda, 0x10, 0][..], &[b'a'; 0x1000], &[0]].concat();
        assert!(error(&[&[0x82][..], &long, &long].concat()).len() < 100);
        assert!(error(&[0, 0]).contains("extra bytes after its value"));
        let many = [&[0xdd, 0, 2, 0, 0][..], &vec![0; 1 << 17]].concat();
        assert!(error(&many).contains("more than 65536 values"));
    }

    fn values() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(|number| write(&Value::Int(number.into()))),
            any::<u64>().prop_map(|number| write(&Value::Int(number.into()))),
            any::<f32>().prop_map(|number| write(&Value::Float(number.into()))),
            ".{0,40}".prop_map(|text| write(&Value::Text(&text))),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| write(&Value::Bytes(&bytes))),
        ];
        leaf.prop_recursive(4, 64, 20, |inner| {
            prop::collection::vec(inner, 0..20).prop_map(|parts| {
                let values: Vec<Value<'_>> = parts.iter().map(|bytes| read(bytes).expect("a value")).collect();
                write(&Value::List(values))
            })
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes in values()) {
            let value = read(&bytes).unwrap();
            prop_assert_eq!(write(&value), bytes.clone());
            prop_assert!(read(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}
