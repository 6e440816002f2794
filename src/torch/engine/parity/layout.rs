//! Describes how the pools of a fixture's run are laid out.

use super::super::share::Splits;
use loongforge_core::config::Layout;
use loongforge_core::message::{PoolName, Tower, TowerSet};

/// Layouts of the foundation's pool and of the encoders'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLayouts {
    pub foundation: Layout,
    pub splits: Splits,
    /// The pool of the towers that have none of their own.
    pub encoder: EncoderLayout,
    /// The pools of single towers, in the order of [`Tower::ALL`].
    pub own: [Option<EncoderLayout>; Tower::ALL.len()],
}

/// The layout of an encoder pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderLayout {
    pub layout: Layout,
    /// The level at which its replicas share out: 0 or 1.
    pub zero: usize,
}

/// An encoder pool of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct EncoderPool {
    pub name: PoolName,
    pub towers: TowerSet,
    pub layout: EncoderLayout,
}

impl PoolLayouts {
    /// Returns the encoder pools of a model with these towers, in the order of their ranks.
    pub(super) fn encoders(&self, towers: TowerSet) -> Vec<EncoderPool> {
        let own = |tower: Tower| self.own[tower as usize];
        let shared: TowerSet = towers.iter().filter(|&tower| own(tower).is_none()).collect();
        let of_tower = |tower: Tower| {
            let name = tower.name().parse().expect("a tower's name is a pool's");
            own(tower).map(|layout| EncoderPool { name, towers: [tower].into_iter().collect(), layout })
        };
        let shared = EncoderPool { name: PoolName::ENCODER, towers: shared, layout: self.encoder };
        Some(shared)
            .filter(|pool| !pool.towers.is_empty())
            .into_iter()
            .chain(towers.iter().filter_map(of_tower))
            .collect()
    }

    /// Returns the number of processes of a model with these towers: first the foundation's, then those of each encoder pool.
    pub fn ranks(&self, towers: TowerSet) -> usize {
        self.foundation.ranks() + self.encoders(towers).iter().map(|pool| pool.layout.layout.ranks()).sum::<usize>()
    }

    /// # Errors
    /// A pool is laid out whose tower the model does not have.
    pub fn check_towers(&self, towers: TowerSet) -> Result<(), String> {
        let missing =
            Tower::ALL.into_iter().find(|&tower| self.own[tower as usize].is_some() && !towers.contains(tower));
        missing.map_or(Ok(()), |tower| Err(format!("the model has no {tower} tower")))
    }

    /// # Errors
    /// An axis without a rank, or a combination that there is not.
    pub fn check(&self) -> Result<(), String> {
        let PoolLayouts { foundation: Layout { dp, pp, cp, tp, ep }, splits, encoder, own } = self;
        let encoders = || own.iter().flatten().chain([encoder]);
        let broken = |is: bool, what: &str| if is { Err(what.to_owned()) } else { Ok(()) };
        let of_encoders: usize = encoders().map(|pool| pool.layout.dp * pool.layout.tp).product();
        broken(dp * pp * cp * tp * ep * of_encoders * splits.virtual_stages == 0, "every axis must be at least 1")?;
        broken(dp * cp % ep.max(&1) != 0, "foundation.ep must divide foundation.dp x foundation.cp")?;
        broken(splits.virtual_stages > 1 && *pp == 1, "foundation.vp needs foundation.pp above 1")?;
        broken(splits.zero > 3, "foundation.zero must be at most 3")?;
        broken(encoders().any(|pool| pool.zero > 1), "the .zero of an encoder pool must be at most 1")?;
        let meets = splits.zero > 1 && dp * cp > 1 || *ep > 1;
        let chunks = "foundation.chunk needs one virtual stage, foundation.zero of at most 1, and no foundation.ep";
        broken(splits.chunk_tokens > 0 && (meets || splits.virtual_stages > 1), chunks)
    }

    /// Returns the number of packs that a step's documents are dealt to: two for each replica of a pipeline, so that it has something to
    /// do, or of spread experts, so that they go in turns.
    pub(super) fn num_packs(&self) -> usize {
        self.foundation.dp * if self.foundation.pp > 1 || self.foundation.ep > 1 { 2 } else { 1 }
    }
}
