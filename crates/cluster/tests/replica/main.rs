//! Holds session replication to its promises: nodes on a simulated network, hostile datagrams, and single scenes.
//!
//! * [`toy_vault`]: cryptography that is none, but notices tampering and any nonce that is used twice;
//! * [`cluster`]: nodes with clocks of their own on a network that loses, repeats, reorders, delays and replays;
//! * [`simulation`]: many seeded runs of random clusters, the promises asserted after each;
//! * [`scenes`], [`goodbyes`], [`sticks`]: one promise each, told step by step;
//! * [`hostile`]: what anybody may send to the port.
#![forbid(unsafe_code)]

mod cluster;
mod goodbyes;
mod hostile;
mod scenes;
mod simulation;
mod sticks;
mod toy_vault;
