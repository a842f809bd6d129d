//! Requests to the admin pages.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::time::PATIENCE;

/// Sends a GET request over plain HTTP. Returns status and body.
pub fn http_get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    // Send the whole request with one write, because becket limits the time for a request header.
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parts = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    });
    parts.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Result of a scrape of `/metrics`.
#[derive(Clone, Debug)]
pub struct Metrics(pub String);

impl Metrics {
    /// Returns the sum of all samples with this name whose labels contain every one of `labels`, such as
    /// `reason="finished"`.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let samples = self.0.lines().filter(|line| !line.starts_with('#'));
        let values = samples.filter_map(|line| {
            let (key, value) = line.rsplit_once(' ')?;
            let (own, own_labels) = key.split_once('{').unwrap_or((key, ""));
            let is_ours = own == name && labels.iter().all(|label| own_labels.contains(label));
            is_ours.then(|| value.parse::<f64>().ok()).flatten()
        });
        values.sum()
    }

    /// Returns the number of connections closed for this reason.
    pub fn closed(&self, reason: &str) -> u64 {
        let label = format!("reason=\"{reason}\"");
        self.sum("becket_connections_closed_total", &[&label]) as u64
    }

    pub fn open(&self) -> u64 {
        self.sum("becket_connections", &[]) as u64
    }
}
