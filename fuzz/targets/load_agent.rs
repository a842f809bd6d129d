//! Feeds libFuzzer's inputs to [`becket_fuzz::load_agent::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::load_agent::run(data);
});
