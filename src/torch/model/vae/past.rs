//! The states of frames that a network has seen, which it keeps for the frames that come next.

use tch::Tensor;

/// The last input frames of each layer that looks back in time. Frames come in chunks, each through the whole network; the
/// layers ask in the same order in each.
#[derive(Debug)]
pub(super) struct Past {
    kept: Vec<Option<Tensor>>,
    next: usize,
    is_first: bool,
    is_last: bool,
}

impl Past {
    /// Makes the state before any frame.
    pub fn none() -> Past {
        Past { kept: Vec::new(), next: 0, is_first: true, is_last: true }
    }

    /// Begins the next chunk; after the last one nothing is kept.
    pub fn begin(&mut self, is_first: bool, is_last: bool) {
        self.next = 0;
        self.is_first = is_first;
        self.is_last = is_last;
    }

    /// Returns whether this chunk begins with the first frame.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Returns the frames of earlier chunks that the layer that asks has kept, at most `count`, and keeps as many for the next chunk. `x`
    /// are the layer's frames of this chunk, `None` where it looks at none of them. Frames are `[count, H, W, C]`.
    pub fn frames(&mut self, x_THWC: Option<&Tensor>, count: i64) -> Option<Tensor> {
        let at = self.next;
        self.next += 1;
        if at == self.kept.len() {
            self.kept.push(None);
        }
        let before = self.kept[at].take();
        if let Some(x) = x_THWC.filter(|_| !self.is_last) {
            let seen = match &before {
                Some(before) if x.size()[0] < count => Tensor::cat(&[before, x], 0),
                _ => x.shallow_clone(),
            };
            let keeps = count.min(seen.size()[0]);
            // A copy: a view would hold all frames of the chunk.
            self.kept[at] = Some(seen.narrow(0, seen.size()[0] - keeps, keeps).copy());
        }
        before
    }
}
