//! Pods of the example for Kubernetes, each a process on a host of a network: a rollout, a killed pod, and changed volumes. The
//! test plays the kubelet, the endpoints of the service and the name server.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Dns, Host, Key, Network, OpenSsl, Place, REQUEST, Signal, Trust,
    answer_all, becket_program, eventually, finish, http_get,
};
use rustls::client::Resumption;

const NAME: &str = "www.example.org";
const PEERS: &str = "becket-peers.test";
const SERVICE: &str = "app.default.svc.cluster.local";
const HTTPS: u16 = 8443;
const ADMIN: u16 = 9443;

/// A volume of Kubernetes: its files are links through `..data`, which is replaced atomically.
struct Volume<'a> {
    place: &'a Place,
    name: &'static str,
}

impl Volume<'_> {
    fn write(&self, files: &[(&str, &str)]) {
        let folder = self.place.path(self.name);
        fs::create_dir_all(&folder).unwrap();
        let number = fs::read_dir(&folder).unwrap().count();
        let version = format!("..{number}");
        fs::create_dir(folder.join(&version)).unwrap();
        for (file, text) in files {
            let path = folder.join(&version).join(file);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
            // A file of an earlier version has its link.
            symlink(Path::new("..data").join(file), folder.join(file)).ok();
        }
        symlink(&version, folder.join("..new")).unwrap();
        fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    }
}

struct Pod<'n> {
    host: &'n Host,
    becket: Becket,
    place: Place,
}

impl Pod<'_> {
    fn web(&self) -> SocketAddr {
        (self.host.address, HTTPS).into()
    }

    fn volume(&self, name: &'static str) -> Volume<'_> {
        Volume {
            place: &self.place,
            name,
        }
    }

    fn health(&self) -> String {
        let at = (self.host.address, ADMIN).into();
        let found = self.host.within(|| http_get(at, "/healthz"));
        found.map_or_else(|_| String::new(), |(_, text)| text)
    }

    /// Waits until all pods of this number are peers.
    fn has_peers(&self, count: usize) {
        eventually("the pods are peers", || {
            let status = self.host.within(|| self.becket.status());
            let peers = status["cluster"]["peers"].as_array();
            let live = peers.into_iter().flatten();
            live.filter(|peer| peer["state"] == "live").count() == count
        });
    }
}

fn secret(place: &Place, file: &str) {
    let run = finish(Becket::command(place, &["secret", file]), "");
    assert_eq!(run.code, 0, "{}", run.all());
}

/// The cluster: its network, its name server, and what all pods have.
struct Cluster<'n> {
    network: &'n Network,
    dns: Dns,
    place: Place,
    secret: String,
    tls: (String, String),
}

impl<'n> Cluster<'n> {
    fn new(network: &'n Network, backend: &Backend) -> Self {
        let place = Place::new();
        let bundle = place.issue("site.pem", &[NAME], Key::Ecdsa);
        secret(&place, "secret");
        let dns = Dns::on(&network.hub);
        dns.points(SERVICE, &[backend.address.ip()]);
        Self {
            network,
            dns,
            secret: place.read("secret"),
            tls: (bundle.certificate, bundle.key),
            place,
        }
    }

    /// Returns the configuration of the example, with the paths of a pod.
    fn config(&self, place: &Place, backend: &Backend) -> String {
        let root = env!("CARGO_MANIFEST_DIR");
        let example = Path::new(root).join("../examples/kubernetes/base/becket.toml");
        let mut text = fs::read_to_string(example).unwrap();
        let port = backend.address.port();
        for (was, is) in [
            ("/etc/becket", place.folder().to_str().unwrap()),
            ("/run/becket", place.folder().to_str().unwrap()),
            ("becket-peers", PEERS),
            ("10s", "1s"),
            (&format!("{SERVICE}:8080"), &format!("{SERVICE}:{port}")),
        ] {
            assert!(text.contains(was), "{was}");
            text = text.replace(was, is);
        }
        text
    }

