//! The configuration: any text is either parsed and prepared, or rejected with reasons.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use becket_config::file::File;
use becket_config::read::read;
use becket_prepare::resolver::HostResolver;
use becket_prepare::{Environment, ServerNames, prepare};
use rustls::pki_types::UnixTime;

/// Checks one input. Returns 1 if it is a usable configuration.
///
/// # Panics
///
/// If a rejection has no reason, or the two parsers of a file disagree.
pub fn run(data: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(data) else {
        return 0;
    };
    let reading = read(text, &Default::default());
    let parsed = File::parse(text);
    if let Err(problems) = &parsed {
        assert!(!problems.is_empty(), "a rejection has a reason");
    }
    assert_eq!(
        parsed.is_ok(),
        reading.file.is_some() && reading.problems.is_empty()
    );
    let environment = Environment {
        // A device has no children, so relative paths lead to no file.
        base: Path::new("/dev/null"),
        now: UnixTime::since_unix_epoch(Duration::from_secs(1_717_200_000)),
        ipv6: true,
        descriptors: 1 << 20,
        resolver: HostResolver::by(|host| match host.len() % 3 {
            0 => Err(std::io::Error::other("not known")),
            n => Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST); n - 1]),
        }),
        server_names: match text.len() % 2 {
            0 => ServerNames::Now,
            _ => ServerNames::Later,
        },
        files: becket_keys::files::Files::default(),
        multibuffer: None,
        tokens: Default::default(),
        trials: Default::default(),
        issuers: Default::default(),
        running: None,
    };
    match prepare(reading, &environment) {
        Ok(_) => 1,
        Err(rejected) => {
            assert!(!rejected.errors.is_empty(), "a rejection has a reason");
            0
        }
    }
}
