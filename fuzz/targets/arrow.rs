#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loongforge_core::fuzz::run("arrow", bytes));
