//! A mixture of experts as data.

use super::names::MoeNames;

/// One feed-forward of experts, and of shared ones beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    pub router: RouterConfig,
    /// Inner width of an expert.
    pub intermediate_size: i64,
    /// True if the maps of the experts have biases.
    pub bias: bool,
    pub shared: Option<SharedExpertsConfig>,
    pub names: MoeNames,
    /// Experts for the tokens of pictures and videos alone (ERNIE-4.5-VL); those above are for the others, and the
    /// shared ones for all.
    pub media: Option<Box<MediaExperts>>,
}

/// Another set of experts, without shared ones, and the tokens that it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct MediaExperts {
    pub token_ids: Vec<i64>,
    pub experts: MoeConfig,
}

/// Describes how a token finds its experts.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterConfig {
    pub num_experts: i64,
    /// `num_experts_per_tok`
    pub top_k: i64,
    pub scores: RouterScores,
    /// True if a balancing bias is added to the scores for the choice, though not for the weights.
    pub bias: bool,
    /// True if a bias is added to the logits, and trained as the weight is (gpt-oss).
    pub logit_bias: bool,
    /// A token's experts are those of a table by its id, which has as many rows as the vocabulary (DeepSeek-V4's first
    /// layers); `None`: those with the best scores. Their weights come from the scores all the same.
    pub by_token: Option<i64>,
    /// The choice is among the experts of the best groups alone.
    pub groups: Option<ExpertGroups>,
    /// `norm_topk_prob`: the chosen experts' weights are divided by their sum.
    pub normalize: Normalize,
    /// `routed_scaling_factor`, applied last.
    pub scaling_factor: f64,
}

/// Says what logits become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// The softmax over all experts.
    Softmax,
    /// The softmax over the chosen experts, after a choice by logits.
    SoftmaxOfChosen,
    Sigmoid,
    /// The root of softplus (DeepSeek-V4).
    SqrtSoftplus,
}

/// `n_group` groups of experts, of which a token may use `topk_group`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    pub num: i64,
    pub kept: i64,
    pub score: GroupScore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The best expert's score, as DeepSeek-V2.
    Best,
    /// The sum of the two best, as DeepSeek-V3.
    BestTwo,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Normalize {
    No,
    /// Weights are divided by their sum plus this.
    Sum(f64),
    /// Weights are divided by their sum, or by this where the sum is smaller.
    ClampedSum(f64),
}

/// Experts that every token goes through, as one feed-forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedExpertsConfig {
    /// The joint inner width.
    pub intermediate_size: i64,
    pub bias: bool,
    /// True if a sigmoid gate of the token scales what comes out (`shared_expert_gate`).
    pub gated: bool,
}

impl RouterConfig {
    /// Returns a router with a softmax over all experts, the chosen ones' weights divided by their sum.
    pub fn softmax(num_experts: i64, top_k: i64) -> RouterConfig {
        RouterConfig {
            num_experts,
            top_k,
            scores: RouterScores::Softmax,
            bias: false,
            logit_bias: false,
            by_token: None,
            groups: None,
            normalize: Normalize::Sum(0.0),
            scaling_factor: 1.0,
        }
    }

    /// Returns a router with independent scores and a balancing bias, the chosen ones' weights divided by their sum.
    pub fn sigmoid(num_experts: i64, top_k: i64) -> RouterConfig {
        RouterConfig { scores: RouterScores::Sigmoid, bias: true, ..RouterConfig::softmax(num_experts, top_k) }
    }

    /// Returns why these numbers do not fit together, if they do not, with the key that says so; the keys are Hugging Face's.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let RouterConfig { num_experts, top_k, .. } = *self;
        if top_k > num_experts {
            return Some(("num_experts_per_tok", format!("there are only {num_experts} experts")));
        }
        let groups = self.groups?;
        if num_experts % groups.num != 0 {
            return Some(("n_group", format!("must divide the number of experts ({num_experts})")));
        }
        let of_group = num_experts / groups.num;
        if groups.kept > groups.num {
            return Some(("topk_group", format!("must be at most n_group ({})", groups.num)));
        }
        if groups.kept * of_group < top_k {
            return Some(("topk_group", format!("leaves fewer experts than num_experts_per_tok ({top_k})")));
        }
        (groups.score == GroupScore::BestTwo && of_group < 2)
            .then(|| ("n_group", "a group needs two experts, since the two best make its score".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::{ExpertGroups, GroupScore, RouterConfig};

    #[test]
    fn numbers_that_do_not_fit_name_their_key() {
        let with = |num, kept| {
            let groups = Some(ExpertGroups { num, kept, score: GroupScore::BestTwo });
            RouterConfig { groups, ..RouterConfig::sigmoid(8, 3) }.problem().map(|(key, _)| key)
        };
        assert_eq!(with(4, 2), None);
        assert_eq!(with(3, 2), Some("n_group"));
        assert_eq!(with(4, 5), Some("topk_group"));
        assert_eq!(with(4, 1), Some("topk_group"));
        assert_eq!(with(8, 4), Some("n_group"));
        assert_eq!(RouterConfig::softmax(4, 5).problem().map(|(key, _)| key), Some("num_experts_per_tok"));
    }
}
