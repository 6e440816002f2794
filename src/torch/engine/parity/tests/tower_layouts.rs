//! Every family of towers in every layout that its pools accept, beside a foundation that is whole or split: steps give the numbers of one
//! process.

use super::*;
use crate::engine::share::{FoundationPlan, divided_towers};
use crate::model::ModelConfig;
use crate::params::ParallelRank;
use crate::train::parity::Fixture;
use loongforge_core::message::PoolName;

#[path = "../../../../../tests/support/soak.rs"]
mod soak;

/// Returns the layouts by their names. Packs are dealt to replicas of the foundation, and their items with them to those of encoders.
fn layouts() -> Vec<(&'static str, PoolLayouts)> {
    let (whole, split) = (Layout::default(), Layout { tp: 2, ..Layout::default() });
    let encoder = |layout: Layout, zero: usize| PoolLayouts {
        encoder: EncoderLayout { layout, zero },
        ..foundation(Layout::replicas(layout.dp))
    };
    let chunks = Splits { chunk_tokens: 16, ..Splits::default() };
    vec![
        ("encoder-tp2", encoder(split, 0)),
        ("encoder-tp3", encoder(Layout { tp: 3, ..whole }, 0)),
        ("encoder-dp2", encoder(Layout::replicas(2), 0)),
        ("encoder-dp2-zero1", encoder(Layout::replicas(2), 1)),
        ("encoder-dp2-tp2-zero1", encoder(Layout { dp: 2, ..split }, 1)),
        ("tp2-sequence", sp(2)),
        ("pp2", foundation(Layout { pp: 2, ..whole })),
        ("cp2", foundation(Layout { cp: 2, ..whole })),
        ("dp2-zero3", zero(Layout::replicas(2), 3)),
        ("chunks", PoolLayouts { splits: chunks, ..PoolLayouts::default() }),
    ]
}

/// Returns the fixtures of one seed whose models have towers: names, folders and models.
fn models() -> Vec<(String, PathBuf, ModelConfig)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(fixture("")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let Some(family) = name.strip_suffix("-seed1") else { continue };
        if !towers_of(&folder).unwrap().is_empty() {
            let model = Fixture::read(&folder).unwrap().config;
            found.push((family.to_owned(), folder, model));
        }
    }
    found.sort_by(|left, right| left.0.cmp(&right.0));
    found
}

/// Returns the reason for which a model's pools cannot be laid out so: the one that a run is refused with.
fn refusal(model: &ModelConfig, layouts: &PoolLayouts) -> Option<String> {
    let PoolLayouts { foundation, splits, encoder, .. } = layouts;
    let parallel = ParallelRank::first(*foundation, splits.sequence_parallel);
    let plan = FoundationPlan::new(&model.foundation, *foundation, &parallel, splits, PoolName::FOUNDATION);
    let towers = divided_towers(&model.towers, &ParallelRank::first(encoder.layout, false));
    plan.err().or(towers.err()).map(|reason| reason.to_string())
}

/// A fixture, the layouts of its pools, and why they are refused.
type Case = (PathBuf, PoolLayouts, Option<String>);

/// Returns the layouts of all models by name.
fn cells() -> Vec<(String, Case)> {
    let mut cells = Vec::new();
    for (family, folder, model) in models() {
        for (layout, pools) in layouts() {
            cells.push((format!("{family} {layout}"), (folder.clone(), pools, refusal(&model, &pools))));
        }
    }
    cells
}

#[test]
fn towers_are_laid_out_or_refused_with_a_reason() {
    let (cells, mut num_refused) = (cells(), 0);
    for (cell, (_, pools, refusal)) in &cells {
        assert_eq!(pools.check(), Ok(()), "{cell}");
        // Replicas alone split nothing.
        let is_split = pools.encoder.layout.tp > 1 || !cell.contains(" encoder-");
        assert!(is_split || refusal.is_none(), "{cell}: {refusal:?}");
        assert!(refusal.as_ref().is_none_or(|reason| !reason.is_empty()), "{cell}");
        num_refused += usize::from(refusal.is_some());
    }
    let num_models = cells.len() / layouts().len();
    assert!(num_models > 25 && (1..cells.len() / 2).contains(&num_refused), "{num_models}, {num_refused}");
}

#[test]
#[ignore = "soak"]
fn soak_tower_layouts() {
    soak::run("tower_layouts", &cells(), |(folder, pools, refusal)| {
        if let Some(reason) = refusal {
            return Ok(soak::Cell::NotRun(format!("refused: {reason}")));
        }
        let place = tempfile::tempdir().unwrap();
        let alone = alone(folder, place.path(), pools).map_err(|error| error.to_string())?;
        let report = compare_steps(&on_ranks(folder, pools), &alone);
        match report.is_ok() {
            true => Ok(soak::Cell::Passed("equals one process".to_owned())),
            false => Err(report.to_string()),
        }
    });
}
