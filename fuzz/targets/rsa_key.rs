//! Feeds libFuzzer's inputs to [`becket_fuzz::rsa_key::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::rsa_key::run(data);
});
