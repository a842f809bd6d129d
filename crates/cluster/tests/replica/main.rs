//! Tests of session replication: nodes on a simulated network, hostile datagrams, and single scenes.
//!
//! * [`toy_vault`]: insecure cryptography that detects tampering and any nonce that is used twice;
//! * [`cluster`]: nodes with their own clocks on a network that loses, repeats, reorders, delays and replays;
//! * [`simulation`]: many seeded runs of random clusters, with assertions after each;
//! * [`scenes`], [`goodbyes`], [`sticks`]: one guarantee each, step by step;
//! * [`hostile`]: datagrams that anyone may send to the port.
#![forbid(unsafe_code)]

mod cluster;
mod goodbyes;
mod hostile;
mod scenes;
mod simulation;
mod sticks;
mod toy_vault;
