//! Becket interprets a hitch configuration as hitch does: clients, servers and start scripts see no difference except documented ones.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use becket_e2e::{
    Backend, Either, Key, OpenSsl, PATIENCE, Place, Signal, as_nobody, eventually, fresh_address,
    skip,
};

/// Starts a server that reports the first line of each connection, and answers.
fn first_lines() -> (Backend, Receiver<String>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = Backend::new(move |stream| {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        tell.lock().unwrap().send(line).ok();
        let mut stream = stream;
        let mut request = String::new();
        reader.read_line(&mut request)?;
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nwell met")
    });
    (backend, told)
}

/// Returns the lines of openssl's output that must be equal for both programs.
fn facts(openssl: &OpenSsl, place: &Place, at: SocketAddr, flags: &[&str]) -> Vec<String> {
    let run = openssl.ask_unnamed(place, at, flags);
    let all = run.all();
    let told = [
        "subject=",
        "ALPN protocol",
        "No ALPN",
        "New, ",
        "well met",
        "alert number",
    ];
    let lines = all
        .lines()
        .filter(|line| told.iter().any(|told| line.contains(told)));
    // Remove the cipher suite, which is the server's choice.
    let mut facts: Vec<String> = lines
        .map(|line| line.split(", Cipher").next().unwrap_or_default().to_owned())
        .collect();
    facts.retain(|line| !line.contains("(NONE)"));
    // Remove the process ID at the start of an alert's message.
    for fact in &mut facts {
        if let Some((_, alert)) = fact.rsplit_once("SSL alert number") {
            *fact = format!("alert{alert}");
        }
    }
    facts
}

fn place() -> Place {
    let place = Place::new();
    place.issue("other.pem", &["other.example.org"], Key::Ecdsa);
    place.issue("wild.pem", &["*.wild.example.org"], Key::Rsa);
    place.issue("client.pem", &["client"], Key::Ecdsa);
    place
}

/// Returns the settings for the addresses of the frontend and the backend.
fn ends(at: SocketAddr, backend: &Backend) -> String {
    let to = backend.address;
    format!(
        "frontend = \"[{}]:{}\"\nbackend = \"[{}]:{}\"\n",
        at.ip(),
        at.port(),
        to.ip(),
        to.port()
    )
}

