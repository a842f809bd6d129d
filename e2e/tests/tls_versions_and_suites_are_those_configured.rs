//! Becket offers exactly the TLS versions, cipher suites and groups of the policy.

use becket_e2e::{Backend, Becket, Key, OpenSsl, Place, Shape, Tool};

const POLICY: &str = "[[policy]]\nname = \"web\"\n";

#[test]
#[ignore = "slow: .ci/run test"]
fn both_versions_and_all_suites_are_available_by_default() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    place.issue("rsa.pem", &["www.example.org"], Key::Rsa);
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).certificates(r#"["rsa.pem", "site.pem"]"#);
    let becket = Becket::start(&place, &shape);
    let tls13 = [
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
    ];
    for suite in tls13 {
        let run = openssl.ask(&place, becket.web, &["-tls1_3", "-ciphersuites", suite]);
        let (code, said) = (run.code, run.all());
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("well met") && said.contains(suite), "{said}");
        let line = becket.next_access();
        assert_eq!(
            (&line["version"], &line["reason"]),
            (&"TLSv1.3".into(), &"finished".into())
        );
        assert_eq!(line["handshake"], "full");
    }
    let tls12 = [
        (
            "ECDHE-ECDSA-AES128-GCM-SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        ),
        (
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        ),
        (
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        ),
        (
            "ECDHE-RSA-AES128-GCM-SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        ),
        (
            "ECDHE-RSA-AES256-GCM-SHA384",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        ),
        (
            "ECDHE-RSA-CHACHA20-POLY1305",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        ),
    ];
    for (suite, registered) in tls12 {
        let run = openssl.ask(&place, becket.web, &["-tls1_2", "-cipher", suite]);
        let (code, said) = (run.code, run.all());
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("well met") && said.contains(suite), "{said}");
        assert!(said.contains("Secure Renegotiation IS supported"), "{said}");
        let line = becket.next_access();
        assert_eq!(line["version"], "TLSv1.2");
        assert_eq!(line["suite"], registered);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn becket_prefers_suites_in_the_order_of_its_configuration() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let policy = r#"suites = ["CHACHA20-POLY1305", "AES-256-GCM", "AES-128-GCM"]"#;
    let shape = Shape::new(backend.address).section(&format!("{POLICY}{policy}"));
    let becket = Becket::start(&place, &shape);
    for version in ["-tls1_2", "-tls1_3"] {
        let said = openssl.ask(&place, becket.web, &[version]).all();
        assert!(said.contains("CHACHA20"), "{said}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_version_a_suite_or_a_group_that_is_not_configured_is_rejected() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let policy = r#"
        versions = ["1.3"]
        suites = ["AES-256-GCM"]
        groups = ["P-384"]"#;
    let shape = Shape::new(backend.address).section(&format!("{POLICY}{policy}"));
    let becket = Becket::start(&place, &shape);
    let refused: [(&[&str], &str); 4] = [
        (&["-tls1_2"], "alert protocol version"),
        (
            &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
            "alert protocol version",
        ),
        (
            &["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
            "alert handshake failure",
        ),
        (
            &["-tls1_3", "-groups", "X25519:P-256"],
            "alert handshake failure",
        ),
    ];
    for (flags, alert) in refused {
        let run = openssl.ask(&place, becket.web, flags);
        let (code, said) = (run.code, run.all());
        assert_ne!(code, 0, "{flags:?}: {said}");
        assert!(said.contains(alert), "{flags:?}: {said}");
        let line = becket.next_access();
        assert_eq!(line["reason"], "handshake-failed", "{line}");
        assert!(line["server"].is_null(), "{line}");
    }
    // The client's first key share is of another group, so becket sends a HelloRetryRequest.
    let run = openssl.ask(&place, becket.web, &["-groups", "X25519:P-384"]);
    let (code, said) = (run.code, run.all());
    assert_eq!(code, 0, "{said}");
    let line = becket.next_access();
    assert_eq!(line["group"], "secp384r1", "{line}");
    assert_eq!(backend.served(), 1);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn gnutls_and_python_clients_are_served() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let (host, port) = (becket.web.ip().to_string(), becket.web.port().to_string());
    let ca = place.text("ca.pem");
    if let Some(gnutls) = Tool::find("gnutls-cli") {
        let priority = [
            "NORMAL:-VERS-ALL:+VERS-TLS1.2",
            "NORMAL:-VERS-ALL:+VERS-TLS1.3",
        ];
        for priority in priority {
            let run = gnutls.run(
                [
                    "--port",
                    &port,
                    "--x509cafile",
                    &ca,
                    "--sni-hostname",
                    "www.example.org",
                    "--verify-hostname",
                    "www.example.org",
                    "--priority",
                    priority,
                    &host,
                ],
                "GET / HTTP/1.0\r\n\r\n",
            );
            assert!(run.stdout.contains("well met"), "{}", run.all());
            assert_eq!(becket.next_reason(), "finished");
        }
    }
    if let Some(python) = Tool::find("python3") {
        let script = "import socket, ssl, sys\n\
            context = ssl.create_default_context(cafile=sys.argv[3])\n\
            plain = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n\
            tls = context.wrap_socket(plain, server_hostname='www.example.org',\n\
                                      suppress_ragged_eofs=False)\n\
            tls.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n\
            print(b''.join(iter(lambda: tls.recv(4096), b'')).decode(), tls.version())\n\
            tls.unwrap()\n";
        let run = python.run(["-c", script, &host, &port, &ca], "");
        assert!(run.stdout.contains("well met"), "{}", run.all());
        assert_eq!(run.code, 0, "{}", run.all());
        assert_eq!(becket.next_reason(), "finished");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn openssl_reads_compressed_certificates_and_ml_dsa() {
    let Some(openssl) = OpenSsl::newer() else {
        return;
    };
    let place = Place::new();
    let names: Vec<String> = (0..20).map(|at| format!("name-{at}.example.org")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.push("www.example.org");
    let backend = Backend::http("well met");
    for (key, signature) in [(Key::Ecdsa, "ecdsa"), (Key::MlDsa, "mldsa65")] {
        place.issue("site.pem", &names, key);
        let becket = Becket::start(&place, &Shape::new(backend.address));
        for (flags, message) in [
            (["-msg", "-tls1_3"], ", CompressedCertificate"),
            (["-msg", "-no_rx_cert_comp"], ", Certificate\n"),
        ] {
            let run = openssl.ask(&place, becket.web, &flags);
            let (code, said) = (run.code, run.all());
            assert_eq!(code, 0, "{said}");
            assert!(
                said.contains("well met") && said.contains("Verification: OK"),
                "{said}"
            );
            let read = said.lines().filter(|line| line.starts_with("<<<"));
            let read: Vec<String> = read.map(|line| format!("{line}\n")).collect();
            assert!(read.iter().any(|line| line.contains(message)), "{said}");
            assert!(
                said.contains(&format!("Peer signature type: {signature}")),
                "{said}"
            );
            assert_eq!(becket.next_access()["version"], "TLSv1.3");
        }
    }
}
