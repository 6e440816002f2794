//! A fixture's steps on several ranks: every layout is to give the numbers of one process.

use super::fixture::{Document, Fixture};
use super::report::ParityReport;
use super::run::{Models, ParityError, reference_parts};
use crate::comm::Mesh;
use crate::nn::{ParamId, ParamStore};
use crate::train::{gather_whole, square_sum, sum_gradients};
use std::path::Path;
use std::rc::Rc;
use tch::Tensor;

/// What steps of AdamW give; the same on every rank.
pub struct Steps {
    /// Before each step, and after the last one.
    pub losses: Vec<f64>,
    pub grad_norms: Vec<f64>,
    /// Of the first step, by the names of the checkpoint's tensors.
    pub gradients: Vec<(String, Tensor)>,
    /// After the last one.
    pub weights: Vec<(String, Tensor)>,
    ill_conditioned: bool,
}

/// Runs the fixture in `folder` on the rank of `mesh`, of which every rank calls it. The documents are dealt to the
/// replicas, of which each has one packed row; a mesh of one rank computes the rows of `replicas` one after the other.
///
/// # Errors
/// The fixture cannot be read, its model not be split so, or a rank is gone.
pub fn steps_on(folder: &Path, mesh: Rc<Mesh>, sequence: bool, replicas: usize) -> Result<Steps, ParityError> {
    let fixture = Fixture::read(folder)?;
    let mut models = Models::load_on(&fixture, &fixture.config, folder, mesh.clone(), sequence)?;
    let row = |replica: usize| -> Vec<&Document> { fixture.documents.iter().skip(replica).step_by(replicas).collect() };
    let rows: Vec<Vec<&Document>> = match mesh.dp.world() {
        1 => (0..replicas).map(row).collect(),
        _ => vec![row(mesh.dp.rank())],
    };
    let scale = 1.0 / fixture.num_targets() as f64;
    let ill_conditioned = fixture.config.decoder.gated_delta().is_some();
    let mut steps = Steps { losses: vec![], grad_norms: vec![], gradients: vec![], weights: vec![], ill_conditioned };
    for step in 0..=fixture.num_steps {
        models.zero_grads();
        let mut loss = 0.0;
        for row in &rows {
            loss += models.accumulate(row, scale)?.total;
        }
        let loss = Tensor::from(loss);
        mesh.data.all_reduce_sum(&loss)?;
        steps.losses.push(loss.double_value(&[]));
        if step == fixture.num_steps {
            break;
        }
        let norm = reduce(&models)?;
        steps.grad_norms.push(norm);
        if step == 0 {
            steps.gradients = whole(&models, true)?;
        }
        let clip = (fixture.clip_norm / (norm + 1e-6)).min(1.0);
        let text = &mut models.text;
        text.adamw.step(text.grads.flat(), clip, fixture.learning_rate, false)?;
        if let Some(vision) = &mut models.vision {
            vision.adamw.step(vision.grads.flat(), clip, fixture.learning_rate, false)?;
        }
    }
    steps.weights = whole(&models, false)?;
    Ok(steps)
}