#[test]
fn clients_and_servers_see_the_same_behaviour_as_with_hitch() {
    let (Some(both), Some(openssl)) = (Either::both("hitch", "hitch"), OpenSsl::find()) else {
        return;
    };
    let place = place();
    let (backend, lines) = first_lines();
    place.write(
        "hitch.conf",
        &format!(
            "backend = \"[{}]:{}\"\npem-file = \"{}\"\npem-file = \"{}\"\npem-file = \"{}\"\n\
             alpn-protos = \"h2, http/1.1\"\nwrite-proxy-v1 = on\nsni-nomatch-abort = off\n",
            backend.address.ip(),
            backend.address.port(),
            place.text("site.pem"),
            place.text("wild.pem"),
            place.text("other.pem"),
        ),
    );
    let user = as_nobody(&place);
    let seen = both.map(|either| {
        let at = fresh_address();
        let frontend = format!("[{}]:{}", at.ip(), at.port());
        let line = [&["--config", "hitch.conf", "-f", &frontend], user].concat();
        let running = either.start(&place, &line, &[at]);
        let seen = ASKED.map(|flags| facts(&openssl, &place, at, flags));
        let headers: Vec<String> = seen
            .iter()
            .filter(|facts| facts.iter().any(|fact| fact.contains("well met")))
            .map(|_| {
                let line = lines.recv_timeout(PATIENCE).unwrap();
                let words: Vec<&str> = line.split(' ').collect();
                assert_eq!(
                    words.get(5),
                    Some(&&*format!("{}\r\n", at.port())),
                    "{line}"
                );
                words[..3].join(" ")
            })
            .collect();
        // If no protocol matches, hitch closes the connection after the handshake, and becket aborts the handshake.
        let flags = ["-noservername", "-alpn", "spdy"];
        let other = facts(&openssl, &place, at, &flags);
        assert!(
            !other.iter().any(|fact| fact.contains("well met")),
            "{other:?}"
        );
        assert!(
            !either.is_becket() || other.contains(&"alert 120".to_owned()),
            "{other:?}"
        );
        assert_eq!(running.end(Signal::TERM), Some(0));
        (seen, headers)
    });
    let [theirs, ours] = &seen;
    assert_eq!(theirs, ours);
    assert!(
        ours.0[1]
            .iter()
            .any(|fact| fact.contains("ALPN protocol: h2")),
        "{ours:?}"
    );
    assert!(
        ours.0[5]
            .iter()
            .any(|fact| fact.contains("other.example.org")),
        "{ours:?}"
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn clients_are_verified_as_by_hitch_and_unknown_names_rejected() {
    let (Some(both), Some(openssl)) = (Either::both("hitch", "hitch"), OpenSsl::find()) else {
        return;
    };
    let place = place();
    let (backend, _lines) = first_lines();
    let [own, ca, client] = ["site.pem", "ca.pem", "client.pem"].map(|name| place.text(name));
    let user = as_nobody(&place);
    let seen = both.map(|either| {
        let at = fresh_address();
        place.write(
            "hitch.conf",
            &format!(
                "frontend = {{\n host = \"{}\"\n port = \"{}\"\n pem-file = {{ cert = \"{own}\" private-key = \"{own}\" }}\n \
                 sni-nomatch-abort = on\n tls-protos = TLSv1.2\n ciphers = \"ECDHE+CHACHA20\"\n client-verify = required\n \
                 client-verify-ca = \"{ca}\"\n}}\nbackend = \"[{}]:{}\"\n",
                at.ip(), at.port(), backend.address.ip(), backend.address.port(),
            ),
        );
        let line = [&["--config", "hitch.conf"], user].concat();
        let _running = either.start(&place, &line, &[at]);
        let asked: [&[&str]; 4] = [
            &["-servername", "www.example.org", "-cert", &client],
            &["-servername", "www.example.org", "-tls1_3", "-cert", &client],
            &["-servername", "nobody.example.com", "-cert", &client],
            &["-servername", "www.example.org", "-tls1_2", "-cipher", "ECDHE+AESGCM", "-cert", &client],
        ];
        let unverified = openssl.ask_unnamed(&place, at, &["-servername", "www.example.org"]);
        assert!(!unverified.stdout.contains("well met"), "{}", unverified.all());
        asked.map(|flags| facts(&openssl, &place, at, flags))
    });
    let [theirs, ours] = &seen;
    assert_eq!(theirs, ours);
    assert!(
        ours[0].iter().any(|fact| fact.contains("well met")),
        "{ours:?}"
    );
    assert!(
        ours[2].contains(&"alert 112".to_owned()),
        "unrecognized_name: {ours:?}"
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_first_file_of_a_folder_is_the_default_certificate() {
    let (Some(both), Some(openssl)) = (Either::both("hitch", "hitch"), OpenSsl::find()) else {
        return;
    };
    let place = Place::new();
    std::fs::create_dir(place.path("certs")).unwrap();
    for (file, name) in [("B", "b"), ("Z", "z"), ("a", "a")] {
        let name = format!("{name}.example.org");
        place.issue(&format!("certs/{file}.pem"), &[&name], Key::Ecdsa);
    }
    let backend = Backend::http("well met");
    let user = as_nobody(&place);
    let open = Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path("certs"), open).unwrap();
    let seen = both.map(|either| {
        let at = fresh_address();
        place.write(
            "hitch.conf",
            &format!(
                "{}pem-dir = \"{}\"\n",
                ends(at, &backend),
                place.text("certs"),
            ),
        );
        let line = [&["--config", "hitch.conf"], user].concat();
        let _running = either.start(&place, &line, &[at]);
        let asked: [&[&str]; 3] = [
            &["-noservername"],
            &["-servername", "nobody.example.com"],
            &["-servername", "z.example.org"],
        ];
        asked.map(|flags| facts(&openssl, &place, at, flags))
    });
    let [theirs, ours] = &seen;
    assert_eq!(theirs, ours);
    let is_of = |facts: &[String], name: &str| facts.iter().any(|fact| fact.contains(name));
    assert!(is_of(&ours[0], "b.example.org"), "{ours:?}");
    assert!(is_of(&ours[2], "z.example.org"), "{ours:?}");
}

/// Tests becket only, because Debian's hitch is older than version 1.8, which introduced this setting.
#[test]
#[ignore = "slow: .ci/run test"]
fn each_certificate_can_have_its_own_rule_for_client_certificates() {
    let (Some([_, ours]), Some(openssl)) = (Either::both("hitch", "hitch"), OpenSsl::find()) else {
        return;
    };
    let place = place();
    let backend = Backend::http("well met");
    let user = as_nobody(&place);
    let at = fresh_address();
    let [site, other, ca] = ["site.pem", "other.pem", "ca.pem"].map(|name| place.text(name));
    place.write(
        "hitch.conf",
        &format!(
            "{}pem-file = \"{site}\"\n\
             pem-file = {{ cert = \"{other}\" client-verify = required client-verify-ca = \"{ca}\" }}\n", ends(at, &backend),
        ),
    );
    let line = [&["--config", "hitch.conf"], user].concat();
    let test = ours.run(&place, &[&["-t"], &line[..]].concat());
    assert_eq!(test.code, 0, "{}", test.all());
    let running = ours.start(&place, &line, &[at]);
    let shown = place.text("client.pem");
    let is_served = |flags: &[&str]| {
        openssl
            .ask_unnamed(&place, at, flags)
            .all()
            .contains("well met")
    };
    let with = ["-cert", &shown];
    for (flags, is_open) in [
        (["-servername", "www.example.org"], true),
        (["-servername", "other.example.org"], false),
        // The last certificate is the default, and its rule applies to unknown names.
        (["-servername", "nobody.example.com"], false),
    ] {
        assert_eq!(is_served(&flags), is_open, "{flags:?}");
        assert!(is_served(&[flags, with].concat()), "{flags:?}");
    }
    assert_eq!(running.end(Signal::TERM), Some(0));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_test_option_and_the_start_agree() {
    let Some([_, ours]) = Either::both("hitch", "hitch") else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("needs root, which starts hitch as another user");
    }
    let place = place();
    let (at, backend) = (fresh_address(), Backend::http("well met"));
    let text = format!(
        "{}pem-file = \"{}\"\n",
        ends(at, &backend),
        place.text("site.pem"),
    );
    as_nobody(&place);
    // Only root and its owner may enter this folder.
    std::fs::create_dir(place.path("private")).unwrap();
    std::fs::set_permissions(place.path("private"), Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(place.path("private"), Some(12_345), None).unwrap();
    let log = format!(
        "user = \"nobody\"\nlog-filename = \"{}\"\n",
        place.text("private/log")
    );
    for (more, said) in [
        ("", "Refusing to run workers as root"),
        (
            "user = \"root\"\ngroup = \"nogroup\"\n",
            "root keeps its own group",
        ),
        (&*log, "log-filename"),
    ] {
        place.write("hitch.conf", &format!("{text}{more}"));
        for line in [
            &["-t", "--config", "hitch.conf"][..],
            &["--config", "hitch.conf"],
        ] {
            let run = ours.run(&place, line);
            assert_eq!(run.code, 1, "{more}{line:?}: {}", run.all());
            let is_said = run.stderr.contains(said) || line[0] != "-t";
            assert!(is_said, "{more}: {}", run.stderr);
        }
    }
    // As hitch, becket serves as root with this option, but prints a warning.
    place.write("hitch.conf", &text);
    let line = ["--config", "hitch.conf", "--user=root"];
    let warning = "--user = \"root\": becket keeps all rights of root";
    let test = ours.run(&place, &[&["-t"], &line[..]].concat());
    assert_eq!(test.code, 0, "{}", test.all());
    assert!(test.stderr.contains(warning), "{}", test.stderr);
    let running = ours.start(&place, &line, &[at]);
    assert_eq!(running.end(Signal::TERM), Some(0));
    let said = place.read("becket.log");
    assert!(said.contains(warning), "{said}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_command_of_debians_unit_works_with_the_path_of_becket() {
    let Some([_, ours]) = Either::both("hitch", "hitch") else {
        return;
    };
    let Ok(unit) = std::fs::read_to_string("/lib/systemd/system/hitch.service") else {
        return skip("needs Debian's hitch.service");
    };
    let place = place();
    place.write(
        "hitch.conf",
        &format!("pem-file = \"{}\"\n", place.text("site.pem")),
    );
    as_nobody(&place);
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/sbin/hitch "))
        .unwrap();
    let own = place.text("hitch.conf");
    let words: Vec<&str> = line
        .split(' ')
        .map(|word| if word.ends_with(".conf") { &own } else { word })
        .collect();
    let run = ours.run(&place, &[&words[..], &["-t"]].concat());
    assert_eq!(run.code, 0, "{}", run.all());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_link_called_hitch_runs_in_the_background_and_writes_a_pid_file() {
    let place = place();
    let (at, backend) = (fresh_address(), Backend::http("well met"));
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    place.write(
        "hitch.conf",
        &format!(
            "{}pem-file = \"site.pem\"\ndaemon = on\npidfile = \"hitch.pid\"\n",
            ends(at, &backend),
        ),
    );
    let user = as_nobody(&place);
    std::os::unix::fs::symlink(becket_e2e::becket_program(), place.path("hitch")).unwrap();
    let mut command = std::process::Command::new(place.path("hitch"));
    command
        .args(["--config", "hitch.conf"])
        .args(user)
        .current_dir(place.folder());
    let run = becket_e2e::finish(command, "");
    assert_eq!(run.code, 0, "{}", run.all());
    // The background process serves already.
    let pid: u32 = place.read("hitch.pid").trim().parse().unwrap();
    let run = openssl.ask(&place, at, &[]);
    assert!(run.stdout.contains("well met"), "{}", run.all());
    let signal = |name: &str| {
        std::process::Command::new("kill")
            .args([name, &pid.to_string()])
            .status()
            .unwrap()
    };
    assert!(signal("-TERM").success());
    eventually("the file with the process ID is removed", || {
        !place.path("hitch.pid").exists()
    });
    place.write("hitch.conf", "pem-file = \"none.pem\"\ndaemon = on\n");
    let mut command = std::process::Command::new(place.path("hitch"));
    command
        .args(["--config", "hitch.conf"])
        .args(user)
        .current_dir(place.folder());
    let run = becket_e2e::finish(command, "");
    assert_eq!(run.code, 1, "{}", run.all());
    assert!(
        run.stderr.contains("hitch.conf:1: error: pem-file"),
        "{}",
        run.stderr
    );
}

/// Flags of openssl for each request.
const ASKED: [&[&str]; 8] = [
    &["-servername", "www.example.org", "-tls1_2"],
    &[
        "-servername",
        "www.example.org",
        "-tls1_3",
        "-alpn",
        "http/1.1,h2",
    ],
    &["-servername", "a.wild.example.org", "-alpn", "h2"],
    &["-servername", "other.example.org", "-tls1_3"],
    &["-servername", "nobody.example.com"],
    &["-noservername"],
    &["-servername", "www.example.org", "-tls1_1"],
    &[
        "-servername",
        "www.example.org",
        "-tls1_2",
        "-cipher",
        "AES128-SHA",
    ],
];
