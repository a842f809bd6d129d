//! A small ACME authority over HTTPS, whose replies a test determines.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use base64ct::{Base64UrlUnpadded, Encoding};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio_rustls::TlsAcceptor;

/// Requests so far, each as `METHOD PATH` and the status that its payload sets.
type Requests = Rc<RefCell<Vec<String>>>;

pub(crate) struct Fake {
    port: u16,
    requests: Requests,
}

#[derive(Clone)]
pub(crate) enum Reply {
    Hang,
    /// Bytes of a whole response.
    Raw(String),
    Json {
        status: u16,
        headers: String,
        body: String,
    },
}

impl Reply {
    pub(crate) fn raw(text: &str) -> Self {
        Self::Raw(text.to_owned())
    }

    pub(crate) fn json(body: &str) -> Self {
        Self::Json {
            status: 200,
            headers: String::new(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn status(self, status: u16) -> Self {
        match self {
            Self::Json { headers, body, .. } => Self::Json {
                status,
                headers,
                body,
            },
            other => other,
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        if let Self::Json { headers, .. } = &mut self {
            headers.push_str(&format!("{name}: {value}\r\n"));
        }
        self
    }
}

impl Fake {
    /// Starts an authority, and writes its CA to `ca.pem`. `replies` gets the request, as in
    /// [`Fake::requests`], and the URL of the authority.
    pub(crate) async fn start(
        folder: &Path,
        replies: impl Fn(&str, &str) -> Reply + 'static,
    ) -> Self {
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &ca).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Requests::default();
        let (seen, replies) = (Rc::clone(&requests), Rc::new(replies));
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen, replies) =
                    (acceptor.clone(), Rc::clone(&seen), Rc::clone(&replies));
                spawn_local(async move {
                    let url = format!("https://127.0.0.1:{port}");
                    // A client may leave at any time.
                    drop(
                        answer(stream, acceptor, |request| {
                            seen.borrow_mut().push(request.to_owned());
                            replies(request, &url)
                        })
                        .await,
                    );
                });
            }
        });
        Self { port, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.borrow().clone()
    }

    pub(crate) fn count(&self, request: &str) -> usize {
        self.requests().iter().filter(|it| *it == request).count()
    }
}

/// Answers one request.
async fn answer(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    reply: impl Fn(&str) -> Reply,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let (mut first, mut length) = (String::new(), 0);
    stream.read_line(&mut first).await?;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let path = first.rsplit_once(' ').map_or("", |(path, _)| path);
    let status = payload(&body).and_then(|it| it["status"].as_str().map(str::to_owned));
    let request = status.map_or(path.to_owned(), |status| format!("{path} {status}"));
    let text = match reply(&request) {
        Reply::Hang => std::future::pending().await,
        Reply::Raw(text) => text,
        Reply::Json {
            status,
            headers,
            body,
        } => format!(
            "HTTP/1.1 {status} x\r\nreplay-nonce: bm9uY2U\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        ),
    };
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

fn payload(body: &[u8]) -> Option<serde_json::Value> {
    let jose: serde_json::Value = serde_json::from_slice(body).ok()?;
    let payload = Base64UrlUnpadded::decode_vec(jose["payload"].as_str()?).ok()?;
    serde_json::from_slice(&payload).ok()
}

thread_local! {
    /// `true` if the challenge of the last order was declared ready.
    static IS_READY: RefCell<bool> = const { RefCell::new(false) };
}

/// An authority that offers three challenges for `a.test`, two of them unknown, and whose check
/// fails.
pub(crate) fn refuse_after_challenge(request: &str, url: &str) -> Reply {
    let problem =
        r#"{"type":"urn:ietf:params:acme:error:connection","detail":"no\n\u001b[31m connection"}"#;
    let is_ready = IS_READY.with_borrow(|it| *it);
    let state = if is_ready { "invalid" } else { "pending" };
    let order = format!(
        r#"{{"status":"{state}","authorizations":["{url}/authorization"],"finalize":"{url}/finalize"}}"#
    );
    let error = if is_ready {
        format!(r#","error":{problem}"#)
    } else {
        String::new()
    };
    let challenge = format!(
        r#"{{"type":"tls-alpn-01","url":"{url}/challenge","token":"dG9rZW4","status":"{state}"{error}}}"#
    );
    match request {
        "GET /dir" => Reply::json(&format!(
            r#"{{"newNonce":"{url}/nonce","newAccount":"{url}/account","newOrder":"{url}/order"}}"#
        )),
        "HEAD /nonce" => Reply::json(""),
        "POST /account" => Reply::json("{}")
            .status(201)
            .header("location", &format!("{url}/account/1")),
        "POST /order" => {
            IS_READY.set(false);
            let order = order.replace("invalid", "pending");
            Reply::json(&order)
                .status(201)
                .header("location", &format!("{url}/order/1"))
        }
        "POST /order/1" => Reply::json(&order),
        "POST /challenge" => {
            IS_READY.set(true);
            Reply::json(&challenge.replace("pending", "processing"))
        }
        "POST /authorization deactivated" => Reply::json(
            r#"{"identifier":{"type":"dns","value":"a.test"},"status":"deactivated","challenges":[]}"#,
        ),
        "POST /authorization" => Reply::json(&format!(
            r#"{{"identifier":{{"type":"dns","value":"a.test"}},"status":"{state}","challenges":[
                {{"type":"weird-01","url":"{url}/weird","status":"pending","new":{{"a":1}}}},
                {{"type":"http-01","url":"{url}/http","status":"pending","token":"dG9rZW4"}},{challenge}]}}"#
        )),
        _ => Reply::json("{}").status(404),
    }
}
