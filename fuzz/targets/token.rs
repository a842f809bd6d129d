//! Feeds libFuzzer's inputs to [`becket_fuzz::token::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::token::run(data);
});
