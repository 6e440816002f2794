//! Columns: the parts of its samples that a foundation reads beside features.

use std::rc::Rc;

use loongforge_core::data::IGNORE_INDEX;
pub use loongforge_core::data::LABELS;
use tch::{Device, Kind, Tensor};

use crate::device::upload;

/// One column: a tensor of all samples of a micro-batch, end to end along one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    /// Sizes of the axes before the one along which samples lie.
    pub before: Vec<i64>,
    /// Sizes of the axes behind it.
    pub after: Vec<i64>,
    pub rows: RowCount,
    /// The value of rows that do not count in the loss, where the column says which do.
    pub uncounted: Option<i64>,
}

/// Says how many rows a sample has in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowCount {
    /// One row for each token of the sample.
    Tokens,
    /// One row for each token of the sample; every rank has all of them where ranks share the tokens.
    AllTokens,
    /// The same number for each sample, for example 50 actions.
    Fixed(u32),
}

impl Column {
    /// Returns the axis along which samples lie.
    pub fn axis(&self) -> i64 {
        self.before.len() as i64
    }

    /// Returns the number of rows of `num_samples` samples that have so many tokens together.
    pub fn num_rows(&self, num_tokens: i64, num_samples: i64) -> i64 {
        match self.rows {
            RowCount::Tokens | RowCount::AllTokens => num_tokens,
            RowCount::Fixed(rows) => i64::from(rows) * num_samples,
        }
    }

    /// Returns the size of a tensor of so many rows.
    pub fn size(&self, num_rows: i64) -> Vec<i64> {
        [self.before.as_slice(), &[num_rows], &self.after].concat()
    }
}

/// Columns with their tensors.
pub struct Columns {
    specs: Rc<[Column]>,
    tensors: Vec<Tensor>,
    /// The tensors of the columns on the host, where they came to a GPU from there.
    on_host: Option<Vec<Tensor>>,
}

impl Columns {
    /// Makes columns of a tensor for each of `specs`, of the shape `[before…, rows, after…]` that its [`Column`] says. Panics where the
    /// numbers of columns and tensors differ.
    pub fn new(specs: &Rc<[Column]>, tensors: Vec<Tensor>) -> Columns {
        assert_eq!(specs.len(), tensors.len(), "a tensor for each column");
        Columns { specs: specs.clone(), tensors, on_host: None }
    }

    /// Returns empty tensors, for columns that are still to come.
    pub fn to_come(specs: &Rc<[Column]>) -> Columns {
        Columns::new(specs, specs.iter().map(|_| Tensor::new()).collect())
    }

    /// Returns one sample of one token, which counts for nothing.
    pub fn filler(specs: &Rc<[Column]>, device: Device) -> Columns {
        let value = |column: &Column| {
            let size = column.size(column.num_rows(1, 1));
            Tensor::full(&size, column.uncounted.unwrap_or(0), (column.kind, device))
        };
        Columns::new(specs, specs.iter().map(value).collect())
    }

    /// Returns the columns of tokens: ids and targets `[T]`, int64, and positions `[3, T]`, float.
    pub fn of_tokens(ids: Tensor, positions: Tensor, targets: Tensor) -> Columns {
        Columns::new(&token_columns().into(), vec![ids, positions, targets])
    }

    /// Returns the same columns on `device`, in the same shapes. Tensors that are copied to a GPU stay on the host as well: to read them
    /// back would wait for all that the GPU was given before.
    #[must_use]
    pub fn on_device(self, device: Device) -> Columns {
        if self.tensors.iter().all(|tensor| tensor.device() == device) {
            return self;
        }
        let tensors = self.tensors.iter().map(|tensor| upload(tensor, device)).collect();
        Columns { specs: self.specs, tensors, on_host: Some(self.tensors) }
    }

    /// Returns all tensors that are held, those that stay on the host included, each of the shape `[before…, rows, after…]` of its
    /// [`Column`].
    pub fn held(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().chain(self.on_host.iter().flatten())
    }

