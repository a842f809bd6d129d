//! Tests of TLS towards the server, with TLS or plain TCP towards the client.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::script::link::End;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_proxy::socket::StreamSocket;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, ServerConfig, ServerConnection, SupportedProtocolVersion};

use crate::common::{Client, House, ML_DSA, now};

/// A TLS server at its end of the last stream that was dialled.
pub(crate) struct Host {
    pub(crate) tls: ServerConnection,
    pub(crate) received: Vec<u8>,
    pub(crate) fault: Option<rustls::Error>,
    pub(crate) closed: bool,
}

impl Host {
    pub(crate) fn new(config: &Arc<ServerConfig>) -> Self {
        Self {
            tls: ServerConnection::new(Arc::clone(config)).unwrap(),
            received: Vec::new(),
            fault: None,
            closed: false,
        }
    }

    /// Receives and sends what is possible; `false` if nothing moved.
    pub(crate) fn step(&mut self, stage: &mut Stage) -> bool {
        let mut moved = false;
        let end = &mut stage.net.dialled.last_mut().unwrap().far;
        while let Ok(1..) = self.tls.read_tls(end) {
            moved = true;
            match self.tls.process_new_packets() {
                Ok(state) => {
                    self.closed |= state.peer_has_closed();
                    let mut plain = vec![0; state.plaintext_bytes_to_read()];
                    self.tls.reader().read_exact(&mut plain).unwrap();
                    self.received.extend(plain);
                }
                Err(error) => drop(self.fault.get_or_insert(error)),
            }
        }
        while self.tls.wants_write() {
            match self.tls.write_tls(end) {
                Ok(n) if n > 0 => moved = true,
                _ => break,
            }
        }
        moved
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.tls.set_buffer_limit(None);
        self.tls.writer().write_all(bytes).unwrap();
    }

    /// Exchanges data until no side has anything to send.
    pub(crate) fn talk(&mut self, client: &mut Client, stage: &mut Stage) -> Option<CloseReason> {
        loop {
            client.talk(stage);
            if !self.step(stage) {
                return stage.closed();
            }
        }
    }

    /// As [`Self::talk`], with a client that acts by itself.
    pub(crate) fn settle(&mut self, stage: &mut Stage) -> Option<CloseReason> {
        loop {
            assert!(stage.settle(), "the connection does not come to rest");
            if !self.step(stage) {
                return stage.closed();
            }
        }
    }
}

pub(crate) fn server(
    house: &House,
    file: &str,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let path = house.folder.path().join(file);
    let chain = CertificateDer::pem_file_iter(&path).unwrap();
    let chain = chain.map(Result::unwrap).collect();
    ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&path).unwrap())
        .unwrap()
}

/// `tls` is added to `[backend.tls]`, and `backend` to the backend.
fn text(listener: &str, backend: &str, tls: &str) -> String {
    format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n{listener}\n\
         [[backend]]\nname = 'app'\n{backend}\n[backend.tls]\nca = 'a.pem'\n{tls}\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\n\
         [[backend.server]]\naddress = '127.0.0.1:82'\n"
    )
}

const ENDS_TLS: &str = "certificates = ['b.pem', 'a.pem']";
const PLAIN: &str = "tls = false";

fn relaying(house: &House, version: &'static SupportedProtocolVersion) -> (Stage, Client, Host) {
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.say(b"question");
    client.talk(&mut stage);
    let mut host = Host::new(&Arc::new(server(house, "a.pem", &[version])));
    host.talk(&mut client, &mut stage);
    assert_eq!(
        host.received,
        b"question",
        "{:?} {:?}",
        host.fault,
        stage.closed()
    );
    (stage, client, host)
}

/// Returns a plain client and its server.
fn plainly(house: &House, version: &'static SupportedProtocolVersion) -> (Stage, End, Host) {
    let mut stage = house.stage();
    let mut client = stage.admit(house.listener(0), [Plan::Accept]);
    client.write_all(b"question").unwrap();
    assert!(stage.settle());
    let mut host = Host::new(&Arc::new(server(house, "a.pem", &[version])));
    host.settle(&mut stage);
    assert_eq!(
        host.received,
        b"question",
        "{:?} {:?}",
        host.fault,
        stage.closed()
    );
    (stage, client, host)
}

#[test]
fn bytes_and_close_notify_are_forwarded_from_tls_to_tls() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    for version in [&TLS12, &TLS13] {
        let (mut stage, mut client, mut host) = relaying(&house, version);
        let long = vec![7; 300_000];
        host.say(&long);
        host.talk(&mut client, &mut stage);
        assert!(client.received == long);
        host.tls.send_close_notify();
        host.talk(&mut client, &mut stage);
        assert!(client.closed);
        client.say(b"more");
        client.tls.send_close_notify();
        assert_eq!(
            host.talk(&mut client, &mut stage),
            Some(CloseReason::Finished)
        );
        assert_eq!(host.received, b"questionmore");
        assert!(host.closed, "close_notify goes to the server");
        assert_eq!(stage.counters.server_handshakes[0].value(), 1);
    }
}

