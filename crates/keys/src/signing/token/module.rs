//! A PKCS#11 module with one token, as far as TLS needs it: find a private key, sign.
//!
//! Signatures are asked for with the plainest mechanisms, which every module has: the digest is made by us, and what the token
//! returns is brought into the form of TLS. Source: PKCS#11 Specification 3.1; RFC 8017, section 9.2; RFC 5480.

use becket_config::key_source::{Attribute as Names, KeyUri, TokenId};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsPssParams};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::{Limit, Slot};
use cryptoki::types::RawAuthPin;
use rustls::SignatureScheme;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

use super::wire::{Mechanisms, TokenFault};

/// A module that is loaded, and a token that is open. Clones share both.
#[derive(Clone, Debug)]
pub(super) struct Module {
    library: Pkcs11,
    slot: Slot,
    /// Logged in, which lets all sessions in.
    first: Arc<Mutex<Session>>,
    pub(super) mechanisms: Mechanisms,
    /// Beside the first.
    pub(super) most_sessions: usize,
}

impl From<Error> for TokenFault {
    fn from(error: Error) -> Self {
        Self::Away(shown(&error))
    }
}

impl Module {
    /// Loads a module, looks for the token, and logs in.
    pub(super) fn open(id: &TokenId, pin: Option<Zeroizing<Vec<u8>>>) -> Result<Self, TokenFault> {
        let refused = |why: &str| Err(TokenFault::Refused(why.to_owned()));
        let library = Pkcs11::new(&id.module)?;
        library.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))?;
        let slot = find_slot(&library, id)?;
        let info = library.get_token_info(slot)?;
        let first = library.open_ro_session(slot)?;
        match pin {
            _ if info.user_pin_locked() => return refused("the PIN is locked"),
            Some(_) if info.user_pin_final_try() => {
                return refused("the PIN was wrong before, and another attempt may lock it");
            }
            Some(pin) => log_in(&first, pin)?,
            None if info.login_required() => {
                return refused("the token wants a PIN: pin-source names its file");
            }
            None => {}
        }
        let most_sessions = match info.max_session_count() {
            // One is the first.
            Limit::Max(most) => usize::try_from(most)
                .unwrap_or(usize::MAX)
                .saturating_sub(1),
            Limit::Unavailable | Limit::Infinite => usize::MAX,
        };
        Ok(Self {
            mechanisms: mechanisms(&library.get_mechanism_list(slot)?),
            library,
            slot,
            first: Arc::new(Mutex::new(first)),
            most_sessions,
        })
    }

    /// Looks for the one private key that a URI names.
    pub(super) fn find(&self, uri: &KeyUri) -> Result<ObjectHandle, String> {
        let mut template = vec![Attribute::Class(ObjectClass::PRIVATE_KEY)];
        let label = uri.object.as_ref().map(|label| label.clone().into_bytes());
        template.extend(label.map(Attribute::Label));
        template.extend(uri.id.clone().map(Attribute::Id));
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let found = first
            .find_objects(&template)
            .map_err(|error| shown(&error))?;
        match found[..] {
            [key] => Ok(key),
            [] => Err("the token has no such private key".to_owned()),
            _ => Err(format!("{} private keys on the token fit", found.len())),
        }
    }

    /// Signs in a session, which is opened where there is none.
    pub(super) fn sign(
        &self,
        session: &mut Option<Session>,
        key: ObjectHandle,
        scheme: u16,
        input: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (mechanism, input) = prepared(scheme.into(), input).ok_or("no such scheme")?;
        let session = match session {
            Some(session) => session,
            None => {
                let opened = self.library.open_ro_session(self.slot);
                session.insert(opened.map_err(|error| shown(&error))?)
            }
        };
        let signed = session.sign(&mechanism, key, &input);
        let signature = signed.map_err(|error| shown(&error))?;
        match mechanism {
            Mechanism::Ecdsa => in_der(&signature).ok_or("an odd signature".to_owned()),
            _ => Ok(signature),
        }
    }
}

fn log_in(session: &Session, mut pin: Zeroizing<Vec<u8>>) -> Result<(), TokenFault> {
    // It erases what it is given.
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
        ) => Err(TokenFault::Refused(shown(&error))),
        Err(error) => Err(error.into()),
    }
}

/// The one slot whose token is meant.
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
        _ => Err(TokenFault::Away(format!("{} tokens fit", found.len()))),
    }
}

fn mechanisms(known: &[MechanismType]) -> Mechanisms {
    let all = [
        (MechanismType::RSA_PKCS, Mechanisms::RSA_PKCS1),
        (MechanismType::RSA_PKCS_PSS, Mechanisms::RSA_PSS),
        (MechanismType::ECDSA, Mechanisms::ECDSA),
        (MechanismType::EDDSA, Mechanisms::EDDSA),
    ];
    let had = all.into_iter().filter(|(kind, _)| known.contains(kind));
    had.fold(Mechanisms::default(), |sum, (_, one)| sum.and(one))
}

