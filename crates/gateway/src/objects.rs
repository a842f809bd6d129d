//! Kubernetes objects, and references between them.

use std::collections::BTreeMap;
use std::fmt;

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

/// An object with its place.
#[derive(Debug)]
pub struct Object<S> {
    pub file: Box<str>,
    pub line: usize,
    pub kind: &'static str,
    pub name: Name,
    pub created: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub spec: S,
    /// Paths of fields that are not supported, such as `spec.listeners[0].tls.options`.
    pub unknown: Vec<String>,
}

impl<S> Object<S> {
    /// Reports a problem whose path is a field of this object.
    pub fn refuse(&self, report: &mut Report, problem: Problem) {
        report.error(Problem {
            file: Some(self.file.clone()),
            line: Some(self.line),
            path: format!("{self}: {}", problem.path),
            ..problem
        });
    }

    pub fn refuse_unknown(&self, report: &mut Report) {
        for path in &self.unknown {
            let accepted = "the fields in docs/guide/gateway.md";
            self.refuse(report, problem(path, "not supported", accepted));
        }
    }
}

impl<S> fmt::Display for Object<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// Creates a problem of a field, without the object.
pub fn problem(field: &str, fault: impl Into<String>, accepted: impl Into<String>) -> Problem {
    Problem::new(field, fault).accepted(accepted)
}

/// The objects to render, and what they refer to. Those with precedence come first.
#[derive(Debug)]
pub struct Objects {
    pub gateways: Vec<Object<GatewaySpec>>,
    /// Routes to these Gateways, also of kinds that are not supported.
    pub routes: Vec<Object<RouteSpec>>,
    pub grants: Vec<Object<GrantSpec>>,
    pub policies: Vec<Object<TlsPolicySpec>>,
    pub services: Vec<Object<ServiceSpec>>,
    pub slices: Vec<Object<SliceSpec>>,
    /// Secrets and ConfigMaps.
    pub data: Vec<Object<Value>>,
    /// Objects that no file contains are in the cluster.
    pub assume_missing: bool,
}

impl Objects {
    /// Resolves a reference from `from` to an object of the core group. Checks name and
    /// ReferenceGrants, not whether the object exists.
    pub fn resolve<S>(
        &self,
        from: &Object<S>,
        field: &str,
        reference: &Reference,
        kind: &str,
    ) -> Result<Name, Problem> {
        if !reference.is_to(("", kind), kind) {
            return Err(problem(field, "InvalidKind", kind));
        }
        let target = reference.target(&from.name.namespace);
        if !is_name(&target.name) || !is_name(&target.namespace) {
            return Err(problem(field, "not the name of an object", NAME));
        }
        if target.namespace != from.name.namespace && !self.is_granted(from, kind, &target) {
            let fault = format!("RefNotPermitted: {kind} {target} is in another namespace");
            let accepted = format!("a ReferenceGrant in {}", target.namespace);
            return Err(problem(field, fault, accepted));
        }
        Ok(target)
    }

    fn is_granted<S>(&self, from: &Object<S>, kind: &str, target: &Name) -> bool {
        let is_from = |side: &Reference| {
            let namespace = side.namespace.as_ref();
            side.is_to((GROUP, from.kind), "") && namespace == Some(&from.name.namespace)
        };
        let is_to = |side: &Reference| {
            side.is_to(("", kind), "") && ["", &target.name].contains(&side.name.as_str())
        };
        let mut grants = self.grants.iter();
        grants.any(|grant| {
            // An unknown field may limit a grant.
            grant.name.namespace == target.namespace
                && grant.unknown.is_empty()
                && grant.spec.from.iter().any(is_from)
                && grant.spec.to.iter().any(is_to)
        })
    }

    /// Finds a referenced object. Returns `None` if it is assumed to be in the cluster.
    pub fn find<'o, S>(
        &self,
        all: &'o [Object<S>],
        kind: &str,
        target: &Name,
        field: &str,
    ) -> Result<Option<&'o Object<S>>, Problem> {
        let found = all.iter().find(|it| it.kind == kind && it.name == *target);
        if found.is_none() && !self.assume_missing {
            let fault = format!("{kind} {target} is in none of the files");
            return Err(problem(field, fault, "its manifest, or --assume-missing"));
        }
        Ok(found)
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