/// What a layout gives against what one process does.
pub fn compare_steps(found: &Steps, alone: &Steps) -> ParityReport {
    let mut report =
        ParityReport { of_layout: true, ill_conditioned: alone.ill_conditioned, ..ParityReport::default() };
    let slice = |values: &[f64]| Tensor::from_slice(values);
    report.compare("losses", "losses", &slice(&found.losses), &slice(&alone.losses));
    report.compare("grad_norms", "grad_norms", &slice(&found.grad_norms), &slice(&alone.grad_norms));
    // What is zero in exact arithmetic is rounding on both sides.
    let rounding = 1e-7 * alone.grad_norms.first().copied().unwrap_or(0.0);
    for (quantity, found, alone) in
        [("gradients", &found.gradients, &alone.gradients), ("weights", &found.weights, &alone.weights)]
    {
        let names = |list: &[(String, Tensor)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        if names(found) != names(alone) {
            report.problems.push(format!("the {quantity} have other names than those of one process"));
        }
        for ((name, found), (_, expected)) in found.iter().zip(alone) {
            if quantity == "weights" || expected.norm().double_value(&[]) > rounding {
                report.compare(quantity, name, found, expected);
            }
        }
    }
    report
}

/// Sums the gradients over the ranks; their norm.
fn reduce(models: &Models) -> Result<f64, ParityError> {
    let (text, mesh) = (&models.text, &models.mesh);
    sum_gradients(&text.params, text.grads.flat(), mesh)?;
    let mut squares = square_sum(&text.params, text.grads.flat(), mesh)?;
    if let Some(vision) = &models.vision {
        sum_gradients(&vision.params, vision.grads.flat(), mesh)?;
        squares += square_sum(&vision.params, vision.grads.flat(), mesh)?;
    }
    Ok(squares.sqrt())
}

/// Gradients or weights, whole.
fn whole(models: &Models, gradients: bool) -> Result<Vec<(String, Tensor)>, ParityError> {
    let mut all = Vec::new();
    for (params, grads) in models.pools() {
        let gather = |id: ParamId| {
            let part = if gradients { grads.view(id).shallow_clone() } else { params.leaf(id).detach() };
            gather_whole(params.spec(id), &part, &models.mesh)
        };
        let tensors: Vec<Tensor> = params.trained_ids().map(gather).collect::<Result<_, _>>()?;
        let names = |params: &ParamStore| params.trained_ids().collect::<Vec<_>>();
        let ids = names(params);
        let of = |id: ParamId| {
            let place = ids.iter().position(|known| *known == id).expect("a trained parameter");
            tensors[place].copy()
        };
        all.extend(reference_parts(params, of));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{Steps, compare_steps, steps_on};
    use crate::comm::Mesh;
    use crate::device::set_intra_op_threads;
    use loongforge_core::config::Layout;
    use std::path::{Path, PathBuf};
    use std::rc::Rc;
    use std::time::Duration;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
    }

    /// One thread a rank; what the first one finds.
    fn on_ranks(folder: &Path, layout: Layout, sequence: bool) -> Steps {
        let place = tempfile::tempdir().unwrap();
        let store = place.path().join("store");
        std::thread::scope(|scope| {
            let rank = |rank: usize| {
                let store = &store;
                scope.spawn(move || {
                    set_intra_op_threads(1);
                    let mesh = Mesh::join(store, "pool", layout, rank, Duration::from_secs(60)).unwrap();
                    let steps = steps_on(folder, Rc::new(mesh), sequence, layout.dp).unwrap();
                    (rank == 0).then_some(steps)
                })
            };
            let ranks: Vec<_> = (0..layout.ranks()).map(rank).collect();
            ranks.into_iter().filter_map(|rank| rank.join().unwrap()).next().unwrap()
        })
    }

    fn check(name: &str, layout: Layout, sequence: bool) {
        let folder = fixture(name);
        let alone = steps_on(&folder, Rc::new(Mesh::single()), false, layout.dp).unwrap();
        let found = on_ranks(&folder, layout, sequence);
        let report = compare_steps(&found, &alone);
        assert!(report.is_ok(), "{name} on {layout}, sequence parallel: {sequence}\n{report}");
    }

    fn tp(ranks: usize) -> Layout {
        Layout { tp: ranks, ..Layout::default() }
    }

    #[test]
    fn dense_layers_split_among_two() {
        check("qwen3-seed1", tp(2), false);
    }

    #[test]
    fn with_the_sequence_split_as_well() {
        check("qwen3-seed1", tp(2), true);
    }

    #[test]
    fn more_ranks_than_key_heads() {
        check("qwen3-yarn-bias", tp(4), false);
        check("qwen2.5-tied-3layers", tp(4), true);
    }

    #[test]
    fn joint_projections_and_biases_after_sums() {
        check("qwen1-biases-kv10", tp(2), true);
        check("internlm2.5-seed1", tp(2), false);
    }

    #[test]
    fn replicas_of_split_layers() {
        check("qwen3-untied-mqa-3layers", Layout { dp: 2, ..tp(2) }, true);
    }

    #[test]
    fn latent_attention_and_experts() {
        check("deepseek_v2-seed1", tp(2), false);
        check("deepseek_v3_mtp-seed1", tp(2), true);
        check("deepseek_v3_mtp-seed1", tp(2), false);
    }

    #[test]
    fn experts_split_and_spread() {
        check("qwen3_moe-seed1", tp(2), true);
        check("qwen3_moe-seed1", Layout { dp: 2, ep: 2, ..tp(1) }, false);
        check("deepseek_v3-seed1", Layout { dp: 2, ep: 2, ..tp(2) }, true);
        check("ernie4.5_moe-seed1", Layout { dp: 4, ep: 2, ..tp(1) }, false);
    }

    #[test]
    fn attention_that_needs_all_heads() {
        check("minimax_m2-seed1", tp(2), true);
        check("deepseek_v3.2-seed1", tp(2), false);
    }

    #[test]
    fn recurrent_layers_with_shared_experts() {
        check("qwen3_next-seed1", tp(2), true);
        check("qwen3.5-seed1", tp(2), false);
    }

    #[test]
    fn pictures_on_split_rows() {
        check("qwen2.5_vl-seed1", tp(2), true);
        check("qwen3_vl-seed1", tp(2), true);
        check("qwen3_vl-seed1", tp(2), false);
        check("ernie4.5_vl-seed1", tp(2), true);
    }

    #[test]
    fn adapters_of_split_maps() {
        check("qwen3_lora-seed1", tp(2), true);
        check("qwen3_moe_lora-seed1", Layout { dp: 2, ep: 2, ..tp(2) }, false);
    }
}
