//! Feeds libFuzzer's inputs to [`becket_fuzz::replica::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::replica::run(data);
});
