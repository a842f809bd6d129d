//! Manifests, and the configuration or the conditions that they lead to.

use becket_gateway::manifests::Manifests;
use becket_gateway::render::{Settings, render};

/// A Gateway with a listener that terminates TLS, its route, Service and Secret.
const BASE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: web}
spec:
  gatewayClassName: becket
  listeners:
  - name: one
    protocol: TLS
    port: 443
    hostname: a.test
    tls: {mode: Terminate, certificateRefs: [{name: cert}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: app, namespace: web}
spec:
  parentRefs: [{name: edge}]
  hostnames: [a.test]
  rules: [{backendRefs: [{name: app, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: web}
spec: {ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Secret
metadata: {name: cert, namespace: web}
type: kubernetes.io/tls
stringData: {tls.crt: "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n", tls.key: "-----BEGIN PRIVATE KEY-----\nU0VDUkVU\n-----END PRIVATE KEY-----\n"}
"#;
const EXTRA: &str = "apiVersion: gateway.networking.k8s.io/v1\n";

fn rendered(text: &str, class: Option<&str>, assume_missing: bool) -> (Option<String>, String) {
    let mut manifests = Manifests::new("default");
    manifests.add("m.yaml", text);
    let settings = Settings {
        certificates: "/c/".to_owned(),
        class: class.map(str::to_owned),
        assume_missing,
    };
    let (toml, report) = render(manifests, &settings);
    let problems = report.errors.iter().chain(&report.warnings);
    let problems: Vec<String> = problems.map(ToString::to_string).collect();
    let all = format!("{problems:?}{toml:?}");
    assert!(
        !all.contains("U0VDUkVU") && !all.contains("SECRET"),
        "{all}"
    );
    (toml, problems.join("\n"))
}

/// Replaces a part of [`BASE`], or appends to it if the part is empty.
fn changed(part: &str, by: &str) -> String {
    if part.is_empty() {
        return format!("{BASE}---\n{by}");
    }
    assert!(BASE.contains(part), "{part}");
    BASE.replacen(part, by, 1)
}

#[test]
fn manifests_become_the_configuration() {
    let slice = |name: &str, ips: &str| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}, namespace: web, labels: {{kubernetes.io/service-name: app}}}}\n\
             addressType: IPv6\nports: [{{name: http, port: 8080}}]\nendpoints: [{ips}]\n"
        )
    };
    let policy = |rest: &str| {
        format!(
            "{EXTRA}kind: BackendTLSPolicy\nmetadata: {{name: p, namespace: web}}\nspec: {{targetRefs: [{{group: '', kind: Service, name: app}}], validation: {{{rest}}}}}"
        )
    };
    let cases: &[(&str, String, &[&str])] = &[
        ("", "kind: Deployment\napiVersion: apps/v1".into(), &[
            "names = [\"a.test\"]",
            "address = \"app.web.svc:80\"",
            "chain = \"/c/web/cert/tls.crt\", key = \"/c/web/cert/tls.key\"",
            "unknown-names = \"strict\"",
        ]),
        ("\n    hostname: a.test", String::new(), &["names = [\"a.test\"]"]),
        ("\n  hostnames: [a.test]", String::new(), &["names = [\"a.test\"]"]),
        ("[a.test]", "[A.test, '*.test', b.test, a.test]".into(), &["names = [\"a.test\"]"]),
        ("mode: Terminate, certificateRefs: [{name: cert}]", "mode: Passthrough".into(), &[
            "mode = \"passthrough\"",
            "[[backend]]\nname = \"tlsroute_web_app_passthrough\"",
        ]),
        ("{name: edge}]", "{name: edge, sectionName: one, port: 443}]".into(), &["a.test"]),
        ("{name: app, port: 80}", "{name: app, port: 80, weight: 0}, {name: app, port: 80}".into(), &[
            "[[backend.server]]\naddress = \"app.web.svc:80\"\n",
        ]),
        ("{name: app, port: 80}", "{name: app, port: 80, weight: 1000000}, {name: far, namespace: away, port: 1, weight: 10}".into(), &[
            "address = \"app.web.svc:80\"\nweight = 256",
            "address = \"far.away.svc:1\"\n",
        ]),
        ("{name: app, port: 80}", "{name: app, port: 80, weight: 60}, {name: more, port: 1, weight: 40}".into(), &[
            "address = \"app.web.svc:80\"\nweight = 3", "address = \"more.web.svc:1\"\nweight = 2",
        ]),
        ("{ports:", "{clusterIP: None, ports:".into(), &["address = \"app.web.svc:8080\""]),
        ("", slice("s", "{addresses: ['::1']}, {addresses: ['::2'], conditions: {ready: false}}"), &[
            "[[backend.server]]\naddress = \"[::1]:8080\"\n",
        ]),
        ("", policy("hostname: in.test, wellKnownCACertificates: System"), &["[backend.tls]\nname = \"in.test\"\n["]),
        ("", policy("hostname: in.test, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]"), &["ca = \"/c/web/ca/ca.crt\""]),
        ("\n  listeners:", "\n  tls: {frontend: {default: {validation: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}}}}\n  listeners:".into(), &[
            "policy = \"clients-0\"", "client-ca = \"/c/web/ca/ca.crt\"\nclient-certificates = \"required\"",
        ]),
        ("protocol: TLS", "protocol: tls\n    allowedRoutes: {namespaces: {from: All}, kinds: [{kind: TLSRoute}]}".into(), &["a.test"]),
        ("TLSRoute", "TCPRoute\nstatus: {}".into(), &["name = \"tcproute_web_app\"", "names = [\"a.test\"]"]),
        ("name: app, namespace: web}\nspec:\n", format!("name: {}, namespace: web}}\nspec:\n", "x".repeat(80)), &["name = \"tlsroute_0\""]),
    ];
    for (part, by, expected) in cases {
        let grant = format!(
            "---\n{EXTRA}kind: ReferenceGrant\nmetadata: {{name: g, namespace: away}}\nspec: {{from: [{{group: gateway.networking.k8s.io, kind: TLSRoute, namespace: web}}], to: [{{group: '', kind: Service}}]}}"
        );
        let mut text = changed(part, by) + "\n" + &grant;
        if by.starts_with("TCPRoute") {
            text = text.replace("  hostnames: [a.test]\n", "");
        }
        let (toml, problems) = rendered(&text, None, true);
        assert!(problems.is_empty(), "{by}\n{problems}");
        let toml = toml.unwrap();
        for line in *expected {
            assert!(toml.contains(line), "{line}\nis not in\n{toml}");
        }
    }
}

