//! Plans against every plan there is, for few operations, and against their promises for many.

use proptest::prelude::*;

use super::{Choice, Course, Link, MemoryPlan, NoPlan, Operation, solve};

fn operation() -> impl Strategy<Value = Operation> {
    (0u64..60, 0u64..40, 0u32..50, 0u32..80, 0u8..8).prop_map(|(inputs, more, forward, backward, fixed)| Operation {
        kept: inputs + more,
        inputs,
        forward: f64::from(forward) * 0.1,
        backward: f64::from(backward) * 0.1,
        fixed: fixed == 0,
    })
}

fn link() -> impl Strategy<Value = Option<Link>> {
    let some = (1u32..200, 0u32..3).prop_map(|(bandwidth, latency)| {
        Some(Link { bandwidth: f64::from(bandwidth), latency: f64::from(latency) * 0.05 })
    });
    prop_oneof![1 => Just(None), 5 => some]
}

/// Returns the least time of all plans; `None` where none fits the budget.
fn brute_force(operations: &[Operation], budget: u64, link: Option<&Link>) -> Option<f64> {
    let mut best: Option<f64> = None;
    for code in 0..4usize.pow(operations.len() as u32) {
        let choice = |at: usize| Choice::ALL[code >> (2 * at) & 3];
        let choices: Vec<Choice> = (0..operations.len()).map(choice).collect();
        let fixed =
            operations.iter().zip(&choices).any(|(operation, choice)| operation.fixed && *choice != Choice::Keep);
        if let Some(course) = Course::of(operations, &choices, budget, link).filter(|_| !fixed) {
            best = Some(best.map_or(course.seconds, |best| best.min(course.seconds)));
        }
    }
    best
}

fn all(operations: &[Operation], choice: Choice) -> Vec<Choice> {
    operations.iter().map(|operation| if operation.fixed { Choice::Keep } else { choice }).collect()
}

