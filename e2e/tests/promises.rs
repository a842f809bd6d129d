//! Promises, one file each. `cargo test -p becket-e2e alpn_routes` keeps one of them.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that has nothing to unwrap has failed")]

mod alpn_routes;
mod answers_arrive_whole;
mod backends_that_fail;
mod client_certificates_are_required;
mod limits_hold;
mod names_choose_certificates;
mod server_speaks_first;
mod sessions_resume_by_id_ticket_and_psk;
mod slow_loris_costs_a_slot_for_the_handshake_timeout;
mod unix_and_v6_backends;