#[test]
fn the_rest_is_a_condition_with_place_and_reason() {
    let policy = |rest: &str| {
        format!(
            "{EXTRA}kind: BackendTLSPolicy\nmetadata: {{name: p, namespace: web}}\nspec: {{targetRefs: [{{group: '', kind: Service, name: app}}], validation: {{{rest}}}}}\n"
        )
    };
    let second = |rest: &str| {
        format!("\n  - {{name: two, protocol: TLS, {rest}}}\n---\n{EXTRA}kind: TLSRoute")
    };
    let kind = |kind: &str| {
        format!(
            "{EXTRA}kind: {kind}\nmetadata: {{name: x, namespace: web}}\nspec: {{parentRefs: [{{name: edge}}]}}"
        )
    };
    let cases: &[(&str, String, &str)] = &[
        ("protocol: TLS", "protocol: HTTP".into(), "m.yaml:2: Gateway/web/edge: spec.listeners[0] = \"HTTP Terminate\": UnsupportedProtocol; accepted: TLS or TCP"),
        ("protocol: TLS", "protocol: TCP".into(), "hostname or tls with protocol TCP"),
        ("mode: Terminate", "mode: Half".into(), "\"TLS Half\": UnsupportedProtocol"),
        ("mode: Terminate", "options: {a: b}".into(), "Gateway/web/edge: spec.listeners.0.tls.options: not supported"),
        ("spec:\n  gatewayClassName", "spec:\n  infrastructure: {}\n  gatewayClassName".into(), "spec.infrastructure: not supported"),
        ("port: 443", "port: 70000".into(), "spec.listeners[0].port: invalid value"),
        ("port: 443", "port: web".into(), "spec.listeners[0].port: invalid type"),
        ("hostname: a.test", "hostname: '*'".into(), "spec.listeners[0].hostname = \"*\": "),
        ("hostname: a.test", "hostname: 10.0.0.1".into(), "an IP address"),
        ("hostname: a.test", "hostname: b.test".into(), "m.yaml:14: TLSRoute/web/app: spec.parentRefs[0]: NoMatchingListenerHostname"),
        ("port: 443\n", "port: 443\n    allowedRoutes: {namespaces: {from: Selector, selector: {}}}\n".into(), "namespaces.from = \"Selector\": not supported; accepted: Same or All"),
        ("port: 443\n", "port: 443\n    allowedRoutes: {kinds: [{kind: HTTPRoute}]}\n".into(), "InvalidRouteKinds; accepted: TLSRoute or TCPRoute"),
        ("port: 443\n", "port: 443\n    allowedRoutes: {kinds: [{kind: TCPRoute}]}\n".into(), "NotAllowedByListeners"),
        ("{name: edge}]", "{name: edge, sectionName: absent}]".into(), "NoMatchingParent"),
        ("{name: edge}]", "{name: edge, kind: ListenerSet}]".into(), "NoMatchingParent"),
        ("[{name: edge}]", "[]".into(), "spec.parentRefs: missing"),
        ("TLSRoute\nmetadata: {name: app, namespace: web}\nspec:\n  parentRefs: [{name: edge}]", "TLSRoute\nmetadata: {name: app}\nspec:\n  parentRefs: [{name: edge, namespace: web}]".into(), "TLSRoute/default/app: spec.parentRefs[0]: NotAllowedByListeners"),
        ("certificateRefs: [{name: cert}]", "certificateRefs: []".into(), "certificateRefs: missing; accepted: Secrets of type kubernetes.io/tls"),
        ("[{name: cert}]", "[{name: none}]".into(), "Secret web/none is in none of the files; accepted: its manifest, or --assume-missing"),
        ("[{name: cert}]", "[{name: ../../etc}]".into(), "not the name of an object"),
        ("[{name: cert}]", "[{name: cert, namespace: keys}]".into(), "RefNotPermitted: Secret keys/cert is in another namespace; accepted: a ReferenceGrant in keys"),
        ("[{name: cert}]", "[{name: cert, kind: Vault}]".into(), "InvalidKind"),
        ("type: kubernetes.io/tls", "type: Opaque".into(), "InvalidCertificateRef: Secret/web/cert has another type; accepted: kubernetes.io/tls"),
        ("stringData: {tls.crt", "data: {tls.crt".into(), "Secret/web/cert: data[\"tls.crt\"] is missing or invalid"),
        ("PRIVATE KEY", "PUBLIC KEY".into(), "data[\"tls.key\"] is missing or invalid"),
        ("{name: app, port: 80}", "{name: app, port: 81}".into(), "Service/web/app has no TCP port 81"),
        ("{name: app, port: 80}", "{name: app}".into(), "has no TCP port 0"),
        ("{name: app, port: 80}", "{name: absent, port: 80}".into(), "Service web/absent is in none of the files"),
        ("{name: app, port: 80}", "{name: app, port: 80, weight: 0}".into(), "no servers"),
        ("{name: app, port: 80}", "{name: app, port: 80, filters: []}".into(), "spec.rules.0.backendRefs.0.filters: not supported"),
        ("rules: [", "rules: [{}, ".into(), "spec.rules: 2 rules; accepted: one rule"),
        ("{ports:", "{type: ExternalName, ports:".into(), "a TCP port of a Service with pods"),
        ("{ports: [{name: http, port: 80, targetPort: 8080}", "{clusterIP: None, ports: [{port: 80, targetPort: http}".into(), "a headless Service needs a number as targetPort"),
        ("kind: TLSRoute", "kind: HTTPRoute".into(), "HTTPRoute/web/app: spec.parentRefs[0]: NotAllowedByListeners"),
        ("kind: TLSRoute", "kind: TCPRoute".into(), "TCPRoute/web/app: spec.hostnames: not supported"),
        ("v1\nkind: TLSRoute", "v9\nkind: TLSRoute".into(), "m.yaml:14: apiVersion = \"gateway.networking.k8s.io/v9\": not supported; accepted: v1, v1alpha3, v1alpha2"),
        ("", kind("ListenerSet"), "kind = \"ListenerSet\": not supported"),
        ("", kind("UDPRoute"), "UDPRoute/web/x"),
        ("rules: [{backendRefs: [{name: app, port: 80}]}]", "rules: []".into(), "spec.rules: 0 rules"),
        ("", "{a: 1}".into(), "not a Kubernetes object"),
        ("", "apiVersion: v1\nkind: Service\nmetadata: {name: app, namespace: web}\nspec: {}".into(), "Service/web/app: given twice"),
        ("", "apiVersion: v1\nkind: Service\nmetadata: {name: 'A b'}".into(), "no usable name"),
        ("", "a: [".into(), "m.yaml:33: not YAML"),
        ("", "a: 1\na: 2".into(), "not YAML"),
        ("\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute", second("port: 443, hostname: a.test, tls: {mode: Passthrough}"), "spec.listeners[1]: Conflicted: Gateway/web/edge spec.listeners[0] has the same clients"),
        ("\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute", "\n  - {name: two, protocol: TCP, port: 443}\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute".into(), "Conflicted"),
        ("\n  hostnames: [a.test]", "\n  hostnames: [a.test]\n  useDefaultGateways: All".into(), "spec.useDefaultGateways: not supported"),
        ("\n  listeners:", "\n  tls: {frontend: {default: {validation: {mode: AllowInsecureFallback}}}}\n  listeners:".into(), "validation = \"AllowInsecureFallback\": not supported"),
        ("\n  listeners:", "\n  tls: {frontend: {default: {validation: {caCertificateRefs: []}}}}\n  listeners:".into(), "0 references; accepted: one ConfigMap"),
        ("", policy("hostname: in.test"), "TLSRoute/web/app: BackendTLSPolicy/web/p: spec.validation.caCertificateRefs: 0 references"),
        ("", policy("hostname: a_b, wellKnownCACertificates: System"), "hostname"),
        ("", policy("hostname: in.test, wellKnownCACertificates: Own"), "accepted: System"),
        ("", policy("hostname: in.test, subjectAltNames: [], wellKnownCACertificates: System"), "spec.validation.subjectAltNames: not supported"),
        ("", policy("hostname: in.test, wellKnownCACertificates: System") + "---\n" + &policy("hostname: in.test, wellKnownCACertificates: System").replace("{name: p", "{name: q"), "Conflicted: several BackendTLSPolicies"),
        ("", policy("hostname: in.test, wellKnownCACertificates: System").replace("name: app}", "name: app, sectionName: http}"), "targetRefs.sectionName: not supported"),
    ];
    for (part, by, expected) in cases {
        let (toml, problems) = rendered(&changed(part, by), None, false);
        assert!(toml.is_none(), "{by}");
        assert!(
            problems.contains(expected),
            "{expected}\nis not in\n{problems}"
        );
    }
}

