//! Reads manifests: YAML or JSON, with several documents or lists.
//!
//! A document is first parsed into a tree, with limits on depth, size and aliases. Messages contain
//! no lines of the file, because it may contain Secrets.

use std::collections::BTreeSet;

use becket_config::error::{Problem, Report, shortened};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::{Spanned, alias_limits, budget, options};

use crate::kinds::Metadata;
use crate::objects::{GROUP, Identity, NAME, Name, Object, is_name, problem, refuse};

/// Objects of the files read so far, by kind.
#[derive(Debug)]
pub struct Manifests {
    objects: Vec<Object<Value>>,
    ids: BTreeSet<String>,
    /// Namespace of objects that name none.
    namespace: String,
    pub report: Report,
}

impl Manifests {
    pub fn new(namespace: &str) -> Self {
        Self {
            objects: Vec::new(),
            ids: BTreeSet::new(),
            namespace: namespace.to_owned(),
            report: Report::default(),
        }
    }

    /// Adds the documents of a file. `file` is its name in problems.
    pub fn add(&mut self, file: &str, text: &str) {
        let file = file.replace(char::is_control, "?");
        let options = options! {
            budget: budget! {
                max_depth: MOST_DEPTH,
                max_nodes: MOST_NODES,
                max_events: 3 * MOST_NODES,
                max_documents: MOST_NODES,
            },
            alias_limits: alias_limits! { max_total_replayed_events: MOST_REPLAYED },
            with_snippet: false,
        };
        let number = |line| usize::try_from(line).unwrap_or_default();
        match serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, options) {
            Ok(documents) => documents.into_iter().for_each(|document| {
                let line = number(document.referenced.line());
                self.take(&file, line, document.value);
            }),
            Err(error) => {
                let line = error.location().map_or(0, |at| number(at.line()));
                // The message may quote a value.
                let why = if text.contains("Secret") {
                    "invalid syntax in a file with a Secret".to_owned()
                } else {
                    printable(&error.without_snippet())
                };
                let fault = format!("not YAML: {why}");
                self.refuse(&file, line, Problem::new("", fault));
            }
        }
    }

    fn refuse(&mut self, file: &str, line: usize, problem: Problem) {
        let (file, line) = (Some(file.into()), Some(line).filter(|line| *line > 0));
        let problem = Problem {
            file,
            line,
            ..problem
        };
        refuse(&mut self.report, problem);
    }

    fn take(&mut self, file: &str, line: usize, mut value: Value) {
        remove_nulls(&mut value);
        match value.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => {
                items.into_iter().for_each(|it| self.take(file, line, it));
            }
            _ => match self.object((file, line), value) {
                Ok(object) => self.objects.extend(object),
                Err(problem) => self.refuse(file, line, problem),
            },
        }
    }

    /// Returns the object, or `None` if it does not configure a gateway, such as a Deployment.
    fn object(
        &mut self,
        (file, line): (&str, usize),
        mut spec: Value,
    ) -> Result<Option<Object<Value>>, Problem> {
        let text = |key| spec.get(key).and_then(Value::as_str).unwrap_or_default();
        let (api, kind) = (text("apiVersion"), text("kind"));
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let mut kinds = KINDS.iter();
        let (kind, versions) = match kinds.find(|it| (it.0, it.1) == (group, kind)) {
            Some((_, kind, versions)) => (*kind, *versions),
            None if kind.is_empty() || api.is_empty() => {
                let accepted = "apiVersion, kind and metadata";
                return Err(problem("", "not a Kubernetes object", accepted));
            }
            None if group.starts_with("gateway.networking.") => {
                return Err(problem("kind", "not supported", SUPPORTED).text(kind));
            }
            None => return Ok(None),
        };
        if !versions.contains(&version) {
            return Err(problem("apiVersion", "not supported", versions.join(", ")).text(api));
        }
        let metadata = spec.get_mut("metadata").map(Value::take);
        let metadata: Metadata = typed(metadata, "metadata", &mut Vec::new())?;
        let namespace = metadata.namespace.unwrap_or_else(|| self.namespace.clone());
        let name = Name {
            name: metadata.name,
            namespace,
        };
        if !is_name(&name.name) || !is_name(&name.namespace) {
            return Err(problem("metadata", "no usable name or namespace", NAME));
        }
        let id = format!("{kind}/{name}");
        if !self.ids.insert(id.clone()) {
            return Err(problem(&id, "given twice", "each object once"));
        }
        let identity = Identity {
            file: file.into(),
            line,
            kind,
            name,
            created: metadata.creation_timestamp,
            labels: metadata.labels,
            unknown: Vec::new(),
        };
        Ok(Some(Object { identity, spec }))
    }

    /// Returns the objects of some kinds with the fields at `path`: older objects first, then by
    /// name.
    pub fn of_kinds<S: DeserializeOwned>(&mut self, path: &str, kinds: &[&str]) -> Vec<Object<S>> {
        let is_one = |it: &mut Object<Value>| kinds.contains(&it.identity.kind);
        let mut found = Vec::new();
        for object in self.objects.extract_if(.., is_one) {
            let (mut identity, mut spec) = (object.identity, object.spec);
            let fields = match path {
                "" => Some(spec),
                path => spec.get_mut(path).map(Value::take),
            };
            match typed(fields, path, &mut identity.unknown) {
                Ok(spec) => {
                    identity.unknown.retain(|_| STRICT.contains(&identity.kind));
                    found.push(Object { identity, spec });
                }
                Err(problem) => identity.refuse(&mut self.report, problem),
            }
        }
        let key = |it: &Object<S>| (it.created.is_none(), it.created.clone(), it.name.clone());
        found.sort_by_cached_key(key);
        found
    }
}

