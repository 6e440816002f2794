//! A vision tower on its parameters, and how it is recorded: embedding, blocks, and the states in merge order.
//!
//! Shapes: P patches, X values of a patch, S rows of the sequence (patches and class tokens), D hidden size, C head
//! size.

use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::{Device, Tensor};

use super::embed::{Embed, EmbedInputs};
use super::halving::{HalvingStep, halved};
use super::layout::Layout;
use super::tower_config::TowerConfig;
use crate::device::upload;
use crate::model::tower_blocks::{Attention, Mlp, Norm, Part, Rotation, beside};
use crate::nn::{Mask, PackedAttention, take_rows};
use crate::params::ParamStore;
use crate::tape::{Policy, Slot, Tape};

/// The tower of a config.
pub struct Tower {
    config: TowerConfig,
    embed: Part<Embed>,
    /// The class token's angles `[1, C/2]`, where they are learned.
    class_angles: Option<Part<Tensor>>,
    blocks: Vec<(Part<Attention>, Part<Mlp>)>,
    halving: Option<HalvingStep>,
    final_norm: Option<Part<Norm>>,
    device: Device,
}

/// The outputs of a tower, `[P, D]` each in merge order; fewer rows where frames are averaged.
pub struct States {
    pub last: Slot,
    /// The states behind the blocks of `TowerConfig::deepstack`, in their order.
    pub deepstack: Vec<Slot>,
}

/// Says what the rows of one batch are turned by.
enum Angles {
    None,
    Fixed(Rc<Rotation>),
    /// `[S, C/2]`, with a gradient.
    Learned(Slot),
}

impl Tower {
    /// Panics where the store was not made from this config's `specs`.
    pub fn new(config: &TowerConfig, params: &ParamStore) -> Tower {
        let prefix = config.prefix.as_str();
        let embed = Part::new(params, prefix, |scope| Embed::new(config, scope));
        let block = |number: i64| {
            let prefix = format!("{prefix}{}{number}.", config.block_prefix);
            let attention = Part::new(params, prefix.as_str(), |scope| config.block.attention(scope));
            (attention, Part::new(params, prefix, |scope| config.block.mlp(scope)))
        };
        let angles = config.class.as_ref().and_then(|class| class.angles);
        Tower {
            embed,
            class_angles: angles.map(|name| Part::new(params, prefix, |scope| scope.take(name))),
            blocks: (0..config.num_blocks).map(block).collect(),
            halving: config.halving.as_ref().map(|halving| HalvingStep::new(halving, prefix, params)),
            final_norm: config
                .final_norm
                .map(|(name, norm)| Part::new(params, prefix, |scope| norm.build(scope, name))),
            device: params.flat().device(),
            config: config.clone(),
        }
    }

    /// Returns the config that the tower was built from.
    pub fn config(&self) -> &TowerConfig {
        &self.config
    }

