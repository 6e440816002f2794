//! The columns of a Parquet file, each read whole. What the file promises bounds nothing: what is read is counted.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::basic::{ConvertedType, Type as Physical};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::data::error::DataError;
use crate::files;

/// Rows that one file may have, and frames of an episode, which lie in one: a week at 25 a second.
pub const MAX_ROWS: usize = 1 << 24;
/// Numbers that one column may have in one file: 1 GiB of float32.
const MAX_VALUES: usize = 1 << 28;
/// Bytes that one column of files or texts may have in one file.
const MAX_BYTES: usize = 2 << 30;
/// Rows between two looks at what was read.
const BATCH: usize = 1 << 12;

/// A Parquet file whose columns are read by name.
pub struct Columns {
    reader: SerializedFileReader<File>,
    path: PathBuf,
    num_rows: usize,
}

/// A picture in a column: its bytes, or the name of its file.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    Bytes(Box<[u8]>),
    File(String),
}

/// The values of one column that are not null, with the levels that say which rows they are of.
struct Leaf<T> {
    values: Vec<T>,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    max_definition: i16,
}

impl Columns {
    /// # Errors
    /// Named by the file: missing, no Parquet, too many rows.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = files::open(path).map_err(|error| DataError::read(path, error))?;
        let open = || {
            let reader = SerializedFileReader::new(file).map_err(|error| error.to_string())?;
            let num_rows = reader.metadata().file_metadata().num_rows();
            match usize::try_from(num_rows) {
                Ok(num_rows) if num_rows <= MAX_ROWS => Ok((reader, num_rows)),
                _ => Err(format!("has {num_rows} rows, more than {MAX_ROWS}")),
            }
        };
        let (reader, num_rows) = guarded(open).map_err(|reason| DataError::file(path, reason))?;
        Ok(Self { reader, path: path.to_owned(), num_rows })
    }

    /// Returns the number of rows that the file declares; [`Columns::open`] bounds it.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Names of the top-level columns, in order.
    pub fn names(&self) -> Vec<String> {
        let fields = self.reader.metadata().file_metadata().schema().get_fields();
        fields.iter().map(|field| field.name().to_owned()).collect()
    }

    /// Returns whether there is a top-level column `key`.
    pub fn has(&self, key: &str) -> bool {
        self.names().iter().any(|name| name == key)
    }

    /// Reads `[rows, width]` of float32, row-major; other numbers and truth values are converted.
    ///
    /// # Errors
    /// Named by the file and the column: it is missing, no column of numbers, or a row has another number of them.
    pub fn numbers(&self, key: &str, width: usize) -> Result<Vec<f32>, DataError> {
        self.named(key, || {
            let leaf = self.leaf(key, None)?;
            match self.physical(leaf) {
                Physical::FLOAT => self.rows::<FloatType>(leaf, width),
                Physical::DOUBLE => Ok(self.rows::<DoubleType>(leaf, width)?.iter().map(|&it| it as f32).collect()),
                Physical::INT32 => Ok(self.small(leaf, width)?.iter().map(|&it| it as f32).collect()),
                Physical::INT64 => Ok(self.rows::<Int64Type>(leaf, width)?.iter().map(|&it| it as f32).collect()),
                Physical::BOOLEAN => {
                    Ok(self.rows::<BoolType>(leaf, width)?.iter().map(|&it| f32::from(u8::from(it))).collect())
                }
                other => Err(format!("holds {other}, but must hold numbers")),
            }
        })
    }

    /// Reads `width` real numbers a row.
    ///
    /// # Errors
    /// Fails as [`Columns::numbers`] does.
    pub fn reals(&self, key: &str, width: usize) -> Result<Vec<f64>, DataError> {
        self.named(key, || {
            let leaf = self.leaf(key, None)?;
            match self.physical(leaf) {
                Physical::DOUBLE => self.rows::<DoubleType>(leaf, width),
                Physical::FLOAT => Ok(self.rows::<FloatType>(leaf, width)?.into_iter().map(f64::from).collect()),
                other => Err(format!("holds {other}, but must hold real numbers")),
            }
        })
    }

    /// Reads `width` whole numbers a row.
    ///
    /// # Errors
    /// Fails as [`Columns::numbers`] does.
    pub fn integers(&self, key: &str, width: usize) -> Result<Vec<i64>, DataError> {
        self.named(key, || {
            let leaf = self.leaf(key, None)?;
            match self.physical(leaf) {
                Physical::INT64 => self.rows::<Int64Type>(leaf, width),
                Physical::INT32 => self.small(leaf, width),
                other => Err(format!("holds {other}, but must hold whole numbers")),
            }
        })
    }

    /// Returns one text a row.
    ///
    /// # Errors
    /// Fails as [`Columns::numbers`] does, and if the text is not UTF-8.
    pub fn texts(&self, key: &str) -> Result<Vec<String>, DataError> {
        self.named(key, || {
            let leaf = self.leaf(key, None)?;
            let texts = self.rows::<ByteArrayType>(self.of_bytes(leaf)?, 1)?;
            texts.iter().map(text).collect()
        })
    }

    /// Returns one picture a row, as `{bytes, path}`.
    ///
    /// # Errors
    /// Fails as [`Columns::numbers`] does, and if a row has neither.
    pub fn pictures(&self, key: &str) -> Result<Vec<Stored>, DataError> {
        self.named(key, || {
            let bytes = self.optional(self.of_bytes(self.leaf(key, Some("bytes"))?)?)?;
            if bytes.iter().all(Option::is_some) {
                return Ok(bytes.into_iter().flatten().map(|it| Stored::Bytes(it.data().into())).collect());
            }
            let paths = self.optional(self.of_bytes(self.leaf(key, Some("path"))?)?)?;
            let stored = |(row, (bytes, path)): (usize, (Option<ByteArray>, Option<ByteArray>))| match (bytes, path) {
                (Some(bytes), _) => Ok(Stored::Bytes(bytes.data().into())),
                (None, Some(path)) => text(&path).map(Stored::File),
                (None, None) => Err(format!("has neither bytes nor a path in row {}", row + 1)),
            };
            bytes.into_iter().zip(paths).enumerate().map(stored).collect()
        })
    }

    fn named<T>(&self, key: &str, read: impl FnOnce() -> Result<T, String>) -> Result<T, DataError> {
        guarded(read).map_err(|reason| DataError::file(&self.path, format!("column {key} {reason}")))
    }

    /// Returns the number of the column of values of a key: the only one, or that of a part of it.
    fn leaf(&self, key: &str, part: Option<&str>) -> Result<usize, String> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let is_it = |at: &usize| {
            let column = schema.column(*at);
            let parts = column.path().parts();
            parts.first().is_some_and(|first| first == key)
                && part.is_none_or(|part| parts.len() == 2 && parts[1] == part)
        };
        let found: Vec<usize> = (0..schema.num_columns()).filter(is_it).collect();
        match (found.as_slice(), part) {
            ([one], _) => Ok(*one),
            ([], None) => Err("is missing".to_owned()),
            ([], Some(part)) => Err(format!("has no part `{part}`")),
            _ => Err("holds several values per row".to_owned()),
        }
    }

    fn physical(&self, leaf: usize) -> Physical {
        self.reader.metadata().file_metadata().schema_descr().column(leaf).physical_type()
    }

    /// Reads whole numbers that take four bytes, of which uint32 has no sign.
    fn small(&self, leaf: usize, width: usize) -> Result<Vec<i64>, String> {
        let kind = self.reader.metadata().file_metadata().schema_descr().column(leaf).converted_type();
        let value = |it: i32| if kind == ConvertedType::UINT_32 { i64::from(it as u32) } else { i64::from(it) };
        Ok(self.rows::<Int32Type>(leaf, width)?.into_iter().map(value).collect())
    }

    fn of_bytes(&self, leaf: usize) -> Result<usize, String> {
        match self.physical(leaf) {
            Physical::BYTE_ARRAY => Ok(leaf),
            other => Err(format!("holds {other}, but must hold texts or bytes")),
        }
    }

    /// Returns a value a row, or none.
    fn optional(&self, leaf: usize) -> Result<Vec<Option<ByteArray>>, String> {
        let Leaf { values, definitions, repetitions, max_definition } = self.read::<ByteArrayType>(leaf)?;
        if repetitions.iter().any(|&level| level > 0) {
            return Err("holds lists, but must hold one value per row".to_owned());
        }
        if definitions.is_empty() {
            return self.complete(values.len()).map(|()| values.into_iter().map(Some).collect());
        }
        self.complete(definitions.len())?;
        let mut values = values.into_iter();
        Ok(definitions.iter().map(|&level| (level == max_definition).then(|| values.next()).flatten()).collect())
    }

    /// Reads `width` values in each row, and no nulls.
    fn rows<T: DataType<T: HeapBytes>>(&self, leaf: usize, width: usize) -> Result<Vec<T::T>, String> {
        let Leaf { values, definitions, repetitions, max_definition } = self.read::<T>(leaf)?;
        if definitions.iter().any(|&level| level < max_definition) {
            return Err("has rows without a value".to_owned());
        }
        let wrong = || format!("has {} values in {} rows, but needs {width} per row", values.len(), self.num_rows);
        let begins = |at: usize| repetitions.get(at).is_none_or(|&level| level == 0);
        let is_even = match repetitions.is_empty() {
            true => width == 1,
            false => (0..values.len()).all(|at| begins(at) == at.is_multiple_of(width.max(1))),
        };
        match is_even && Some(values.len()) == self.num_rows.checked_mul(width) {
            true => Ok(values),
            false => Err(wrong()),
        }
    }

    fn complete(&self, rows: usize) -> Result<(), String> {
        match rows == self.num_rows {
            true => Ok(()),
            false => Err(format!("has {rows} rows, but the file says {}", self.num_rows)),
        }
    }

    fn read<T: DataType<T: HeapBytes>>(&self, leaf: usize) -> Result<Leaf<T::T>, String> {
        let max_definition = self.reader.metadata().file_metadata().schema_descr().column(leaf).max_def_level();
        let mut read = Leaf { values: Vec::new(), definitions: Vec::new(), repetitions: Vec::new(), max_definition };
        let mut num_bytes = 0;
        for group in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(group).map_err(|error| error.to_string())?;
            let column = group.get_column_reader(leaf).map_err(|error| error.to_string())?;
            let mut column = get_typed_column_reader::<T>(column);
            loop {
                let before = read.values.len();
                let (definitions, repetitions) = (&mut read.definitions, &mut read.repetitions);
                let taken = column.read_records(BATCH, Some(definitions), Some(repetitions), &mut read.values);
                let (rows, _, _) = taken.map_err(|error| format!("is damaged: {error}"))?;
                if rows == 0 {
                    break;
                }
                num_bytes += read.values[before..].iter().map(HeapBytes::heap_bytes).sum::<usize>();
                if read.values.len().max(read.definitions.len()) > MAX_VALUES || num_bytes > MAX_BYTES {
                    return Err(format!("is larger than {} GiB in one file", MAX_BYTES >> 30));
                }
            }
        }
        Ok(read)
    }
}

/// Bytes that a value takes besides itself.
trait HeapBytes {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl HeapBytes for f32 {}
impl HeapBytes for f64 {}
impl HeapBytes for i32 {}
impl HeapBytes for i64 {}
impl HeapBytes for bool {}
impl HeapBytes for ByteArray {
    fn heap_bytes(&self) -> usize {
        self.len()
    }
}

fn text(bytes: &ByteArray) -> Result<String, String> {
    String::from_utf8(bytes.data().to_vec()).map_err(|_| "is not UTF-8".to_owned())
}

/// Turns the parser's own errors, and its panics, which files of others can cause, into reasons.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("is damaged: the reader failed on it".to_owned()))
}
