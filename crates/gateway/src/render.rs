//! Builds becket's configuration from the objects, one listener for each port.

use std::collections::BTreeMap;

use becket_config::address::{ListenAddress, NamePattern, SectionName};
use becket_config::choices::{Mode, UnknownNames};
use becket_config::error::Report;
use becket_config::file::File;
use becket_config::listener::{Certificate, ListenerSection, Route};
use becket_config::notation::Text;
use becket_config::policy::Policy;
use becket_config::write::{Comments, write};

use crate::credentials::Mounts;
use crate::hosts;
use crate::kinds::{GatewaySpec, Reference, RouteSpec};
use crate::listeners::{Entrance, entrances};
use crate::manifests::Manifests;
use crate::objects::{GROUP, Object, Objects, problem};
use crate::servers::Backends;

/// Settings of a rendering.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder where Secrets and ConfigMaps are mounted.
    pub certificates: String,
    /// Class of the Gateways to render; `None` means all.
    pub class: Option<String>,
    /// Take objects that no file contains as present in the cluster.
    pub assume_missing: bool,
}

/// A configuration, and problems of the manifests.
#[derive(Debug)]
pub struct Rendering {
    /// Content of `becket.toml`; `None` if a manifest is damaged, or nothing can be served.
    pub toml: Option<String>,
    /// Conditions are errors. Warnings are differences that need no change.
    pub report: Report,
}

/// Renders the manifests. An object with a condition is left out.
pub fn render(mut manifests: Manifests, settings: &Settings) -> Rendering {
    let objects = objects(&mut manifests, settings);
    let Manifests {
        mut report,
        is_damaged,
        ..
    } = manifests;
    let mounts = Mounts {
        folder: &settings.certificates,
        objects: &objects,
    };
    let mut ports: BTreeMap<u16, Vec<Entrance<'_>>> = BTreeMap::new();
    for entrance in entrances(mounts, &mut report) {
        ports.entry(entrance.listener.port).or_default().push(entrance);
    }
    let mut builder = Builder {
        backends: Backends::new(mounts),
        file: File::default(),
        origins: Origins::default(),
    };
    for (port, mut entrances) in ports {
        entrances.sort_by_key(|it| hosts::precedence(it.host.as_ref()));
        match &entrances[..] {
            [entrance] if entrance.mode.is_none() => builder.tcp(port, entrance, &mut report),
            entrances => builder.tls(port, entrances, &mut report),
        }
    }
    let Builder { backends, mut file, origins } = builder;
    file.backend = backends.sections;
    if !file.listener.is_empty() {
        file.check(&mut report);
    } else if report.errors.is_empty() {
        let accepted = "a Gateway with a TLS or TCP listener, and a route";
        report.refuse("", "nothing to serve", accepted);
    }
    let mut title = "# Written by \"becket-gateway render\".\n".to_owned();
    if !report.errors.is_empty() {
        title += "# Incomplete: see the conditions on standard error.\n";
    }
    let is_usable = !is_damaged && !file.listener.is_empty();
    Rendering {
        toml: is_usable.then(|| write(&file, title, &origins)),
        report,
    }
}

/// Reads the objects to render, and reports fields that are not supported.
fn objects(manifests: &mut Manifests, settings: &Settings) -> Objects {
    let gateways: Vec<Object<GatewaySpec>> = manifests.of_kinds("spec", &["Gateway"]);
    let is_ours = |it: &Object<GatewaySpec>| {
        let class = settings.class.as_ref();
        class.is_none_or(|class| *class == it.spec.gateway_class_name)
    };
    let (gateways, others): (Vec<_>, Vec<_>) = gateways.into_iter().partition(is_ours);
    let kinds = ["TLSRoute", "TCPRoute", "HTTPRoute", "GRPCRoute", "UDPRoute"];
    let mut routes: Vec<Object<RouteSpec>> = manifests.of_kinds("spec", &kinds);
    routes.retain_mut(|route| {
        let parents = &mut route.spec.parent_refs;
        let is_orphan = parents.is_empty();
        parents.retain(|parent| {
            let target = parent.target(&route.name.namespace);
            let is_gateway = parent.is_to((GROUP, "Gateway"), "Gateway");
            !(is_gateway && others.iter().any(|it| it.name == target))
        });
        is_orphan || !parents.is_empty()
    });
    let objects = Objects {
        gateways,
        routes,
        grants: manifests.of_kinds("spec", &["ReferenceGrant"]),
        policies: manifests.of_kinds("spec", &["BackendTLSPolicy"]),
        services: manifests.of_kinds("spec", &["Service"]),
        slices: manifests.of_kinds("", &["EndpointSlice"]),
        data: manifests.of_kinds("", &["Secret", "ConfigMap"]),
        assume_missing: settings.assume_missing,
    };
    let report = &mut manifests.report;
    objects.gateways.iter().for_each(|it| it.refuse_unknown(report));
    let routes = objects.routes.iter();
    // Routes of other kinds are refused as a whole.
    let routes = routes.filter(|it| ["TLSRoute", "TCPRoute"].contains(&it.kind));
    routes.for_each(|it| it.refuse_unknown(report));
    objects.grants.iter().for_each(|it| it.refuse_unknown(report));
    objects.policies.iter().for_each(|it| it.refuse_unknown(report));
    objects
}

