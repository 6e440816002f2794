//! Tables written into Parquet files, as pandas and pyarrow read them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use crate::data::error::DataError;

/// The values of one column, row after row.
#[derive(Clone, Debug)]
pub enum Cells {
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Reals(Vec<f64>),
    Flags(Vec<bool>),
    Texts(Vec<String>),
    /// Lists of one length.
    IntegerLists(usize, Vec<i64>),
    FloatLists(usize, Vec<f32>),
    RealLists(usize, Vec<f64>),
    FlagLists(usize, Vec<bool>),
    /// Lists of so many lists of one list of one number, as lerobot has the statistics of pictures.
    NestedLists(usize, Vec<f64>),
    TextLists(Vec<Vec<String>>),
    /// Pictures, as `{bytes, path}`.
    Pictures(Vec<Vec<u8>>),
}

/// A file that is being written: a group of rows after the other.
pub struct TableWriter {
    writer: SerializedFileWriter<File>,
    path: std::path::PathBuf,
}

impl TableWriter {
    /// Begins a file of columns like these; `notes` are metadata of the file.
    ///
    /// # Errors
    /// Named by the file: it cannot be written.
    pub fn create(path: &Path, columns: &[(String, Cells)], notes: &[(&str, String)]) -> Result<Self, DataError> {
        let file = File::create(path).map_err(|error| DataError::write(path, error))?;
        let open = || {
            let fields = columns.iter().map(|(name, cells)| cells.field(name)).collect::<Result<Vec<_>, _>>()?;
            let schema = Type::group_type_builder("schema").with_fields(fields).build()?;
            let notes = notes.iter().map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone()));
            let properties = WriterProperties::builder()
                .set_compression(Compression::SNAPPY)
                .set_key_value_metadata(Some(notes.collect()))
                .build();
            SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))
        };
        let writer = open().map_err(|error: ParquetError| DataError::file(path, error))?;
        Ok(Self { writer, path: path.to_owned() })
    }

    /// Writes a group of rows: the columns of [`TableWriter::create`], in that order.
    ///
    /// # Errors
    /// Named by the file: it cannot be written.
    pub fn add(&mut self, columns: &[(String, Cells)]) -> Result<(), DataError> {
        let mut write = || {
            let mut group = self.writer.next_row_group()?;
            for (_, cells) in columns {
                cells.write(&mut group)?;
            }
            group.close().map(drop)
        };
        write().map_err(|error: ParquetError| DataError::file(&self.path, error))
    }

    /// Bytes so far.
    pub fn num_bytes(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    /// # Errors
    /// Named by the file: it cannot be written.
    pub fn finish(self) -> Result<(), DataError> {
        let Self { writer, path } = self;
        writer.close().map(drop).map_err(|error| DataError::file(&path, error))
    }
}

