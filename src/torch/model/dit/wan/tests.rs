//! Mistakes in Wan's transformer, which the comparison with diffusers (`dit/tests.rs`) would find. Blocks and head are computed here
//! from their parts: as they are, and with each mistake.

use std::path::Path;

use loongforge_core::message::Tower;
use tch::{Device, Kind, Tensor};

use super::block::{FeedForward, PromptAttention, SelfAttention};
use super::config::WanConfig;
use super::embed::Head;
use super::layout::Context;
use crate::model::dit::TransformerConfig;
use crate::model::dit::network::Work;
use crate::model::dit::sample::samples;
use crate::model::dit::tests::{Fixture, error, folders};
use crate::model::foundation::FoundationModel;
use crate::model::stage::Stage;
use crate::model::towers::with_values;
use crate::params::Scope;
use crate::tape::{Execution, Policy};

/// The tolerance, and by how much a mistake has to move velocities, as shares of the largest value.
const TOLERANCE: f64 = 5e-6;
const FAR: f64 = 10.0 * TOLERANCE;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// The head is modulated by `time_proj`, not by the embedding of noise levels.
    HeadByProjection,
    /// Scale and shift are exchanged in the head.
    ExchangedInHead,
    /// Queries and keys have a norm for each head.
    NormByHead,
    /// The rows of text behind a prompt are masked.
    MaskedPadding,
}

/// Returns the streams before the first block: hidden states, modulations, embeddings of noise levels, text and pictures.
fn embedded(fixture: &Fixture, all: &[usize]) -> Vec<Tensor> {
    let stage = Stage { layers: 0..0, is_first: true, is_last: false };
    let model = fixture.family.stage_model(&stage, &fixture.params, Policy::Keep);
    let recorded = model.record_velocity(&fixture.batch(all), &fixture.noised(all)).unwrap();
    let inputs = with_values(&recorded.features, &fixture.features(all));
    let mut run = Execution::forward_only(recorded.tape, fixture.params.clone(), inputs);
    run.forward().unwrap();
    recorded.outbound.iter().map(|boundary| run.value(boundary.slot).copy()).collect()
}

/// Returns the tables of all samples.
fn context(fixture: &Fixture, config: &WanConfig, all: &[usize]) -> Context {
    let count = |tower: Tower| -> i64 {
        let items = fixture.rows.iter().flat_map(|row| &row.items).filter(|item| item.tower == tower);
        items.map(|item| i64::from(item.num_features)).sum()
    };
    let (found, sigma) = (samples(&fixture.rows, 0, |_, _| true), fixture.noised(all).sigma);
    let work = Work {
        samples: &found,
        sigma: &sigma,
        num_text: count(Tower::Text),
        num_pictures: count(Tower::Vision),
        policy: Policy::Keep,
        share: None,
    };
    config.context(&work, Device::Cpu)
}

/// Returns for each value of `y` `[rows, H·C]` the sum of squares with which the norm of all heads is that of its head alone.
fn squares_of_heads(y: &Tensor, config: &WanConfig) -> Tensor {
    let squares = y.unflatten(-1, [-1, config.head_dim]).square();
    let sums = squares.sum_dim_intlist([-1i64].as_slice(), true, Kind::Float) * config.num_heads as f64;
    sums.expand([-1, -1, config.head_dim], false).flatten(1, 2)
}

/// Returns queries, keys and values of the self-attention, `[T, H, C]` each, from what it projects.
fn heads(part: &SelfAttention, mut projected: Vec<Tensor>, config: &WanConfig, context: &Context) -> [Tensor; 3] {
    let squares = [0, 1].map(|at: usize| squares_of_heads(&projected[at], config));
    let mut by_head: Vec<[Tensor; 3]> = Vec::new();
    for head in 0..config.num_heads {
        let own = squares.each_ref().map(|of| of.narrow(1, head * config.head_dim, 1));
        projected[3] = Tensor::cat(&own, 1);
        by_head.push(part.normed(&projected, &context.tables).map(|x| x.narrow(1, head, 1)));
    }
    [0, 1, 2].map(|which: usize| Tensor::cat(&by_head.iter().map(|of| &of[which]).collect::<Vec<_>>(), 1))
}

