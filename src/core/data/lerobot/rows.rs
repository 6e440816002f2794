//! The rows of one file: its columns, each read when it is first asked for and held while the file is open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::columns::{Columns, Stored};
use super::feature::Feature;
use crate::data::error::DataError;

/// A file of rows, opened.
pub struct Rows {
    path: PathBuf,
    pub num_rows: usize,
    /// Seconds since the begin of its episode, by row.
    pub timestamps: Vec<f64>,
    /// The number of its task, by row.
    pub tasks: Vec<i64>,
    /// The number of its episode, by row.
    pub episodes: Vec<i64>,
    numbers: Mutex<BTreeMap<String, Cell<Vec<f32>>>>,
    whole: Mutex<BTreeMap<String, Cell<Vec<i64>>>>,
    reals: Mutex<BTreeMap<String, Cell<Vec<f64>>>>,
    pictures: Mutex<BTreeMap<String, Cell<Vec<Stored>>>>,
    texts: Mutex<BTreeMap<String, Cell<Vec<String>>>>,
}

type Cell<T> = Arc<OnceLock<Result<Arc<T>, String>>>;

impl Rows {
    /// # Errors
    /// Named by the file: missing, damaged, without the columns that every set has.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let columns = Columns::open(path)?;
        Ok(Self {
            path: path.to_owned(),
            num_rows: columns.num_rows(),
            timestamps: columns.reals("timestamp", 1)?,
            tasks: columns.integers("task_index", 1)?,
            episodes: columns.integers("episode_index", 1)?,
            numbers: Mutex::default(),
            whole: Mutex::default(),
            reals: Mutex::default(),
            pictures: Mutex::default(),
            texts: Mutex::default(),
        })
    }

    /// Returns the values `[rows, width]` of a feature of numbers, row-major.
    ///
    /// # Errors
    /// The file has no such column, or one of another kind; the error names both.
    pub fn numbers(&self, feature: &Feature) -> Result<Arc<Vec<f32>>, DataError> {
        held(&self.numbers, &feature.key, || Columns::open(&self.path)?.numbers(&feature.key, feature.width()))
            .map_err(DataError::Line)
    }

    /// Reads a feature of whole numbers, `[rows, width]`, row-major, with all their digits.
    ///
    /// # Errors
    /// See [`Rows::numbers`].
    pub fn whole(&self, feature: &Feature) -> Result<Arc<Vec<i64>>, DataError> {
        held(&self.whole, &feature.key, || Columns::open(&self.path)?.integers(&feature.key, feature.width()))
            .map_err(DataError::Line)
    }

    /// Reads a feature of float64, `[rows, width]`, row-major, with all their digits.
    ///
    /// # Errors
    /// See [`Rows::numbers`].
    pub fn reals(&self, feature: &Feature) -> Result<Arc<Vec<f64>>, DataError> {
        held(&self.reals, &feature.key, || Columns::open(&self.path)?.reals(&feature.key, feature.width()))
            .map_err(DataError::Line)
    }

    /// Returns the text of each row under a key.
    ///
    /// # Errors
    /// See [`Rows::numbers`].
    pub fn texts(&self, key: &str) -> Result<Arc<Vec<String>>, DataError> {
        held(&self.texts, key, || Columns::open(&self.path)?.texts(key)).map_err(DataError::Line)
    }

    /// Returns the picture of each row under a key.
    ///
    /// # Errors
    /// See [`Rows::numbers`].
    pub fn pictures(&self, key: &str) -> Result<Arc<Vec<Stored>>, DataError> {
        held(&self.pictures, key, || Columns::open(&self.path)?.pictures(key)).map_err(DataError::Line)
    }
}

/// Returns the value that is held under a key, made when it is first asked for; meanwhile others wait for it and for nothing else.
fn held<T>(
    held: &Mutex<BTreeMap<String, Cell<T>>>,
    key: &str,
    make: impl FnOnce() -> Result<T, DataError>,
) -> Result<Arc<T>, String> {
    let cell = {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        held.entry(key.to_owned()).or_default().clone()
    };
    cell.get_or_init(|| make().map(Arc::new).map_err(|error| error.to_string())).clone()
}
