//! Feeds libFuzzer's inputs to [`becket_fuzz::stored_value::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::stored_value::run(data);
});
