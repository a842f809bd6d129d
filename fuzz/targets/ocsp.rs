//! Feeds libFuzzer's inputs to [`becket_fuzz::ocsp::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::ocsp::run(data);
});
