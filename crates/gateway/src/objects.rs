//! Kubernetes objects, and references between them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use becket_config::error::{Problem, Report};
use serde_json::Value;

use crate::kinds::{
    GatewaySpec, GrantSpec, Reference, RouteSpec, ServiceSpec, SliceSpec, TlsPolicySpec,
};

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Kind, name and place of an object.
#[derive(Debug)]
pub struct Identity {
    pub file: Box<str>,
    pub line: usize,
    pub kind: &'static str,
    pub name: Name,
    pub created: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Paths of fields that are not supported, such as `spec.listeners[0].tls.options`.
    pub unknown: Vec<String>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

impl Identity {
    /// Reports a problem whose path is a field of this object, if it is not reported yet.
    pub fn refuse(&self, report: &mut Report, problem: Problem) {
        let problem = Problem {
            file: Some(self.file.clone()),
            line: Some(self.line),
            path: format!("{self}: {}", problem.path),
            ..problem
        };
        refuse(report, problem);
    }

    pub fn refuse_unknown(&self, report: &mut Report) {
        for path in &self.unknown {
            let accepted = "the fields in docs/guide/gateway.md";
            self.refuse(report, problem(path, "not supported", accepted));
        }
    }
}

#[derive(Debug)]
pub struct Object<S> {
    pub identity: Identity,
    pub spec: S,
}

impl<S> Deref for Object<S> {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

/// Reports a problem, if it is not reported yet.
pub fn refuse(report: &mut Report, problem: Problem) {
    if report.errors.len() < MOST_PROBLEMS && !report.errors.contains(&problem) {
        report.error(problem);
    }
}

/// Creates a problem of a field, without the object.
pub fn problem(field: &str, fault: impl Into<String>, accepted: impl Into<String>) -> Problem {
    Problem::new(field, fault).accepted(accepted)
}

/// The objects to render, and what they refer to. Older objects come first.
#[derive(Debug)]
pub struct Objects {
    pub gateways: Vec<Object<GatewaySpec>>,
    /// Routes to these Gateways, also of kinds that are not supported.
    pub routes: Vec<Object<RouteSpec>>,
    pub grants: Vec<Object<GrantSpec>>,
    pub policies: Vec<Object<TlsPolicySpec>>,
    pub services: Vec<Object<ServiceSpec>>,
    pub slices: Vec<Object<SliceSpec>>,
    pub secrets: Vec<Object<Value>>,
    pub config_maps: Vec<Object<Value>>,
    /// Objects that no file contains are in the cluster.
    pub assume_missing: bool,
}

impl Objects {
    /// Resolves a reference from `from` to an object of the core group. The object is `None` if it
    /// is assumed to be in the cluster.
    pub fn resolve<'o, S>(
        &self,
        from: &Identity,
        field: &str,
        reference: &Reference,
        (kind, all): (&str, &'o [Object<S>]),
    ) -> Result<(Name, Option<&'o Object<S>>), Problem> {
        let target = reference.target(&from.name.namespace);
        if !reference.is_to(("", kind), kind) {
            return Err(problem(field, "InvalidKind", kind));
        }
        if !is_name(&target.name) || !is_name(&target.namespace) {
            return Err(problem(field, "not the name of an object", NAME));
        }
        if target.namespace != from.name.namespace && !self.is_granted(from, kind, &target) {
            let fault = format!("RefNotPermitted: {kind} {target} is in another namespace");
            let accepted = format!("a ReferenceGrant in {}", target.namespace);
            return Err(problem(field, fault, accepted));
        }
        let found = all.iter().find(|it| it.name == target);
        if found.is_none() && !self.assume_missing {
            let fault = format!("{kind} {target} is in none of the files");
            return Err(problem(field, fault, "its manifest, or --assume-missing"));
        }
        Ok((target, found))
    }

    fn is_granted(&self, from: &Identity, kind: &str, target: &Name) -> bool {
        let is_from = |side: &Reference| {
            let namespace = side.namespace.as_ref();
            side.is_to((GROUP, from.kind), "") && namespace == Some(&from.name.namespace)
        };
        let is_to = |side: &Reference| {
            side.is_to(("", kind), "") && ["", &target.name].contains(&&*side.name)
        };
        self.grants.iter().any(|grant| {
            grant.name.namespace == target.namespace
                && grant.spec.from.iter().any(is_from)
                && grant.spec.to.iter().any(is_to)
        })
    }
}

impl Reference {
    /// Returns whether the reference is to this group and kind. Absent, the group is this one, and
    /// the kind is `default`.
    pub fn is_to(&self, (group, kind): (&str, &str), default: &str) -> bool {
        self.group.as_deref().unwrap_or(group) == group
            && self.kind.as_deref().unwrap_or(default) == kind
    }

    /// Returns the name of the referenced object; without a namespace, it is in `namespace`.
    pub fn target(&self, namespace: &str) -> Name {
        Name {
            namespace: self.namespace.as_deref().unwrap_or(namespace).to_owned(),
            name: self.name.clone(),
        }
    }
}

/// Returns whether a text may be the name of an object or a namespace, as in RFC 1123.
pub fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| label.starts_with(is_plain) && label.ends_with(is_plain);
    text.len() <= 253
        && text.split('.').all(is_label)
        && text.chars().all(|c| is_plain(c) || matches!(c, '-' | '.'))
}

pub const NAME: &str = "1 to 253 lower-case letters, digits, '-' or '.'";
/// API group of Gateway and routes.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// Maximum number of reported problems.
const MOST_PROBLEMS: usize = 1000;
