//! Logs: text or JSON, to a file that SIGUSR1 opens again, and nothing a client sends can forge a
//! line.

use std::fs;

use becket_e2e::{
    Backend, Becket, Client, Place, REQUEST, Shape, Signal, Trust, eventually, fresh_address,
    http_get,
};

#[test]
fn after_a_rotation_lines_go_to_the_new_files() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let trust = Trust::new(&place);
    let visit = || {
        Client::connect(becket.web, &trust)
            .unwrap()
            .ask(REQUEST)
            .unwrap()
    };
    visit();
    becket.next_access();
    for name in ["becket.log", "access.log"] {
        fs::rename(place.path(name), place.path(&format!("{name}.1"))).unwrap();
    }
    becket.signal(Signal::USR1);
    eventually("both are there again", || {
        place.path("becket.log").exists() && place.path("access.log").exists()
    });
    visit();
    eventually("a line in the new access log", || {
        becket.access().len() == 1
    });
    let (old, new) = (place.read("access.log.1"), place.read("access.log"));
    assert_eq!((old.lines().count(), new.lines().count()), (1, 1));
    eventually("it says so", || {
        place.read("becket.log").contains("log files reopened")
    });
}

#[test]
fn text_and_json_have_the_same_fields() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let trust = Trust::new(&place);
    let mut lines = Vec::new();
    for format in ["json", "text"] {
        let shape = Shape::new(backend.address);
        let text = shape
            .text()
            .replace("format = \"json\"", &format!("format = {format:?}"));
        place.write("becket.toml", &text);
        let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
        let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
        becket.ready();
        Client::connect(becket.web, &trust)
            .unwrap()
            .ask(REQUEST)
            .unwrap();
        eventually("a line", || place.read("access.log").ends_with('\n'));
        lines.push(place.read("access.log"));
        fs::remove_file(place.path("access.log")).unwrap();
    }
    let json: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    let text = &lines[1];
    for (key, value) in json.as_object().unwrap() {
        if key != "time" {
            assert!(text.contains(&format!(" {key}=")), "{key} in {text}");
        }
        if ["listener", "sni", "version", "suite", "reason"].contains(&key.as_str()) {
            let pair = format!(" {key}={}", value.as_str().unwrap());
            assert!(text.contains(&pair), "{pair} in {text}");
        }
    }
}

#[test]
fn a_clients_words_cannot_forge_a_line() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).listener("alpn = [\"a\"]\nalpn-mismatch = \"refuse\"");
    let becket = Becket::start(&place, &shape);
    // A server name with a line break in it: no client library sends one, so the bytes of a good
    // hello are changed.
    let mut client = Client::begin(becket.web, &Trust::new(&place), "www.example.org").unwrap();
    let mut bytes = Vec::new();
    client.tls.write_tls(&mut bytes).unwrap();
    let at = bytes
        .windows(15)
        .position(|word| word == b"www.example.org")
        .unwrap();
    bytes[at..at + 15].copy_from_slice(b"ww\n{\"forged\":1}");
    std::io::Write::write_all(&mut client.socket, &bytes).unwrap();
    becket_e2e::read_to_end(&mut client.socket).1.ok();
    let line = becket.next_access();
    assert_ne!(line["reason"], "finished");
    for text in [place.read("access.log"), becket.log()] {
        assert!(!text.contains("\n{\"forged"), "{text}");
    }
}

#[test]
fn the_access_log_is_off_by_default_and_flags_turn_it_on() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let trust = Trust::new(&place);
    for flags in [&[][..], &["--access-log", "lines", "--log-format", "json"]] {
        let (web, admin) = (fresh_address(), fresh_address());
        let addresses = [web, backend.address, admin].map(|address| address.to_string());
        let fixed = [
            "run",
            "--frontend",
            &addresses[0],
            "--backend",
            &addresses[1],
        ];
        let rest = ["--admin", &addresses[2], "site.pem"];
        let command = Becket::command(&place, &[&fixed[..], &rest, flags].concat());
        let becket = Becket::spawn(command, place.folder(), web, admin);
        becket.ready();
        Client::connect(web, &trust).unwrap().ask(REQUEST).unwrap();
        if flags.is_empty() {
            becket.idle();
            assert!(http_get(admin, "/metrics").is_ok());
            assert!(
                !becket.log().contains("www.example.org"),
                "{}",
                becket.log()
            );
        } else {
            eventually("a line", || {
                place.read("lines").contains("\"reason\":\"finished\"")
            });
        }
    }
}
