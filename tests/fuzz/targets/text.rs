#![no_main]
#![allow(missing_docs, reason = "the macro's functions have none")]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kstrobe_fuzz::cases::text(bytes));
