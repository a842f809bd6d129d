//! Sessions that stud or hitch announce resume on becket. The tests take real sessions of openssl and send them in
//! datagrams sealed as stud seals them.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Command;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::hmac;
use becket_e2e::{
    Backend, Becket, Kept, Key, OpenSsl, Place, Shape, as_nobody, becket_program, eventually,
    finish, fresh_address, unix_now,
};

const NAME: &str = "www.example.org";
/// Preferred suite of openssl's client. Becket must choose it as well for sessions to resume.
const SUITE: &str = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";

/// The old terminator and becket, with the same certificate.
struct Farm {
    place: Place,
    openssl: OpenSsl,
    backend: Backend,
    /// Address for stud's datagrams.
    stud: SocketAddr,
}

impl Farm {
    fn new() -> Option<Self> {
        let openssl = OpenSsl::find()?;
        let place = Place::new();
        place.issue("site.pem", &[NAME, "localhost"], Key::Rsa);
        let run = finish(Becket::command(&place, &["secret", "secret"]), "");
        assert_eq!(run.code, 0, "{}", run.all());
        Some(Self {
            place,
            openssl,
            backend: Backend::http("well met"),
            stud: fresh_address(),
        })
    }

    fn shape(&self, keys: &str) -> Shape {
        let stud = self.stud;
        let shape = Shape::new(self.backend.address);
        shape.section(&format!(
            "[[policy]]\nname = \"web\"\nsuites = [{SUITE:?}, \"AES-128-GCM\"]\n\
             [cluster]\nsecret = \"secret\"\nnode = 1\nreceive-stud = true\n\
             stud-listen = \"{stud}\"\nstud-certificate = \"site.pem\"\n{keys}"
        ))
    }

    /// Writes a session between openssl's client and server to `file` and returns its DER encoding.
    fn make_session(&self, file: &str) -> Vec<u8> {
        let at = fresh_address();
        let (listen, bundle) = (at.to_string(), self.place.text("site.pem"));
        let flags = [
            "s_server", "-accept", &listen, "-cert", &bundle, "-key", &bundle,
        ];
        let flags = [&flags[..], &["-tls1_2", "-no_ticket", "-www"]].concat();
        let mut command = self.openssl.0.command(flags);
        let log = File::create(self.place.path("s_server.log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let server = Kept(command.spawn().unwrap());
        eventually("the server listens", || TcpStream::connect(at).is_ok());
        let session = self.place.text(file);
        let flags = ["-tls1_2", "-no_ticket", "-sess_out", &session];
        self.openssl.ask(&self.place, at, &flags);
        drop(server);
        let der = self.place.text("session.der");
        let flags = ["sess_id", "-in", &session, "-outform", "DER", "-out", &der];
        let run = self.openssl.0.run(flags, "");
        assert_eq!(run.code, 0, "{}", run.all());
        fs::read(der).unwrap()
    }

    /// Connects with the session in `file` and returns the kind of handshake from becket's access log.
    #[track_caller]
    fn visit(&self, becket: &Becket, file: &str) -> String {
        let session = self.place.text(file);
        let flags = ["-tls1_2", "-no_ticket", "-sess_in", &session];
        let run = self.openssl.ask(&self.place, becket.web, &flags);
        assert!(run.stdout.contains("well met"), "{}", run.all());
        let line = becket.next_access();
        line["handshake"].as_str().expect("a kind").to_owned()
    }

    /// Sends a datagram and waits until becket counts it under `outcome`.
    #[track_caller]
    fn tell(&self, becket: &Becket, datagram: &[u8], outcome: &str) {
        let count = || {
            let metrics = becket.metrics();
            metrics.sum(
                "becket_stud_datagrams_total",
                &[&format!("outcome=\"{outcome}\"")],
            )
        };
        let before = count();
        let socket = UdpSocket::bind((self.stud.ip(), 0)).unwrap();
        socket.send_to(datagram, self.stud).unwrap();
        eventually(outcome, || count() == before + 1.0);
    }

    /// Computes stud's key: SHA-1 of the private key as `openssl rsa` writes it in PKCS#1.
    fn key(&self) -> hmac::Key {
        let (pem, der) = (self.place.text("site.pem"), self.place.text("key.der"));
        let flags = [
            "rsa",
            "-in",
            &pem,
            "-traditional",
            "-outform",
            "DER",
            "-out",
            &der,
        ];
        let run = self.openssl.0.run(flags, "");
        assert_eq!(run.code, 0, "{}", run.all());
        let secret = digest(&SHA1_FOR_LEGACY_USE_ONLY, &fs::read(der).unwrap());
        hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_ref())
    }
}

/// Splits DER text into its elements, each as the tag and all bytes of the element.
fn elements(mut text: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while let [tag, len, ..] = text {
        let (head, len) = match len {
            0x81 => (3, usize::from(text[2])),
            0x82 => (4, usize::from(text[2]) << 8 | usize::from(text[3])),
            len => (2, usize::from(*len)),
        };
        let (element, rest) = text.split_at(head + len);
        found.push((*tag, element));
        text = rest;
    }
    found
}

fn contents(element: &[u8]) -> &[u8] {
    let head = match element[1] {
        0x81 => 3,
        0x82 => 4,
        _ => 2,
    };
    &element[head..]
}

fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
    let len = u8::try_from(contents.len()).unwrap();
    let head = match len {
        0x80.. => vec![tag, 0x81, len],
        len => vec![tag, len],
    };
    [head, contents.to_vec()].concat()
}

