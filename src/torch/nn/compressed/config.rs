//! Compressed attention as data.

/// An attention over a window of tokens, and in some layers over compressed entries of all that came before. Names are
/// those of the config.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedConfig {
    pub num_heads: i64,
    /// The width of a head's queries, and of the one vector of a token that is key and value of all heads.
    pub head_dim: i64,
    /// The width of the queries' latent.
    pub q_lora_rank: i64,
    /// The groups of heads whose outputs are projected each for itself, and the width of what comes of each.
    pub o_groups: i64,
    pub o_lora_rank: i64,
    /// The number of tokens that a token sees, itself included.
    pub window: i64,
    /// `None`: the layer sees its window alone.
    pub compression: Option<Compression>,
    /// The epsilon of all its norms.
    pub norm_eps: f64,
}

/// The way in which tokens become entries.
#[derive(Clone, Debug, PartialEq)]
pub struct Compression {
    /// Tokens of an entry. A document's entries begin at its first token; tokens behind the last whole entry have none.
    pub rate: i64,
    /// The indexer, with which (CSA) an entry is made of the tokens before it as well, and a query sees the best entries alone; without
    /// one (HCA) a query sees all entries that are complete.
    pub indexer: Option<EntryIndexer>,
}

/// `index_n_heads`, `index_head_dim` and `index_topk` of the config. The choice has no gradient, and the indexer does not
/// train.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryIndexer {
    pub num_heads: i64,
    pub head_dim: i64,
    pub topk: i64,
}