/// How a module is asked for a signature of TLS, and for a signature of what. Nothing for a digest of another length.
fn prepared(scheme: SignatureScheme, input: &[u8]) -> Option<(Mechanism<'static>, Vec<u8>)> {
    use SignatureScheme as Scheme;
    let digest = |length| (input.len() == length).then(|| input.to_vec());
    let pss = |hash_alg, mgf, length: u8| {
        let s_len = u64::from(length).into();
        let parameters = PkcsPssParams {
            hash_alg,
            mgf,
            s_len,
        };
        Some((Mechanism::RsaPkcsPss(parameters), digest(length.into())?))
    };
    let pkcs1 = |prefix: &[u8], length| {
        let info = [prefix, &digest(length)?].concat();
        Some((Mechanism::RsaPkcs, info))
    };
    match scheme {
        Scheme::RSA_PSS_SHA256 => pss(MechanismType::SHA256, PkcsMgfType::MGF1_SHA256, 32),
        Scheme::RSA_PSS_SHA384 => pss(MechanismType::SHA384, PkcsMgfType::MGF1_SHA384, 48),
        Scheme::RSA_PSS_SHA512 => pss(MechanismType::SHA512, PkcsMgfType::MGF1_SHA512, 64),
        Scheme::RSA_PKCS1_SHA256 => pkcs1(&SHA256_INFO, 32),
        Scheme::RSA_PKCS1_SHA384 => pkcs1(&SHA384_INFO, 48),
        Scheme::RSA_PKCS1_SHA512 => pkcs1(&SHA512_INFO, 64),
        Scheme::ECDSA_NISTP256_SHA256 => Some((Mechanism::Ecdsa, digest(32)?)),
        Scheme::ECDSA_NISTP384_SHA384 => Some((Mechanism::Ecdsa, digest(48)?)),
        Scheme::ED25519 => {
            let pure = EddsaParams::new(EddsaSignatureScheme::Ed25519);
            Some((Mechanism::Eddsa(pure), input.to_vec()))
        }
        _ => None,
    }
}

/// The two halves of an ECDSA signature as a sequence of two integers (RFC 3279, section 2.2.3). Nothing for halves of no curve of
/// ours.
fn in_der(signature: &[u8]) -> Option<Vec<u8>> {
    if !matches!(signature.len(), 64 | 96) {
        return None;
    }
    let (r, s) = signature.split_at(signature.len() / 2);
    let body = [integer(r), integer(s)].concat();
    // Two halves of 48 bytes make 102 at most, so a length is one byte.
    let length = u8::try_from(body.len())
        .ok()
        .filter(|length| *length < 128)?;
    Some([&[0x30, length][..], &body].concat())
}

fn integer(bytes: &[u8]) -> Vec<u8> {
    let first = bytes.iter().position(|byte| *byte != 0);
    let digits = bytes
        .get(first.unwrap_or(bytes.len().saturating_sub(1))..)
        .unwrap_or_default();
    let sign: &[u8] = if digits.first().is_some_and(|byte| *byte >= 0x80) {
        &[0]
    } else {
        &[]
    };
    let length = (sign.len() + digits.len()) as u8;
    [&[0x02, length][..], sign, digits].concat()
}

/// What a module says, for a line of a log.
fn shown(error: &Error) -> String {
    match error {
        Error::LibraryLoading(error) => error.to_string(),
        Error::Pkcs11(value, function) => format!("C_{function:?}: {value:?}"),
        other => other.to_string(),
    }
}

/// RFC 8017, section 9.2, note 1.
const SHA256_INFO: [u8; 19] = [
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0x00, 0x04, 0x20,
];
const SHA384_INFO: [u8; 19] = [
    0x30, 0x41, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02, 0x05,
    0x00, 0x04, 0x30,
];
const SHA512_INFO: [u8; 19] = [
    0x30, 0x51, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03, 0x05,
    0x00, 0x04, 0x40,
];

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
        UnparsedPublicKey,
    };

    use super::*;

    #[test]
    fn signatures_of_ecdsa_become_what_tls_has() {
        let random = aws_lc_rs::rand::SystemRandom::new();
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate(kind).unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.public_key().as_ref());
        // Halves begin with zeros and with high bits often enough.
        for _ in 0..600 {
            let raw = key.sign(&random, b"message").unwrap();
            public
                .verify(b"message", &in_der(raw.as_ref()).unwrap())
                .unwrap();
        }
        assert_eq!(integer(&[0, 0, 0]), [2, 1, 0]);
        assert_eq!(integer(&[0, 0x80]), [2, 2, 0, 0x80]);
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