    /// Records the tower on items of these sizes, whose height and width are multiples of the merge size. `pixels` is
    /// `[P, X]`, the items' patches one after the other.
    pub fn record(&self, tape: &mut Tape, grids: &[Grid], pixels: Slot, policy: Policy) -> States {
        let config = &self.config;
        let layout = Layout::new(grids, &config.layout());
        let mut documents = Rc::new(PackedAttention::new(&layout.documents, Mask::Full, self.device));
        let windows = Rc::new(PackedAttention::new(&layout.windows, Mask::Full, self.device));

        let inputs = EmbedInputs::new(config, grids, &layout, self.device);
        let embed = self.embed.part.clone();
        let forward = move |reads: &[Tensor]| vec![embed.forward(&reads[0], &inputs)];
        // What is not in a block all ranks compute alike.
        let is_split = config.block.parallel.tp > 1;
        tape.set_alike(is_split);
        let mut x = tape.run("embed", &self.embed.ids, policy, &[pixels], 1, forward)[0];

        let angles = self.angles(tape, &layout, policy);
        let mut collect = self.collect(grids, &layout);
        let mut deepstack = Vec::new();
        for (number, (attention, mlp)) in self.blocks.iter().enumerate() {
            let full = config.windows.as_ref().is_none_or(|windows| windows.full_blocks.contains(&(number as i64)));
            let among = if full { documents.clone() } else { windows.clone() };
            tape.set_alike(false);
            x = beside(tape, x, is_split, |tape, x| self.attend(tape, x, (number, attention), &angles, among, policy));
            let branch = mlp.part.clone();
            let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0])];
            x = beside(tape, x, is_split, |tape, x| {
                tape.run(format!("block {number} mlp"), &mlp.ids, policy, &[x], 1, forward)[0]
            });
            tape.set_alike(is_split);
            if config.deepstack.contains(&(number as i64)) {
                deepstack.push(collect.record(tape, x, None, policy));
            }
            if let Some(step) = self.halving.as_ref().filter(|step| step.after == number as i64) {
                x = step.record(tape, grids, x, policy);
                let grids: Vec<Grid> = grids.iter().map(|grid| halved(*grid)).collect();
                let layout = Layout::new(&grids, &config.layout());
                documents = Rc::new(PackedAttention::new(&layout.documents, Mask::Full, self.device));
                collect = self.collect(&grids, &layout);
            }
        }
        States { last: collect.record(tape, x, self.final_norm.as_ref(), policy), deepstack }
    }

    fn attend(
        &self,
        tape: &mut Tape,
        x: Slot,
        (number, attention): (usize, &Part<Attention>),
        angles: &Angles,
        among: Rc<PackedAttention>,
        policy: Policy,
    ) -> Slot {
        let (name, branch) = (format!("block {number} attention"), attention.part.clone());
        match (angles, self.config.rope) {
            (Angles::Learned(angles), Some(rope)) => {
                let forward = move |reads: &[Tensor]| {
                    vec![branch.forward(&reads[0], Some(&Rotation::new(&reads[1], rope.order)), &among)]
                };
                tape.run(name, &attention.ids, policy, &[x, *angles], 1, forward)[0]
            }
            _ => {
                let turn = match angles {
                    Angles::Fixed(turn) => Some(turn.clone()),
                    _ => None,
                };
                let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0], turn.as_deref(), &among)];
                tape.run(name, &attention.ids, policy, &[x], 1, forward)[0]
            }
        }
    }

    fn angles(&self, tape: &mut Tape, layout: &Layout, policy: Policy) -> Angles {
        let Some(rope) = self.config.rope else { return Angles::None };
        let positions: Vec<i64> = layout.positions.iter().flatten().copied().collect();
        let positions_S2 = upload(&Tensor::from_slice(&positions).view([-1, 2]), self.device);
        let fixed = rope.angles(&positions_S2, self.config.block.head_dim());
        let Some(learned) = &self.class_angles else {
            return Angles::Fixed(Rc::new(Rotation::new(&fixed, rope.order)));
        };
        let is_class: Vec<bool> = layout.rows.iter().map(Option::is_none).collect();
        let is_class = upload(&Tensor::from_slice(&is_class).unsqueeze(-1), self.device);
        let class = learned.part.clone();
        let forward = move |_: &[Tensor]| vec![class.to_kind(fixed.kind()).where_self(&is_class, &fixed)];
        let angles = tape.run("class angles", &learned.ids, policy, &[], 1, forward)[0];
        Angles::Learned(if self.config.block.parallel.tp > 1 { tape.copy_to_region(angles) } else { angles })
    }

    fn collect(&self, grids: &[Grid], layout: &Layout) -> Collect {
        let rows: Vec<i64> = layout.merged.iter().map(|row| *row as i64).collect();
        let frames = self.config.frame_mean && grids.iter().any(|grid| grid.t > 1);
        Collect {
            rows: (!layout.is_merged()).then(|| Rc::new(upload(&Tensor::from_slice(&rows), self.device))),
            frames: frames.then(|| grids.iter().map(|grid| [grid.t.into(), i64::from(grid.h * grid.w)]).collect()),
        }
    }
}

/// Bringing the sequence into merge order.
struct Collect {
    /// The rows of the sequence that are patches, in merge order; `None` where they lie so.
    rows: Option<Rc<Tensor>>,
    /// Frames and patches of a frame of each item, where frames are averaged and there are several.
    frames: Option<Rc<[[i64; 2]]>>,
}

impl Collect {
    fn record(&self, tape: &mut Tape, x: Slot, norm: Option<&Part<Norm>>, policy: Policy) -> Slot {
        if self.rows.is_none() && self.frames.is_none() && norm.is_none() {
            return x;
        }
        let (rows, frames) = (self.rows.clone(), self.frames.clone());
        let (ids, norm) = norm.map_or((&[][..], None), |norm| (norm.ids.as_slice(), Some(norm.part.clone())));
        let forward = move |reads: &[Tensor]| {
            let mut x = rows.as_ref().map_or_else(|| reads[0].shallow_clone(), |rows| take_rows(&reads[0], rows));
            if let Some(norm) = &norm {
                x = norm.forward(&x);
            }
            vec![frames.as_ref().map_or_else(|| x.shallow_clone(), |frames| frame_means(&x, frames))]
        };
        tape.run("states", ids, policy, &[x], 1, forward)[0]
    }
}

/// Maps `[P, D]`, frame by frame of each item, to the means over an item's frames.
fn frame_means(x_PD: &Tensor, frames: &[[i64; 2]]) -> Tensor {
    let mut start = 0;
    let means = frames.iter().map(|&[count, patches]| {
        let item = x_PD.narrow(0, start, count * patches);
        start += count * patches;
        item.view([count, patches, -1]).mean_dim(0i64, false, None)
    });
    Tensor::cat(&means.collect::<Vec<_>>(), 0)
}
