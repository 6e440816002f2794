//! Layout of a pool: its replicas, and the ranks that compute one replica.

use std::fmt;

/// Sizes of a pool's axes; 1 where an axis is not used.
///
/// Ranks are numbered with tensor parallelism innermost, then context, pipeline and data parallelism, so that ranks that
/// communicate most are neighbors. Experts are spread over `ep` consecutive members of the data and context axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    pub dp: usize,
    pub pp: usize,
    pub cp: usize,
    pub tp: usize,
    pub ep: usize,
}

/// A rank's place on each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankCoords {
    pub dp: usize,
    pub pp: usize,
    pub cp: usize,
    pub tp: usize,
}

impl Default for Layout {
    fn default() -> Self {
        Self::replicas(1)
    }
}

impl Layout {
    /// Returns the layout of this many replicas of one rank each.
    pub const fn replicas(dp: usize) -> Self {
        Self { dp, pp: 1, cp: 1, tp: 1, ep: 1 }
    }

    /// Returns the number of ranks per replica.
    pub fn replica_ranks(&self) -> usize {
        self.pp * self.cp * self.tp
    }

    /// Returns the number of ranks of the pool.
    pub fn ranks(&self) -> usize {
        self.dp * self.replica_ranks()
    }

    /// Returns the coordinates of a rank: tensor parallelism is innermost, then context, pipeline and data parallelism.
    pub fn place(&self, rank: usize) -> RankCoords {
        RankCoords {
            dp: rank / self.replica_ranks(),
            pp: rank / (self.cp * self.tp) % self.pp,
            cp: rank / self.tp % self.cp,
            tp: rank % self.tp,
        }
    }

    /// Returns the rank at these coordinates.
    pub fn rank(&self, place: RankCoords) -> usize {
        ((place.dp * self.pp + place.pp) * self.cp + place.cp) * self.tp + place.tp
    }

    /// Returns the rank that receives a replica's tokens and features.
    pub fn leader(&self, replica: usize) -> usize {
        replica * self.replica_ranks()
    }

    /// Returns the process group of `place` along the axes in `free`, ascending: the ranks that share its coordinates on all other
    /// axes.
    pub fn group(&self, place: RankCoords, free: &[Axis]) -> Vec<usize> {
        let fixed = |axis, here, there| free.contains(&axis) || here == there;
        let member = |&rank: &usize| {
            let other = self.place(rank);
            fixed(Axis::Dp, place.dp, other.dp)
                && fixed(Axis::Pp, place.pp, other.pp)
                && fixed(Axis::Cp, place.cp, other.cp)
                && fixed(Axis::Tp, place.tp, other.tp)
        };
        (0..self.ranks()).filter(member).collect()
    }

    /// Returns the expert-parallel group: `ep` consecutive ranks along the data and context axes.
    pub fn expert_group(&self, place: RankCoords) -> Vec<usize> {
        let all = self.group(place, &[Axis::Dp, Axis::Cp]);
        let here = all.iter().position(|&rank| rank == self.rank(place)).expect("a rank is of its own group");
        all[here / self.ep * self.ep..][..self.ep].to_vec()
    }

    /// Returns the ranks that hold the same experts and sum their gradients.
    pub fn expert_replicas(&self, place: RankCoords) -> Vec<usize> {
        let all = self.group(place, &[Axis::Dp, Axis::Cp]);
        let here = all.iter().position(|&rank| rank == self.rank(place)).expect("a rank is of its own group");
        all.into_iter().skip(here % self.ep).step_by(self.ep).collect()
    }
}

/// Formats as `dp2·pp2·tp2`; `single` for one rank.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = [("dp", self.dp), ("pp", self.pp), ("cp", self.cp), ("tp", self.tp), ("ep", self.ep)];
        let named: Vec<_> =
            axes.iter().filter(|(_, size)| *size > 1).map(|(name, size)| format!("{name}{size}")).collect();
        f.pad(&if named.is_empty() { "single".to_owned() } else { named.join("·") })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    Dp,
    Pp,
    Cp,
    Tp,
}

#[cfg(test)]
mod tests {
    use super::{Axis, Layout};

    #[test]
    fn places_and_ranks_are_inverse_and_groups_part_the_pool() {
        let layout = Layout { dp: 2, pp: 3, cp: 2, tp: 2, ep: 4 };
        assert_eq!((layout.ranks(), layout.leader(1), layout.to_string()), (24, 12, "dp2·pp3·cp2·tp2·ep4".into()));
        for rank in 0..layout.ranks() {
            let place = layout.place(rank);
            assert_eq!(layout.rank(place), rank);
            let tp = layout.group(place, &[Axis::Tp]);
            assert_eq!(tp, [rank / 2 * 2, rank / 2 * 2 + 1]);
            for axes in [&[Axis::Dp][..], &[Axis::Dp, Axis::Cp], &[Axis::Pp], &[Axis::Pp, Axis::Cp, Axis::Tp]] {
                let group = layout.group(place, axes);
                assert!(group.iter().all(|&other| layout.group(layout.place(other), axes) == group));
            }
            let experts = layout.expert_group(place);
            assert!(experts.contains(&rank) && experts.len() == 4);
            assert_eq!(layout.expert_replicas(place).len(), 1);
        }
        assert_eq!(layout.group(layout.place(5), &[Axis::Dp, Axis::Cp]), [5, 7, 17, 19]);
    }

    #[test]
    fn experts_are_spread_over_neighbors() {
        let layout = Layout { ep: 2, ..Layout::replicas(4) };
        assert_eq!(layout.expert_group(layout.place(3)), [2, 3]);
        assert_eq!(layout.expert_replicas(layout.place(3)), [1, 3]);
        assert_eq!(Layout::default().to_string(), "single");
    }
}