    /// Starts a pod on a host, and waits until it is ready.
    fn start(&self, host: usize, backend: &Backend) -> Option<Pod<'n>> {
        let host = &self.network.hosts[host];
        let place = Place::new();
        let volume = |name| Volume {
            place: &place,
            name,
        };
        volume("config").write(&[("becket.toml", &self.config(&place, backend))]);
        volume("tls").write(&[("tls.crt", &self.tls.0), ("tls.key", &self.tls.1)]);
        volume("cluster").write(&[("secret", &self.secret)]);
        let mut words = self.dns.launcher(&place)?;
        let program = words.remove(0);
        let own = becket_program().to_string_lossy();
        let run = [&own, "run", "--config", "config/becket.toml"].map(str::to_owned);
        words.extend(run);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let becket = host.within(|| {
            let command = Becket::command_of(Path::new(&program), &place, &words);
            let [web, admin] = [HTTPS, ADMIN].map(|port| (host.address, port).into());
            let becket = Becket::spawn(command, place.folder(), web, admin);
            becket.ready();
            becket
        });
        Some(Pod {
            host,
            becket,
            place,
        })
    }

    /// Publishes the addresses of the pods.
    fn publish(&self, pods: &[Pod<'_>]) {
        let addresses: Vec<IpAddr> = pods.iter().map(|pod| pod.host.address.into()).collect();
        self.dns.points(PEERS, &addresses);
    }
}

/// Clients that never stop, each time on the next endpoint.
struct Load {
    endpoints: Mutex<Vec<SocketAddr>>,
    is_over: AtomicBool,
    done: AtomicUsize,
    faults: Mutex<Vec<String>>,
}

impl Load {
    fn new(pods: &[Pod<'_>]) -> Self {
        Self {
            endpoints: Mutex::new(pods.iter().map(Pod::web).collect()),
            is_over: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            faults: Mutex::default(),
        }
    }

    fn run(&self, trust: &Trust) {
        let mut turn = 0;
        while !self.is_over.load(Relaxed) {
            turn += 1;
            // As a service does, holds the list while a connection begins.
            let client = {
                let endpoints = self
                    .endpoints
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                Client::connect_as(endpoints[turn % endpoints.len()], trust, NAME)
            };
            let answer = client.and_then(|mut client| client.ask(REQUEST));
            match answer {
                Ok(answer) if answer.ends_with(b"well met") => self.done.fetch_add(1, Relaxed),
                other => {
                    let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
                    faults.push(format!("{other:?}"));
                    return;
                }
            };
        }
    }

    fn set(&self, endpoints: Vec<SocketAddr>) {
        *self
            .endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = endpoints;
    }

    /// Waits for connections that begin after this call.
    fn serves(&self) {
        let before = self.done.load(Relaxed);
        eventually("clients are served", || {
            self.done.load(Relaxed) > before + 20
        });
    }
}

/// Ends the load, also when a check fails, because the scope of its threads waits for them.
struct Ends<'a>(&'a Load);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
    }
}