#[test]
fn a_half_closed_client_receives_the_answer_of_a_tls_server() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    let (mut stage, mut client, mut host) = relaying(&house, &TLS13);
    client.tls.send_close_notify();
    host.talk(&mut client, &mut stage);
    assert!(host.closed);
    host.say(b"answer");
    host.tls.send_close_notify();
    assert_eq!(
        host.talk(&mut client, &mut stage),
        Some(CloseReason::Finished)
    );
    assert_eq!(client.received, b"answer");
    assert!(client.closed);
}

#[test]
fn a_server_that_sends_many_records_without_data_is_disconnected() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    let (mut stage, mut client, mut host) = relaying(&house, &TLS13);
    let mut rounds = 0;
    while stage.closed().is_none() && rounds < 100 {
        rounds += 1;
        for _ in 0..31 {
            host.tls.refresh_traffic_keys().unwrap();
        }
        host.say(&[5]);
        host.talk(&mut client, &mut stage);
        if client.received.len() < rounds {
            break;
        }
    }
    client.tls.send_close_notify();
    client.talk(&mut stage);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ServerRecordsWithoutData));
    // Some of the 256 records are tickets.
    assert_eq!(rounds, 9);
}

#[test]
fn a_truncated_client_stream_ends_without_close_notify_to_the_server() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    let (mut stage, mut client, mut host) = relaying(&house, &TLS13);
    client.end.finish();
    host.talk(&mut client, &mut stage);
    assert!(!host.closed);
    assert!(stage.net.dialled[0].far.watch().is_ended());
}

#[test]
fn a_truncated_answer_ends_without_close_notify_or_with_a_reset() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    let (mut stage, mut client, mut host) = relaying(&house, &TLS13);
    host.say(b"half of the ans");
    host.step(&mut stage);
    stage.net.dialled[0].far.finish();
    host.talk(&mut client, &mut stage);
    assert_eq!(client.received, b"half of the ans");
    assert!(!client.closed && client.end.watch().is_ended());
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ServerTruncated));

    let house = House::new(&text(PLAIN, "", "name = 'a.test'"));
    let (mut stage, mut client, mut host) = plainly(&house, &TLS13);
    host.say(b"half of the ans");
    host.step(&mut stage);
    stage.net.dialled[0].far.finish();
    let closed = host.settle(&mut stage);
    assert_eq!(closed, Some(CloseReason::ServerTruncated));
    let mut received = Vec::new();
    let error = client.read_to_end(&mut received).unwrap_err();
    assert_eq!(received, b"half of the ans");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_broken_server_record_gets_an_alert_and_no_close_notify_follows() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    let (mut stage, mut client, mut host) = relaying(&house, &TLS13);
    host.say(b"all is well so far");
    host.step(&mut stage);
    let far = &mut stage.net.dialled[0].far;
    far.send(&[23, 3, 3, 0, 20]).unwrap();
    far.send(&[0; 20]).unwrap();
    host.talk(&mut client, &mut stage);
    assert_eq!(client.received, b"all is well so far");
    assert!(!client.closed);
    let alert = rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac);
    assert_eq!(host.fault, Some(alert));
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ServerTlsError));
}

#[test]
fn a_plain_client_is_forwarded_over_tls() {
    let house = House::new(&text(PLAIN, "", "name = 'a.test'"));
    for version in [&TLS12, &TLS13] {
        let (mut stage, mut client, mut host) = plainly(&house, version);
        host.say(b"answer");
        host.settle(&mut stage);
        assert_eq!(client.receive_all(), b"answer");
        client.finish();
        host.settle(&mut stage);
        assert!(host.closed, "FIN of a plain client is a clean end");
        host.tls.send_close_notify();
        assert_eq!(host.settle(&mut stage), Some(CloseReason::Finished));
        assert!(client.watch().is_ended());
    }
}

#[test]
fn a_server_with_an_ml_dsa_key_is_verified() {
    let text = text(PLAIN, "", "name = 'a.test'");
    let house = House::new(&text.replace("'a.pem'", &format!("'{ML_DSA}'")));
    let mut stage = house.stage();
    let mut client = stage.admit(house.listener(0), [Plan::Accept]);
    client.write_all(b"question").unwrap();
    assert!(stage.settle());
    let mut host = Host::new(&Arc::new(server(&house, ML_DSA, &[&TLS13])));
    host.settle(&mut stage);
    assert_eq!(host.received, b"question", "{:?}", host.fault);
}