    /// Returns the tensors in the order of the columns, each of the shape `[before…, rows, after…]` of its [`Column`].
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Works like [`Columns::tensors`], for a caller that wants them on the host, in the same shapes `[before…, rows, after…]`.
    pub fn tensors_on_host(&self) -> &[Tensor] {
        self.on_host.as_ref().unwrap_or(&self.tensors)
    }

    /// Returns the column with this name, `[before…, rows, after…]` as its [`Column`] says. Panics where there is none.
    pub fn get(&self, name: &str) -> &Tensor {
        self.find(name).unwrap_or_else(|| panic!("no column {name}"))
    }

    /// Returns the column with this name, `[before…, rows, after…]` as its [`Column`] says; `None` where there is none.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        let at = self.specs.iter().position(|column| column.name == name)?;
        Some(&self.tensors[at])
    }

    /// Works like [`Columns::find`], for a caller that reads the values on the host; the shape is the same, `[before…, rows, after…]`.
    pub fn find_on_host(&self, name: &str) -> Option<&Tensor> {
        let at = self.specs.iter().position(|column| column.name == name)?;
        Some(&self.tensors_on_host()[at])
    }

    /// Works like [`Columns::get`], for a caller that reads the values on the host. Panics where there is no such column. The shape is
    /// the same, `[before…, rows, after…]`.
    pub fn get_on_host(&self, name: &str) -> &Tensor {
        self.find_on_host(name).unwrap_or_else(|| panic!("no column {name}"))
    }

    /// Returns the device of the tensors; the CPU if there are none.
    pub fn device(&self) -> Device {
        self.tensors.first().map_or(Device::Cpu, Tensor::device)
    }

    /// Returns the same columns with what `change` makes of each tensor `[before…, rows, after…]` and the number of its axis of samples,
    /// which is that of `rows`. Shapes may change along that axis alone.
    pub fn map(&self, change: impl Fn(&Tensor, i64) -> Tensor) -> Columns {
        self.changed(|column, x| change(x, column.axis()))
    }

    /// Returns the columns of a rank whose tokens are `rows` `[T]`, int64 on the host: these rows, and all of columns that every rank has
    /// whole.
    pub fn share(&self, rows: &Tensor) -> Columns {
        self.changed(|column, x| match column.rows {
            RowCount::AllTokens => x.shallow_clone(),
            RowCount::Tokens | RowCount::Fixed(_) => x.index_select(column.axis(), &upload(rows, x.device())),
        })
    }

    fn changed(&self, change: impl Fn(&Column, &Tensor) -> Tensor) -> Columns {
        let changed = |tensors: &Vec<Tensor>| {
            self.specs.iter().zip(tensors).map(|(column, x)| change(column, x)).collect::<Vec<Tensor>>()
        };
        let on_host = self.on_host.as_ref().map(changed);
        Columns { on_host, ..Columns::new(&self.specs, changed(&self.tensors)) }
    }
}

/// Names of the columns of language models.
pub const INPUT_IDS: &str = "input_ids";
pub const POSITION_IDS: &str = "position_ids";
pub const TARGETS: &str = "targets";

/// The column of the weights of tokens in the loss of a diffusion model.
pub const WEIGHTS: &str = "weights";

/// Returns the weights of tokens `[T]`, those of references included, in the order in which a sample has them. A token's share of the
/// loss depends on all weights of its sample.
pub fn weight_column() -> Column {
    Column {
        name: WEIGHTS,
        kind: Kind::Float,
        before: Vec::new(),
        after: Vec::new(),
        rows: RowCount::AllTokens,
        uncounted: None,
    }
}

/// Returns the labels of a group of answers, 1 of a good one: `group_size` of each sample, int64.
pub fn label_column(group_size: u32) -> Column {
    Column {
        name: LABELS,
        kind: Kind::Int64,
        before: Vec::new(),
        after: Vec::new(),
        rows: RowCount::Fixed(group_size),
        uncounted: None,
    }
}