/// Checks that a session of one pod resumes on another.
#[track_caller]
fn resumes(
    network: &Network,
    openssl: &OpenSsl,
    cluster: &Cluster<'_>,
    from: &Pod<'_>,
    to: &Pod<'_>,
) {
    let file = cluster.place.text("session.pem");
    for version in ["-tls1_2", "-tls1_3"] {
        let visit = |pod: &Pod<'_>, flags: [&str; 2]| {
            let flags = [&[version], &flags[..]].concat();
            network
                .hub
                .within(|| openssl.ask(&cluster.place, pod.web(), &flags))
        };
        let first = visit(from, ["-sess_out", &file]);
        assert!(first.stdout.contains("New, TLS"), "{}", first.all());
        eventually("the session resumes", || {
            visit(to, ["-sess_in", &file])
                .stdout
                .contains("Reused, TLS")
        });
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_rollout_and_changed_volumes_fail_no_connection_and_sessions_resume_on_other_pods() {
    let (Some(network), Some(openssl)) = (Network::of(4), OpenSsl::find()) else {
        return;
    };
    let at = (network.hub.address, 0).into();
    let backend = network
        .hub
        .within(|| Backend::at(at, |stream| answer_all(stream, "well met")));
    for host in &network.hosts {
        host.ip(&format!("route add default via {}", network.hub.address));
    }
    let cluster = Cluster::new(&network, &backend);
    let mut pods = Vec::new();
    for host in 0..3 {
        let Some(pod) = cluster.start(host, &backend) else {
            return;
        };
        pods.push(pod);
    }
    cluster.publish(&pods);
    pods.iter().for_each(|pod| pod.has_peers(2));
    resumes(&network, &openssl, &cluster, &pods[0], &pods[1]);
    let trust = Trust::new(&cluster.place);
    let trust = trust.changed(|config| config.resumption = Resumption::disabled());
    let load = Load::new(&pods);
    thread::scope(|scope| {
        let _ends = Ends(&load);
        for _ in 0..2 {
            scope.spawn(|| network.hub.within(|| load.run(&trust)));
        }
        load.serves();
        // A rollout: the new pod is ready before its predecessor gets no more clients, then SIGTERM.
        pods.push(cluster.start(3, &backend).unwrap());
        load.set(pods[1..].iter().map(Pod::web).collect());
        cluster.publish(&pods[1..]);
        let mut old = pods.remove(0);
        old.becket.signal(Signal::TERM);
        assert_eq!(old.becket.ended(), Some(0));
        load.serves();
        pods.iter().for_each(|pod| pod.has_peers(2));
        changed_volumes(&cluster, &pods, &load);
        resumes(&network, &openssl, &cluster, &pods[2], &pods[0]);
    });
    assert_eq!(*load.faults.lock().unwrap(), Vec::<String>::new());
    // A session survives its pod.
    let file = cluster.place.text("session.pem");
    let made = network.hub.within(|| {
        let flags = ["-tls1_2", "-no_ticket", "-sess_out", &file];
        openssl.ask(&cluster.place, pods[0].web(), &flags)
    });
    assert!(made.stdout.contains("New, TLS"), "{}", made.all());
    pods.remove(0).becket.kill_all();
    eventually("the session resumes on another pod", || {
        let flags = ["-tls1_2", "-sess_in", &file];
        let run = network
            .hub
            .within(|| openssl.ask(&cluster.place, pods[0].web(), &flags));
        run.stdout.contains("Reused, TLS")
    });
}

/// Changes the Secrets and the ConfigMap of all pods.
fn changed_volumes(cluster: &Cluster<'_>, pods: &[Pod<'_>], load: &Load) {
    // A refused configuration changes nothing, and the pod stays ready.
    let config = |pod: &Pod<'_>| pod.place.read("config/becket.toml");
    let valid = config(&pods[0]);
    pods[0]
        .volume("config")
        .write(&[("becket.toml", "[[listener]]\nname = 7")]);
    eventually("the configuration is refused", || {
        pods[0]
            .health()
            .starts_with("serving; the last reload was refused")
    });
    load.serves();
    pods[0].volume("config").write(&[("becket.toml", &valid)]);
    eventually("the configuration is accepted", || {
        pods[0].health() == "serving\n"
    });
    // The steps of the manual for another secret.
    secret(&cluster.place, "next");
    let (secret, next) = (&cluster.secret, cluster.place.read("next"));
    let accepts = |pod: &Pod<'_>, file: &str| {
        let path = pod.place.text(&format!("cluster/{file}"));
        let text = config(pod).replace(
            "peers = ",
            &format!("accept-secrets = [{path:?}]\npeers = "),
        );
        pod.volume("config").write(&[("becket.toml", &text)]);
    };
    let in_use = |pod: &Pod<'_>| {
        let status = pod.host.within(|| pod.becket.status());
        let secrets = status["tickets"]["secrets"].as_array().cloned();
        let serial = status["certificates"][0]["serial"].clone();
        (secrets.unwrap_or_default(), serial)
    };
    let (secrets, was) = in_use(&pods[0]);
    assert_eq!(secrets.len(), 1);
    let bundle = cluster.place.issue("next.pem", &[NAME], Key::Ecdsa);
    for pod in pods {
        pod.volume("cluster")
            .write(&[("secret", secret), ("other", &next)]);
        accepts(pod, "other");
        pod.volume("tls")
            .write(&[("tls.crt", &bundle.certificate), ("tls.key", &bundle.key)]);
    }
    for pod in pods {
        eventually(
            "the next secret is accepted, the next certificate served",
            || {
                let (secrets, serial) = in_use(pod);
                secrets.len() == 2 && serial != was
            },
        );
    }
    load.serves();
    for pod in pods {
        pod.volume("cluster")
            .write(&[("secret", &next), ("other", secret)]);
    }
    for pod in pods {
        eventually("the next secret seals tickets", || {
            in_use(pod)
                .0
                .first()
                .is_some_and(|first| *first != secrets[0])
        });
        pod.has_peers(pods.len() - 1);
        assert_eq!(pod.health(), "serving\n");
    }
    load.serves();
}
