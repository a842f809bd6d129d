//! Feeds libFuzzer's inputs to [`becket_fuzz::key_uri::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::key_uri::run(data);
});
