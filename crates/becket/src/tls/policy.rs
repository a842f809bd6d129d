//! The digest of a policy: the border that sessions never cross.
//!
//! A session or ticket is bound to the digest of the policy it was made under, and no other
//! opens it. The digest covers what makes two sessions exchangeable: the policy's name, whether
//! and against which CAs clients authenticate, and whether extended master secret was required.
//! It leaves out what may differ between hosts that share sessions: addresses, certificates,
//! ALPN, revocation lists. The class of fault this keeps out: a session made on a name without
//! client certificates that opens a name with them (nginx CVE-2025-23419).

use aws_lc_rs::digest::{Context, SHA256};

use crate::config::ClientAuth;

/// Computes SHA-256 over a canonical encoding: each part preceded by its length as u64,
/// big endian. The set of CAs enters as the sorted digests of their names and keys.
pub fn digest(name: &str, client_auth: &ClientAuth, require_ems: bool) -> [u8; 32] {
    let (mode, roots) = match client_auth {
        ClientAuth::Off => ("off", None),
        ClientAuth::Optional(roots) => ("optional", Some(roots)),
        ClientAuth::Required(roots) => ("required", Some(roots)),
    };
    let mut authorities: Vec<[u8; 32]> = roots
        .map(|roots| roots.roots.as_slice())
        .unwrap_or_default()
        .iter()
        .map(|anchor| {
            let constraints = anchor.name_constraints.as_ref();
            encode(&[
                &anchor.subject,
                &anchor.subject_public_key_info,
                constraints.map_or(&[], |der| der),
            ])
        })
        .collect();
    authorities.sort_unstable();
    authorities.dedup();

    let mut parts: Vec<&[u8]> = vec![b"becket policy 1", name.as_bytes(), mode.as_bytes()];
    let ems: &[u8] = if require_ems { b"ems" } else { b"" };
    parts.push(ems);
    parts.extend(authorities.iter().map(<[u8; 32]>::as_slice));
    encode(&parts)
}

fn encode(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::RootCertStore;

    use super::*;

    #[test]
    fn name_mode_and_ems_each_change_the_digest() {
        let none = Arc::new(RootCertStore::empty());
        let all = [
            digest("a", &ClientAuth::Off, false),
            digest("b", &ClientAuth::Off, false),
            digest("a", &ClientAuth::Off, true),
            digest("a", &ClientAuth::Optional(none.clone()), false),
            digest("a", &ClientAuth::Required(none), false),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(!all[..i].contains(one), "digest {i} repeats an earlier one");
        }
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(encode(&[b"ab", b"c"]), encode(&[b"a", b"bc"]));
    }
}
