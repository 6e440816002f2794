//! Tests of Pi0-FAST beside the comparison with the reference (`tests/parity.rs`), on fixtures that `tests/oracle/make_pi0_fast.py`
//! makes. `LOONGFORGE_POLICIES` names another folder of fixtures.

use tch::Kind;

use crate::model::fixture;
use crate::model::policy::writing_fixture::Fixture;

/// A sample alone, up to a token that ends it.
#[test]
fn tokens_of_a_sample_alone_end_where_they_are_told() {
    let folders = fixture::folders("policies", &["fast-"]);
    for (name, fixture) in fixture::open(&folders, |folder| Fixture::read(folder, Kind::Float)) {
        let expected = fixture.expected_tokens(1);
        let stop = expected[2];
        let until: Vec<i64> = expected.into_iter().take_while(|id| *id != stop).collect();
        assert_eq!(fixture.written(&[1], stop).unwrap(), [until], "{name}");
    }
}
