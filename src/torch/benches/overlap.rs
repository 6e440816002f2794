//! Steps of two ranks, threads of this process over Gloo, with communication overlapped and without: of spread experts (two
//! micro-batches in turns, or one after the other) and of replicas (sums of gradients begun within the backward, or
//! behind it). Both kinds of steps are taken in turn, so that the machine's moods meet them alike; printed are medians and
//! ratios. Gloo on one machine copies on the cores that compute: what overlapping gains there is the waiting alone.
//!
//! `cargo bench -p loongforge-torch --bench overlap -- [TOKENS] [STEPS]`

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use loongforge_core::config::Layout;
use loongforge_core::numbers::median;
use loongforge_torch::comm::Mesh;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::params::{Init, ParamSpec, ParamStore};
use loongforge_torch::tape::{Execution, Policy, Slot, Tape, Turn, backward_in_turns, forward_in_turns};
use loongforge_torch::train::{AdamWConfig, Lanes, TrainState};
use tch::{Device, Kind, Tensor};

const LAYERS: usize = 8;
const WIDTH: i64 = 1024;
const EXPERTS: i64 = 4;

fn pool(mesh: &Rc<Mesh>) -> TrainState {
    let layer = |layer: usize| {
        let map = |what: &str| ParamSpec::new(format!("layers.{layer}.{what}"), &[WIDTH, WIDTH], Init::Normal(0.02));
        ["attend", "experts"].map(map)
    };
    let params = ParamStore::new((0..LAYERS).flat_map(layer).collect(), Kind::Float, Device::Cpu);
    params.init_random(1);
    let config = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };
    let pool = TrainState::new(Rc::new(params), mesh.data.clone(), Lanes::PerReplica, Some(config));
    pool.expect("a pool").in_buckets()
}

/// Returns a micro-batch of `tokens` rows whose experts, where they are spread, have as many rows each.
fn begin(pool: &TrainState, mesh: &Rc<Mesh>, tokens: i64, spread: bool) -> (Turn, Slot) {
    let mut tape = Tape::new();
    let (input, counts) = (tape.input(false), tape.input(false));
    let params = pool.params();
    let run = |tape: &mut Tape, layer: usize, what: &str, x: Slot| {
        let id = params.id(&format!("layers.{layer}.{what}"));
        let w = params.leaf(id).shallow_clone();
        let forward = move |reads: &[Tensor]| vec![reads[0].matmul(&w).tanh()];
        tape.run(what, &[id], Policy::Keep, &[x], 1, forward)[0]
    };
    let mut x = input;
    for layer in 0..LAYERS {
        let h = run(&mut tape, layer, "attend", x);
        let y = if spread {
            let all = tape.all_counts(counts);
            let [rows, _] = tape.to_experts(h, all);
            let done = run(&mut tape, layer, "experts", rows);
            tape.from_experts(done, all)
        } else {
            run(&mut tape, layer, "experts", h)
        };
        x = tape.add(x, y);
    }
    let value = Tensor::arange(tokens * WIDTH, (Kind::Float, Device::Cpu)).view([tokens, WIDTH]).sin();
    let of_each = Tensor::full([EXPERTS], tokens / EXPERTS, (Kind::Int64, Device::Cpu));
    let run = Execution::new(Rc::new(tape), params.clone(), vec![(input, value), (counts, of_each)]);
    (Turn { run: run.with_mesh(mesh.clone()), dropout: None }, x)
}

/// Returns the seconds of a step of two micro-batches.
fn step(pool: &mut TrainState, mesh: &Rc<Mesh>, tokens: i64, spread: bool, overlap: bool) -> f64 {
    mesh.world.barrier().expect("both ranks");
    let start = Instant::now();
    let groups: &[usize] = if spread && overlap { &[2] } else { &[1, 1] };
    for (index, &num) in groups.iter().enumerate() {
        let (mut turns, ends): (Vec<_>, Vec<_>) = (0..num).map(|_| begin(pool, mesh, tokens, spread)).unzip();
        let params = pool.params().clone();
        forward_in_turns(&params, &mut turns).expect("both ranks");
        for (turn, end) in turns.iter_mut().zip(ends) {
            turn.run.seed(end, Tensor::ones([tokens, WIDTH], (Kind::Float, Device::Cpu)));
        }
        let is_last = index + 1 == groups.len();
        let lane = pool.own_lane();
        let (grads, sums) = pool.lane_and_sums(lane);
        let mut sums = sums.filter(|_| is_last && overlap && !spread);
        backward_in_turns(&params, &mut turns, grads, |turns, grads| match (&mut sums, grads) {
            (Some(sums), Some(grads)) => sums.begin(grads, |ids| turns.iter().all(|turn| turn.run.is_past(ids))),
            _ => Ok(()),
        })
        .expect("both ranks");
    }
    if !spread {
        pool.reduce().expect("both ranks");
    }
    pool.abort();
    start.elapsed().as_secs_f64()
}

fn rank(path: &Path, rank: usize, tokens: i64, steps: usize) {
    set_intra_op_threads(1);
    let layout = Layout { ep: 2, ..Layout::replicas(2) };
    let mesh = Mesh::join(path, "bench", layout, rank, Duration::from_secs(60));
    let mesh = Rc::new(mesh.expect("both ranks"));
    let mut pool = pool(&mesh);
    for (what, spread) in [("experts", true), ("replicas", false)] {
        let mut seconds = [Vec::new(), Vec::new()];
        for number in 0..=steps {
            for (index, overlap) in [false, true].into_iter().enumerate() {
                let found = step(&mut pool, &mesh, tokens, spread, overlap);
                // The first one warms up.
                seconds[index].extend((number > 0).then_some(found));
            }
        }
        let [apart, overlapped] = seconds.map(|mut seconds| median(&mut seconds));
        if rank == 0 {
            let ratio = overlapped / apart;
            println!(
                r#"{{"what": "{what}", "tokens": {tokens}, "steps": {steps}, "apart": {apart:.6}, "overlapped": {overlapped:.6}, "ratio": {ratio:.4}}}"#
            );
        }
    }
}

fn main() {
    let numbers: Vec<i64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (tokens, steps) = (*numbers.first().unwrap_or(&256), *numbers.get(1).unwrap_or(&9) as usize);
    let folder = tempfile::tempdir().expect("a folder");
    let path = &folder.path().join("store");
    std::thread::scope(|scope| {
        (0..2).for_each(|index| drop(scope.spawn(move || rank(path, index, tokens, steps))));
    });
}