/// Returns a client's session as its server stores it, with its ID: without the server's certificate, with the
/// server name that the client sent.
fn as_server_has_it(of_client: &[u8], name: Option<&str>) -> (Vec<u8>, Vec<u8>) {
    let (peer, server_name) = (0xa3, 0xa6);
    let fields = elements(contents(of_client));
    let id = contents(fields[3].1).to_vec();
    let mut kept: Vec<(u8, Vec<u8>)> = fields
        .iter()
        .filter(|(tag, _)| *tag != peer && *tag != server_name)
        .map(|(tag, element)| (*tag, element.to_vec()))
        .collect();
    if let Some(name) = name {
        let at = kept.iter().position(|(tag, _)| *tag > server_name);
        let name = element(server_name, &element(0x04, name.as_bytes()));
        kept.insert(at.unwrap_or(kept.len()), (server_name, name));
    }
    let body: Vec<u8> = kept.into_iter().flat_map(|(_, element)| element).collect();
    (element(0x30, &body), id)
}

/// Builds stud's datagram for a session.
fn datagram(key: &hmac::Key, of_client: &[u8], name: Option<&str>, time: u64) -> Vec<u8> {
    let (der, mut id) = as_server_has_it(of_client, name);
    assert!(der.len() <= 512);
    id.resize(32, 0);
    let time = u32::try_from(time).unwrap().to_be_bytes();
    let mut datagram = [id, der, time.to_vec()].concat();
    let mac = hmac::sign(key, &datagram);
    datagram.extend(mac.as_ref());
    datagram
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_session_that_openssl_made_elsewhere_resumes_after_studs_datagram() {
    let Some(farm) = Farm::new() else {
        return;
    };
    let key = farm.key();
    let becket = Becket::start(&farm.place, &farm.shape(""));
    let session = farm.make_session("first");
    assert_eq!(farm.visit(&becket, "first"), "full", "before the datagram");
    let told = datagram(&key, &session, Some(NAME), unix_now());
    farm.tell(&becket, &told, "stored");
    assert_eq!(farm.visit(&becket, "first"), "id");
    farm.tell(&becket, &told, "known");

    // The server name is part of a session, so a session without a name does not resume for a client that sends one.
    let session = farm.make_session("second");
    let unnamed = datagram(&key, &session, None, unix_now());
    farm.tell(&becket, &unnamed, "stored");
    assert_eq!(farm.visit(&becket, "second"), "full");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_configuration_of_stud_receives_sessions_without_a_cluster() {
    let Some(farm) = Farm::new() else {
        return;
    };
    let (at, server, stud) = (fresh_address(), farm.backend.address, farm.stud);
    let bracketed = |at: SocketAddr| format!("[{}]:{}", at.ip(), at.port());
    let text = format!(
        "frontend = {}\nbackend = {}\npem-file = \"site.pem\"\nciphers = ECDHE-RSA-AES256-GCM-SHA384\n\
         shared-cache = 1000\nshared-cache-listen = {}\n",
        bracketed(at),
        bracketed(server),
        bracketed(stud),
    );
    farm.place.write("stud.conf", &text);
    let mut command = Command::new(becket_program());
    command
        .args(["stud", "--config", "stud.conf"])
        .args(as_nobody(&farm.place))
        .current_dir(farm.place.folder());
    let log = File::create(farm.place.path("stud.log")).unwrap();
    let _running = Kept(command.stderr(log).spawn().unwrap());
    eventually("becket accepts connections", || {
        TcpStream::connect(at).is_ok()
    });
    let session = farm.make_session("first");
    let told = datagram(&farm.key(), &session, Some(NAME), unix_now());
    let file = farm.place.text("first");
    let resumes = || {
        let flags = ["-tls1_2", "-no_ticket", "-sess_in", &file];
        let run = farm.openssl.ask(&farm.place, at, &flags);
        assert!(run.stdout.contains("well met"), "{}", run.all());
        run.stdout.contains("Reused, TLSv1.2")
    };
    assert!(!resumes(), "before the datagram");
    let socket = UdpSocket::bind((stud.ip(), 0)).unwrap();
    eventually("the session resumes", || {
        socket.send_to(&told, stud).unwrap();
        resumes()
    });
}
