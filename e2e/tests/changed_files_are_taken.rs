//! Changed certificate files are loaded automatically, completely or not at all.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Bundle, Client, Key, Place, REQUEST, Shape, Trust, eventually,
    fresh_host, http_get, nobody, now, until,
};
use rustls::client::Resumption;

const NAME: &str = "www.example.org";

/// Client that reads becket's certificate.
struct Visitor<'a> {
    becket: &'a Becket,
    trust: Trust,
}

impl<'a> Visitor<'a> {
    fn of(place: &Place, becket: &'a Becket) -> Self {
        let trust = Trust::new(place);
        let trust = trust.changed(|config| config.resumption = Resumption::disabled());
        Self { becket, trust }
    }

    /// Returns the certificate for a name in DER; empty if the handshake fails.
    fn shown(&self, name: &str) -> Vec<u8> {
        let client = Client::connect_as(self.becket.web, &self.trust, name);
        let shown = client.map(|client| client.tls.peer_certificates().unwrap()[0].to_vec());
        shown.unwrap_or_default()
    }

    #[track_caller]
    fn awaits(&self, bundle: &Bundle) {
        self.awaits_for(NAME, bundle);
    }

    #[track_caller]
    fn awaits_for(&self, name: &str, bundle: &Bundle) {
        let wanted = der(bundle);
        eventually("the new certificate is served", || {
            self.shown(name) == wanted
        });
    }
}

fn der(bundle: &Bundle) -> Vec<u8> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    CertificateDer::from_pem_slice(bundle.certificate.as_bytes())
        .unwrap()
        .to_vec()
}

