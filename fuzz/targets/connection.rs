//! Feeds libFuzzer's inputs to [`becket_fuzz::connection::run`].
#![no_main]

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    becket_fuzz::connection::run(data, || HEAP.allocated());
});
