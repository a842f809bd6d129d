//! A compromised worker process, simulated by the test, can use an agent only for the keys in the configuration.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use becket_e2e::{Becket, Key};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use serde_json::{Value, json};

use super::Site;

/// Agent as started by the supervisor, with the test as its peer.
struct Agent {
    process: Child,
    socket: OwnedFd,
}

impl Agent {
    fn start(site: &Site, keys: &[String]) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let (socket, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let setup = json!({ "user": null, "token": { "keys": keys, "sessions": 2 } });
        send(&socket, setup.to_string().as_bytes(), SendFlags::empty()).unwrap();
        let becket = Becket::command(&site.place, &[]);
        let mut command = Command::new(becket.get_program());
        site.token.shows_to(&mut command);
        command.arg0("becket-token").stdin(there);
        let process = command.spawn().unwrap();
        drop(command);
        Self { process, socket }
    }

    /// Receives the next packet; `None` if the agent has exited.
    fn receive(&self) -> Option<Value> {
        let mut room = vec![0; 64 * 1024];
        let (length, _) = recv(&self.socket, &mut room, RecvFlags::empty()).unwrap();
        (length > 0).then(|| serde_json::from_slice(&room[..length]).unwrap())
    }

    fn ask(&self, key: usize) -> Option<Value> {
        let digest = [7; 32];
        let request = json!({ "number": 5, "key": key, "scheme": 0x0403, "input": digest });
        let request = request.to_string();
        send(&self.socket, request.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        self.receive()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Sends packets that a compromised worker process might send.
#[test]
#[ignore = "slow: .ci/run test"]
fn an_agent_loads_no_other_module_and_signs_with_no_other_key() {
    let Some(site) = Site::with(&[("ec", Key::Ecdsa), ("other", Key::Ecdsa)]) else {
        return;
    };
    let keys = [site.token.uri("ec")];
    let other = site.token.uri("other");
    let module = site.place.path("module.so");
    fs::copy(site.token.module(), &module).unwrap();
    let elsewhere = other.replace(
        site.token.module().to_str().unwrap(),
        module.to_str().unwrap(),
    );
    let binary = [
        &[1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0],
        elsewhere.as_bytes(),
    ]
    .concat();
    let digest = [7; 32];
    let request = json!({ "number": 1, "key": 0, "scheme": 0x0403, "input": digest });
    let with = |name: &str, value: Value| {
        let mut request = request.clone();
        request[name] = value;
        request.to_string().into_bytes()
    };
    let setup = json!({ "user": null, "token": { "keys": [elsewhere], "sessions": 1 } });
    for packet in [
        // An earlier protocol allowed to open a module without confinement.
        binary,
        setup.to_string().into_bytes(),
        json!({ "Find": { "key": 1, "uri": other } })
            .to_string()
            .into_bytes(),
        with("key", json!(1)),
        with("key", json!(-1)),
        with("key", json!(other)),
        with("uri", json!(other)),
        with("input", json!(vec![7; 40_000])),
        b"\0".to_vec(),
    ] {
        let mut agent = Agent::start(&site, &keys);
        let opened = agent.receive().unwrap();
        assert_eq!(opened["Opened"]["faults"], json!([null]));
        let signed = agent.ask(0).unwrap();
        assert!(signed["Signed"]["signature"]["Ok"].is_array(), "{signed}");
        send(&agent.socket, &packet, SendFlags::NOSIGNAL).unwrap();
        let shown = packet.escape_ascii();
        assert_eq!(agent.receive(), None, "{shown}");
        assert_eq!(agent.process.wait().unwrap().code(), Some(1), "{shown}");
    }
}

/// A compromised worker process could replace the module by its own code.
#[test]
#[ignore = "slow: .ci/run test"]
fn a_module_that_users_other_than_root_can_change_is_not_loaded() {
    let Some(site) = Site::with(&[("ec", Key::Ecdsa)]) else {
        return;
    };
    let module = site.place.path("module.so");
    fs::copy(site.token.module(), &module).unwrap();
    fs::set_permissions(&module, Permissions::from_mode(0o777)).unwrap();
    let uri = site.token.uri("ec");
    let uri = uri.replace(
        site.token.module().to_str().unwrap(),
        module.to_str().unwrap(),
    );
    let refused = Agent::start(&site, &[uri]).receive().unwrap();
    let why = refused["Failed"]["Refused"].as_str().unwrap();
    assert!(
        why.contains("a user other than root can change this module"),
        "{why}"
    );
}
