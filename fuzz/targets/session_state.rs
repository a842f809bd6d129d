//! Feeds libFuzzer's inputs to [`becket_fuzz::session_state::run`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::session_state::run(data);
});
