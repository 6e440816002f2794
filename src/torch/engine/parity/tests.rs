//! Layouts of fixtures, one thread a rank.

mod tower_layouts;

use super::super::share::Splits;
use super::{EncoderLayout, PoolLayouts, alone, on_rank};
use crate::device::set_intra_op_threads;
use crate::train::parity::{Steps, compare_steps, towers_of};
use loongforge_core::config::{ContextAttention, Layout};
use loongforge_core::message::Tower;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Returns the steps that the first rank finds.
fn on_ranks(folder: &Path, layouts: &PoolLayouts) -> Steps {
    let place = tempfile::tempdir().unwrap();
    let meeting = place.path();
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            scope.spawn(move || {
                set_intra_op_threads(1);
                on_rank(folder, meeting, layouts, rank, Duration::from_secs(60)).unwrap()
            })
        };
        let ranks: Vec<_> = (0..layouts.ranks(towers_of(folder).unwrap())).map(rank).collect();
        ranks.into_iter().filter_map(|rank| rank.join().unwrap()).next().unwrap()
    })
}

fn check(name: &str, layouts: &PoolLayouts) {
    let folder = fixture(name);
    let place = tempfile::tempdir().unwrap();
    let alone = alone(&folder, place.path(), layouts).unwrap();
    let report = compare_steps(&on_ranks(&folder, layouts), &alone);
    assert!(report.is_ok(), "{name} on {layouts:?}\n{report}");
}

fn foundation(layout: Layout) -> PoolLayouts {
    PoolLayouts { foundation: layout, ..PoolLayouts::default() }
}

fn tp(ranks: usize) -> PoolLayouts {
    foundation(Layout { tp: ranks, ..Layout::default() })
}

/// Returns layouts in which the sequence is split as well.
fn sp(ranks: usize) -> PoolLayouts {
    PoolLayouts { splits: Splits { sequence_parallel: true, ..Splits::default() }, ..tp(ranks) }
}

fn zero(layout: Layout, zero: usize) -> PoolLayouts {
    PoolLayouts { splits: Splits { zero, ..Splits::default() }, ..foundation(layout) }
}

#[test]
fn dense_layers_split_among_two() {
    check("qwen3-seed1", &tp(2));
}

#[test]
fn with_the_sequence_split_as_well() {
    check("qwen3-seed1", &sp(2));
}

#[test]
fn more_ranks_than_key_heads() {
    check("qwen3-yarn-bias", &tp(4));
    check("qwen2.5-tied-3layers", &sp(4));
}

#[test]
fn joint_projections_and_biases_after_sums() {
    check("qwen1-biases-kv10", &sp(2));
    check("internlm2.5-seed1", &tp(2));
    // The head has a bias.
    check("ernie4.5_moe-bias", &sp(2));
}

#[test]
fn replicas_of_split_layers() {
    let layouts = sp(2);
    check("qwen3-untied-mqa-3layers", &PoolLayouts { foundation: Layout { dp: 2, ..layouts.foundation }, ..layouts });
}

#[test]
fn latent_attention_and_experts() {
    check("deepseek_v2-seed1", &tp(2));
    check("deepseek_v3_mtp-seed1", &sp(2));
    check("deepseek_v3_mtp-seed1", &tp(2));
}

#[test]
fn experts_split_and_spread() {
    check("qwen3_moe-seed1", &sp(2));
    check("qwen3_moe-seed1", &foundation(Layout { dp: 2, ep: 2, ..Layout::default() }));
    let layouts = sp(2);
    check("deepseek_v3-seed1", &PoolLayouts { foundation: Layout { dp: 2, ep: 2, ..layouts.foundation }, ..layouts });
    check("ernie4.5_moe-seed1", &foundation(Layout { dp: 4, ep: 2, ..Layout::default() }));
}

#[test]
fn attention_that_needs_all_heads() {
    check("minimax_m2-seed1", &sp(2));
    check("deepseek_v3.2-seed1", &tp(2));
}

