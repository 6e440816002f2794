//! Tokens as Megatron keeps them: `PREFIX.bin` with ids end to end, and `PREFIX.idx`, which says where documents are. Some million
//! documents are open at a time, and of each its place alone.
//!
//! ```text
//! "MMIDIDX\0\0" u64 version 1, u8 type, u64 sequences, u64 boundaries │ i32 lengths of sequences │ i64 their places in the file of
//! ids, in bytes │ i64 the first sequence of each document, and behind the last │ [u8 mode of each sequence]
//! ```
//!
//! Numbers are little-endian. A document is one or several sequences that lie end to end.

use std::path::Path;
use std::sync::Arc;

use super::blob::Blob;
use super::block::{Block, Body, Record};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const HEAD_BYTES: u64 = 34;
/// Documents that are open together.
const BLOCK: u64 = 1 << 20;
/// Ids of a document that is read.
const MAX_TOKENS: u64 = 64 << 20;

/// The type of ids.
#[derive(Clone, Copy)]
enum Type {
    U8,
    I8,
    I16,
    I32,
    I64,
    U16,
}

impl Type {
    fn of(code: u8) -> Result<Self, String> {
        Ok(match code {
            1 => Self::U8,
            2 => Self::I8,
            3 => Self::I16,
            4 => Self::I32,
            5 => Self::I64,
            8 => Self::U16,
            6 | 7 => return Err("has ids of a floating-point type, which cannot be tokens".to_owned()),
            other => return Err(format!("has ids of the unknown type {other}")),
        })
    }

    fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    fn ids(self, bytes: &[u8]) -> Vec<i64> {
        match self {
            Self::U8 => bytes.iter().map(|&byte| i64::from(byte)).collect(),
            Self::I8 => bytes.iter().map(|&byte| i64::from(byte.cast_signed())).collect(),
            Self::I16 => bytes.as_chunks().0.iter().map(|&it| i64::from(i16::from_le_bytes(it))).collect(),
            Self::U16 => bytes.as_chunks().0.iter().map(|&it| i64::from(u16::from_le_bytes(it))).collect(),
            Self::I32 => bytes.as_chunks().0.iter().map(|&it| i64::from(i32::from_le_bytes(it))).collect(),
            Self::I64 => bytes.as_chunks().0.iter().map(|&it| i64::from_le_bytes(it)).collect(),
        }
    }
}

/// The header of an index.
struct Head {
    kind: Type,
    sequences: u64,
    documents: u64,
}

/// Some documents, open.
pub struct Documents {
    ids: Arc<Blob>,
    kind: Type,
    /// The place where the ids of each document begin, in bytes, and their number.
    places: Vec<(u64, u64)>,
    /// The number of the first document, from 1.
    first: u64,
}

/// Returns the file of ids beside an index.
pub fn ids_of(index: &str) -> String {
    format!("{}.bin", index.strip_suffix(".idx").unwrap_or(index))
}

/// Returns the index that a path means: its own name, that of the ids, or the prefix of both.
pub fn index_of(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let prefix = text.strip_suffix(".bin").unwrap_or(text);
    let index = format!("{prefix}.idx");
    let is_meant = text.ends_with(".bin") || !path.exists();
    (is_meant && Path::new(&index).is_file()).then_some(index)
}

impl Documents {
    /// Documents of each block of an index.
    ///
    /// # Errors
    /// The reason: the index cannot be read, or is damaged.
    pub fn lens(index: &Blob) -> Result<Vec<u64>, String> {
        let documents = Head::read(index)?.documents;
        let blocks = documents.div_ceil(BLOCK);
        Ok((0..blocks).map(|block| BLOCK.min(documents - block * BLOCK)).collect())
    }

