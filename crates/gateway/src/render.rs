//! Builds becket's configuration from the objects, one listener for each port.

use std::collections::BTreeMap;

use becket_config::address::{ListenAddress, NamePattern, SectionName};
use becket_config::choices::{Mode, UnknownNames};
use becket_config::error::Report;
use becket_config::file::File;
use becket_config::listener::{ListenerSection, Route};
use becket_config::notation::Text;
use becket_config::write::write;

use crate::credentials::Mounts;
use crate::hosts;
use crate::kinds::{GatewaySpec, RouteSpec};
use crate::listeners::{Entrance, entrances};
use crate::manifests::Manifests;
use crate::objects::{GROUP, Object, Objects, problem};

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

/// Renders the manifests as `becket.toml`. Returns `None` if there is a condition, which is an error
/// of the report. Warnings are differences that need no change.
pub fn render(mut manifests: Manifests, settings: &Settings) -> (Option<String>, Report) {
    let objects = objects(&mut manifests, settings);
    let mut builder = Builder {
        mounts: Mounts {
            folder: &settings.certificates,
            objects: &objects,
        },
        report: manifests.report,
        file: File::default(),
    };
    let mut ports: BTreeMap<u16, Vec<Entrance<'_>>> = BTreeMap::new();
    for entrance in entrances(builder.mounts, &mut builder.report) {
        ports
            .entry(entrance.listener.port)
            .or_default()
            .push(entrance);
    }
    for (port, mut entrances) in ports {
        entrances.sort_by_key(|it| hosts::precedence(it.host.as_ref()));
        builder.port(port, &entrances);
    }
    let (file, mut report) = (builder.file, builder.report);
    if report.errors.is_empty() {
        file.check(&mut report);
    }
    let title = "# Written by \"becket-gateway render\".\n".to_owned();
    let is_whole = report.errors.is_empty();
    (is_whole.then(|| write(&file, title, &())), report)
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
            let target = parent.target(&route.identity.name.namespace);
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
        secrets: manifests.of_kinds("", &["Secret"]),
        config_maps: manifests.of_kinds("", &["ConfigMap"]),
        assume_missing: settings.assume_missing,
    };
    let identities = objects.gateways.iter().map(|it| &it.identity);
    let identities = identities.chain(objects.routes.iter().map(|it| &it.identity));
    let identities = identities.chain(objects.grants.iter().map(|it| &it.identity));
    let identities = identities.chain(objects.policies.iter().map(|it| &it.identity));
    identities.for_each(|it| it.refuse_unknown(&mut manifests.report));
    objects
}

struct Builder<'a> {
    mounts: Mounts<'a>,
    report: Report,
    file: File,
}

/// Clients with a host name, and their route without names.
#[derive(Debug)]
struct Way<'a> {
    host: Option<NamePattern>,
    to: Route,
    route: &'a Object<RouteSpec>,
}

