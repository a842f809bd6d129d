//! End-to-end tests, one topic per file. `cargo test -p becket-e2e alpn_routes` runs a single topic.
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "a test that unwraps an error has failed"
)]

mod a_browser_shows_the_status;

mod a_probe_shows_what_servers_offer;
mod a_sandbox_confines_what_serves;
mod admin_pages_give_way;
mod alerts_and_dashboard_ask_for_what_there_is;
mod alpn_routes;
mod an_upgrade_knows_what_the_old_process_knew;
mod answers_arrive_whole;
mod bulk_is_spliced;
mod changed_files_are_taken;
mod check_connects;
mod check_reports;
mod client_certificates_are_required;
mod client_mode;
mod client_names_let_in;
mod clients_are_introduced_as_hitch_does_it;
mod clocks_may_jump;
mod cluster_client_certificates;
mod cluster_names;
mod cluster_secrets;
mod cluster_sessions;
mod cluster_tickets;
mod commands_of_the_articles;
mod connects_come_from_the_sources;
mod demo_works;
mod drain_and_stop;
mod early_data_is_marked_and_never_replayed;
mod examples_are_visited;
mod examples_run;
mod files_are_served;
mod files_are_served_as_nginx_does;
mod files_leave_by_sendfile;
mod floods_keep_nobody_out;
mod hitch_is_replaced;
mod idle_clients_make_way;
mod kernel_tls_keeps_its_promises;
mod keys_live_on_tokens;
mod limits_hold;
mod logs_are_as_they_are_asked_for;
mod logs_reopen;
mod logs_reopen_under_another_user;
mod logs_stop_nobody;
mod memory_runs_short;
mod metrics_and_status;
mod names_choose_certificates;
mod names_under_attack_harm_no_others;
mod ocsp_responses_are_sent;
mod operators_change_a_running_becket;
mod passthrough;
mod ports_in_use_are_refused;
mod processes_of_an_upgrade_are_killed;
mod proxies_in_front_are_believed;
mod proxy_header_is_understood;
mod proxy_header_tells_the_facts_of_tls;
mod queues_hold;
mod reload_loses_nothing;
mod revoked_clients_stay_out;
mod root_drops_privileges;
mod root_gives_no_file_away;
mod servers_are_found_by_name;
mod servers_are_unplugged_killed_and_stopped;
mod servers_that_fail_are_left;
mod sessions_never_cross_policies;
mod sessions_resume_by_id_ticket_and_psk;
mod signatures_are_made_off_the_loop;
mod slots_are_shared_in_an_upgrade;
mod soak;
mod socket_activation_and_notify;
mod starttls;
mod sticky_clients_return;
mod stunnel_is_replaced;
mod the_screen_is_live_and_given_back;
mod the_supervisor_keeps_roots_rights;
mod tls_to_servers;
mod tls_versions_and_suites_are_those_configured;
mod trials_show_who_would_be_lost;
mod unix_and_v6_backends;
mod upgrades_are_asked_for_at_any_time;
mod upgrades_lose_nothing;
mod upgrades_under_mixed_load;
