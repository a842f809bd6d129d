//! Pebble, the ACME authority of Let's Encrypt for tests, with its DNS server.
//!
//! Pebble waits up to 15 seconds before a validation, as by default, and rejects 1 % of valid nonces. Every name has the address of
//! the target, and validations connect to the target's port.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::address::fresh_address;
use crate::authority_proxy::AuthorityProxy;
use crate::pki::Key;
use crate::place::Place;
use crate::program::acme_program;
use crate::server::serve;
use crate::tool::{Finished, Kept, Tool};

/// Running authority, killed on drop.
#[derive(Debug)]
pub struct Pebble {
    _authority: Kept,
    _dns: Kept,
    address: SocketAddr,
    /// URL of the directory.
    pub directory: String,
    /// File with the CA certificate for connections to the authority.
    pub ca: PathBuf,
    management: SocketAddr,
    names: SocketAddr,
    records: SocketAddr,
    curl: Tool,
}

impl Pebble {
    /// Starts an authority that validates names at `tls` and over HTTP at `http`, which are ports of one host. Skips the test
    /// if a program is not installed.
    #[track_caller]
    pub fn start(place: &Place, tls: SocketAddr, http: u16) -> Option<Self> {
        Self::start_as(place, (tls, http), |_| {})
    }

    /// Starts an authority as [`Self::start`] does, after `change` has modified its command.
    #[track_caller]
    pub fn start_as(
        place: &Place,
        (tls, http): (SocketAddr, u16),
        change: impl FnOnce(&mut Command),
    ) -> Option<Self> {
        Self::start_at(place, fresh_address().ip(), (tls, http), change)
    }

    /// Starts an authority as [`Self::start_as`] does, with the services at `own`.
    #[track_caller]
    pub fn start_at(
        place: &Place,
        own: IpAddr,
        (tls, http): (SocketAddr, u16),
        change: impl FnOnce(&mut Command),
    ) -> Option<Self> {
        let (pebble, dns) = (Tool::find("pebble")?, Tool::find("pebble-challtestsrv")?);
        let curl = Tool::find("curl")?;
        assert!(acme_program().exists());
        let fresh = || SocketAddr::new(own, fresh_address().port());
        let [at, management, names, control] = [(); 4].map(|()| fresh());
        let bundle = place.authority.issue(&[&own.to_string()], Key::Ecdsa);
        place.write("pebble.crt", &bundle.certificate);
        place.write("pebble.key", &bundle.key);
        let settings = json!({"pebble": {
            "listenAddress": at.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": place.text("pebble.crt"),
            "privateKey": place.text("pebble.key"),
            "httpPort": http,
            "tlsPort": tls.port(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "retryAfter": {"authz": 1, "order": 1},
            "keyAlgorithm": "ecdsa",
            "profiles": {
                "default": {"description": "90 days", "validityPeriod": 90 * DAY},
                "shortlived": {"description": "6 days", "validityPeriod": 6 * DAY},
            },
        }});
        let settings = place.write("pebble.json", &settings.to_string());
        let mut command = dns.command([
            "-defaultIPv4",
            &tls.ip().to_string(),
            "-defaultIPv6",
            "",
            "-dnsserver",
            &names.to_string(),
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-doh",
            "",
            "-management",
            &control.to_string(),
        ]);
        command.current_dir(place.folder());
        let dns = serve(command, place, "challtestsrv", control);
        let mut command = pebble.command([
            "-config",
            &settings.to_string_lossy(),
            "-dnsserver",
            &names.to_string(),
        ]);
        command.current_dir(place.folder());
        // Rejects 1 % of valid nonces instead of 5 %: after three rejections in a row, an order fails, and its repetition takes longer than
        // tests wait.
        command.env("PEBBLE_WFE_NONCEREJECT", "1");
        change(&mut command);
        let authority = serve(command, place, "pebble", at);
        Some(Self {
            _authority: authority,
            _dns: dns,
            address: at,
            directory: format!("https://{at}/dir"),
            ca: place.path("ca.pem"),
            management,
            names,
            records: control,
            curl,
        })
    }

    /// Starts a proxy, and makes [`Self::section`] use it.
    pub fn behind_proxy(&mut self, place: &Place) -> AuthorityProxy {
        let [certificate, key] = ["pebble.crt", "pebble.key"].map(|name| place.path(name));
        let name = self.address.ip().to_string();
        let proxy = AuthorityProxy::start(self.address, &name, [&self.ca, &certificate, &key]);
        self.directory = format!("https://{}/dir", proxy.address);
        proxy
    }

    /// Returns the root certificate of issued certificates as PEM. It differs at each start.
    #[track_caller]
    pub fn root(&self) -> String {
        self.get("roots/0").stdout
    }

    /// Suggests to have renewed a certificate, given as PEM, long ago.
    #[track_caller]
    pub fn renew_at_once(&self, certificate: &str) {
        let times = json!({"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"});
        let window = json!({"suggestedWindow": times});
        let body = json!({"Certificate": certificate, "ARIResponse": window.to_string()});
        self.call("set-renewal-info/", &["-d", &body.to_string()]);
    }

    /// Changes a DNS record with a command of the DNS server, such as `set-txt`.
    #[track_caller]
    pub fn change_record(&self, command: &str, body: &serde_json::Value) {
        let url = format!("http://{}/{command}", self.records);
        let body = body.to_string();
        let found = self.curl.run(["-sS", "--fail", &url, "-d", &body], "");
        assert_eq!(found.code, 0, "{}", found.all());
    }

    #[track_caller]
    fn get(&self, path: &str) -> Finished {
        self.call(path, &[])
    }

    #[track_caller]
    fn call(&self, path: &str, flags: &[&str]) -> Finished {
        let url = format!("https://{}/{path}", self.management);
        let ca = self.ca.to_string_lossy();
        let always = ["-sS", "--fail", "--cacert", &*ca, &url];
        let found = self.curl.run([&always, flags].concat(), "");
        assert_eq!(found.code, 0, "{}", found.all());
        found
    }

    /// Returns the `[acme]` section for this authority.
    pub fn section(&self, keys: &str) -> String {
        format!(
            "[acme]\nauthority = [\"{}\"]\nca = \"{}\"\nfolder = \"acme\"\nname-servers = [\"{}\"]\n{keys}\n",
            self.directory,
            self.ca.display(),
            self.names
        )
    }
}

const DAY: u32 = 24 * 3600;