fn rejected(becket: &Becket) -> Vec<String> {
    let status = becket.status();
    let listed = status["watch"]["rejected"].as_array().unwrap().iter();
    listed.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// Replaces a link atomically, by a rename.
fn relink(place: &Place, target: &str, link: &str) {
    symlink(target, place.path("new-link")).unwrap();
    fs::rename(place.path("new-link"), place.path(link)).unwrap();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn links_of_certbot_are_followed_and_an_incomplete_renewal_is_rejected() {
    let place = Place::new();
    let backend = Backend::http("well met");
    for folder in ["archive", "live"] {
        fs::create_dir(place.path(folder)).unwrap();
    }
    let renew = |number: u32| {
        let bundle = place.authority.issue(&[NAME], Key::Ecdsa);
        place.write(
            &format!("archive/fullchain{number}.pem"),
            &bundle.certificate,
        );
        place.write(&format!("archive/privkey{number}.pem"), &bundle.key);
        bundle
    };
    let link = |name: &str, number: u32| {
        let target = format!("../archive/{name}{number}.pem");
        relink(&place, &target, &format!("live/{name}.pem"));
    };
    let first = renew(1);
    link("fullchain", 1);
    link("privkey", 1);
    let shape = Shape::new(backend.address).certificates("[\"live\"]");
    let becket = Becket::start(&place, &shape);
    let visitor = Visitor::of(&place, &becket);
    assert_eq!(visitor.shown(NAME), der(&first));
    let second = renew(2);
    link("fullchain", 2);
    eventually("the incomplete renewal is rejected", || {
        rejected(&becket).len() == 1
    });
    assert!(rejected(&becket)[0].contains("belongs to another certificate"));
    assert_eq!(visitor.shown(NAME), der(&first));
    becket.says("changed file rejected: ");
    let metrics = becket.metrics();
    assert_eq!(metrics.sum("becket_watch_rejected", &[]), 1.0);
    assert!(metrics.sum("becket_watch_failures_total", &[]) >= 1.0);
    link("privkey", 2);
    visitor.awaits(&second);
    becket.says(&format!("\"files\":{:?}", place.path("live/fullchain.pem")));
    becket.says("file is valid again and in use");
    eventually("no file is rejected", || rejected(&becket).is_empty());
    // The new targets of the links are watched as well.
    let third = place.authority.issue(&[NAME], Key::Ecdsa);
    place.write("archive/fullchain2.pem", &third.certificate);
    place.write("archive/privkey2.pem", &third.key);
    visitor.awaits(&third);
}

/// A volume of Kubernetes: files are links through `..data`, which is replaced atomically.
#[test]
#[ignore = "slow: .ci/run test"]
fn a_changed_volume_reloads_the_configuration_whole_or_not_at_all() {
    let place = Place::new();
    let [first, second] = ["one", "two"].map(Backend::http);
    place.issue("site.pem", &[NAME], Key::Ecdsa);
    let certificate = format!("[{:?}]", place.text("site.pem"));
    let shape = Shape::new(first.address).certificates(&certificate);
    let started = shape.process("watch-config = true");
    let volume = |name: &str, text: &str| {
        fs::create_dir(place.path(name)).unwrap();
        place.write(&format!("{name}/becket.toml"), text);
        relink(&place, name, "..data");
    };
    volume("..1", &started.text());
    symlink("..data/becket.toml", place.path("becket.toml")).unwrap();
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), started.web, started.admin);
    becket.ready();
    let trust = Trust::new(&place);
    let answer = || {
        let mut client = Client::connect_as(becket.web, &trust, NAME).ok()?;
        client.ask(REQUEST).ok()
    };
    assert!(answer().unwrap().ends_with(b"one"));
    volume("..2", "[[listener]]\nname = 7");
    let health =
        || http_get(becket.admin, "/healthz").map_or_else(|_| String::new(), |(_, text)| text);
    eventually("the reload is refused", || {
        health().contains("serving; the last reload was refused")
    });
    becket.says("the configuration has changed; reloading");
    assert!(answer().unwrap().ends_with(b"one"));
    let text = started.text();
    let [was, is] = [&first, &second].map(|backend| backend.address.to_string());
    volume("..3", &text.replace(&was, &is));
    eventually("the changed configuration is in use", || {
        answer().is_some_and(|answer| answer.ends_with(b"two"))
    });
    eventually("the reload has succeeded", || {
        health().ends_with("serving\n")
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn files_can_be_renamed_written_in_parts_and_their_folder_removed_and_restored() {
    let place = Place::new();
    let backend = Backend::http("well met");
    fs::create_dir(place.path("certs")).unwrap();
    place.issue("certs/a.pem", &[NAME], Key::Ecdsa);
    let shape = Shape::new(backend.address).certificates("[\"certs\"]");
    let becket = Becket::start(&place, &shape);
    let visitor = Visitor::of(&place, &becket);

    let renamed = place.issue("next.pem", &[NAME], Key::Ecdsa);
    fs::rename(place.path("next.pem"), place.path("certs/a.pem")).unwrap();
    visitor.awaits(&renamed);

    let halved = place.authority.issue(&[NAME], Key::Ecdsa);
    let text = halved.pem();
    let (begin, rest) = text.split_at(text.len() / 2);
    let mut file = File::create(place.path("certs/a.pem")).unwrap();
    file.write_all(begin.as_bytes()).unwrap();
    eventually("the incomplete file is rejected", || {
        rejected(&becket).len() == 1
    });
    assert_eq!(visitor.shown(NAME), der(&renamed));
    file.write_all(rest.as_bytes()).unwrap();
    drop(file);
    visitor.awaits(&halved);
    eventually("no file is rejected", || rejected(&becket).is_empty());

    fs::remove_dir_all(place.path("certs")).unwrap();
    eventually("the missing file is rejected", || {
        rejected(&becket).len() == 1
    });
    assert_eq!(visitor.shown(NAME), der(&halved));
    fs::create_dir(place.path("certs")).unwrap();
    let again = place.issue("certs/a.pem", &[NAME], Key::Ecdsa);
    visitor.awaits(&again);

    // An invalid file in the folder does not block the valid ones.
    place.write("certs/b.pem", "none");
    let beside = place.issue("certs/c.pem", &["internal.example.org"], Key::Ecdsa);
    visitor.awaits_for("internal.example.org", &beside);
    eventually("the other file is rejected", || {
        rejected(&becket).len() == 1
    });
    assert_eq!(visitor.shown(NAME), der(&again));
    fs::remove_file(place.path("certs/b.pem")).unwrap();
    eventually("no file is rejected", || rejected(&becket).is_empty());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn hundreds_of_changes_cause_few_reloads_and_close_no_connection() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).certificates("[\"site.pem\"]");
    let becket = Becket::start(&place, &shape);
    let resuming = Trust::new(&place);
    resuming.visit(becket.web).unwrap();
    becket.next_access();
    let mut open = Client::connect(becket.web, &resuming).unwrap();
    let began = now();
    let mut last = place.issue("site.pem", &[NAME], Key::Ecdsa);
    for _ in 0..300 {
        last = place.issue("site.pem", &[NAME], Key::Ecdsa);
    }
    Visitor::of(&place, &becket).awaits(&last);
    let renewals = becket.metrics().sum("becket_watch_reloads_total", &[]);
    let most = began.elapsed().as_secs_f64() + 1.0;
    assert!(
        renewals <= most,
        "{renewals} renewals, at most one a second: {most}"
    );
    // Writing the same content causes no reload.
    last.write(&place.path("site.pem"));
    assert!(open.ask(REQUEST).is_ok());
    resuming.visit(becket.web).unwrap();
    let resumed = until("a handshake resumes", || {
        let access = becket.access();
        access
            .iter()
            .find(|line| line["handshake"] == "psk")
            .cloned()
    });
    assert_eq!(resumed["reason"], "finished");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn revocation_lists_are_reloaded_automatically_but_the_configuration_is_not() {
    let place = Place::new();
    let backend = Backend::http("inside");
    let revoke = |serials: &[u64]| {
        let list = place.authority.revocation_list(serials).pem().unwrap();
        place.write("crl.pem", &list);
    };
    revoke(&[7]);
    let policy = "[[policy]]\nname = \"web\"\nclient-certificates = \"required\"\n\
         client-ca = \"ca.pem\"\ncrl = [\"crl.pem\"]";
    let shape = Shape::new(backend.address).section(policy);
    let becket = Becket::start(&place, &shape);
    let second = SocketAddr::from((fresh_host(), 8443));
    let listener = format!(
        "[[listener]]\nname = \"second\"\nbind = [\"{second}\"]\ncertificates = [\"site.pem\"]\nbackend = \"app\""
    );
    place.write("becket.toml", &shape.section(&listener).text());
    let alice = place.authority.issue_numbered(&["alice"], 1);
    let [(_, trust), ..] = Trust::ways(&place, Some(&alice));
    trust.visit(becket.web).unwrap();
    revoke(&[7, 1]);
    eventually("the revoked client is rejected", || {
        trust.visit(becket.web).is_err()
    });
    becket.says("policy[web]");
    assert!(TcpStream::connect(second).is_err());
    assert!(becket.reload(), "{}", becket.log());
    TcpStream::connect(second).unwrap();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_supervisor_passes_on_files_of_root_and_the_child_watches_its_own() {
    let Some(user) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::http("well met");
    let mut shape = Shape::new(backend.address).process(AS_NOBODY);
    shape.web = SocketAddr::from((fresh_host(), 443));
    fs::create_dir(place.path("own")).unwrap();
    place.issue("own/internal.pem", &["internal.example.org"], Key::Ecdsa);
    for name in ["own", "own/internal.pem"] {
        chown(place.path(name), Some(user), None).unwrap();
    }
    let shape = shape.certificates("[\"own/internal.pem\", \"site.pem\"]");
    let roots = |name: &str| {
        fs::set_permissions(place.path(name), Permissions::from_mode(0o600)).unwrap();
    };
    place.write("becket.toml", &shape.text());
    roots("becket.toml");
    roots("site.pem");
    becket_e2e::open_to_all(&place);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    let visitor = Visitor::of(&place, &becket);
    let next = place.issue("next.pem", &[NAME], Key::Ecdsa);
    roots("next.pem");
    fs::rename(place.path("next.pem"), place.path("site.pem")).unwrap();
    visitor.awaits(&next);
    // The child watches files that it can read itself.
    let own = place.issue("own/internal.pem", &["internal.example.org"], Key::Ecdsa);
    eventually("the unreadable file is rejected", || {
        rejected(&becket).len() == 1
    });
    chown(place.path("own/internal.pem"), Some(user), None).unwrap();
    visitor.awaits_for("internal.example.org", &own);
    eventually("no file is rejected", || rejected(&becket).is_empty());
    place.write("site.pem", "none");
    eventually("the invalid file is rejected", || {
        rejected(&becket).len() == 1
    });
    assert_eq!(visitor.shown(NAME), der(&next));
    // After the death of the child, the next child watches the files.
    let mended = place.issue("site.pem", &[NAME], Key::Ecdsa);
    visitor.awaits(&mended);
    let before = becket.child();
    let pid = rustix::process::Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
    rustix::process::kill_process(pid, becket_e2e::Signal::KILL).unwrap();
    until("another child serves", || {
        let trust = &visitor.trust;
        Client::connect(becket.web, trust).ok()
    });
    let last = place.issue("site.pem", &[NAME], Key::Ecdsa);
    visitor.awaits(&last);
}