fn check(plan: &MemoryPlan, operations: &[Operation], budget: u64) {
    assert!(plan.course.peak <= budget, "{} of {budget}", plan.course.peak);
    assert!(
        operations.iter().zip(&plan.choices).all(|(operation, choice)| !operation.fixed || *choice == Choice::Keep)
    );
    // What is asked back is asked for in the order of need, and not after its own backward has begun.
    let moved: Vec<usize> = (0..operations.len()).filter(|&index| plan.choices[index].is_moved()).collect();
    assert!(moved.iter().all(|&index| plan.course.fetch_before[index] >= index));
    assert!(moved.windows(2).all(|pair| plan.course.fetch_before[pair[0]] <= plan.course.fetch_before[pair[1]]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn few_operations_are_planned_nearly_as_well_as_can_be(
        operations in prop::collection::vec(operation(), 1..7),
        budget in 0u64..300,
        link in link(),
    ) {
        let best = brute_force(&operations, budget, link.as_ref());
        match (solve(&operations, budget, link.as_ref()), best) {
            (Ok(plan), Some(best)) => {
                check(&plan, &operations, budget);
                let worst = if operations.len() <= 5 { 1.0 } else { 1.15 };
                prop_assert!(plan.course.seconds <= best * worst + 1e-9, "{} and {best}", plan.course.seconds);
            }
            (Err(NoPlan { needed, .. }), None) => {
                prop_assert!(needed > budget);
                prop_assert!(solve(&operations, needed, link.as_ref()).is_ok());
                prop_assert!(solve(&operations, needed - 1, link.as_ref()).is_err());
            }
            (found, best) => prop_assert!(false, "{found:?} and {best:?}"),
        }
    }

    #[test]
    fn many_operations_keep_within_the_budget_and_are_never_slower_than_computing_all_again(
        operations in prop::collection::vec(operation(), 1..40),
        share in 0u64..110,
        link in link(),
    ) {
        let budget = operations.iter().map(|operation| operation.kept).sum::<u64>() * share / 100;
        if let Ok(plan) = solve(&operations, budget, link.as_ref()) {
            check(&plan, &operations, budget);
            for choice in Choice::ALL {
                if let Some(course) = Course::of(&operations, &all(&operations, choice), budget, link.as_ref()) {
                    prop_assert!(plan.course.seconds <= course.seconds * (1.0 + 1e-6) + 1e-9, "{choice:?}");
                }
            }
        }
    }

    #[test]
    fn more_memory_is_never_slower(
        operations in prop::collection::vec(operation(), 1..6),
        budget in 0u64..200,
        more in 1u64..100,
        link in link(),
    ) {
        let (less, more) = (solve(&operations, budget, link.as_ref()), solve(&operations, budget + more, link.as_ref()));
        if let Ok(less) = less {
            prop_assert!(more.unwrap().course.seconds <= less.course.seconds + 1e-9);
        }
    }
}

/// Layers as of a decoder: sixteen times attention and MLP, with additions between.
fn decoder() -> Vec<Operation> {
    let branch = |kept, forward| Operation { kept, inputs: 10, forward, backward: 2.0 * forward, fixed: false };
    let add = Operation { kept: 0, inputs: 0, forward: 0.01, backward: 0.0, fixed: true };
    (0..16).flat_map(|_| [branch(60, 1.0), add, branch(80, 1.5), add]).collect()
}

fn seconds(operations: &[Operation], choice: Choice, link: &Link) -> f64 {
    Course::of(operations, &all(operations, choice), u64::MAX, Some(link)).unwrap().seconds
}

#[test]
fn a_budget_for_everything_keeps_everything() {
    let operations = decoder();
    let plan = solve(&operations, 16 * 140, Some(&Link { bandwidth: 1e9, latency: 0.0 })).unwrap();
    assert_eq!(plan.choices, all(&operations, Choice::Keep));
    assert_eq!(plan.course.peak, 16 * 140);
}

#[test]
fn a_quick_link_hides_what_a_budget_of_a_quarter_lacks() {
    let (operations, link) = (decoder(), Link { bandwidth: 200.0, latency: 0.0 });
    let plan = solve(&operations, 16 * 140 / 4, Some(&link)).unwrap();
    let kept = seconds(&operations, Choice::Keep, &link);
    assert!(plan.course.seconds <= 1.03 * kept, "{} and {kept}", plan.course.seconds);
    assert!(plan.choices.iter().any(|choice| choice.is_moved()));
}

#[test]
fn a_slow_link_is_used_as_far_as_it_helps_and_the_rest_is_computed_again() {
    let (operations, link) = (decoder(), Link { bandwidth: 12.0, latency: 0.0 });
    let again = seconds(&operations, Choice::Recompute, &link);
    let budget = 16 * 20 + 80;
    let plan = solve(&operations, budget, Some(&link)).unwrap();
    assert!(plan.course.seconds < 0.97 * again, "{} and {again}", plan.course.seconds);
    let without = solve(&operations, budget, None).unwrap();
    assert!(plan.course.seconds < without.course.seconds, "{} and {}", plan.course.seconds, without.course.seconds);
    let used: std::collections::BTreeSet<Choice> = plan.choices.into_iter().collect();
    assert!(used.contains(&Choice::Recompute) && used.iter().any(|choice| choice.is_moved()), "{used:?}");
}

#[test]
fn without_a_link_nothing_is_moved() {
    let plan = solve(&decoder(), 16 * 40 + 80, None).unwrap();
    assert!(plan.choices.iter().all(|choice| !choice.is_moved()));
    assert!(plan.course.peak <= 16 * 40 + 80);
}

#[test]
fn equal_numbers_give_equal_plans() {
    let link = Link { bandwidth: 40.0, latency: 0.01 };
    assert_eq!(solve(&decoder(), 700, Some(&link)), solve(&decoder(), 700, Some(&link)));
}