/// Objects from which sections come, by key path.
#[derive(Debug, Default)]
struct Origins(BTreeMap<String, String>);

impl Comments for Origins {
    fn at(&self, path: &str) -> String {
        let origin = self.0.get(path);
        origin.map(|origin| format!("  # {origin}")).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Builder<'a> {
    backends: Backends<'a>,
    file: File,
    origins: Origins,
}

/// Clients with a host name, and their route.
#[derive(Debug)]
struct Way {
    host: Option<NamePattern>,
    target: WayTarget,
    origin: String,
}

#[derive(Debug, PartialEq)]
struct WayTarget {
    mode: Mode,
    policy: Option<String>,
    /// `None` rejects the clients.
    backend: Option<String>,
}

impl Builder<'_> {
    fn tcp(&mut self, port: u16, entrance: &Entrance<'_>, report: &mut Report) {
        let mut routes = entrance.attached.iter().map(|(_, route)| *route);
        let Some(route) = routes.next().filter(|_| entrance.is_usable) else {
            return;
        };
        routes.for_each(|other| refuse_shadowed(other, route, "all clients", report));
        // Without a backend, closed ports reject the clients.
        if let Some(backend) = self.backends.of_route(route, false, report) {
            let listener = ListenerSection {
                tls: false,
                backend: Some(backend),
                ..listener("tcp", port)
            };
            self.add(listener, &format!("{} {route}", entrance.gateway));
        }
    }

