//! Random Gateways and routes: each client gets the route that a naive reading of the Gateway API
//! gives it.

use becket_config::file::File;
use becket_config::listener::ListenerSection;
use becket_gateway::manifests::Manifests;
use becket_gateway::render::{Settings, render};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const HOSTS: [&str; 7] = [
    "",
    "a.test",
    "b.test",
    "*.test",
    "x.a.test",
    "*.a.test",
    "*.other.test",
];
/// Names that clients request. Wildcards of becket cover one label, so `x.a.test` is only in the
/// model where `*.test` does not cover it.
const NAMES: [&str; 6] = [
    "a.test",
    "b.test",
    "c.test",
    "x.a.test",
    "y.a.test",
    "z.other.test",
];

#[derive(Clone, Debug)]
struct TestListener {
    host: usize,
    passes: bool,
}

#[derive(Clone, Debug)]
struct TestRoute {
    hosts: Vec<usize>,
    /// Listener to which it attaches; `None` means all.
    section: Option<usize>,
}

/// Returns listeners with different host names, because others conflict.
fn listeners() -> impl Strategy<Value = Vec<TestListener>> {
    let hosts = prop::sample::subsequence((0..HOSTS.len()).collect::<Vec<_>>(), 1..4);
    let passes = prop::collection::vec(any::<bool>(), 4);
    (hosts, passes).prop_map(|(hosts, passes)| {
        let both = hosts.into_iter().zip(passes);
        both.map(|(host, passes)| TestListener { host, passes })
            .collect()
    })
}

fn routes() -> impl Strategy<Value = Vec<TestRoute>> {
    let hosts = prop::collection::vec(0..HOSTS.len(), 1..4);
    let section = prop::option::weighted(0.3, 0..3_usize);
    let one = (hosts, section).prop_map(|(hosts, section)| TestRoute { hosts, section });
    prop::collection::vec(one, 1..4)
}

fn manifests(listeners: &[TestListener], routes: &[TestRoute]) -> String {
    let mut text = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\n\
                    spec:\n  gatewayClassName: becket\n  listeners:\n"
        .to_owned();
    for (index, listener) in listeners.iter().enumerate() {
        let tls = if listener.passes {
            "{mode: Passthrough}"
        } else {
            "{certificateRefs: [{name: c}]}"
        };
        let host = HOSTS[listener.host];
        text += &format!(
            "  - {{name: l{index}, port: 443, protocol: TLS, hostname: \"{host}\", tls: {tls}}}\n"
        );
    }
    for (index, route) in routes.iter().enumerate() {
        let hosts = route
            .hosts
            .iter()
            .map(|host| HOSTS[*host])
            .filter(|host| !host.is_empty());
        let hosts: Vec<_> = hosts.map(|host| format!("\"{host}\"")).collect();
        let section = route
            .section
            .map(|it| format!(", sectionName: l{it}"))
            .unwrap_or_default();
        text += &format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute\nmetadata: {{name: r{index}}}\n\
             spec:\n  parentRefs: [{{name: g{section}}}]\n  hostnames: [{}]\n  rules: [{{backendRefs: [{{name: s, port: 80}}]}}]\n",
            hosts.join(", ")
        );
    }
    text
}

/// Returns whether a pattern covers a name: with any number of labels as in the API, or with one.
fn covers(pattern: &str, name: &str, one_label: bool) -> bool {
    match pattern.strip_prefix('*') {
        None => pattern.is_empty() || pattern == name,
        Some(suffix) => name
            .strip_suffix(suffix)
            .is_some_and(|label| !(label.is_empty() || one_label && label.contains('.'))),
    }
}

/// Returns the larger number for the more specific pattern.
fn specificity(pattern: &str) -> usize {
    match pattern.strip_prefix('*') {
        None if pattern.is_empty() => 0,
        None => 1000,
        Some(suffix) => suffix.matches('.').count(),
    }
}

/// Returns the route of a client as the API defines it; `None` rejects the client.
fn expected(listeners: &[TestListener], routes: &[TestRoute], name: &str) -> Option<usize> {
    let is_for = |it: &&(usize, &TestListener)| covers(HOSTS[it.1.host], name, false);
    let numbered: Vec<_> = listeners.iter().enumerate().collect();
    let found = numbered
        .iter()
        .filter(is_for)
        .max_by_key(|it| specificity(HOSTS[it.1.host]))?;
    let mut best: Option<(usize, usize)> = None;
    for (index, route) in routes.iter().enumerate() {
        if route.section.is_some_and(|section| section != found.0) {
            continue;
        }
        let named = route
            .hosts
            .iter()
            .map(|host| HOSTS[*host])
            .filter(|it| !it.is_empty());
        let mut hosts: Vec<&str> = named.collect();
        if hosts.is_empty() {
            hosts.push("");
        }
        for host in hosts.into_iter().filter(|host| covers(host, name, false)) {
            // The intersection with the listener is the more specific of the two.
            let found = specificity(host).max(specificity(HOSTS[found.1.host]));
            if best.is_none_or(|(before, _)| found > before) {
                best = Some((found, index));
            }
        }
    }
    best.map(|(_, index)| index)
}

/// Returns the backend that becket's first matching route names; `None` rejects the client.
fn actual(section: &ListenerSection, name: &str) -> Option<String> {
    let mut routes = section.route.iter();
    let is_for = |names: &[becket_config::address::NamePattern]| {
        names.is_empty() || names.iter().any(|pattern| pattern.matches(name))
    };
    let route = routes.find(|route| is_for(&route.names))?;
    route.backend.clone()
}

#[test]
fn clients_get_the_route_of_the_most_specific_listener() {
    let compared = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(Config::with_cases(1500));
    let result = runner.run(&(listeners(), routes()), |(listeners, routes)| {
        let text = manifests(&listeners, &routes);
        let mut read = Manifests::new("default");
        read.add("test.yaml", &text);
        let settings = Settings {
            certificates: "/c".to_owned(),
            class: None,
            assume_missing: true,
        };
        let (Some(toml), _) = render(read, &settings) else {
            return Ok(());
        };
        let file = File::parse(&toml).unwrap();
        for name in NAMES {
            let patterns = listeners.iter().map(|it| it.host);
            let mut patterns = patterns.chain(routes.iter().flat_map(|it| it.hosts.clone()));
            if patterns.any(|it| covers(HOSTS[it], name, false) != covers(HOSTS[it], name, true)) {
                continue;
            }
            compared.set(compared.get() + 1);
            let expected = expected(&listeners, &routes, name);
            let expected = expected.map(|index| format!("tlsroute_default_r{index}"));
            let found = actual(&file.listener[0], name);
            let found = found.map(|it| it.trim_end_matches("_passthrough").to_owned());
            prop_assert_eq!(found, expected, "{}\n{}\n{}", name, text, toml);
        }
        Ok(())
    });
    result.unwrap();
    assert!(compared.get() > 500, "{} names", compared.get());
}
