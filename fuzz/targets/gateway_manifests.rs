//! Feeds libFuzzer's inputs to [`becket_fuzz::gateway_manifests::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::gateway_manifests::run(data);
});
