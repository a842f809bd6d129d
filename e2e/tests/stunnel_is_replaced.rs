//! Becket reads stunnel's configuration with the same result as stunnel: as a server, as a client, and with errors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use becket_e2e::{
    Authority, Backend, Becket, Client, Either, Key, OpenSsl, PATIENCE, Place, REQUEST, Shape,
    Signal, Trust, eventually, finish, fresh_address, read_head, skip,
};

use crate::starttls::{MAIL, mail_server};

#[test]
fn clients_see_the_behaviour_of_stunnel_in_both_modes() {
    let (Some(both), Some(openssl)) = (Either::both("stunnel4", "stunnel"), OpenSsl::find()) else {
        return;
    };
    let place = Place::new();
    place.issue("other.pem", &["other.example.org"], Key::Ecdsa);
    place.issue("client.pem", &["client.example.org"], Key::Ecdsa);
    let [first, second] = ["first", "second"].map(Backend::http);
    let client = place.text("client.pem");
    let seen = both.map(|either| {
        let [https, second_port, verified, plain] = [(); 4].map(|()| fresh_address());
        place.write(
            "stunnel.conf",
            &format!(
                "; both programs read this\nforeground = yes\npid =\nsyslog = no\ncert = {}\n\
                 [https]\naccept = {https}\naccept = {second_port}\nconnect = {}\n\
                 [other]\nsni = https:other.example.org\ncert = {}\nconnect = {}\n\
                 [verified]\naccept = {verified}\nconnect = {}\nverifyChain = yes\nCAfile = {}\nsslVersion = TLSv1.2\n\
                 [plain]\nclient = yes\naccept = {plain}\nconnect = {https}\nverifyChain = yes\nCAfile = {}\n\
                 checkHost = other.example.org\nsni = other.example.org\n",
                place.text("site.pem"), first.address, place.text("other.pem"), second.address, first.address,
                place.text("ca.pem"), place.text("ca.pem"),
            ),
        );
        let all = [https, second_port, verified, plain];
        let running = either.start(&place, &["stunnel.conf"], &all);
        let asked: [(_, &[&str]); 7] = [
            (https, &["-servername", "www.example.org"]),
            (second_port, &["-servername", "other.example.org"]),
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
    // Without a client certificate, the rejection may arrive before or after the server's certificate.
    let (them, us) = (theirs.pop().unwrap(), ours.pop().unwrap());
    assert_eq!(them[2..], us[2..]);
    assert!(!us[2]);
    assert_eq!(theirs, ours);
    assert_eq!(ours[1], [false, true, false, true]);
    assert_eq!(ours[2], ours[1]);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn pinned_certificates_and_ca_folders_are_trusted_as_by_stunnel() {
    let (Some(both), Some(openssl)) = (Either::both("stunnel4", "stunnel"), OpenSsl::find()) else {
        return;
    };
    let place = Place::new();
    let alice = place.issue("alice.pem", &["alice"], Key::Ecdsa);
    place.issue("bob.pem", &["bob"], Key::Ecdsa);
    place.write("pins.pem", &alice.certificate);
    for folder in ["cas", "none"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    place.write("cas/ca.pem", place.authority.pem());
    // Both programs ignore a file that is not named by its hash.
    place.write("none/ca.pem", place.authority.pem());
    let rehash = openssl.0.run(["rehash", &place.text("cas")], "");
    assert_eq!(rehash.code, 0, "{}", rehash.all());
    place.write("none/00000000.0", Authority::new("another").pem());
    let backend = Backend::http("well met");
    let seen = both.map(|either| {
        let trusts = ["pinned", "hashed", "other"].map(|name| (name, fresh_address()));
        let service = |(name, at): (&str, SocketAddr)| {
            let trust = match name {
                "pinned" => format!("verifyPeer = yes\nCAfile = {}", place.text("pins.pem")),
                "hashed" => format!("verifyChain = yes\nCApath = {}", place.text("cas")),
                _ => format!("verifyChain = yes\nCApath = {}", place.text("none")),
            };
            format!(
                "[{name}]\naccept = {at}\nconnect = {}\n{trust}\n",
                backend.address
            )
        };
        let services: String = trusts.iter().map(|it| service(*it)).collect();
        let cert = place.text("site.pem");
        let text = format!("foreground = yes\npid =\nsyslog = no\ncert = {cert}\n{services}");
        place.write("stunnel.conf", &text);
        let _running = either.start(&place, &["stunnel.conf"], &trusts.map(|(_, at)| at));
        let is_served = |at, client: &str| {
            let run = openssl.ask(&place, at, &["-cert", &place.text(client)]);
            run.all().contains("well met")
        };
        trusts.map(|(_, at)| ["alice.pem", "bob.pem"].map(|client| is_served(at, client)))
    });
    let expected = [[true, false], [true, true], [false, false]];
    assert_eq!(seen, [expected, expected]);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn servers_are_trusted_by_their_own_certificates_or_by_their_chains() {
    let Some(both) = Either::both("stunnel4", "stunnel") else {
        return;
    };
    let place = Place::new();
    let site = place.read("site.pem");
    let end = site.find("-----BEGIN PRIVATE").unwrap();
    place.write("pins.pem", &site[..end]);
    let other = place.issue("other.pem", &["other.example.org"], Key::Ecdsa);
    place.write("others.pem", &other.certificate);
    place.write("stranger.pem", Authority::new("another").pem());
    let backend = Backend::http("well met");
    // No service can check the certificate's name, because `connect` here is an address.
    let services = [
        ("verifyPeer = yes", "pins.pem", true),
        ("verifyPeer = yes", "others.pem", false),
        ("verifyChain = yes", "ca.pem", true),
        ("verify = 2", "ca.pem", true),
        ("verify = 2", "stranger.pem", false),
        ("verify = 1", "ca.pem", true),
        ("verify = 1", "stranger.pem", false),
    ];
    for either in both {
        let tls = fresh_address();
        let at = services.map(|_| fresh_address());
        let mut text = format!(
            "foreground = yes\npid =\nsyslog = no\n[tls]\naccept = {tls}\nconnect = {}\ncert = {}\n",
            backend.address,
            place.text("site.pem"),
        );
        for ((verify, trusted, _), at) in services.iter().zip(at) {
            let trusted = place.text(trusted);
            text += &format!(
                "[{}]\nclient = yes\naccept = {at}\nconnect = {tls}\n{verify}\nCAfile = {trusted}\n",
                at.port(),
            );
        }
        place.write("stunnel.conf", &text);
        let all: Vec<SocketAddr> = at.into_iter().chain([tls]).collect();
        let _running = either.start(&place, &["stunnel.conf"], &all);
        let answer = |at| {
            let mut client = TcpStream::connect(at).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut answer = Vec::new();
            // Becket may reset a rejected connection before or after the request is sent.
            client.write_all(REQUEST).ok();
            client.read_to_end(&mut answer).ok();
            String::from_utf8_lossy(&answer).into_owned()
        };
        for ((verify, trusted, is_served), at) in services.into_iter().zip(at) {
            let expected = if is_served { "well met" } else { "" };
            let found = answer(at);
            let body = found.rsplit("\r\n").next();
            assert_eq!(
                body,
                Some(expected),
                "{verify} {trusted}, becket: {}",
                either.is_becket()
            );
        }
        if either.is_becket() {
            let said = place.read("becket.log");
            let expected = "certificates of these authorities are accepted with any name";
            assert_eq!(said.matches(expected).count(), 5, "{said}");
        }
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_proxy_header_is_sent_and_a_failed_reload_keeps_the_old_file() {
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
        let running = either.start(&place, &["stunnel.conf"], &[at]);
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
        eventually("the new file is in use", || {
            running.signal(Signal::HUP);
            ask().contains("other.example.org")
        });
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn both_programs_request_tls_of_servers_by_starttls() {
    let Some(both) = Either::both("stunnel4", "stunnel") else {
        return;
    };
    let postgresql = [("postgresql", "")];
    for (protocol, greeting) in MAIL.iter().chain(&postgresql) {
        let place = Place::new();
        let server = mail_server(fresh_address(), greeting);
        let keys = format!("starttls = \"{protocol}\"");
        let becket = Becket::start(&place, &Shape::new(server.address).listener(&keys));
        let theirs = protocol.replace("postgresql", "pgsql");
        for either in &both {
            let at = fresh_address();
            let text = format!(
                "foreground = yes\npid =\nsyslog = no\n[out]\nclient = yes\naccept = {at}\nconnect = {}\nprotocol = {theirs}\n\
                 verifyChain = yes\nCAfile = {}\ncheckHost = www.example.org\n",
                becket.web,
                place.text("ca.pem"),
            );
            place.write("stunnel.conf", &text);
            let _running = either.start(&place, &["stunnel.conf"], &[at]);
            let mut client = TcpStream::connect(at).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut lines = BufReader::new(client.try_clone().unwrap());
            let mut line = String::new();
            if !greeting.is_empty() {
                lines.read_line(&mut line).unwrap();
                assert_eq!(line.get(..3), greeting.get(..3), "{line}");
                line.clear();
            }
            client.write_all(b"well met\r\n").unwrap();
            lines.read_line(&mut line).unwrap();
            assert_eq!(line, "server heard WELL MET\r\n", "{protocol}");
        }
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_that_rejects_starttls_receives_no_data_of_the_client() {
    let place = Place::new();
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let server = Backend::new(move |mut stream| {
        stream.write_all(b"220 mx.example.org\r\n")?;
        let mut lines = BufReader::new(stream.try_clone()?);
        let mut heard = String::new();
        while lines.read_line(&mut heard)? > 0 {
            let answer: &[u8] = if heard.ends_with("STARTTLS\r\n") {
                b"454 not now\r\n"
            } else {
                b"250 fine\r\n"
            };
            stream.write_all(answer)?;
        }
        tell.lock().unwrap().send(heard).ok();
        Ok(())
    });
    let shape = Shape::new(server.address);
    let text = shape.text();
    let text = text.replace(
        "[[backend]]",
        "[[backend]]\ntls = { verify = \"none\", starttls = \"smtp\" }\nretries = 0",
    );
    place.write("becket.toml", &text);
    let checked = finish(
        Becket::command(&place, &["check", "--connect", "--config", "becket.toml"]),
        "",
    );
    assert!(
        checked.all().contains("the server refuses TLS"),
        "{}",
        checked.all()
    );
    assert_eq!(
        told.recv_timeout(PATIENCE).unwrap(),
        "EHLO localhost\r\nSTARTTLS\r\n"
    );
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    let trust = Trust::new(&place);
    let mut client = Client::connect(becket.web, &trust.without_tickets()).unwrap();
    assert!(client.ask(b"secret words\r\n").is_err());
    assert_eq!(
        told.recv_timeout(PATIENCE).unwrap(),
        "EHLO localhost\r\nSTARTTLS\r\n"
    );
    assert_eq!(becket.next_reason(), "server-greeting");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn debians_unit_and_start_script_start_becket_by_its_path_alone() {
    let Some([_, ours]) = Either::both("stunnel4", "stunnel") else {
        return;
    };
    let unit = "/lib/systemd/system/stunnel@.service";
    let (Ok(unit), Ok(script)) = (
        std::fs::read_to_string(unit),
        std::fs::read_to_string("/etc/init.d/stunnel4"),
    ) else {
        return skip("needs Debian's unit and start script of stunnel4");
    };
    // Both pass only the path of the file. The program goes into the background and writes its process ID to `pid`.
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/stunnel4 "));
    assert_eq!(line, Some("/etc/stunnel/%i.conf"));
    assert!(script.contains("args=\"$file $OPTIONS\""), "{script}");
    let place = Place::new();
    let (at, backend) = (fresh_address(), Backend::http("well met"));
    place.write(
        "stunnel.conf",
        &format!(
            "pid = {}\nsyslog = no\n[x]\naccept = {at}\nconnect = {}\ncert = {}\n",
            place.text("stunnel.pid"),
            backend.address,
            place.text("site.pem"),
        ),
    );
    let run = ours.run(&place, &[&place.text("stunnel.conf")]);
    assert_eq!(run.code, 0, "{}", run.all());
    let number = place.read("stunnel.pid").trim().to_owned();
    assert!(TcpStream::connect(at).is_ok(), "becket accepts connections");
    let ended = std::process::Command::new("kill").arg(&number).status();
    assert!(ended.unwrap().success());
    eventually("the file with the process ID is removed", || {
        !place.path("stunnel.pid").exists()
    });
}