impl Builder<'_> {
    fn port(&mut self, port: u16, entrances: &[Entrance<'_>]) {
        let has_tls = entrances.iter().any(|it| it.mode.is_some());
        let kind = if has_tls { "tls" } else { "tcp" };
        let mut section = ListenerSection {
            name: SectionName(format!("{kind}-{port}").into()),
            bind: ListenAddress::parse(&format!(":{port}"))
                .into_iter()
                .collect(),
            tls: has_tls,
            ..ListenerSection::default()
        };
        let mut ways: Vec<Way<'_>> = Vec::new();
        for (index, entrance) in entrances.iter().enumerate() {
            let own = self.ways(entrance);
            for certificate in entrance.certificates.iter().filter(|_| !own.is_empty()) {
                if !section.certificates.contains(certificate) {
                    section.certificates.push(certificate.clone());
                }
            }
            // A less specific listener must not take clients of this one.
            let host = entrance.host.as_ref();
            let mut later = entrances.iter().skip(index + 1);
            if !own.iter().any(|way| way.host.as_ref() == host)
                && let Some(other) = later.find(|it| hosts::covers(it.host.as_ref(), host))
            {
                let fault = format!("clients without a route would be taken by {}", other.field);
                let accepted = "a route for all names of the hostname";
                entrance
                    .gateway
                    .refuse(&mut self.report, problem(&entrance.field, fault, accepted));
            }
            ways.extend(own);
        }
        let Some(last) = ways.last() else {
            let fault = format!("no route attaches to a listener with port {port}");
            return self.report.remark("Gateway", fault);
        };
        if !has_tls {
            section.backend.clone_from(&last.to.backend);
        } else {
            self.warn_of_wildcards(&ways);
            if last.host.is_some() {
                // Rejects clients without a route. Their backend is required, but never used.
                section.mode = Mode::Passthrough;
                section.unknown_names = Some(UnknownNames::Strict);
                section.backend.clone_from(&last.to.backend);
            }
            section.route = routes(section.mode, &ways);
        }
        self.file.listener.push(section);
    }

    /// Returns the ways of a listener of a Gateway, the most specific first.
    fn ways<'a>(&mut self, entrance: &Entrance<'a>) -> Vec<Way<'a>> {
        let mut ways = Vec::new();
        let mut attached: Vec<_> = entrance.attached.iter().collect();
        let name = |host: &Option<NamePattern>| host.as_ref().map(Text::write);
        attached.sort_by_cached_key(|(host, _)| (hosts::precedence(host.as_ref()), name(host)));
        for (host, route) in attached {
            if let Some(winner) = ways.last().filter(|way: &&Way<'_>| way.host == *host) {
                // A route may attach twice, or its names may have one intersection.
                if !std::ptr::eq(winner.route, *route) {
                    let name = name(host).unwrap_or_else(|| "all clients".to_owned());
                    let fault = format!("{} has precedence for {name}", winner.route.identity);
                    let problem = problem("spec", fault, "one route for each name of a listener");
                    route.refuse(&mut self.report, problem);
                }
                continue;
            }
            let passes = entrance.mode == Some(Mode::Passthrough);
            let out = (&mut self.file.backend, &mut self.report);
            let backend = self.mounts.backend(route, passes, out);
            let policies = &mut self.file.policy;
            let missing = entrance.policy.iter().filter(|it| !policies.contains(it));
            policies.extend(missing.cloned().collect::<Vec<_>>());
            let to = Route {
                mode: entrance.mode,
                policy: entrance.policy.as_ref().map(|it| it.name.to_string()),
                backend: Some(backend.to_string()),
                ..Route::default()
            };
            let host = host.clone();
            ways.push(Way { host, to, route });
        }
        ways
    }

    fn warn_of_wildcards(&mut self, ways: &[Way<'_>]) {
        let takes_all = ways.iter().any(|way| way.host.is_none());
        for Way { host, route, .. } in ways {
            let Some(wildcard @ NamePattern::Wildcard(_)) = host else {
                continue;
            };
            let field = wildcard.to_string();
            let fault = "covers one label in becket; longer names are";
            if takes_all {
                let fault = format!("{fault} taken by the route for all names");
                let accepted = "a port without a route for all names";
                route.refuse(&mut self.report, problem(&field, fault, accepted));
            } else {
                let path = format!("{}: {field}", route.identity);
                self.report.remark(path, format!("{fault} rejected"));
            }
        }
    }
}

/// Returns the routes of a listener of this mode. Neighbours with the same target become one.
fn routes(mode: Mode, ways: &[Way<'_>]) -> Vec<Route> {
    let groups = ways.chunk_by(|one, other| one.to == other.to);
    let routes = groups.map(|ways| {
        let to = ways.first().map(|way| way.to.clone()).unwrap_or_default();
        // Without names, a route takes all clients.
        let hosts: Option<Vec<_>> = ways.iter().map(|way| way.host.clone()).collect();
        Route {
            names: hosts.unwrap_or_default(),
            mode: to.mode.filter(|own| *own != mode),
            ..to
        }
    });
    routes.collect()
}