/// Returns the velocities of all samples `[T, P]` with a mistake, or without one.
fn velocity(fixture: &Fixture, config: &WanConfig, mistake: Option<Mistake>) -> Tensor {
    let _no_grad = tch::no_grad_guard();
    let is = |one: Mistake| mistake == Some(one);
    let all: Vec<usize> = (0..fixture.rows.len()).collect();
    let text_rows = if is(Mistake::MaskedPadding) { 0 } else { config.text_rows };
    let context = context(fixture, &WanConfig { text_rows, ..config.clone() }, &all);
    let tables = &context.tables;
    let streams = embedded(fixture, &all);
    let (mut x, modulations, level, text) = (streams[0].copy(), &streams[1], &streams[2], &streams[3]);
    for number in 0..config.num_layers {
        let scope = Scope::new(&fixture.params, format!("blocks.{number}."));
        let part = SelfAttention::new(&scope, config);
        let projected = part.project(&x, modulations, tables);
        let [q, k, v] = match is(Mistake::NormByHead) {
            true => heads(&part, projected, config, &context),
            false => part.normed(&projected, tables),
        };
        x += part.finish(&context.clips.whole().forward(&q, &k, &v), modulations, tables);
        let part = PromptAttention::new(&scope, config);
        let mut projected = part.project(&x, text, streams.get(4));
        if is(Mistake::NormByHead) {
            // Sums of squares of queries and each kind of keys, then queries, and each kind of keys with its values.
            let of: &[usize] = if projected.len() > 5 { &[3, 4, 6] } else { &[2, 3] };
            let squares: Vec<Tensor> = of.iter().map(|at| squares_of_heads(&projected[*at], config)).collect();
            squares.into_iter().enumerate().for_each(|(number, of_heads)| projected[number] = of_heads);
        }
        x += part.finish(&projected, tables);
        let y = FeedForward::new(&scope, config).forward(&x, modulations, tables);
        x += y;
    }
    let head = Head::new(&Scope::new(&fixture.params, ""), config);
    let first = modulations.select(1, 0);
    head.forward(&x, if is(Mistake::HeadByProjection) { &first } else { level }, &tables.segments)
}

/// Returns how far velocities are from the reference's; `None`: the fixture is of another transformer, or has no place for the mistake.
fn off(folder: &Path, mistake: Option<Mistake>) -> Option<f64> {
    let fixture = Fixture::read(folder);
    let TransformerConfig::Wan(config) = fixture.family.transformer() else { return None };
    if mistake == Some(Mistake::NormByHead) && config.num_heads == 1 {
        return None;
    }
    if mistake == Some(Mistake::ExchangedInHead) {
        let table = fixture.params.id("scale_shift_table");
        fixture.params.set(table, &fixture.params.value(table).flip([1]));
    }
    Some(error(&velocity(&fixture, config, mistake), &fixture.expected["velocity"]))
}

#[test]
fn mistakes_are_far_from_the_reference() {
    let mistakes = [Mistake::HeadByProjection, Mistake::ExchangedInHead, Mistake::NormByHead, Mistake::MaskedPadding];
    for folder in folders() {
        let Some(without) = off(&folder, None) else { continue };
        assert!(without < TOLERANCE, "{}: {without:.1e}", folder.display());
        for (mistake, off) in mistakes.into_iter().filter_map(|it| off(&folder, Some(it)).map(|off| (it, off))) {
            println!("{} {mistake:?}: {off:.1e}", folder.display());
            assert!(off > FAR, "{} {mistake:?}: {off:.1e}", folder.display());
        }
    }
}