    fn tls(&mut self, port: u16, entrances: &[Entrance<'_>], report: &mut Report) {
        let mut section = listener("tls", port);
        let mut ways: Vec<Way> = Vec::new();
        for (index, entrance) in entrances.iter().enumerate() {
            let host = entrance.host.as_ref();
            let own = self.ways(entrance, report);
            let ends = |way: &Way| way.target.backend.is_some() && way.target.mode == Mode::Terminate;
            if own.iter().any(ends) {
                let pairs = entrance.certificates.iter().cloned().map(Certificate::Pair);
                let before = section.certificates.clone();
                section.certificates.extend(pairs.filter(|pair| !before.contains(pair)));
            }
            let is_whole = own.iter().any(|way| way.host.as_ref() == host);
            ways.extend(own);
            // A less specific listener must not take clients of this one.
            let mut later = entrances.iter().skip(index + 1);
            if !is_whole && later.any(|it| hosts::covers(it.host.as_ref(), host)) {
                let origin = format!("{}: no usable route", entrance.gateway);
                ways.push(Way::new(entrance, entrance.host.clone(), None, origin));
            }
        }
        let Some(served) = ways.iter().find_map(|way| way.target.backend.clone()) else {
            return;
        };
        let takes_all = ways.iter().any(|way| way.host.is_none());
        if !takes_all {
            // Rejects clients without a route. Their backend is required, but never used.
            section.mode = Mode::Passthrough;
            section.unknown_names = Some(UnknownNames::Strict);
            section.backend = Some(served);
        }
        for way in &ways {
            if let Some(NamePattern::Wildcard(suffix)) = &way.host {
                let path = format!("{}: *.{suffix}", way.origin);
                if takes_all {
                    let fault = "covers one label in becket, so longer names take the route for all names";
                    report.refuse(path, fault, "a port without a route for all names");
                } else {
                    let fault = "covers one label in becket, so longer names are rejected";
                    report.remark(path, fault);
                }
            }
        }
        self.routes(&mut section, &ways);
        let gateways = entrances.iter().map(|it| it.gateway.to_string());
        let mut gateways: Vec<_> = gateways.collect();
        gateways.dedup();
        self.add(section, &gateways.join(" "));
    }

    /// Returns the ways of a listener of a Gateway, the most specific first.
    fn ways(&mut self, entrance: &Entrance<'_>, report: &mut Report) -> Vec<Way> {
        let mut ways: Vec<Way> = Vec::new();
        let mut attached: Vec<_> = entrance.attached.iter().collect();
        attached.retain(|_| entrance.is_usable);
        attached.sort_by_key(|(host, _)| hosts::precedence(host.as_ref()));
        let mut seen: BTreeMap<Option<String>, &Object<RouteSpec>> = BTreeMap::new();
        for (host, route) in attached {
            let name = host.as_ref().map(Text::write);
            if let Some(first) = seen.get(&name) {
                let name = name.as_deref().unwrap_or("all clients");
                refuse_shadowed(route, first, name, report);
                continue;
            }
            seen.insert(name, route);
            let passes = entrance.mode == Some(Mode::Passthrough);
            let backend = self.backends.of_route(route, passes, report);
            let mut way = Way::new(entrance, host.clone(), backend, route.to_string());
            if way.target.mode == Mode::Terminate {
                way.target.policy = self.policy(entrance);
            }
            ways.push(way);
        }
        ways
    }

    /// Returns the name of the policy that verifies client certificates.
    fn policy(&mut self, entrance: &Entrance<'_>) -> Option<String> {
        let policy = entrance.policy.as_ref()?;
        let policies = &mut self.file.policy;
        let known = policies.iter().find(|it| it.client_ca == policy.client_ca);
        let name = known.map(|it| it.name.clone()).unwrap_or_else(|| {
            let name = SectionName(format!("clients-{}", policies.len() + 1).into());
            self.origins.0.insert(format!("policy[{name}]"), entrance.gateway.to_string());
            policies.push(Policy {
                name: name.clone(),
                ..policy.clone()
            });
            name
        });
        Some(name.to_string())
    }

    /// Adds routes to a listener. Neighbours with the same target become one.
    fn routes(&mut self, section: &mut ListenerSection, ways: &[Way]) {
        for ways in ways.chunk_by(|one, other| one.target == other.target) {
            let Some(Way { target, origin, .. }) = ways.first() else {
                continue;
            };
            let path = format!("listener[{}].route[{}]", section.name, section.route.len());
            self.origins.0.insert(path, origin.clone());
            // Without names, a route takes all clients.
            let hosts: Option<Vec<_>> = ways.iter().map(|way| way.host.clone()).collect();
            let backend = target.backend.clone();
            section.route.push(Route {
                names: hosts.unwrap_or_default(),
                mode: Some(target.mode).filter(|mode| *mode != section.mode),
                policy: target.policy.clone(),
                backend: Some(backend.unwrap_or_else(|| self.backends.rejecting())),
                ..Route::default()
            });
        }
    }

    fn add(&mut self, section: ListenerSection, origin: &str) {
        let path = format!("listener[{}]", section.name);
        self.origins.0.insert(path, origin.to_owned());
        self.file.listener.push(section);
    }
}

impl Way {
    fn new(
        entrance: &Entrance<'_>,
        host: Option<NamePattern>,
        backend: Option<String>,
        origin: String,
    ) -> Self {
        // A rejected client needs no handshake.
        let mode = entrance.mode.filter(|_| backend.is_some());
        let target = WayTarget {
            mode: mode.unwrap_or(Mode::Passthrough),
            policy: None,
            backend,
        };
        Self {
            host,
            target,
            origin,
        }
    }
}

fn listener(kind: &str, port: u16) -> ListenerSection {
    ListenerSection {
        name: SectionName(format!("{kind}-{port}").into()),
        bind: ListenAddress::parse(&format!(":{port}")).into_iter().collect(),
        ..ListenerSection::default()
    }
}

/// Reports a route whose clients another route takes.
fn refuse_shadowed(
    route: &Object<RouteSpec>,
    first: &Object<RouteSpec>,
    name: &str,
    report: &mut Report,
) {
    let fault = format!("{first} has precedence for {name}");
    route.refuse(report, problem("spec", fault, "one route for each name of a listener"));
}
