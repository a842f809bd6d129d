//! Kubernetes manifests: any text is rendered as a valid configuration, or rejected with reasons.

use becket_config::error::Report;
use becket_config::file::File;
use becket_gateway::manifests::Manifests;
use becket_gateway::render::{Settings, render};

/// Checks one input. Its length decides whether missing objects are assumed. Returns 1 if it is
/// rendered.
///
/// # Panics
///
/// If a rejection has no reason, or the configuration is not valid.
pub fn run(data: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(data) else {
        return 0;
    };
    let mut manifests = Manifests::new("default");
    manifests.add("fuzzed.yaml", text);
    let settings = Settings {
        certificates: "/certificates".to_owned(),
        class: None,
        assume_missing: text.len() % 2 == 0,
    };
    let (toml, report) = render(manifests, &settings);
    for problem in report.errors.iter().chain(&report.warnings) {
        let line = problem.to_string();
        assert!(!line.contains(char::is_control), "{line:?}");
    }
    let Some(toml) = toml else {
        assert!(!report.errors.is_empty(), "a rejection has a reason");
        return 0;
    };
    assert!(report.errors.is_empty(), "a condition prints nothing");
    let file = File::parse(&toml).unwrap_or_else(|problems| panic!("{problems:?}\n{toml}"));
    let mut report = Report::default();
    file.check(&mut report);
    assert!(report.errors.is_empty(), "{:?}\n{toml}", report.errors);
    1
}