    /// # Errors
    /// The index is damaged, or says of ids what the file of ids does not have.
    pub fn open(index: &Blob, ids: Arc<Blob>, block: u32) -> Result<Self, String> {
        let head = Head::read(index)?;
        let from = u64::from(block) * BLOCK;
        let count =
            BLOCK.min(head.documents.checked_sub(from).ok_or("has fewer documents than before: it has changed")?);
        let begins: Vec<u64> =
            numbers::<8>(index, head.boundaries() + from * 8, count + 1)?.into_iter().map(u64::from_le_bytes).collect();
        let wrong =
            |document: usize| format!("document {}: its sequences are out of order", from + document as u64 + 1);
        if let Some(at) = begins.windows(2).position(|around| around[0] > around[1]) {
            return Err(wrong(at));
        }
        let (first, end) = (begins[0], begins[begins.len() - 1]);
        if end > head.sequences {
            return Err(format!("has {} sequences, but a document ends with sequence {end}", head.sequences));
        }
        let lengths = numbers::<4>(index, HEAD_BYTES + first * 4, end - first)?;
        let pointers = numbers::<8>(index, head.pointers() + first * 8, end - first)?;
        let width = head.kind.bytes();
        let mut places = Vec::with_capacity(count as usize);
        for (at, around) in begins.windows(2).enumerate() {
            let (mut begin, mut next, mut tokens) = (0, None, 0);
            for sequence in (around[0] - first) as usize..(around[1] - first) as usize {
                let length = u64::try_from(i32::from_le_bytes(lengths[sequence])).map_err(|_| wrong(at))?;
                let place = u64::try_from(i64::from_le_bytes(pointers[sequence])).map_err(|_| wrong(at))?;
                match next {
                    None => begin = place,
                    Some(next) if next == place => {}
                    Some(_) => return Err(format!("{}: they are not contiguous", wrong(at))),
                }
                let end = place.checked_add(length * width).filter(|end| *end <= ids.len());
                next = Some(end.ok_or_else(|| {
                    let (number, len) = (from + at as u64 + 1, ids.len());
                    format!(
                        "document {number} begins at byte {place} and has {length} ids, but the file of ids has only \
                         {len} bytes"
                    )
                })?);
                tokens += length;
            }
            places.push((begin, tokens));
        }
        Ok(Self { ids, kind: head.kind, places, first: from + 1 })
    }
}

impl Block for Documents {
    fn len(&self) -> u64 {
        self.places.len() as u64
    }

    fn num_bytes(&self, index: u64) -> u64 {
        self.places[index as usize].1 * self.kind.bytes()
    }

    fn num_ids(&self, index: u64, _: &str, _: u64) -> u64 {
        self.places[index as usize].1
    }

    fn read(&self, index: u64) -> Result<Record, String> {
        let (begin, tokens) = self.places[index as usize];
        if tokens > MAX_TOKENS {
            return Err(format!("document has {tokens} tokens (at most {MAX_TOKENS} are allowed)"));
        }
        let bytes =
            self.ids.read_at(begin, (tokens * self.kind.bytes()) as usize).map_err(|error| error.to_string())?;
        Ok(Record { body: Body::Tokens(self.kind.ids(&bytes)), ..Record::default() })
    }

    fn name(&self, index: u64) -> String {
        format!("document {}", self.first + index)
    }
}

impl Head {
    fn read(index: &Blob) -> Result<Self, String> {
        let bytes =
            index.read_at(0, HEAD_BYTES as usize).map_err(|_| "is not an index of Megatron's: it is too short")?;
        if !bytes.starts_with(MAGIC) {
            return Err("is not an index of Megatron's: it does not begin with MMIDIDX".to_owned());
        }
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        if number(9) != 1 {
            return Err(format!("has version {}; only version 1 is supported", number(9)));
        }
        let (kind, sequences, boundaries) = (Type::of(bytes[17])?, number(18), number(26));
        let documents = boundaries.checked_sub(1).ok_or("has no document boundaries")?;
        let head = Self { kind, sequences, documents };
        // A file with holes can say anything: its size bounds both numbers.
        let fits = |numbers: u64, bytes: u64| numbers.checked_mul(bytes).filter(|len| *len <= index.len());
        let needed = fits(sequences, 12).zip(fits(boundaries, 8)).map(|(all, more)| HEAD_BYTES + all + more);
        let has = index.len();
        match needed {
            // Sequences of several kinds have a byte each behind everything.
            Some(needed) if has == needed || has == needed + sequences => Ok(head),
            Some(needed) if has > needed => Err(format!("has {has} bytes, {} more than its header says", has - needed)),
            _ => Err(format!(
                "ends too early: {sequences} sequences and {documents} documents need more than {has} bytes"
            )),
        }
    }

    fn pointers(&self) -> u64 {
        HEAD_BYTES + self.sequences * 4
    }

    fn boundaries(&self) -> u64 {
        HEAD_BYTES + self.sequences * 12
    }
}

/// Reads `count` numbers of `N` bytes.
fn numbers<const N: usize>(blob: &Blob, offset: u64, count: u64) -> Result<Vec<[u8; N]>, String> {
    let bytes = blob.read_at(offset, count as usize * N).map_err(|error| error.to_string())?;
    Ok(bytes.as_chunks::<N>().0.to_vec())
}
