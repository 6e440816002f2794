//! Compares what `run.products` chooses between on this processor: GFLOP/s of the three products of a linear map.
//!
//! `cargo bench -p loongforge-torch --bench products -- [THREADS]`

use loongforge_core::config::Products;
use loongforge_core::numbers::median;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::native::{add_product, expect_products, faster_products, grad, linear, set_products};
use std::time::Instant;
use tch::{Device, Kind, Tensor};

/// Returns the median seconds of 15 calls after 3.
fn seconds(mut body: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..18)
        .map(|_| {
            let start = Instant::now();
            body();
            start.elapsed().as_secs_f64()
        })
        .skip(3)
        .collect();
    median(&mut times)
}

fn main() {
    let threads = std::env::args().filter_map(|word| word.parse().ok()).next();
    set_intra_op_threads(threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)));
    println!("`auto` is {:?} here", faster_products());
    println!("tokens x inputs x outputs    kind      products    forward    input's gradient    weight's, added");
    for [tokens, inputs, outputs] in [[1024, 512, 1664], [1024, 1664, 512], [256, 512, 4096], [384, 96, 256]] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let random = |size: [i64; 2]| Tensor::randn(size, (Kind::Float, Device::Cpu)).to_kind(kind);
            let x = random([tokens, inputs]).set_requires_grad(true);
            let (w, dy) = (random([outputs, inputs]), random([tokens, outputs]));
            let sum = Tensor::zeros([outputs, inputs], (Kind::Float, Device::Cpu));
            for products in [Products::Libtorch, Products::Tiled] {
                if expect_products(products).is_err() {
                    continue;
                }
                set_products(products).expect("it was asked for");
                let forward = seconds(|| drop(linear(&x, &w, None)));
                let both = seconds(|| drop(grad(&[&linear(&x, &w, None)], &[&dy], &[&x])));
                let weight = seconds(|| add_product(&sum, &dy, true, &x));
                let rate = |seconds: f64| 2e-9 * (tokens * inputs * outputs) as f64 / seconds;
                println!(
                    "{tokens:5} x {inputs:4} x {outputs:4}         {kind:9} {products:9} {:10.0} {:19.0} {:18.0}",
                    rate(forward),
                    rate(both - forward),
                    rate(weight),
                    kind = format!("{kind:?}"),
                    products = format!("{products:?}"),
                );
            }
        }
    }
}
