//! Converts an OpenSSL session to the encoding in which rustls stores its own.
//!
//! The encoding is private to rustls: it may change with any version. A test makes a handshake in memory,
//! compares the state that rustls stored with the one that is encoded here from the same secrets, and resumes
//! from it.
//!
//! Source: rustls 0.23.46, `msgs/persist.rs`, `ServerSessionValue`.

use rustls_pki_types::DnsName;

use super::session::StudSession;

/// Encodes the state of a TLS 1.2 session without a client certificate. Returns `None` if its server name is
/// not a host name.
///
/// `made` is in seconds since 1970. The capacity is exact, so that no copy of the secret is left behind.
pub(super) fn encode(session: &StudSession<'_>, made: u64) -> Option<Vec<u8>> {
    let name = match session.server_name {
        None => None,
        Some(name) => Some(server_name(name)?),
    };
    let name_len = name.as_ref().map_or(0, |name| 1 + name.as_ref().len());
    let mut state = Vec::with_capacity(FIXED_LEN + name_len);
    match &name {
        None => state.push(NONE),
        Some(name) => {
            let name: &str = name.as_ref();
            state.push(SOME);
            state.push(u8::try_from(name.len()).ok()?);
            state.extend(name.as_bytes());
        }
    }
    state.extend(TLS12);
    state.extend(session.suite.to_be_bytes());
    state.push(u8::try_from(session.master_secret.len()).ok()?);
    state.extend(session.master_secret);
    state.push(session.extended_master_secret.into());
    // No client certificates, no ALPN (it is negotiated again), no application data.
    state.extend([NONE, NONE, 0, 0]);
    state.extend(made.to_be_bytes());
    // Ticket age offset, which only TLS 1.3 uses.
    state.extend(0_u32.to_be_bytes());
    Some(state)
}

/// Returns a host name in lower case, the form in which rustls compares it.
fn server_name(name: &[u8]) -> Option<DnsName<'static>> {
    let name = DnsName::try_from(name).ok()?;
    Some(name.to_lowercase_owned())
}

const NONE: u8 = 0;
const SOME: u8 = 1;
const TLS12: [u8; 2] = [3, 3];
/// Length of all fields in bytes, except the name and its length field.
const FIXED_LEN: usize = 1 + 2 + 2 + 1 + 48 + 1 + 4 + 8 + 4;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use rcgen::{CertificateParams, KeyPair};
    use rustls::client::Resumption;
    use rustls::server::StoresServerSessions;
    use rustls::version::TLS12 as ONLY_TLS12;
    use rustls::{
        ClientConfig, ClientConnection, Connection, HandshakeKind, KeyLog, RootCertStore,
        ServerConfig, ServerConnection,
    };

    use super::*;

    /// Stores the sessions of rustls, and the master secret of each handshake.
    #[derive(Debug, Default)]
    struct Kept {
        sessions: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
        secrets: Mutex<Vec<Vec<u8>>>,
    }

    impl StoresServerSessions for Kept {
        fn put(&self, id: Vec<u8>, state: Vec<u8>) -> bool {
            self.sessions.lock().unwrap().insert(id, state);
            true
        }

        fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
            self.sessions.lock().unwrap().get(id).cloned()
        }

        fn take(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }

        fn can_cache(&self) -> bool {
            true
        }
    }

    impl KeyLog for Kept {
        fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
            assert_eq!(label, "CLIENT_RANDOM");
            self.secrets.lock().unwrap().push(secret.to_vec());
        }
    }

    struct Site {
        client: ClientConfig,
        server: ServerConfig,
    }

    impl Site {
        fn new() -> Self {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            let mut roots = RootCertStore::empty();
            roots.add(certificate.der().clone()).unwrap();
            let client = ClientConfig::builder_with_protocol_versions(&[&ONLY_TLS12])
                .with_root_certificates(roots)
                .with_no_client_auth();
            let server = ServerConfig::builder_with_protocol_versions(&[&ONLY_TLS12])
                .with_no_client_auth()
                .with_single_cert(
                    vec![certificate.der().clone()],
                    key.serialize_der().try_into().unwrap(),
                )
                .unwrap();
            Self { client, server }
        }

        /// Makes one handshake with the sessions of `kept`.
        fn shake(&mut self, kept: &Arc<Kept>) -> Option<HandshakeKind> {
            self.server.session_storage = Arc::clone(kept) as Arc<dyn StoresServerSessions>;
            self.server.key_log = Arc::clone(kept) as Arc<dyn KeyLog>;
            let name = "a.test".try_into().unwrap();
            let client = ClientConnection::new(Arc::new(self.client.clone()), name).unwrap();
            let server = ServerConnection::new(Arc::new(self.server.clone())).unwrap();
            let mut client = Connection::from(client);
            let mut server = Connection::from(server);
            while client.is_handshaking() || server.is_handshaking() {
                pass(&mut client, &mut server);
                pass(&mut server, &mut client);
            }
            server.handshake_kind()
        }
    }

    fn pass(from: &mut Connection, to: &mut Connection) {
        let mut wire = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut wire).unwrap();
        }
        let mut wire = &wire[..];
        while !wire.is_empty() {
            to.read_tls(&mut wire).unwrap();
            to.process_new_packets().unwrap();
        }
    }

    #[test]
    fn what_is_encoded_is_what_rustls_stores_and_resumes() {
        let mut site = Site::new();
        site.client.resumption = Resumption::in_memory_sessions(8);
        let kept = Arc::new(Kept::default());
        assert_eq!(site.shake(&kept), Some(HandshakeKind::Full));
        let (id, stored) = {
            let sessions = kept.sessions.lock().unwrap();
            let (id, state) = sessions.iter().next().expect("a session");
            (id.clone(), state.clone())
        };
        let secret = kept.secrets.lock().unwrap().remove(0);
        let suite = &stored[10..12];
        let session = StudSession {
            suite: u16::from_be_bytes(suite.try_into().unwrap()),
            id: &id,
            master_secret: secret.as_slice().try_into().unwrap(),
            time: None,
            timeout: None,
            server_name: Some(b"A.Test"),
            extended_master_secret: true,
        };
        let made = stored[stored.len() - 12..stored.len() - 4].try_into();
        let encoded = encode(&session, u64::from_be_bytes(made.unwrap())).unwrap();
        assert_eq!(encoded, stored, "rustls has another encoding now");
        assert_eq!(encoded.capacity(), encoded.len());

        // This store contains only the state that was encoded here.
        let elsewhere = Arc::new(Kept::default());
        elsewhere.put(id.clone(), encoded);
        assert_eq!(site.shake(&elsewhere), Some(HandshakeKind::Resumed));
        // Without the name it is not the session of a client that requests one.
        let unnamed = StudSession {
            server_name: None,
            ..session
        };
        elsewhere.put(id.clone(), encode(&unnamed, 1).unwrap());
        assert_eq!(site.shake(&elsewhere), Some(HandshakeKind::Full));
    }

    #[test]
    fn what_is_no_host_name_is_refused() {
        let session = StudSession {
            suite: 0xc030,
            id: &[1],
            master_secret: &[2; 48],
            time: None,
            timeout: None,
            server_name: Some(b"not a name"),
            extended_master_secret: true,
        };
        assert!(encode(&session, 1).is_none());
        let unnamed = StudSession {
            server_name: None,
            ..session
        };
        assert_eq!(encode(&unnamed, 1).unwrap().len(), FIXED_LEN);
    }
}