#[test]
fn a_tls_server_may_send_first_to_a_plain_client() {
    let house = House::new(&text(PLAIN, "", "name = 'a.test'"));
    let mut stage = house.stage();
    let mut client = stage.admit(house.listener(0), [Plan::Later]);
    stage.settle();
    stage.net.dialled[0].near.establish();
    let mut host = Host::new(&Arc::new(server(&house, "a.pem", &[&TLS13])));
    host.say(b"220 ready");
    host.settle(&mut stage);
    assert_eq!(client.receive_all(), b"220 ready");
}

#[test]
fn plain_connections_are_balanced_over_plain_servers() {
    let house = House::new(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\ntls = false\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n\
         [[backend.server]]\naddress = '127.0.0.1:82'\n",
    );
    let mut stage = house.stage();
    let refuse = Plan::Refuse(ErrorKind::ConnectionRefused);
    let mut client = stage.admit(house.listener(0), [refuse, Plan::Accept]);
    client.write_all(b"question").unwrap();
    client.finish();
    stage.settle();
    let far = &mut stage.net.dialled[0].far;
    assert_eq!(far.receive_all(), b"question");
    far.write_all(b"answer").unwrap();
    far.finish();
    stage.settle();
    assert_eq!(client.receive_all(), b"answer");
    assert!(client.watch().is_ended());
    assert_eq!(stage.closed(), Some(CloseReason::Finished));

    let mut client = stage.admit(house.listener(0), []);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ConnectFailed));
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::ConnectionReset,
        "FIN would be an empty answer"
    );
}

#[test]
fn a_server_with_the_wrong_certificate_is_skipped_and_receives_no_data() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let plans = [Plan::Accept, Plan::Accept];
    let mut client = Client::enter_before(&mut stage, house.listener(0), &config, "a.test", plans);
    client.say(b"secret");
    client.talk(&mut stage);
    let mut wrong = Host::new(&Arc::new(server(&house, "b.pem", &[&TLS13])));
    while stage.net.dialled.len() == 1 {
        assert!(wrong.step(&mut stage) | stage.settle());
    }
    assert_eq!(stage.counters.connect_failures.value(), 1);
    let mut right = Host::new(&Arc::new(server(&house, "a.pem", &[&TLS13])));
    right.talk(&mut client, &mut stage);
    assert_eq!(wrong.received, b"");
    assert_eq!(right.received, b"secret");
}

#[test]
fn wrong_server_certificates_count_as_connect_failures() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'other.test'"));
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.talk(&mut stage);
    let mut host = Host::new(&Arc::new(server(&house, "a.pem", &[&TLS13])));
    host.talk(&mut client, &mut stage);
    assert!(!client.closed && client.end.watch().is_ended());
    drop(client);
    stage.settle();
    let reason = stage.closed();
    // The second server, which is tried last, refuses the connect.
    assert_eq!(reason, Some(CloseReason::ConnectFailed));
    assert_eq!(stage.counters.connect_failures.value(), 2);
}

#[test]
fn a_server_without_a_tls_response_is_skipped_at_the_connect_timeout() {
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS13));
    let plans = [Plan::Accept, Plan::Accept];
    let mut client = Client::enter_before(&mut stage, house.listener(0), &config, "a.test", plans);
    client.talk(&mut stage);
    stage.wait(house.config.file.timeouts.connect);
    client.talk(&mut stage);
    assert_eq!(stage.net.dialled.len(), 2);
    stage.net.dialled[1]
        .far
        .send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .unwrap();
    client.talk(&mut stage);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ServerTlsError));
}

#[test]
fn server_sessions_expire_with_the_server_certificate() {
    let text = text(PLAIN, "", "name = 'a.test'");
    let one = text.replace("[[backend.server]]\naddress = '127.0.0.1:82'\n", "");
    let house = House::new(&one);
    let listener = house.listener(0);
    let config = Arc::new(server(&house, "a.pem", &[&TLS13]));
    let visit = |ahead: Duration| {
        let mut stage = house.stage();
        stage.now.unix += ahead;
        let client = stage.admit(listener.clone(), [Plan::Accept]);
        stage.settle();
        let mut host = Host::new(&config);
        host.settle(&mut stage);
        drop(client);
        host.settle(&mut stage);
        host.tls.handshake_kind().unwrap()
    };
    // rcgen's certificates end in 4096.
    let century = Duration::from_secs(100 * 31_556_952);
    let kinds = [0, 20, 21, 21].map(|centuries| visit(century * centuries));
    let [full, resumed] = [HandshakeKind::Full, HandshakeKind::Resumed];
    assert_eq!(kinds, [full, resumed, full, full]);
}

