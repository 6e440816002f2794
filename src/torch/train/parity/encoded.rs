//! The towers of a fixture's model over the items of its documents, and their features in the order of the tokens.

use super::fixture::Document;
use super::state::ModelState;
use crate::model::EncoderModel;
use crate::native::NativeError;
use crate::tape::{Execution, Slot};
use loongforge_core::message::Grid;
use tch::{Device, Tensor};

/// A tower, and the tokens that its features replace.
pub(super) struct Tower {
    pub state: ModelState<Box<dyn EncoderModel>>,
    pub placeholders: Vec<i64>,
}

/// The executions of towers that have items, after their forwards.
pub(super) struct Encoded {
    parts: Vec<Part>,
    /// For each row of features in the order of the tokens its row in those of one tower after the other.
    order: Tensor,
    num_tensors: usize,
}

struct Part {
    /// The tower's place among the model's.
    tower: usize,
    run: Execution,
    outputs: Vec<Slot>,
    num_rows: i64,
}

impl Encoded {
    /// The towers over the documents' items. `None` where there are none. `num_tensors` are those of features that the
    /// decoder takes.
    pub fn new(
        towers: &[Tower],
        documents: &[&Document],
        train: bool,
        (device, num_tensors): (Device, usize),
    ) -> Option<Encoded> {
        let part = |(number, tower): (usize, &Tower)| {
            let media = || documents.iter().map(|document| &document.media[number]);
            let values: Vec<&Tensor> = media().filter_map(|media| media.values.as_ref()).collect();
            if values.is_empty() {
                return None;
            }
            let grids: Vec<Grid> = media().flat_map(|media| media.grids.clone()).collect();
            let made = tower.state.model.record(&grids);
            let inputs = vec![(made.pixels, Tensor::cat(&values, 0).to_device(device))];
            let begin = if train { Execution::new } else { Execution::forward_only };
            let mut run = begin(made.tape, tower.state.params.clone(), inputs);
            run.forward().expect("there is no other rank");
            let num_rows = run.value(made.outputs[0]).size()[0];
            Some(Part { tower: number, run, outputs: made.outputs, num_rows })
        };
        let parts: Vec<Part> = towers.iter().enumerate().filter_map(part).collect();
        let mut next: Vec<i64> = vec![0; towers.len()];
        let mut start = 0;
        for part in &parts {
            next[part.tower] = start;
            start += part.num_rows;
        }
        let of = |id: &i64| towers.iter().position(|tower| tower.placeholders.contains(id));
        let tokens = documents.iter().flat_map(|document| &document.input_ids);
        let order: Vec<i64> = tokens
            .filter_map(of)
            .map(|tower| {
                next[tower] += 1;
                next[tower] - 1
            })
            .collect();
        let order = Tensor::from_slice(&order).to_device(device);
        (!parts.is_empty()).then_some(Encoded { parts, order, num_tensors })
    }

    /// The features in the order of the tokens, and those of each DeepStack level: zeros of a tower that has none.
    pub fn features(&self) -> Vec<Tensor> {
        let of_part = |part: &Part, level: usize| {
            let first = part.run.value(part.outputs[0]);
            part.outputs.get(level).map_or_else(|| first.zeros_like(), |slot| part.run.value(*slot).shallow_clone())
        };
        let level = |level: usize| {
            let parts: Vec<Tensor> = self.parts.iter().map(|part| of_part(part, level)).collect();
            Tensor::cat(&parts, 0).index_select(0, &self.order)
        };
        (0..self.num_tensors).map(level).collect()
    }

    /// The backward of every tower, from the gradients of [`Encoded::features`].
    ///
    /// # Errors
    /// libtorch's.
    pub fn backward(self, grads: Vec<Option<Tensor>>, towers: &mut [Tower]) -> Result<(), NativeError> {
        // Back to one tower after the other.
        let back = self.order.argsort(0, false);
        let mut start = 0;
        for mut part in self.parts {
            for (output, grad) in part.outputs.iter().zip(&grads) {
                if let Some(grad) = grad {
                    part.run.seed(*output, grad.index_select(0, &back.narrow(0, start, part.num_rows)));
                }
            }
            start += part.num_rows;
            part.run.backward(Some(&mut towers[part.tower].state.grads))?;
        }
        Ok(())
    }
}
