//! Feeds libFuzzer's inputs to [`becket_fuzz::ja4::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::ja4::run(data);
});