/// Returns the columns of language models, in the order in which data actors send them.
pub fn token_columns() -> Vec<Column> {
    let column = |name, kind, before: &[i64], uncounted| Column {
        name,
        kind,
        before: before.to_vec(),
        after: Vec::new(),
        rows: RowCount::Tokens,
        uncounted,
    };
    vec![
        column(INPUT_IDS, Kind::Int64, &[], None),
        column(POSITION_IDS, Kind::Float, &[3], None),
        column(TARGETS, Kind::Int64, &[], Some(IGNORE_INDEX)),
    ]
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tch::{Device, Kind, Tensor};

    use super::{Column, Columns, RowCount, TARGETS, WEIGHTS, token_columns, weight_column};

    #[test]
    fn columns_have_their_own_rows_and_axes() {
        let actions = Column {
            name: "actions",
            kind: Kind::Float,
            before: vec![2],
            after: vec![7],
            rows: RowCount::Fixed(50),
            uncounted: None,
        };
        let specs: Rc<[Column]> = [token_columns(), vec![actions]].concat().into();
        assert_eq!(specs[3].size(specs[3].num_rows(90, 3)), [2, 150, 7]);
        assert_eq!(specs[1].size(specs[1].num_rows(90, 3)), [3, 90]);
        let filler = Columns::filler(&specs, Device::Cpu);
        assert_eq!(filler.get("actions").size(), [2, 50, 7]);
        assert_eq!(filler.get(TARGETS), &Tensor::from_slice(&[-100i64]));
        let first = filler.map(|x, axis| x.narrow(axis, 0, 1));
        assert_eq!((first.get("actions").size(), first.tensors()[1].size()), (vec![2, 1, 7], vec![3, 1]));
    }

    #[test]
    fn columns_that_left_the_host_are_read_there_and_cut_with_the_others() {
        let ints = |values: &[i64]| Tensor::from_slice(values);
        let here = || {
            Columns::of_tokens(ints(&[5, 6, 7]), Tensor::zeros([3, 3], (Kind::Float, Device::Cpu)), ints(&[6, 7, 8]))
        };
        let same = here().on_device(Device::Cpu);
        assert_eq!((same.held().count(), same.get_on_host(TARGETS).data_ptr()), (3, same.get(TARGETS).data_ptr()));
        // As if the first had gone to a GPU.
        let there = Columns { on_host: Some(here().tensors), ..here().map(|x, _| x.zeros_like()) };
        let cut = there.map(|x, axis| x.narrow(axis, 1, 2));
        assert_eq!((cut.get(TARGETS), cut.get_on_host(TARGETS)), (&ints(&[0, 0]), &ints(&[7, 8])));
        assert_eq!((cut.held().count(), cut.find_on_host("actions").is_none()), (6, true));
        assert_eq!((&cut.tensors_on_host()[2], &same.tensors_on_host()[2]), (&ints(&[7, 8]), same.get(TARGETS)));
    }

    #[test]
    fn ranks_that_share_tokens_have_all_of_their_weights() {
        let specs: Rc<[Column]> = [token_columns(), vec![weight_column()]].concat().into();
        let row = Tensor::from_slice(&[5i64, 6, 7]);
        let weights = Tensor::from_slice(&[0.5f32, 0.0, 1.0]);
        let positions = Tensor::from_slice(&[0f32, 1.0, 2.0]).expand([3, 3], false);
        let all = Columns::new(&specs, vec![row.shallow_clone(), positions, row, weights.shallow_clone()]);
        let own = all.share(&Tensor::from_slice(&[0i64, 2]));
        assert_eq!((own.get(TARGETS), own.get(WEIGHTS)), (&Tensor::from_slice(&[5i64, 7]), &weights));
        assert_eq!(own.get("position_ids").size(), [3, 2]);
    }
}