/// A less specific route never takes clients of a more specific listener.
#[test]
fn listeners_and_routes_on_one_port_are_told_apart() {
    let route = |name: &str, hosts: &str, section: &str| {
        format!(
            "---\n{EXTRA}kind: TLSRoute\nmetadata: {{name: {name}, namespace: web}}\nspec: {{parentRefs: [{{name: edge, sectionName: {section}}}], hostnames: [{hosts}], rules: [{{backendRefs: [{{name: app, port: 80}}]}}]}}\n"
        )
    };
    let base = changed("    tls: {mode", "    tls: &tls {mode");
    let wide = "  - {name: two, protocol: TLS, port: 443, hostname: '*.test', tls: {mode: Passthrough}}\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute";
    let base = base.replacen(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute",
        wide,
        1,
    );
    let (toml, problems) = rendered(
        &(base.clone() + &route("b", "'*.test'", "two")),
        None,
        false,
    );
    let toml = toml.unwrap();
    let exact = toml.find("names = [\"a.test\"]").unwrap();
    assert!(exact < toml.find("names = [\"*.test\"]").unwrap(), "{toml}");
    assert_eq!(
        problems,
        "TLSRoute/web/b: *.test: covers one label in becket; longer names are rejected"
    );

    let twice = base.clone() + &route("z", "a.test", "one");
    let (_, problems) = rendered(&twice, None, false);
    assert!(
        problems.contains("TLSRoute/web/z: spec: TLSRoute/web/app has precedence for a.test"),
        "{problems}"
    );
    let older = twice.replace(
        "{name: z, namespace: web}",
        "{name: z, namespace: web, creationTimestamp: '2020-01-01T00:00:00Z'}",
    );
    let (_, problems) = rendered(&older, None, false);
    assert!(
        problems.contains("TLSRoute/web/app: spec: TLSRoute/web/z has precedence for a.test"),
        "{problems}"
    );

    let orphan = base
        .replace("{name: edge}]", "{name: edge, sectionName: two}]")
        .replace("[a.test]", "['*.test']");
    let (_, problems) = rendered(&orphan, None, false);
    assert!(
        problems.contains(
            "spec.listeners[0]: clients without a route would be taken by spec.listeners[1]"
        ),
        "{problems}"
    );

    let all = base.replace(", hostname: '*.test'", "") + &route("b", "'*.test', b.test", "two");
    let (toml, _) = rendered(&all, None, false);
    assert!(toml.is_some_and(|toml| toml.contains("strict")));
    let all = all.replace("hostnames: ['*.test', b.test]", "hostnames: []")
        + &route("c", "'*.test'", "two");
    let (_, problems) = rendered(&all, None, false);
    assert!(
        problems.contains(
            "*.test: covers one label in becket; longer names are taken by the route for all names"
        ),
        "{problems}"
    );
}