/// Norms of outputs, outside of regions; a soft cap over parts of the vocabulary; two kinds of rotary embeddings.
#[test]
fn gemmas_split_among_ranks() {
    check("gemma2-seed1", &tp(2));
    check("gemma2-seed1", &sp(2));
    check("gemma2-seed1", &foundation(Layout { pp: 2, ..Layout::default() }));
    check("gemma3_text-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
    check("gemma-seed1", &sp(4));
}

/// Pictures and prompts whose tokens see tokens behind them, with windows; pictures in tiles. A sequence has no picture.
#[test]
fn tokens_that_see_what_is_behind_them_split_among_ranks() {
    let encoder = EncoderLayout { layout: Layout { tp: 2, ..Layout::default() }, zero: 0 };
    check("gemma3-seed1", &PoolLayouts { encoder, ..sp(2) });
    check("gemma3-seed1", &foundation(Layout { pp: 2, ..Layout::default() }));
    check("paligemma-seed1", &PoolLayouts { encoder, ..tp(2) });
    check("paligemma2-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
    let encoder = EncoderLayout { layout: Layout::replicas(2), zero: 1 };
    check("smolvlm-seed1", &PoolLayouts { encoder, ..sp(2) });
}

/// A tower whose states are halved between two blocks, on a decoder of gated delta nets.
#[test]
fn halved_states_split_among_ranks() {
    let encoder = EncoderLayout { layout: Layout { tp: 2, ..Layout::default() }, zero: 0 };
    check("minicpm_v4.6-seed1", &PoolLayouts { encoder, ..tp(2) });
    check("minicpm_v4.6-seed1", &foundation(Layout { pp: 2, ..Layout::default() }));
    let encoder = EncoderLayout { layout: Layout::replicas(2), zero: 1 };
    check("minicpm_v4.6-seed1", &PoolLayouts { encoder, ..foundation(Layout::replicas(2)) });
}

/// Windows in all layers, and experts behind them.
#[test]
fn mistrals_split_among_ranks() {
    check("mistral-seed1", &sp(2));
    check("mixtral-seed1", &foundation(Layout { dp: 2, ep: 2, tp: 2, ..Layout::default() }));
    check("mixtral-window-top3", &foundation(Layout { pp: 2, ..Layout::default() }));
}

/// One projection for queries, keys and values, and one for gates and ups.
#[test]
fn fused_projections_split_among_ranks() {
    check("phi3-seed1", &sp(2));
    check("phi3-longrope-long", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
    check("phi3-longrope-long", &foundation(Layout { cp: 2, ..Layout::default() }));
}

/// Norms after the branches only: nothing is normed before a region.
#[test]
fn branches_without_norms_of_their_inputs() {
    check("olmo2-seed1", &sp(2));
    check("olmo2-seed1", &zero(Layout { dp: 2, tp: 2, ..Layout::default() }, 3));
    check("olmo3-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
}

#[test]
fn layers_without_positions() {
    check("smollm3-seed1", &foundation(Layout { cp: 2, tp: 2, ..Layout::default() }));
    check("smollm3-window-bias", &sp(2));
    let splits = Splits { chunk_tokens: 5, ..Splits::default() };
    check("smollm3-seed1", &PoolLayouts { splits, ..foundation(Layout { pp: 2, ..Layout::default() }) });
}

/// Norms before and after the branches, and heads of which a half turns in pairs of neighbors.
#[test]
fn norms_on_both_sides_of_branches() {
    check("glm4-seed1", &sp(2));
    check("glm4-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
    check("exaone4-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
    check("seed_oss-seed1", &sp(2));
}

/// Multipliers of embeddings, branches and scores, queries that are longer at later positions, and norms of turned heads.
#[test]
fn scaled_branches_queries_and_scores() {
    check("granite-seed1", &sp(2));
    check("granite-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
    check("ministral3-seed1", &foundation(Layout { cp: 2, tp: 2, ..Layout::default() }));
    check("ministral3-seed1", &foundation(Layout { pp: 2, ..Layout::default() }));
    check("hunyuan_v1_dense-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
}

/// A gated shared expert beside routed ones, norms over all heads before them, and latent attention.
#[test]
fn experts_of_softmax_routers_split_among_ranks() {
    check("qwen2_moe-seed1", &foundation(Layout { dp: 2, ep: 2, tp: 2, ..Layout::default() }));
    check("olmoe-seed1", &foundation(Layout { dp: 2, ep: 2, ..Layout::default() }));
    check("olmoe-seed1", &sp(2));
    check("glm4_moe_lite-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
}

#[test]
fn grouped_queries_before_biased_routers() {
    check("glm4_moe-seed1", &foundation(Layout { dp: 2, ep: 2, ..Layout::default() }));
    check("glm4_moe-air", &sp(2));
    check("glm4_moe-air", &foundation(Layout { cp: 2, ..Layout::default() }));
    check("glm4_moe_mtp-seed1", &sp(2));
}

/// Sinks are split with their heads, biases of experts with the experts; downs add theirs on one rank.
#[test]
fn sinks_and_biased_experts_split_among_ranks() {
    check("gpt_oss-seed1", &tp(2));
    check("gpt_oss-seed1", &sp(2));
    check("gpt_oss-seed1", &foundation(Layout { dp: 2, ep: 2, ..Layout::default() }));
    check("gpt_oss-seed1", &zero(Layout { dp: 2, ep: 2, tp: 2, ..Layout::default() }, 3));
    check("gpt_oss-square-mqa-3layers", &foundation(Layout { pp: 3, tp: 2, ..Layout::default() }));
}

/// A residual of several streams outside of regions and between stages, attention that all ranks compute alike, and
/// experts that are looked up by token.
#[test]
fn streams_and_compressed_attention() {
    check("deepseek_v4-seed1", &tp(2));
    check("deepseek_v4-seed1", &sp(2));
    check("deepseek_v4-seed1", &foundation(Layout { dp: 2, ep: 2, ..Layout::default() }));
    check("deepseek_v4-seed1", &foundation(Layout { pp: 3, ..Layout::default() }));
    check("deepseek_v4-seed1", &zero(Layout { dp: 2, tp: 2, ..Layout::default() }, 3));
    check("deepseek_v4_mtp-seed1", &sp(2));
    check("deepseek_v4_mtp-seed1", &foundation(Layout { pp: 2, ..Layout::default() }));
}

#[test]
fn recurrent_layers_with_shared_experts() {
    check("qwen3_next-seed1", &sp(2));
    check("qwen3.5-seed1", &tp(2));
}

#[test]
fn towers_split_among_encoders() {
    let encoder = EncoderLayout { layout: Layout { tp: 2, ..Layout::default() }, zero: 0 };
    check("qwen2.5_vl-seed1", &PoolLayouts { encoder, ..sp(2) });
    check("qwen3_vl-seed1", &PoolLayouts { encoder, ..sp(2) });
    check("qwen3_vl-seed1", &PoolLayouts { encoder, ..foundation(Layout::default()) });
    check("ernie4.5_vl-seed1", &PoolLayouts { encoder, ..tp(2) });
    check("internvl3.5-seed1", &PoolLayouts { encoder, ..tp(2) });
    check("qwen2_audio-seed1", &PoolLayouts { encoder, ..sp(2) });
    // Two towers in one pool, and one in a pool of its own.
    let mut own = PoolLayouts { encoder, ..tp(2) };
    own.own[Tower::Audio as usize] = Some(EncoderLayout { layout: Layout::replicas(2), zero: 1 });
    check("qwen2.5_omni-seed1", &own);
    check("qwen2.5_omni-seed1", &PoolLayouts { encoder, ..sp(2) });
    check("qwen3_omni-seed1", &PoolLayouts { encoder, ..tp(2) });
    check("qwen3_asr-seed1", &PoolLayouts { encoder: EncoderLayout { zero: 1, ..encoder }, ..tp(2) });
}

#[test]
fn pools_differ_in_their_layouts() {
    let encoder = EncoderLayout { layout: Layout { dp: 2, tp: 2, ..Layout::default() }, zero: 1 };
    let layout = Layout { dp: 2, pp: 2, ..Layout::default() };
    check("qwen3_vl-seed1", &PoolLayouts { encoder, ..foundation(layout) });
    let encoder = EncoderLayout { layout: Layout::replicas(3), zero: 1 };
    check("qwen2.5_vl-seed1", &PoolLayouts { encoder, ..tp(2) });
    // A table of positions that is not trained.
    check("qwen2_audio-seed1", &PoolLayouts { encoder, ..foundation(Layout::default()) });
}

#[test]
fn adapters_of_split_maps() {
    check("qwen3_lora-seed1", &sp(2));
    check("qwen3_moe_lora-seed1", &foundation(Layout { dp: 2, ep: 2, tp: 2, ..Layout::default() }));
    check("qwen3_lora-dora", &foundation(Layout { pp: 2, ..Layout::default() }));
}

#[test]
fn stages_and_rows_with_split_layers() {
    check("qwen3_moe-seed1", &foundation(Layout { pp: 2, tp: 2, ..Layout::default() }));
    check("qwen3-seed1", &foundation(Layout { dp: 2, pp: 2, ..Layout::default() }));
    check("qwen3-seed1", &foundation(Layout { cp: 2, tp: 2, ..Layout::default() }));
    // Frequencies depend on the length of a document, of which a rank has a part.
    check("llama3.1-longrope", &foundation(Layout { cp: 2, ..Layout::default() }));
    let splits = Splits { context: ContextAttention::Ulysses, ..Splits::default() };
    check("qwen2.5_vl-seed1", &PoolLayouts { splits, ..foundation(Layout { cp: 2, ..Layout::default() }) });
    check("qwen3_moe-seed1", &foundation(Layout { cp: 2, ep: 2, ..Layout::default() }));
    let splits = Splits { chunk_tokens: 5, ..Splits::default() };
    check("qwen2.5-tied-3layers", &PoolLayouts { splits, ..foundation(Layout { pp: 2, tp: 2, ..Layout::default() }) });
}

#[test]
fn what_is_split_is_shared_out_too() {
    let split = Layout { dp: 2, tp: 2, ..Layout::default() };
    for level in 1..=3 {
        check("qwen3-seed1", &zero(split, level));
        check("qwen3_moe-seed1", &zero(Layout { dp: 2, ep: 2, ..Layout::default() }, level));
    }
    // Uneven parts, key heads in copies, norms on slices that differ from rank to rank.
    check("qwen2.5-tied-3layers", &zero(Layout { dp: 2, tp: 4, ..Layout::default() }, 2));
    check("minimax_m2-seed1", &zero(split, 3));
}

#[test]
fn spread_experts_are_shared_out_among_those_that_have_the_same() {
    for level in 1..=3 {
        check("deepseek_v3-seed1", &zero(Layout { dp: 4, ep: 2, ..Layout::default() }, level));
    }
    check("qwen3_moe-seed1", &zero(Layout { dp: 2, cp: 2, ep: 2, tp: 2, ..Layout::default() }, 3));
    check("qwen3_moe_lora-seed1", &zero(Layout { dp: 2, ep: 2, tp: 2, ..Layout::default() }, 3));
}

#[test]
fn packs_in_turns_compute_what_they_do_one_after_the_other() {
    let folder = fixture("qwen3_moe-seed1");
    let steps = |expert_overlap| {
        let splits = Splits { expert_overlap, ..Splits::default() };
        let layouts = PoolLayouts { splits, ..foundation(Layout { cp: 2, ep: 2, ..Layout::default() }) };
        assert_eq!(layouts.num_packs(), 2, "of one replica");
        on_ranks(&folder, &layouts)
    };
    let (in_turns, apart) = (steps(true), steps(false));
    // The same bits: of each parameter the first pack's gradient and then the second's.
    assert_eq!((in_turns.losses, in_turns.grad_norms), (apart.losses, apart.grad_norms));
    assert_eq!((in_turns.gradients, in_turns.weights), (apart.gradients, apart.weights));
    // Units that both packs read are gathered, and their gradients summed, once for both.
    for level in 2..=3 {
        check("qwen3_moe-seed1", &zero(Layout { cp: 4, ep: 2, ..Layout::default() }, level));
    }
}
