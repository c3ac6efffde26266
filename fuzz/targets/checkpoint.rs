#![no_main]

#[path = "../../crates/chronaxie/tests/readers/mod.rs"]
#[allow(dead_code)]
mod readers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| readers::checkpoint(bytes));