impl Cells {
    fn field(&self, name: &str) -> Result<TypePtr, ParquetError> {
        let leaf = |name: &str, physical: Physical| {
            let is_text = matches!(self, Self::Texts(_) | Self::TextLists(_));
            let logical = (physical == Physical::BYTE_ARRAY && is_text).then_some(LogicalType::String);
            let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
            builder.with_logical_type(logical).build().map(Arc::new)
        };
        let list = |name: &str, element: TypePtr| {
            let inner = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
            let inner = inner.with_fields(vec![element]).build()?;
            let outer = Type::group_type_builder(name).with_repetition(Repetition::OPTIONAL);
            let outer = outer.with_logical_type(Some(LogicalType::List)).with_fields(vec![Arc::new(inner)]);
            outer.build().map(Arc::new)
        };
        match self {
            Self::Integers(_) => leaf(name, Physical::INT64),
            Self::Floats(_) => leaf(name, Physical::FLOAT),
            Self::Reals(_) => leaf(name, Physical::DOUBLE),
            Self::Flags(_) => leaf(name, Physical::BOOLEAN),
            Self::Texts(_) => leaf(name, Physical::BYTE_ARRAY),
            Self::IntegerLists(..) => list(name, leaf("element", Physical::INT64)?),
            Self::FloatLists(..) => list(name, leaf("element", Physical::FLOAT)?),
            Self::RealLists(..) => list(name, leaf("element", Physical::DOUBLE)?),
            Self::FlagLists(..) => list(name, leaf("element", Physical::BOOLEAN)?),
            Self::TextLists(_) => list(name, leaf("element", Physical::BYTE_ARRAY)?),
            Self::NestedLists(..) => list(name, list("element", list("element", leaf("element", Physical::DOUBLE)?)?)?),
            Self::Pictures(_) => {
                let bytes = leaf("bytes", Physical::BYTE_ARRAY)?;
                let path = Type::primitive_type_builder("path", Physical::BYTE_ARRAY)
                    .with_repetition(Repetition::OPTIONAL)
                    .with_logical_type(Some(LogicalType::String))
                    .build()?;
                let group = Type::group_type_builder(name).with_repetition(Repetition::OPTIONAL);
                group.with_fields(vec![bytes, Arc::new(path)]).build().map(Arc::new)
            }
        }
    }

    fn write(&self, group: &mut SerializedRowGroupWriter<'_, File>) -> Result<(), ParquetError> {
        let text = |text: &String| ByteArray::from(text.as_bytes().to_vec());
        match self {
            Self::Integers(values) => column::<Int64Type>(group, values, &vec![1; values.len()], None),
            Self::Floats(values) => column::<FloatType>(group, values, &vec![1; values.len()], None),
            Self::Reals(values) => column::<DoubleType>(group, values, &vec![1; values.len()], None),
            Self::Flags(values) => column::<BoolType>(group, values, &vec![1; values.len()], None),
            Self::Texts(values) => {
                let values: Vec<ByteArray> = values.iter().map(text).collect();
                column::<ByteArrayType>(group, &values, &vec![1; values.len()], None)
            }
            Self::IntegerLists(len, values) => lists::<Int64Type>(group, values, *len, 1),
            Self::FloatLists(len, values) => lists::<FloatType>(group, values, *len, 1),
            Self::RealLists(len, values) => lists::<DoubleType>(group, values, *len, 1),
            Self::FlagLists(len, values) => lists::<BoolType>(group, values, *len, 1),
            Self::NestedLists(len, values) => lists::<DoubleType>(group, values, *len, 3),
            Self::TextLists(rows) => {
                let values: Vec<ByteArray> = rows.iter().flatten().map(text).collect();
                let repetitions: Vec<i16> =
                    rows.iter().flat_map(|row| (0..row.len()).map(|at| i16::from(at > 0))).collect();
                column::<ByteArrayType>(group, &values, &vec![3; values.len()], Some(&repetitions))
            }
            Self::Pictures(files) => {
                let values: Vec<ByteArray> = files.iter().map(|file| ByteArray::from(file.clone())).collect();
                column::<ByteArrayType>(group, &values, &vec![2; values.len()], None)?;
                // The group is there, the path is not.
                column::<ByteArrayType>(group, &[], &vec![1; files.len()], None)
            }
        }
    }
}

/// Lists of `len` values, within `depth - 1` lists of one each.
fn lists<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    len: usize,
    depth: i16,
) -> Result<(), ParquetError> {
    let repetitions: Vec<i16> = (0..values.len()).map(|at| i16::from(!at.is_multiple_of(len.max(1)))).collect();
    column::<T>(group, values, &vec![2 * depth + 1; values.len()], Some(&repetitions))
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    definitions: &[i16],
    repetitions: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let none = || ParquetError::General("more columns than the file has".to_owned());
    let mut column = group.next_column()?.ok_or_else(none)?;
    column.typed::<T>().write_batch(values, Some(definitions), repetitions)?;
    column.close()
}
