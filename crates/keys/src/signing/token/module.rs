//! A PKCS#11 module with one token: finds private keys and signs.
//!
//! Tokens sign with the simplest mechanisms, which every PKCS#11 module supports: the token
//! receives the digest, and [`Module::sign`] converts the signature to TLS format. Source: PKCS#11
//! Specification 3.1; RFC 8017, section 9.2; RFC 5480.

use becket_config::key_source::{Attribute as Names, KeyUri, TokenId};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsPssParams};
use cryptoki::mechanism::{Mechanism, MechanismType as Type};
use cryptoki::object::{Attribute, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::{Limit, Slot};
use cryptoki::types::RawAuthPin;
use rustls::SignatureScheme;
use std::mem;
use zeroize::Zeroizing;

use super::public::{SCHEMES, digest_of};
use super::wire::TokenFault;

#[derive(Clone, Debug)]
pub(super) struct Module {
    library: Pkcs11,
    slot: Slot,
    /// TLS signature schemes that the token supports.
    pub(super) schemes: Vec<u16>,
    /// Maximum number of additional sessions; the first session is not counted.
    pub(super) most_sessions: usize,
}

impl From<Error> for TokenFault {
    fn from(error: Error) -> Self {
        Self::Away(shown(error))
    }
}

impl Module {
    /// Loads the module, finds the token, and logs in. The login is valid for all sessions until
    /// the returned session is closed.
    pub(super) fn open(
        id: &TokenId,
        pin: Option<Zeroizing<Vec<u8>>>,
    ) -> Result<(Self, Session), TokenFault> {
        let refused = |why: &str| Err(TokenFault::Refused(why.to_owned()));
        if cfg!(target_feature = "crt-static") {
            return refused(
                "a static program cannot load PKCS#11 modules; use the program of a package",
            );
        }
        let library = Pkcs11::new(&id.module)?;
        library.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))?;
        let slot = find_slot(&library, id)?;
        let info = library.get_token_info(slot)?;
        let first = library.open_ro_session(slot)?;
        match pin {
            _ if info.user_pin_locked() => return refused("the PIN is locked"),
            Some(_) if info.user_pin_final_try() => {
                return refused("the last PIN was wrong, and another attempt may lock the token");
            }
            Some(pin) => log_in(&first, pin)?,
            None if info.login_required() => {
                return refused("the token requires a PIN: set pin-source to its file");
            }
            None => {}
        }
        let most_sessions = match info.max_session_count() {
            Limit::Max(most) => usize::try_from(most.saturating_sub(1)).unwrap_or(usize::MAX),
            Limit::Unavailable | Limit::Infinite => usize::MAX,
        };
        let mechanisms = library.get_mechanism_list(slot)?;
        let had = SCHEMES.iter().filter(|(.., it)| mechanisms.contains(it));
        let module = Self {
            schemes: had.map(|(scheme, ..)| u16::from(*scheme)).collect(),
            library,
            slot,
            most_sessions,
        };
        Ok((module, first))
    }

    /// Signs in `session`. If `session` is `None`, opens one and stores it for later calls.
    pub(super) fn sign(
        &self,
        session: &mut Option<Session>,
        key: ObjectHandle,
        scheme: u16,
        input: &[u8],
    ) -> Result<Vec<u8>, TokenFault> {
        let away = |why: &str| TokenFault::Away(why.to_owned());
        let (mechanism, input) = prepared(scheme.into(), input)
            .ok_or_else(|| away("unsupported scheme or length of digest"))?;
        let session = match session {
            Some(session) => session,
            None => session.insert(self.library.open_ro_session(self.slot)?),
        };
        let signature = session.sign(&mechanism, key, &input)?;
        match mechanism {
            Mechanism::Ecdsa => {
                in_der(&signature).ok_or_else(|| away("a signature of unexpected length"))
            }
            _ => Ok(signature),
        }
    }
}

/// Finds the private key of a URI. Fails unless exactly one key matches.
pub(super) fn find_key(session: &Session, uri: &KeyUri) -> Result<ObjectHandle, TokenFault> {
    let mut template = vec![Attribute::Class(ObjectClass::PRIVATE_KEY)];
    let label = uri.object.as_ref().map(|label| label.clone().into_bytes());
    template.extend(label.map(Attribute::Label));
    template.extend(uri.id.clone().map(Attribute::Id));
    let found = session.find_objects(&template)?;
    match found[..] {
        [key] => Ok(key),
        [] => Err(TokenFault::Refused(
            "the token has no such private key".to_owned(),
        )),
        _ => Err(TokenFault::Refused(format!(
            "{} private keys on the token match",
            found.len()
        ))),
    }
}

fn log_in(session: &Session, mut pin: Zeroizing<Vec<u8>>) -> Result<(), TokenFault> {
    // `RawAuthPin` erases its buffer on drop.
    let pin = RawAuthPin::new(Box::new(mem::take(&mut *pin)));
    match session.login_with_raw(UserType::User, &pin) {
        Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
        Err(
            error @ Error::Pkcs11(
                RvError::PinIncorrect
                | RvError::PinInvalid
                | RvError::PinLenRange
                | RvError::PinExpired
                | RvError::PinLocked
                | RvError::UserPinNotInitialized,
                _,
            ),
        ) => Err(TokenFault::Refused(shown(error))),
        Err(error) => Err(error.into()),
    }
}