#[test]
fn server_sessions_are_resumed() {
    let house = House::new(&text(PLAIN, "", "name = 'a.test'"));
    let listener = house.listener(0);
    for version in [&TLS12, &TLS13] {
        let config = Arc::new(server(&house, "a.pem", &[version]));
        let mut kinds = Vec::new();
        for _ in 0..4 {
            let mut stage = house.stage();
            let client = stage.admit(listener.clone(), [Plan::Accept]);
            stage.settle();
            let mut host = Host::new(&config);
            host.settle(&mut stage);
            kinds.push(host.tls.handshake_kind().unwrap());
            drop(client);
            host.settle(&mut stage);
        }
        // Two servers alternate, and each has its own sessions.
        let resumed = kinds.iter().filter(|kind| **kind == HandshakeKind::Resumed);
        assert_eq!(resumed.count(), 2, "{kinds:?}");
    }
}

#[test]
fn sni_and_alpn_of_the_client_are_forwarded_to_the_server() {
    let listener = format!("{ENDS_TLS}\nalpn = ['h2']");
    let house = House::new(&text(
        &listener,
        "",
        "name = 'a.test'\nsni = 'client'\nalpn = 'client'",
    ));
    let mut stage = house.stage();
    let mut config = house.client(&TLS13);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "x.b.test");
    client.talk(&mut stage);
    let mut backend = server(&house, "a.pem", &[&TLS13]);
    backend.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let mut host = Host::new(&Arc::new(backend));
    host.talk(&mut client, &mut stage);
    assert_eq!(host.tls.server_name(), Some("x.b.test"));
    assert_eq!(host.tls.alpn_protocol(), Some(&b"h2"[..]));
}

#[test]
fn the_proxy_header_precedes_the_hello_unencrypted() {
    let house = House::new(&text(PLAIN, "proxy-header = 'v1'", "name = 'a.test'"));
    let mut stage = house.stage();
    let _client = stage.admit(house.listener(0), [Plan::Accept]);
    stage.settle();
    let got = stage.net.dialled[0].far.receive_all();
    let end = got.windows(2).position(|pair| pair == b"\r\n").unwrap();
    assert!(got.starts_with(b"PROXY TCP4 192.0.2.1 "), "{got:?}");
    assert_eq!(got[end + 2], 22, "a handshake record");
}

#[test]
fn a_server_added_by_a_reload_uses_tls() {
    let house = House::new(&text("certificates = ['a.pem']", "", "name = 'a.test'"));
    let tls = house.pool(0).tls().unwrap();
    for server in ["127.0.0.1:81", "127.0.0.1:83"] {
        assert!(
            tls.open(server, None, None, now().unix.into()).is_ok(),
            "{server}"
        );
    }
}

#[test]
fn errors_from_forwarded_sni_or_alpn_are_no_server_failures() {
    for (tls, failures) in [
        ("", 1),
        ("sni = 'www.test'", 1),
        ("sni = 'client'", 0),
        ("alpn = 'client'", 0),
    ] {
        let tls = format!("name = 'a.test'\n{tls}");
        let house = House::new(&text("certificates = ['a.pem']", "retries = 0", &tls));
        let mut stage = house.stage();
        let config = Arc::new(house.client(&TLS13));
        let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        client.talk(&mut stage);
        let far = &mut stage.net.dialled[0].far;
        // Alert unrecognized_name, RFC 6066 section 3.
        far.write_all(&[21, 3, 3, 0, 2, 2, 112]).unwrap();
        client.talk(&mut stage);
        drop(client);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::ServerTlsError), "{tls}");
        let server = house.pool(0).state().servers()[0].clone();
        assert_eq!(server.failures_in_a_row(), failures, "{tls}");
    }
}

#[test]
fn ends_after_queued_records_are_forwarded_as_clean_or_truncated() {
    const MANY: usize = 2000;
    let house = House::new(&text(ENDS_TLS, "", "name = 'a.test'"));
    for told in [true, false] {
        let (mut stage, mut client, mut host) = relaying(&house, &TLS13);
        let (before, said) = (host.received.len(), client.received.len());
        for _ in 0..MANY {
            client.say(&[5]);
            host.say(&[6]);
        }
        if told {
            client.tls.send_close_notify();
            host.tls.send_close_notify();
        }
        // Everything arrives before the connection gets a turn; the server's end arrives only if
        // `told`.
        host.step(&mut stage);
        client.flush();
        assert!(!client.tls.wants_write() && !host.tls.wants_write());
        client.end.finish();
        if told {
            stage.net.dialled[0].far.finish();
        }
        assert!(stage.settle());
        host.talk(&mut client, &mut stage);
        assert_eq!(client.received.len() - said, MANY);
        assert_eq!(host.received.len() - before, MANY);
        assert!(stage.net.dialled[0].far.watch().is_ended());
        assert_eq!((client.closed, host.closed), (told, told));
        assert_eq!(stage.closed(), told.then_some(CloseReason::Finished));
    }
}
