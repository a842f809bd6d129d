//! A configuration with one listener `web` and one backend `app`, which a test can extend.

use std::fmt::Write;
use std::net::SocketAddr;

use crate::address::fresh_address;

/// Builder of a configuration file.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Address of the listener `web`.
    pub web: SocketAddr,
    /// Address of the admin pages.
    pub admin: SocketAddr,
    certificates: String,
    listener: String,
    backend: String,
    servers: Vec<Server>,
    limits: String,
    timeouts: String,
    sessions: String,
    process: String,
    admin_keys: String,
    sections: String,
}

/// Server of the backend `app`.
#[derive(Clone, Debug)]
struct Server {
    address: String,
    keys: String,
}

impl Server {
    fn at(address: impl ToString) -> Self {
        Self {
            address: address.to_string(),
            keys: String::new(),
        }
    }
}

impl Shape {
    /// Creates a configuration with `site.pem`, one server, two workers and JSON logs.
    pub fn new(server: impl ToString) -> Self {
        Self {
            web: fresh_address(),
            admin: fresh_address(),
            certificates: r#"["site.pem"]"#.to_owned(),
            listener: String::new(),
            backend: String::new(),
            servers: vec![Server::at(server)],
            limits: String::new(),
            timeouts: String::new(),
            sessions: String::new(),
            process: "workers = 2\n".to_owned(),
            admin_keys: String::new(),
            sections: String::new(),
        }
    }

    /// Makes the listener plain TCP without TLS.
    pub fn plain(self) -> Self {
        self.certificates("").listener("tls = false")
    }

    /// Replaces the listener's certificates with a TOML array. An empty text removes the key.
    pub fn certificates(mut self, array: &str) -> Self {
        self.certificates = array.to_owned();
        self
    }

    /// Adds keys or routes to the listener.
    pub fn listener(mut self, keys: &str) -> Self {
        add(&mut self.listener, keys);
        self
    }

    /// Adds keys to the backend.
    pub fn backend(mut self, keys: &str) -> Self {
        add(&mut self.backend, keys);
        self
    }

    /// Adds a server to the backend.
    pub fn server(mut self, address: impl ToString) -> Self {
        self.servers.push(Server::at(address));
        self
    }

    /// Adds keys to the server that was added last.
    pub fn server_keys(mut self, keys: &str) -> Self {
        if let Some(server) = self.servers.last_mut() {
            add(&mut server.keys, keys);
        }
        self
    }

    /// Adds keys to `[limits]`.
    pub fn limits(mut self, keys: &str) -> Self {
        add(&mut self.limits, keys);
        self
    }

    /// Adds keys to `[timeouts]`.
    pub fn timeouts(mut self, keys: &str) -> Self {
        add(&mut self.timeouts, keys);
        self
    }

    /// Adds keys to `[sessions]`.
    pub fn sessions(mut self, keys: &str) -> Self {
        add(&mut self.sessions, keys);
        self
    }

    /// Replaces the keys of `[process]`.
    pub fn process(mut self, keys: &str) -> Self {
        self.process = format!("{keys}\n");
        self
    }

    /// Adds keys to `[admin]`.
    pub fn admin_keys(mut self, keys: &str) -> Self {
        add(&mut self.admin_keys, keys);
        self
    }

    pub fn section(mut self, text: &str) -> Self {
        add(&mut self.sections, text);
        self
    }

    /// Adds a backend with one server.
    pub fn pool(self, name: &str, server: impl ToString) -> Self {
        let server = server.to_string();
        self.section(&format!(
            "[[backend]]\nname = {name:?}\n[[backend.server]]\naddress = {server:?}"
        ))
    }

    /// Returns the text of the file. Logs go to `becket.log` and `access.log` in the same folder.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |part: &str| add(&mut text, part);
        line("[[listener]]\nname = \"web\"");
        line(&format!("bind = [\"{}\"]", self.web));
        if !self.certificates.is_empty() {
            line(&format!("certificates = {}", self.certificates));
        }
        line("backend = \"app\"");
        line(&self.listener);
        line("[[backend]]\nname = \"app\"");
        line(&self.backend);
        for server in &self.servers {
            line(&format!(
                "[[backend.server]]\naddress = {:?}",
                server.address
            ));
            line(&server.keys);
        }
        line(&self.sections);
        line("[limits]");
        line(&self.limits);
        for (section, keys) in [
            ("[timeouts]", &self.timeouts),
            ("[sessions]", &self.sessions),
            ("[process]", &self.process),
        ] {
            line(section);
            line(keys);
        }
        line(&format!(
            "[admin]\naddress = \"{}\"\nsocket = \"admin.sock\"",
            self.admin
        ));
        line(&self.admin_keys);
        line("[log]\nformat = \"json\"\nfile = \"becket.log\"\naccess = \"access.log\"");
        text
    }
}

fn add(text: &mut String, part: &str) {
    // Writing to a `String` cannot fail.
    writeln!(text, "{part}").expect("a longer string");
}