/// Finds the slot with the configured attributes. Fails unless exactly one slot matches.
fn find_slot(library: &Pkcs11, id: &TokenId) -> Result<Slot, TokenFault> {
    let slots = library.get_slots_with_initialized_token()?;
    let fits = |slot: &Slot| {
        let (Ok(token), Ok(place)) = (library.get_token_info(*slot), library.get_slot_info(*slot))
        else {
            return false;
        };
        id.attributes.iter().all(|(name, value)| match name {
            Names::Token => token.label() == value,
            Names::Manufacturer => token.manufacturer_id() == value,
            Names::Serial => token.serial_number() == value,
            Names::Model => token.model() == value,
            Names::SlotId => slot.id().to_string() == *value,
            Names::SlotDescription => place.slot_description() == value,
            Names::SlotManufacturer => place.manufacturer_id() == value,
        })
    };
    let found: Vec<Slot> = slots.into_iter().filter(fits).collect();
    match found[..] {
        [slot] => Ok(slot),
        [] => Err(TokenFault::Away("no such token".to_owned())),
        _ => Err(TokenFault::Away(format!("{} tokens match", found.len()))),
    }
}

/// Returns the mechanism and the data to sign. Returns `None` for an unknown scheme or a wrong
/// digest length.
fn prepared(scheme: SignatureScheme, input: &[u8]) -> Option<(Mechanism<'static>, Vec<u8>)> {
    let (.., mechanism) = *SCHEMES.iter().find(|(known, ..)| *known == scheme)?;
    if digest_of(scheme).is_some_and(|digest| digest.output_len() != input.len()) {
        return None;
    }
    let (hash_alg, mgf, hash, length) = match input.len() {
        32 => (Type::SHA256, PkcsMgfType::MGF1_SHA256, 1, 32),
        48 => (Type::SHA384, PkcsMgfType::MGF1_SHA384, 2, 48),
        _ => (Type::SHA512, PkcsMgfType::MGF1_SHA512, 3, 64),
    };
    let pss = PkcsPssParams {
        hash_alg,
        mgf,
        s_len: u64::from(length).into(),
    };
    Some(match mechanism {
        Type::RSA_PKCS => {
            let (head, tail) = ([0x30, 17 + length], [hash, 0x05, 0x00, 0x04, length]);
            let info = [&head[..], &HASH_FUNCTION, &tail, input].concat();
            (Mechanism::RsaPkcs, info)
        }
        Type::RSA_PKCS_PSS => (Mechanism::RsaPkcsPss(pss), input.to_vec()),
        Type::ECDSA => (Mechanism::Ecdsa, input.to_vec()),
        _ => {
            let pure = EddsaParams::new(EddsaSignatureScheme::Ed25519);
            (Mechanism::Eddsa(pure), input.to_vec())
        }
    })
}

/// Converts a raw ECDSA signature (`r` and `s` concatenated) to a DER sequence of two integers (RFC
/// 3279, section 2.2.3). Returns `None` unless the length fits P-256 or P-384.
fn in_der(signature: &[u8]) -> Option<Vec<u8>> {
    if !matches!(signature.len(), 64 | 96) {
        return None;
    }
    let (r, s) = signature.split_at(signature.len() / 2);
    Some(yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_bigint_bytes(r, true);
            writer.next().write_bigint_bytes(s, true);
        });
    }))
}

fn shown(error: Error) -> String {
    match error {
        Error::LibraryLoading(error) => error.to_string(),
        Error::Pkcs11(value, function) => format!("C_{function:?}: {value:?}"),
        other => other.to_string(),
    }
}

/// DER prefix of the DigestInfo for SHA-2, up to the last number of the object identifier (RFC
/// 8017, section 9.2, note 1).
const HASH_FUNCTION: [u8; 12] = [
    0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02,
];

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
        UnparsedPublicKey,
    };

    use super::*;

    #[test]
    fn ecdsa_signatures_are_converted_to_the_form_of_tls() {
        let random = aws_lc_rs::rand::SystemRandom::new();
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate(kind).unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.public_key().as_ref());
        // Among 600 signatures, some halves start with zeros and some with a high bit.
        for _ in 0..600 {
            let raw = key.sign(&random, b"message").unwrap();
            public
                .verify(b"message", &in_der(raw.as_ref()).unwrap())
                .unwrap();
        }
        assert_eq!(
            (in_der(&[]), in_der(&[1; 63]), in_der(&[1; 132])),
            (None, None, None)
        );
    }

    #[test]
    fn a_digest_of_another_length_and_other_schemes_are_refused() {
        use SignatureScheme as Scheme;
        for scheme in [
            Scheme::RSA_PSS_SHA512,
            Scheme::RSA_PKCS1_SHA384,
            Scheme::ECDSA_NISTP384_SHA384,
        ] {
            for length in [0, 32, 65] {
                assert!(
                    prepared(scheme, &vec![0; length]).is_none(),
                    "{scheme:?} {length}"
                );
            }
        }
        assert!(prepared(Scheme::RSA_PKCS1_SHA1, &[0; 20]).is_none());
        assert_eq!(
            prepared(Scheme::RSA_PKCS1_SHA256, &[7; 32])
                .unwrap()
                .1
                .len(),
            51
        );
    }
}
