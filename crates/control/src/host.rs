//! Checks the host names in requests for the admin pages, as protection against DNS rebinding.
//!
//! The pages have no password. A browser does not let a web site read pages of another site. DNS
//! rebinding circumvents this: the attacker's host name resolves to becket's address, so that the
//! browser takes becket's pages for the attacker's site. But the request contains the attacker's
//! host name. Therefore a host is accepted only if it is an IP address, `localhost`, or a
//! configured name.
//!
//! A request without a host is accepted, because browsers always send one, and health checks with
//! HTTP/1.0 do not. Source: RFC 9112, section 3.2.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};
use becket_config::address::HostName;

/// Returns the first unaccepted host of the request, in its `Host` fields or its target.
pub(super) fn foreign<'a>(
    uri: &'a Uri,
    headers: &'a HeaderMap,
    names: &[HostName],
) -> Option<&'a [u8]> {
    let target = uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let fields = headers.get_all(header::HOST).into_iter();
    let mut hosts = fields.map(|field| field.as_bytes()).chain(target);
    hosts.find(|host| !is_ours(host, names))
}

fn is_ours(host: &[u8], names: &[HostName]) -> bool {
    let Ok(authority) = Authority::try_from(host) else {
        return false;
    };
    let name = authority.host();
    // Rejects a `Host` field with a user name (`user@host`).
    if !host.starts_with(name.as_bytes()) {
        return false;
    }
    let within = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    if within.unwrap_or(name).parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let own = names
        .iter()
        .map(|name| name.0.as_str())
        .chain(["localhost"]);
    own.into_iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn passes(host: &str) -> bool {
        is_ours(host.as_bytes(), &[HostName("becket.example".to_owned())])
    }

    #[test]
    fn addresses_localhost_and_listed_names_pass_with_any_port() {
        for host in [
            "127.0.0.1",
            "192.0.2.1:9443",
            "[::1]",
            "[2001:db8::1]:9443",
            "localhost",
            "LocalHost:80",
            "localhost.",
            "becket.example",
            "BECKET.example.:9443",
        ] {
            assert!(passes(host), "{host}");
        }
    }

    #[test]
    fn host_names_of_other_sites_are_rejected() {
        for host in [
            "",
            ":80",
            "evil.example",
            "evil.example:9443",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "becket.example.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "localhost..",
            "::1",
            "localhost, evil.example",
        ] {
            assert!(!passes(host), "{host}");
        }
    }

    proptest! {
        #[test]
        fn only_configured_host_names_pass(
            label in "[a-zA-Z0-9_-]{1,10}",
            rest in "(\\.[a-z0-9-]{1,6}){0,3}(\\.[a-z]{2,6})",
            port in "(:[0-9]{1,5})?",
        ) {
            let name = format!("{label}{rest}");
            prop_assume!(name != "becket.example");
            let host = format!("{name}{port}");
            prop_assert!(!passes(&host));
        }

        #[test]
        fn no_input_panics(host in proptest::collection::vec(any::<u8>(), 0..64)) {
            is_ours(&host, &[]);
        }
    }
}
