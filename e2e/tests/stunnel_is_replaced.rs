//! A file of stunnel means the same to becket, in server mode, in client mode, and where it is broken.

use std::io::{Read, Write};
use std::net::TcpStream;

use becket_e2e::{
    Backend, Either, Key, OpenSsl, PATIENCE, Place, REQUEST, Signal, eventually, fresh_address,
    read_head,
};

#[test]
fn clients_see_the_same_in_both_modes() {
    let (Some(both), Some(openssl)) = (Either::both("stunnel4", "stunnel"), OpenSsl::find()) else {
        return;
    };
    let place = Place::new();
    place.issue("other.pem", &["other.example.org"], Key::Ecdsa);
    place.issue("client.pem", &["client.example.org"], Key::Ecdsa);
    let [first, second] = ["first", "second"].map(Backend::http);
    let client = place.text("client.pem");
    let seen = both.map(|either| {
        let [https, verified, plain] = [fresh_address(), fresh_address(), fresh_address()];
        place.write(
            "stunnel.conf",
            &format!(
                "; both programs read this\nforeground = yes\npid =\nsyslog = no\ncert = {}\n\
                 [https]\naccept = {https}\nconnect = {}\n\
                 [other]\nsni = https:other.example.org\ncert = {}\nconnect = {}\n\
                 [verified]\naccept = {verified}\nconnect = {}\nverifyChain = yes\nCAfile = {}\nsslVersion = TLSv1.2\n\
                 [plain]\nclient = yes\naccept = {plain}\nconnect = {https}\nverifyChain = yes\nCAfile = {}\n\
                 checkHost = other.example.org\nsni = other.example.org\n",
                place.text("site.pem"), first.address, place.text("other.pem"), second.address, first.address,
                place.text("ca.pem"), place.text("ca.pem"),
            ),
        );
        let running = either.start(&place, &["stunnel.conf"], https);
        let asked: [(_, &[&str]); 6] = [
            (https, &["-servername", "www.example.org"]),
            (https, &["-servername", "other.example.org"]),
            (https, &["-noservername", "-tls1_2"]),
            (verified, &["-servername", "www.example.org", "-cert", &client]),
            (verified, &["-servername", "www.example.org", "-tls1_3", "-cert", &client]),
            (verified, &["-servername", "www.example.org"]),
        ];
        let mut seen: Vec<Vec<bool>> = Vec::new();
        for (at, flags) in asked {
            let all = openssl.ask_unnamed(&place, at, flags).all();
            let told = ["CN = www.example.org", "CN = other.example.org", "first", "second"];
            seen.push(told.iter().map(|told| all.contains(told)).collect());
        }
        let mut client = TcpStream::connect(plain).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(REQUEST).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("second"), "{answer}");
        assert_eq!(running.end(Signal::TERM), Some(0));
        seen
    });
    let [mut theirs, mut ours] = seen;
    // A client that shows no certificate: the subject of the server is seen before or after it is refused.
    let (them, us) = (theirs.pop().unwrap(), ours.pop().unwrap());
    assert_eq!(them[2..], us[2..]);
    assert!(!us[2]);
    assert_eq!(theirs, ours);
    assert_eq!(ours[1], [false, true, false, true]);
}

#[test]
fn a_proxy_header_is_sent_and_a_reload_keeps_what_is_good() {
    let (Some(both), Some(openssl)) = (Either::both("stunnel4", "stunnel"), OpenSsl::find()) else {
        return;
    };
    let place = Place::new();
    place.issue("other.pem", &["other.example.org"], Key::Ecdsa);
    let backend = Backend::new(|mut stream| {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.extend(byte);
        }
        read_head(&mut stream)?;
        stream.write_all(&line)
    });
    for either in both {
        let at = fresh_address();
        let text = |cert: &str, more: &str| {
            format!(
                "foreground = yes\npid =\n[x]\naccept = {at}\nconnect = {}\ncert = {}\nprotocol = proxy\n{more}",
                backend.address,
                place.text(cert)
            )
        };
        place.write("stunnel.conf", &text("site.pem", ""));
        let running = either.start(&place, &["stunnel.conf"], at);
        let ask = || openssl.ask_unnamed(&place, at, &["-noservername"]).all();
        let all = ask();
        assert!(
            all.contains("PROXY TCP4 127.0.0.1 ") && all.contains("www.example.org"),
            "{all}"
        );
        place.write("stunnel.conf", &text("other.pem", "nonsense = 1\n"));
        running.signal(Signal::HUP);
        assert!(ask().contains("www.example.org"));
        place.write("stunnel.conf", &text("other.pem", ""));
        eventually("the new file counts", || {
            running.signal(Signal::HUP);
            ask().contains("other.example.org")
        });
    }
}

#[test]
fn what_is_broken_ends_alike() {
    let Some([theirs, ours]) = Either::both("stunnel4", "stunnel") else {
        return;
    };
    let place = Place::new();
    let pem = place.text("site.pem");
    for text in [
        "cert = PEM\n[x]\naccept = 1\nconnect = 80\nfoo = 1\n",
        "cert = PEM\n[x]\naccept = 1\n",
        "[x]\naccept = 1\nconnect = 80\n",
        "cert = PEM\n[x]\naccept = 1\nconnect = 80\nretry = maybe\n",
        "cert = PEM\n[x]\naccept = 1\nconnect = 80\nciphers = NONSENSE\n",
        "cert = PEM\n[x]\naccept = 1\nconnect = 80\nsslVersion = TLSv1.4\n",
        "cert = PEM\n[x\naccept = 1\n",
        "cert = /nowhere/site.pem\n[x]\naccept = 1\nconnect = 80\n",
    ] {
        place.write(
            "stunnel.conf",
            &format!("foreground = yes\npid =\n{}", text.replace("PEM", &pem)),
        );
        let [one, other] = [&theirs, &ours].map(|either| either.run(&place, &["stunnel.conf"]));
        assert_eq!((one.code, other.code), (1, 1), "{text}: {}", other.all());
        assert!(
            other.stderr.contains("stunnel.conf: "),
            "{text}: {}",
            other.stderr
        );
    }
    assert_eq!(
        theirs.run(&place, &["none.conf"]).code,
        ours.run(&place, &["none.conf"]).code
    );
}
