//! The socket `control`, through which the commands of `cli.rs` reach the companion.
//!
//! A client sends one line of JSON, such as `{"list":{}}` or `{"renew":{"name":"example.org"}}`, and
//! receives one line. Only the user of the companion and root may connect. Requests, times and the
//! number of connections are limited.

use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use becket_log::Timestamp;
use becket_sys::socket_file::{SocketAccess, SocketFile};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::error::Error;
use crate::store::{Part, Store};

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    List {},
    /// Renew the certificate with this name now.
    Renew {
        name: String,
    },
    /// Revoke the certificate with this name, and order another one.
    Revoke {
        name: String,
    },
    /// Order from the test environment, and discard the certificate. Without a name, the first
    /// certificate is tried.
    Try {
        name: Option<String>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Certificates(Vec<Row>),
    Ended {
        error: Option<String>,
        /// Findings and DNS records for the tried certificate.
        records: Vec<String>,
    },
}

/// A certificate in the answer to [`Request::List`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    pub names: Vec<String>,
    /// Name of the bundle's file.
    pub file: String,
    pub authority: Option<String>,
    pub challenge: String,
    pub expires: Option<Timestamp>,
    /// Time of the next attempt.
    pub next: Option<Timestamp>,
    /// Failures since the last certificate.
    pub failures: u32,
    pub error: Option<String>,
}

/// A request with the channel for its answer.
#[derive(Debug)]
pub struct Call {
    pub request: Request,
    pub reply: oneshot::Sender<Answer>,
}

impl Call {
    pub fn answer(self, answer: Answer) {
        // The client may have left.
        self.reply.send(answer).ok();
    }
}

impl Answer {
    pub fn ended(error: Option<String>) -> Self {
        let records = Vec::new();
        Self::Ended { error, records }
    }
}

/// Listens for clients. The returned future accepts them and passes on their requests; it never
/// ends, and must be polled in a [`LocalSet`](tokio::task::LocalSet).
pub fn listen(
    store: &Store,
    calls: mpsc::Sender<Call>,
) -> Result<impl Future<Output = ()> + use<>, Error> {
    let access = SocketAccess {
        mode: 0o600,
        owner: None,
        group: None,
    };
    let failed = |error: io::Error| Error::os(format!("listen at {NAME}"), error);
    let file = SocketFile::bind(&store.path(Part::Root, NAME), &access).map_err(failed)?;
    let listener = file.listener().try_clone().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    Ok(async move {
        // Dropping it removes the file.
        let _file = file;
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(IO_TIME).await;
                continue;
            };
            let calls = calls.clone();
            tokio::task::spawn_local(async move {
                if let Err(error) = converse(stream, calls).await {
                    tracing::debug!(%error, "cannot answer a control connection");
                }
                drop(place);
            });
        }
    })
}

async fn converse(stream: UnixStream, calls: mpsc::Sender<Call>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut read = BufReader::new(read.take(LONGEST_REQUEST));
    timeout(IO_TIME, read.read_line(&mut line)).await??;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => {
            let (reply, answer) = oneshot::channel();
            let sent = calls.send(Call { request, reply }).await;
            sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
            let answer = timeout(ANSWER_TIME, answer).await?;
            answer.map_err(|_| io::ErrorKind::BrokenPipe)?
        }
        Err(error) => Answer::ended(Some(error.to_string())),
    };
    let text = serde_json::to_string(&answer)? + "\n";
    timeout(IO_TIME, write.write_all(text.as_bytes())).await?
}

/// Sends a request to the companion of a folder, and waits for the answer. Blocks.
pub fn ask(folder: &Path, request: &Request) -> Result<Answer, Error> {
    let path = folder.join(NAME);
    let asked = || -> io::Result<Answer> {
        let mut stream = std::os::unix::net::UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(ANSWER_TIME + IO_TIME))?;
        stream.write_all((serde_json::to_string(request)? + "\n").as_bytes())?;
        let mut line = String::new();
        io::BufReader::new(stream.take(LONGEST_ANSWER)).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    let place = format!(
        "ask the companion at {}; is becket running with [acme]?",
        path.display()
    );
    asked().map_err(|error| Error::os(place, error))
}

const NAME: &str = "control";
const MOST_CONNECTIONS: usize = 8;
const LONGEST_REQUEST: u64 = 4096;
/// Fits the rows of 100 000 certificates.
const LONGEST_ANSWER: u64 = 64 * 1024 * 1024;
const IO_TIME: Duration = Duration::from_secs(10);
/// Time limit for an answer. Orders that were begun before may have to end first.
const ANSWER_TIME: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use tokio::task::{LocalSet, spawn_blocking};

    use super::*;

    #[tokio::test]
    async fn requests_are_answered_and_other_lines_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("acme");
        let store = Store::open(&path).unwrap();
        let (sender, mut calls) = mpsc::channel(1);
        let clients = async {
            tokio::task::spawn_local(listen(&store, sender).unwrap());
            let place = path.clone();
            let asked = spawn_blocking(move || ask(&place, &Request::List {}).unwrap());
            let call = calls.recv().await.unwrap();
            assert!(matches!(call.request, Request::List {}));
            call.reply
                .send(Answer::ended(Some("why".to_owned())))
                .unwrap();
            let answer = serde_json::to_string(&asked.await.unwrap()).unwrap();
            assert_eq!(answer, r#"{"ended":{"error":"why","records":[]}}"#);
            let long = "a".repeat(LONGEST_REQUEST as usize);
            for line in ["{}\n", "{\"list\":{\"a\":1}}\n", "rubbish\n", &long] {
                let mut stream = UnixStream::connect(path.join(NAME)).await.unwrap();
                stream.write_all(line.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                assert!(
                    answer.starts_with(r#"{"ended":{"error":""#),
                    "{line}: {answer}"
                );
            }
        };
        LocalSet::new().run_until(clients).await;
    }
}
