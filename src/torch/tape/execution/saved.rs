//! The tensors that operations leave for their backward, which can be taken away and put back.

use crate::native::SavedTensors;
use crate::tape::held::Source;
use tch::Tensor;

/// Says what an operation has left for its backward.
pub(super) enum Saved {
    Graph {
        inputs: Vec<Tensor>,
        outputs: Vec<Tensor>,
    },
    Inputs(Vec<Tensor>),
    Custom(Vec<Tensor>),
    /// The shape of the rows that some were taken from.
    Shape(Vec<i64>),
    Across(Vec<Tensor>),
    Nothing,
}

impl Saved {
    /// Returns the tensors that can be taken away: those that `graph` saved, or those that are listed here.
    pub fn take(&mut self, graph: Option<SavedTensors>) -> Option<Source> {
        self.drop_values();
        match self {
            Saved::Graph { .. } => graph.map(Source::Graph),
            Saved::Inputs(list) | Saved::Custom(list) | Saved::Across(list) => {
                Some(Source::List(std::mem::take(list).into_iter().map(Some).collect()))
            }
            Saved::Shape(_) | Saved::Nothing => None,
        }
    }

    /// Puts back what was taken away. Panics where a tensor of a list is missing.
    pub fn put_back(&mut self, source: Source) {
        if let (Saved::Inputs(to) | Saved::Custom(to) | Saved::Across(to), Source::List(list)) = (self, source) {
            *to = list.into_iter().map(|tensor| tensor.expect("it is back")).collect();
        }
    }

    /// Leaves of a graph its edges alone: the values that its backward reads are in its list.
    pub fn drop_values(&mut self) {
        let Saved::Graph { inputs, outputs } = self else { return };
        let _guard = tch::no_grad_guard();
        for tensor in inputs.iter_mut().chain(outputs) {
            let nothing = Tensor::empty([0], (tensor.kind(), tensor.device()));
            tensor.set_data(&nothing);
        }
    }
}
