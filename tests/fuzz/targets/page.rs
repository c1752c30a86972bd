#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kstrobe_fuzz::cases::page(bytes));
