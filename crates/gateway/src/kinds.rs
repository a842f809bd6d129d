//! The fields of Kubernetes objects that the program reads. An absent field has its default, which
//! the checks of names and ports reject where the API requires a value.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident { $($(#[$meta:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $kind {
            $($(#[$meta])* pub $field: $type,)*
        }
    )*};
}

kinds! {
Metadata {
    name: String,
    namespace: Option<String>,
    creation_timestamp: Option<String>,
    labels: BTreeMap<String, String>,
}
/// All reference types of the API in one, such as ParentReference and ReferenceGrantFrom.
Reference {
    group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: String,
    section_name: Option<String>,
    port: Option<u16>,
    weight: Option<u32>,
}
GatewaySpec { gateway_class_name: String, listeners: Vec<Listener>, tls: GatewayTls, }
GatewayTls { frontend: Frontend, }
Frontend { default: FrontendTls, }
FrontendTls { validation: Option<Validation>, }
Listener {
    name: String,
    hostname: String,
    port: u16,
    protocol: String,
    tls: Option<ListenerTls>,
    allowed_routes: AllowedRoutes,
}
ListenerTls { mode: Option<String>, certificate_refs: Vec<Reference>, }
AllowedRoutes { namespaces: RouteNamespaces, kinds: Vec<Reference>, }
RouteNamespaces {
    from: Option<String>,
    /// Declared so that a selector is reported once, with `from`.
    #[serde(rename = "selector")]
    _selector: Value,
}
/// Spec of routes of all kinds.
RouteSpec { parent_refs: Vec<Reference>, hostnames: Vec<String>, rules: Vec<RouteRule>, }
RouteRule {
    /// Has no effect.
    #[serde(rename = "name")]
    _name: Value,
    backend_refs: Vec<Reference>,
}
GrantSpec { from: Vec<Reference>, to: Vec<Reference>, }
/// Spec of a BackendTLSPolicy.
TlsPolicySpec { target_refs: Vec<Reference>, validation: Validation, }
/// Verification of client certificates, or of servers.
Validation {
    ca_certificate_refs: Vec<Reference>,
    mode: Option<String>,
    #[serde(rename = "wellKnownCACertificates")]
    well_known: String,
    hostname: String,
}
ServiceSpec {
    r#type: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    ports: Vec<Port>,
}
/// Port of a Service or of an EndpointSlice.
Port { name: String, port: u16, target_port: Value, protocol: Option<String>, }
SliceSpec { endpoints: Vec<Endpoint>, ports: Vec<Port>, }
Endpoint { addresses: Vec<String>, conditions: EndpointConditions, }
EndpointConditions { ready: Option<bool>, }
}
