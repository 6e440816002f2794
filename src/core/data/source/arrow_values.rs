//! A cell of an Arrow column as JSON. Bytes become members of the record, and so does a `{bytes, path}` struct, which is how
//! Hugging Face's datasets keep pictures.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, StructArray};
use arrow_schema::DataType;
use serde_json::{Map, Value as Json};

use super::block::Record;

/// Values that the cells of a row may have: a few bytes of a file can stand for millions of nothings.
const MAX_VALUES: usize = 1 << 24;

/// Reads the cells of one row.
pub struct Reader<'a> {
    record: &'a mut Record,
    left: usize,
}

impl<'a> Reader<'a> {
    /// Reads cells, whose bytes become members of `record`.
    pub fn new(record: &'a mut Record) -> Self {
        Self { record, left: MAX_VALUES }
    }

    /// Returns the cell of `row`; `name` is its column's.
    ///
    /// # Errors
    /// It has more values than a row may have.
    pub fn value(&mut self, array: &ArrayRef, row: usize, name: &str) -> Result<Json, String> {
        self.left =
            self.left.checked_sub(1).ok_or_else(|| format!("row has more than {MAX_VALUES} values (the limit)"))?;
        if array.is_null(row) {
            return Ok(Json::Null);
        }
        let float = |value: f64| serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number);
        Ok(match array.data_type() {
            DataType::Null => Json::Null,
            DataType::Boolean => array.as_boolean().value(row).into(),
            DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
            DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
            DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
            DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
            DataType::UInt8 => array.as_primitive::<UInt8Type>().value(row).into(),
            DataType::UInt16 => array.as_primitive::<UInt16Type>().value(row).into(),
            DataType::UInt32 => array.as_primitive::<UInt32Type>().value(row).into(),
            DataType::UInt64 => array.as_primitive::<UInt64Type>().value(row).into(),
            DataType::Float16 => float(f64::from(array.as_primitive::<Float16Type>().value(row).to_f32())),
            DataType::Float32 => float(f64::from(array.as_primitive::<Float32Type>().value(row))),
            DataType::Float64 => float(array.as_primitive::<Float64Type>().value(row)),
            DataType::Utf8 => array.as_string::<i32>().value(row).into(),
            DataType::LargeUtf8 => array.as_string::<i64>().value(row).into(),
            DataType::Utf8View => array.as_string_view().value(row).into(),
            DataType::Binary => self.text_or_file(array.as_binary::<i32>().value(row), name),
            DataType::LargeBinary => self.text_or_file(array.as_binary::<i64>().value(row), name),
            DataType::BinaryView => self.text_or_file(array.as_binary_view().value(row), name),
            DataType::FixedSizeBinary(_) => self.text_or_file(array.as_fixed_size_binary().value(row), name),
            DataType::List(_) => self.list(&array.as_list::<i32>().value(row), name)?,
            DataType::LargeList(_) => self.list(&array.as_list::<i64>().value(row), name)?,
            DataType::FixedSizeList(..) => self.list(&array.as_fixed_size_list().value(row), name)?,
            DataType::Struct(_) => self.fields(array.as_struct(), row)?,
            DataType::Map(..) => {
                let entries = array.as_map().value(row);
                let mut map = Map::new();
                for at in 0..entries.len() {
                    let key = self.value(entries.column(0), at, name)?;
                    let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                    let value = self.value(entries.column(1), at, name)?;
                    map.insert(key, value);
                }
                Json::Object(map)
            }
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let key = arrow_array::make_array(dictionary.keys().to_data());
                let key = self.value(&key, row, name)?;
                let key = key.as_u64().and_then(|key| usize::try_from(key).ok());
                let key =
                    key.filter(|&key| key < dictionary.values().len()).ok_or("a key is missing from its dictionary")?;
                self.value(dictionary.values(), key, name)?
            }
            DataType::Date32 => array.as_primitive::<Date32Type>().value(row).into(),
            DataType::Date64 => array.as_primitive::<Date64Type>().value(row).into(),
            // Other times and decimals are nothing that samples are made of.
            other => format!("<{other}>").into(),
        })
    }

    fn list(&mut self, values: &ArrayRef, name: &str) -> Result<Json, String> {
        if values.len() > self.left {
            return Err(format!("row has more than {MAX_VALUES} values (the limit)"));
        }
        (0..values.len()).map(|at| self.value(values, at, name)).collect::<Result<Vec<Json>, String>>().map(Json::Array)
    }

    fn fields(&mut self, fields: &StructArray, row: usize) -> Result<Json, String> {
        let names = fields.column_names();
        let column = |name: &str| names.iter().position(|other| *other == name).map(|at| fields.column(at));
        if let (Some(bytes), true) = (column("bytes"), names.len() <= 2) {
            let path = column("path").filter(|path| path.is_valid(row)).map(|path| self.value(path, row, "path"));
            let path = path.transpose()?;
            let named = path.as_ref().and_then(Json::as_str);
            match bytes.data_type() {
                _ if bytes.is_null(row) => return Ok(path.unwrap_or(Json::Null)),
                DataType::Binary => return Ok(self.file(bytes.as_binary::<i32>().value(row), named)),
                DataType::LargeBinary => return Ok(self.file(bytes.as_binary::<i64>().value(row), named)),
                _ => {}
            }
        }
        let mut found = Map::new();
        for (name, column) in names.iter().zip(fields.columns()) {
            found.insert((*name).to_owned(), self.value(column, row, name)?);
        }
        Ok(Json::Object(found))
    }

    /// Returns text that is not marked as such, or a file.
    fn text_or_file(&mut self, bytes: &[u8], column: &str) -> Json {
        match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => self.file(bytes, Some(column)),
        }
    }

    /// Returns the name under which bytes are found again.
    fn file(&mut self, bytes: &[u8], name: Option<&str>) -> Json {
        let name = format!("row:{}:{}", self.record.members.len(), name.unwrap_or("bytes"));
        self.record.members.push((name.clone(), bytes.into()));
        name.into()
    }
}

/// Bytes of a cell that is a text, which may not be marked as such; of others 0.
pub fn text_bytes(array: &ArrayRef, row: usize) -> u64 {
    let len = match array.data_type() {
        _ if array.is_null(row) => 0,
        DataType::Utf8 => array.as_string::<i32>().value_length(row) as usize,
        DataType::LargeUtf8 => array.as_string::<i64>().value_length(row) as usize,
        DataType::Utf8View => array.as_string_view().value(row).len(),
        DataType::Binary => array.as_binary::<i32>().value(row).len(),
        DataType::LargeBinary => array.as_binary::<i64>().value(row).len(),
        DataType::BinaryView => array.as_binary_view().value(row).len(),
        _ => 0,
    };
    len as u64
}

/// Values of a cell that is a list; of others 0.
pub fn list_len(array: &ArrayRef, row: usize) -> u64 {
    let len = match array.data_type() {
        _ if array.is_null(row) => 0,
        DataType::List(_) => array.as_list::<i32>().value(row).len(),
        DataType::LargeList(_) => array.as_list::<i64>().value(row).len(),
        DataType::FixedSizeList(..) => array.as_fixed_size_list().value(row).len(),
        _ => 0,
    };
    len as u64
}