#[test]
fn gateways_of_other_classes_are_skipped_with_their_routes() {
    let others = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: other, namespace: web}\n\
                  spec: {gatewayClassName: another, infrastructure: {}, listeners: [{name: h, port: 80, protocol: HTTP}]}\n\
                  ---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: x, namespace: web}\n\
                  spec: {parentRefs: [{name: other}], rules: [{matches: []}]}\n";
    let text = format!("{BASE}{others}");
    let (toml, problems) = rendered(&text, Some("becket"), false);
    assert!(toml.is_some() && problems.is_empty(), "{problems}");
    let (toml, problems) = rendered(&text, None, false);
    assert!(
        toml.is_none() && problems.contains("HTTPRoute/web/x"),
        "{problems}"
    );
}

#[test]
fn lists_and_json_are_read_and_absent_values_ignored() {
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "g", "creationTimestamp": null},
         "spec": {"gatewayClassName": "b", "listeners": [{"name": "l", "port": 5432, "protocol": "TCP", "hostname": null}]}, "status": {"x": 1}},
        {"apiVersion": "gateway.networking.k8s.io/v1alpha2", "kind": "TCPRoute", "metadata": {"name": "r", "namespace": "default"},
         "spec": {"parentRefs": [{"name": "g"}], "rules": [{"name": "a", "backendRefs": [{"name": "db", "port": 5432}]}]}}]}"#;
    let (toml, problems) = rendered(list, None, true);
    assert_eq!(problems, "");
    assert!(toml.unwrap().contains("address = \"db.default.svc:5432\""));
}

/// [`rendered`] searches each output for the key.
#[test]
fn damaged_secrets_are_not_quoted() {
    for damage in [
        "{tls.key: \"U0VDUkVU",
        "{tls.key: !!int U0VDUkVU}",
        "{tls.key: !!binary U0VDUkVU!}",
        "{tls.key: *U0VDUkVU}",
        "{tls.key: !U0VDUkVU x}",
        "{U0VDUkVU: a, U0VDUkVU: b}",
        "{tls.key: [U0VDUkVU]}",
        "U0VDUkVU",
        "{tls.crt: U0VDUkVU, tls.key: U0VDUkVU}",
        "\n\tU0VDUkVU: x",
    ] {
        let text = BASE.split("stringData").next().unwrap().to_owned();
        for section in ["data", "stringData"] {
            let (toml, problems) = rendered(&format!("{text}{section}: {damage}\n"), None, true);
            assert!(
                toml.is_none() && problems.starts_with("m.yaml:"),
                "{problems}"
            );
        }
    }
}
