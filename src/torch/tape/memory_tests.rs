//! The small model under plans: the same bits whatever the plan, within the budget, and bytes counted as they are.

use std::rc::Rc;

use loongforge_core::schedule::cct::{Choice, Course, Link, MemoryPlan, Operation, solve};
use tch::{Device, Tensor};

use super::tests::{Results, TOKENS, WIDTH, assert_bit_equal, on_one_graph, params, random, tape};
use super::transfers::Transfers;
use super::{Execution, MemoryPlanner, Policy, TapePlan};
use crate::native::MemoryWatch;
use crate::params::ParamStore;

/// Runs the model in an execution that `begin` makes of the plain one; its results, its peak and what it has learned.
fn run(params: &Rc<ParamStore>, begin: impl FnOnce(Execution) -> Execution) -> (Results, Execution) {
    let (tape, slots, output) = tape(params, Policy::Keep);
    let values = vec![(slots[0], random(&[TOKENS, WIDTH], "x")), (slots[1], random(&[2, WIDTH], "features"))];
    let (seed, mut grads) = (random(&[4, WIDTH], "seed"), params.new_grad());
    let watch = MemoryWatch::start();
    let mut execution = begin(Execution::new(Rc::new(tape), params.clone(), values));
    execution.forward().unwrap();
    let held = watch.current();
    execution.seed(output, seed);
    execution.backward(Some(&mut grads)).unwrap();
    let inputs = slots.iter().map(|slot| execution.input_grad(*slot).unwrap()).collect();
    let output = execution.value(output).shallow_clone();
    (Results { output, inputs, grads, held, peak: watch.peak() }, execution)
}

fn transfers(throttle: Option<f64>) -> Rc<Transfers> {
    Rc::new(Transfers::new(Device::Cpu, throttle).unwrap())
}

fn operations(params: &Rc<ParamStore>) -> Vec<Operation> {
    let (results, measured) = run(params, |execution| execution.measured_within(u64::MAX, None));
    assert_bit_equal(&results, &on_one_graph(params));
    let (measured, ..) = measured.memory().unwrap();
    let of = |m: &super::Measured| Operation {
        kept: m.kept,
        inputs: m.inputs,
        forward: m.forward,
        backward: m.backward,
        fixed: m.fixed,
    };
    measured.iter().map(of).collect()
}

fn plan_of(operations: &[Operation], choices: Vec<Choice>) -> Rc<TapePlan> {
    let link = Link { bandwidth: 1e9, latency: 0.0 };
    let course = Course::of(operations, &choices, u64::MAX, Some(&link)).unwrap();
    let plan = MemoryPlan { choices, budget: u64::MAX, course };
    Rc::new(TapePlan { plan, operations: operations.to_vec() })
}

#[test]
fn any_plan_gives_the_bits_of_one_graph() {
    let params = params();
    let (operations, transfers, one) = (operations(&params), transfers(None), on_one_graph(&params));
    for seed in 0..8usize {
        let choice = |index: usize| Choice::ALL[if seed < 4 { seed } else { (index * (2 * seed + 1) + index / 3) % 4 }];
        let choices = (0..operations.len()).map(|at| if operations[at].fixed { Choice::Keep } else { choice(at) });
        let plan = plan_of(&operations, choices.collect());
        let (results, execution) = run(&params, |execution| execution.planned(plan, Some(transfers.clone())));
        assert_bit_equal(&results, &one);
        assert_eq!(execution.held_bytes(), 0);
    }
}

#[test]
fn solved_plans_keep_within_their_budget() {
    let params = params();
    let (operations, transfers, one) = (operations(&params), transfers(Some(2e8)), on_one_graph(&params));
    let all: u64 = operations.iter().map(|operation| operation.kept).sum();
    let link = Link { bandwidth: 2e8, latency: 0.0 };
    let before = transfers.moved_bytes();
    for (share, link) in [(100, None), (60, None), (60, Some(&link)), (30, Some(&link)), (15, Some(&link))] {
        let budget = all * share / 100;
        let plan = solve(&operations, budget, link).unwrap();
        let plan = Rc::new(TapePlan { plan, operations: operations.clone() });
        let (results, execution) = run(&params, |execution| execution.planned(plan, Some(transfers.clone())));
        assert_bit_equal(&results, &one);
        let (_, peak, _) = execution.memory().unwrap();
        assert!(peak <= budget && peak > budget / 3, "{peak} of {budget}");
    }
    assert!(transfers.moved_bytes() > before);
}

/// The plans that are tested move nothing: tensors that move lie on the host of this machine and would be counted there.
#[test]
fn bytes_are_counted_as_the_allocator_counts_them() {
    let params = params();
    let operations = operations(&params);
    let input = TOKENS * WIDTH * 4;
    for choice in [Choice::Keep, Choice::Recompute] {
        let choices = operations.iter().map(|operation| if operation.fixed { Choice::Keep } else { choice });
        let plan = plan_of(&operations, choices.collect());
        let mut held = 0;
        let (results, _) = run(&params, |execution| {
            let mut execution = execution.planned(plan, None);
            execution.forward().unwrap();
            held = execution.held_bytes() as i64;
            execution
        });
        // The input was there before; the output is nobody's.
        assert_eq!(held - input + 4 * WIDTH * 4, results.held, "{choice:?}");
    }
}

#[test]
fn a_planner_measures_and_then_keeps_to_its_budget() {
    let params = params();
    let all: u64 = operations(&params).iter().map(|operation| operation.kept).sum();
    let mut planner = MemoryPlanner::new(all / 3, Some(transfers(None)));
    let one = on_one_graph(&params);
    for _ in 0..5 {
        let (tape, slots, output) = tape(&params, Policy::Keep);
        let values = vec![(slots[0], random(&[TOKENS, WIDTH], "x")), (slots[1], random(&[2, WIDTH], "features"))];
        let mut execution = planner.execution(Rc::new(tape), params.clone(), values, TOKENS, 1).unwrap();
        execution.forward().unwrap();
        execution.seed(output, random(&[4, WIDTH], "seed"));
        let mut grads = params.new_grad();
        execution.backward(Some(&mut grads)).unwrap();
        planner.learn(&execution, TOKENS);
        let inputs: Vec<Tensor> = slots.iter().map(|slot| execution.input_grad(*slot).unwrap()).collect();
        let output = execution.value(output).shallow_clone();
        assert_bit_equal(&Results { output, inputs, grads, held: 0, peak: 0 }, &one);
    }
    assert!(planner.peak() <= all / 3 && planner.peak() > 0, "{} of {all}", planner.peak());
    let mut small = MemoryPlanner::new(1000, None);
    for _ in 0..3 {
        let (tape, slots, output) = tape(&params, Policy::Keep);
        let values = vec![(slots[0], random(&[TOKENS, WIDTH], "x")), (slots[1], random(&[2, WIDTH], "features"))];
        let Ok(mut execution) = small.execution(Rc::new(tape), params.clone(), values, TOKENS, 1) else { return };
        execution.forward().unwrap();
        execution.seed(output, random(&[4, WIDTH], "seed"));
        execution.backward(None).unwrap();
        small.learn(&execution, TOKENS);
    }
    panic!("a thousand bytes are too few");
}