/// Reads a value, and adds the paths of unknown fields to `unknown`.
fn typed<T: DeserializeOwned>(
    value: Option<Value>,
    at: &str,
    unknown: &mut Vec<String>,
) -> Result<T, Problem> {
    let value = value.ok_or_else(|| problem(at, "missing", "a mapping"))?;
    let mut note = |path: serde_ignored::Path<'_>| {
        // An optional value is a `?`.
        unknown.push(format!("{at}.{}", printable(&path).replace(".?", "")));
    };
    let value = serde_ignored::Deserializer::new(value, &mut note);
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = format!("{at}.{}", printable(error.path()));
        Problem::new(path.trim_start_matches('.'), printable(error.inner()))
    })
}

fn printable(text: &impl ToString) -> String {
    shortened(&text.to_string().replace(char::is_control, " "))
}

/// Removes keys without a value, as the API server does.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Group, kind and versions of the objects that are read.
const KINDS: &[(&str, &str, &[&str])] = &[
    (GROUP, "Gateway", &["v1", "v1beta1"]),
    (GROUP, "GatewayClass", &["v1", "v1beta1"]),
    (GROUP, "TLSRoute", &["v1", "v1alpha3", "v1alpha2"]),
    (GROUP, "TCPRoute", &["v1", "v1alpha2"]),
    (GROUP, "HTTPRoute", &["v1", "v1beta1"]),
    (GROUP, "GRPCRoute", &["v1", "v1alpha2"]),
    (GROUP, "UDPRoute", &["v1", "v1alpha2"]),
    (GROUP, "ReferenceGrant", &["v1", "v1beta1", "v1alpha2"]),
    (GROUP, "BackendTLSPolicy", &["v1", "v1alpha3"]),
    ("", "Service", &["v1"]),
    ("", "Secret", &["v1"]),
    ("", "ConfigMap", &["v1"]),
    ("discovery.k8s.io", "EndpointSlice", &["v1"]),
];
/// Kinds of which each field is an instruction to the gateway. Routes of other kinds are rejected as
/// a whole.
const STRICT: &[&str] = &[
    "Gateway",
    "TLSRoute",
    "TCPRoute",
    "ReferenceGrant",
    "BackendTLSPolicy",
];
const SUPPORTED: &str = "Gateway, TLSRoute, TCPRoute, BackendTLSPolicy and ReferenceGrant";
/// Maximum nesting, far above that of any object.
const MOST_DEPTH: usize = 64;
/// Maximum number of mappings, lists and values in a file: a dump of some thousand EndpointSlices.
const MOST_NODES: usize = 500_000;
/// Maximum number of events that aliases repeat, which limits the memory of nested aliases.
const MOST_REPLAYED: usize = 100_000;
