//! Every file in `examples/` passes `becket check`, starts and serves.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use becket_e2e::{
    Backend, Becket, Client, Key, Place, SoftToken, Tool, Trust, finish, fresh_address, fresh_host,
};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// Creates the files that the examples expect in `certs/` and `www/`.
pub(crate) fn furnish(place: &Place) {
    fs::create_dir_all(place.path("certs/names")).unwrap();
    let issue = |file: &str, names: &[&str], key| {
        place.issue(&format!("certs/{file}"), names, key);
    };
    let site = ["www.example.org", "internal.example.org"];
    issue("site.pem", &site, Key::Ecdsa);
    issue("mail.pem", &["mail.example.org"], Key::Ecdsa);
    issue(
        "names/api.pem",
        &["api.example.org", "*.api.example.org"],
        Key::Ecdsa,
    );
    issue("names/www.pem", &["www.example.org"], Key::Ecdsa);
    issue("default-ecdsa.pem", &["example.org"], Key::Ecdsa);
    let certs = place.path("certs");
    let rsa = place.authority.issue(&["example.org"], Key::Rsa);
    rsa.write_pair(&certs, "default-rsa");
    let pair = place.authority.issue(&["pair.example.org"], Key::Rsa);
    pair.write_pair(&certs, "pair");
    fs::copy(place.path("ca.pem"), certs.join("clients-ca.pem")).unwrap();
    fs::create_dir_all(place.path("www")).unwrap();
    place.write(
        "www/index.html",
        "<!doctype html><title>Becket</title><p>It works.",
    );
    let secret = Becket::command(place, &["secret", "certs/cluster.secret"]);
    assert_eq!(finish(secret, "").code, 0);
}

/// Returns the text of an example with local paths, with a token if its key is on one, and without an authority that exists.
/// Returns `None` without SoftHSM2.
fn placed(place: &Place, name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(EXAMPLES).join(name)).unwrap();
    if name == "acme.toml" {
        let nowhere = "[acme]\nauthority = [\"https://127.0.0.1:1/\"]\nfolder = \"acme\"";
        return Some(text.replace("[acme]", nowhere));
    }
    if name != "pkcs11.toml" {
        return Some(text);
    }
    let token = SoftToken::new(place)?;
    token.import("site", &place.path("certs/pair.key"));
    let module = token.module().to_str().unwrap();
    let text = text.replace("/usr/lib/softhsm/libsofthsm2.so", module);
    Some(text.replace("/etc/becket/token.pin", &place.text("pin")))
}

/// Returns a becket command with access to the token of its place.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Becket::command(place, arguments);
    command.env("SOFTHSM2_CONF", place.path("softhsm2.conf"));
    command
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_script_named_in_the_readme_creates_all_files_for_the_examples() {
    if Tool::find("openssl").is_none() {
        return;
    }
    let place = Place::new();
    let files: Vec<String> = fs::read_dir(EXAMPLES)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    for name in &files {
        fs::copy(Path::new(EXAMPLES).join(name), place.path(name)).unwrap();
    }
    let made = finish(Command::new(place.path("certificates")), "");
    assert_eq!(made.code, 0, "{}", made.all());
    for name in files.iter().filter(|name| name.ends_with(".toml")) {
        let Some(text) = placed(&place, name) else {
            continue;
        };
        place.write(name, &text);
        let found = finish(command(&place, &["check", "--config", name]), "");
        assert_eq!(found.code, 0, "{name}: {}", found.all());
    }
}

/// Replaces 127.0.0.1 by another host. Ports stay unchanged.
pub(crate) fn moved(text: &str, host: Ipv4Addr) -> String {
    text.replace("127.0.0.1", &host.to_string())
}

/// Returns the requests to test: port, server name, and the port of the expected backend.
fn visits(example: &str) -> &'static [(u16, &'static str, u16)] {
    match example {
        "many-names.toml" => &[
            (8443, "www.example.org", 8080),
            (8443, "api.example.org", 8082),
            (8443, "v1.api.example.org", 8082),
        ],
        "pkcs11.toml" => &[(8443, "pair.example.org", 8080)],
        "mtls.toml" => &[
            (8443, "www.example.org", 8080),
            (8443, "internal.example.org", 8081),
        ],
        // `examples_are_visited.rs` tests these with their special clients.
        "acme.toml"
        | "client.toml"
        | "postgresql.toml"
        | "farm.toml"
        | "farm-member.toml"
        | "files.toml"
        | "behind-a-proxy.toml" => &[],
        "mail.toml" => &[
            (8993, "mail.example.org", 8143),
            (8465, "mail.example.org", 8025),
        ],
        _ => &[(8443, "www.example.org", 8080)],
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn every_example_passes_the_check_and_serves() {
    let files = fs::read_dir(EXAMPLES)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let place = Place::new();
        furnish(&place);
        let host = fresh_host();
        let Some(text) = placed(&place, &name) else {
            continue;
        };
        place.write("becket.toml", &moved(&text, host));

        let check = command(&place, &["check", "--config", "becket.toml"]);
        let found = finish(check, "");
        assert_eq!(found.code, 0, "{name}: {}", found.all());

        let backends: Vec<Backend> = [8080, 8081, 8082, 8143, 8025]
            .map(|port| {
                Backend::at(SocketAddr::from((host, port)), move |mut stream| {
                    // Read to the end of the stream, with or without a PROXY header.
                    let mut byte = [0];
                    while std::io::Read::read(&mut stream, &mut byte)? > 0 {}
                    std::io::Write::write_all(&mut stream, format!("port {port}").as_bytes())
                })
            })
            .into();
        let admin = fresh_address();
        let flags = ["--admin", &admin.to_string(), "--workers", "1"];
        let run = ["run", "--config", "becket.toml"];
        let command = command(&place, &[&run[..], &flags].concat());
        let web = SocketAddr::from((host, 8443));
        let becket = Becket::spawn(command, place.folder(), web, admin);
        becket.ready();
        let own = place.authority.issue(&["alice"], Key::Ecdsa);
        let trust = Trust::with(&place, rustls::ALL_VERSIONS, Some(&own));
        for (port, name, server) in visits(&name) {
            let at = SocketAddr::from((host, *port));
            let mut client = Client::connect_as(at, &trust, name).unwrap();
            client.close_notify().unwrap();
            let (answer, end) = becket_e2e::read_to_end(&mut client);
            end.unwrap();
            let answer = String::from_utf8_lossy(&answer);
            assert_eq!(answer, format!("port {server}"), "{name}");
        }
        drop(backends);
    }
}
