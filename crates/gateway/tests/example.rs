//! The example in `examples/kubernetes/gateway` is what the program prints.

use becket_config::error::Report;
use becket_config::file::File;
use becket_gateway::manifests::Manifests;
use becket_gateway::render::{Settings, render};

/// With `BLESS` in the environment, the test writes the configuration.
#[test]
fn the_example_is_rendered_as_stored() {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/kubernetes/gateway"
    );
    let text = std::fs::read_to_string(format!("{folder}/gateway.yaml")).unwrap();
    let mut manifests = Manifests::new("default");
    manifests.add("gateway.yaml", &text);
    let settings = Settings {
        certificates: "/etc/becket/certificates".to_owned(),
        class: Some("becket".to_owned()),
        assume_missing: true,
    };
    let (toml, report) = render(manifests, &settings);
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
    assert!(report.warnings.is_empty(), "{:#?}", report.warnings);
    let toml = toml.unwrap();
    let mut report = Report::default();
    File::parse(&toml).unwrap().check(&mut report);
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
    let path = format!("{folder}/becket.toml");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &toml).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap();
    assert_eq!(toml, stored, "not as BLESS=1 writes it");
}
