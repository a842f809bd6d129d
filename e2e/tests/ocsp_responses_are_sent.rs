//! Hitch, and becket as its replacement, send an OCSP response from a file to clients that request one.

use std::net::SocketAddr;

use becket_e2e::{
    Backend, Either, Key, OpenSsl, Place, Signal, as_nobody, eventually, fresh_address,
};

/// Creates a file with an OCSP response that `site.pem` is good, signed with `other.pem` as the responder's certificate.
fn respond(openssl: &OpenSsl, place: &Place) -> String {
    place.issue("other.pem", &["other.example.org"], Key::Ecdsa);
    let bundle = place.authority.issue_numbered(&["www.example.org"], 0xabcd);
    place.write("site.pem", &(bundle.pem() + place.authority.pem()));
    let line = "V\t991231235959Z\t\tABCD\tunknown\t/CN=www.example.org\n";
    place.write("index.txt", line);
    let [index, ca, site, responder, response] =
        ["index.txt", "ca.pem", "site.pem", "other.pem", "site.ocsp"].map(|name| place.text(name));
    let of_files = [
        "ocsp", "-index", &index, "-CA", &ca, "-issuer", &ca, "-cert", &site,
    ];
    let others = [
        "-rsigner",
        &responder,
        "-ndays",
        "2",
        "-noverify",
        "-respout",
        &response,
    ];
    let made = openssl.0.run([&of_files[..], &others].concat(), "");
    assert_eq!(made.code, 0, "{}", made.all());
    response
}

fn configuration(at: SocketAddr, backend: SocketAddr, cert: &str, ocsp: &str) -> String {
    format!(
        "frontend = \"[{}]:{}\"\nbackend = \"[{}]:{}\"\npem-file = {{ cert = \"{cert}\" {ocsp} }}\n",
        at.ip(),
        at.port(),
        backend.ip(),
        backend.port(),
    )
}

#[test]
#[ignore = "slow: .ci/run test"]
fn hitch_and_becket_staple_the_response_and_reject_one_for_another_certificate() {
    let (Some(both), Some(openssl)) = (Either::both("hitch", "hitch"), OpenSsl::find()) else {
        return;
    };
    let place = Place::new();
    let response = format!("ocsp-resp-file = {:?}", respond(&openssl, &place));
    let [site, other] = ["site.pem", "other.pem"].map(|name| place.text(name));
    let backend = Backend::http("well met");
    let user = as_nobody(&place);
    for either in both {
        let at = fresh_address();
        let write = |cert: &str, ocsp: &str| {
            place.write(
                "hitch.conf",
                &configuration(at, backend.address, cert, ocsp),
            );
        };
        write(&site, &response);
        let line = [&["--config", "hitch.conf"], user].concat();
        let running = either.start(&place, &line, &[at]);
        let ask = || openssl.ask_unnamed(&place, at, &["-status"]).all();
        let all = ask();
        assert!(all.contains("OCSP Response Status: successful"), "{all}");
        assert!(all.contains("Serial Number: ABCD"), "{all}");
        write(&site, "");
        eventually("a reload without one sends none", || {
            running.signal(Signal::HUP);
            ask().contains("OCSP response: no response sent")
        });
        write(&other, &response);
        let tested = either.run(&place, &[&["-t"], &line[..]].concat());
        assert_eq!(tested.code, 1, "{}", tested.all());
    }
}
