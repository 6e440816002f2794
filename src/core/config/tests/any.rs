//! Property tests: any file and any override gives a config or an error.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_file_is_a_config_or_an_error(text in "([a-z_]{1,5}|[-:{}\\[\\]&*!|>'\"%@`?,#. \n\t$~=<]|train|run|defaults|_self_|\\PC){0,60}") {
        let bench = Bench::new("");
        fs::write(bench.dir.path().join("vlm.yaml"), &text).unwrap();
        let report = bench.load_with(&[], &[]).unwrap_err();
        prop_assert!(!report.errors.is_empty() && !report.to_string().is_empty());
    }

    #[test]
    fn any_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bench = Bench::new("");
        fs::write(bench.dir.path().join("vlm.yaml"), &bytes).unwrap();
        prop_assert!(bench.load_with(&[], &[]).is_err());
    }

    #[test]
    fn any_override_is_applied_or_an_error(
        text in "(\\+|\\+\\+|~)?(train|run|data|model|[a-z]{1,3}|[0-9])?([.@/\\[\\]-]?(lr|name|train|overrides|0|[a-z]{1,3})){0,4}=?(\\PC|[\\[\\]{}'\":,$.0-9e-]){0,20}",
        name in "LOONGFORGE__[A-Z_]{0,12}",
    ) {
        let bench = Bench::new(GOOD);
        match bench.load_with(&[&text], &[(&name, &text)]) {
            Ok(loaded) => prop_assert!(!loaded.show_origin().is_empty()),
            Err(report) => prop_assert!(!report.to_string().is_empty()),
        }
    }
}
