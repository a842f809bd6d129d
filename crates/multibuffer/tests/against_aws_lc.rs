//! Signatures equal those of AWS-LC, with both lanes and for keys of every length.

#![expect(
    clippy::unwrap_used,
    reason = "a test, in which the lint sees no test functions"
)]

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{self, KeyPair as _, RsaEncoding, RsaParameters, UnparsedPublicKey};
use becket_multibuffer::{
    Error, Hash, KeyError, LANES, Multibuffer, Padding, PrivateKey, Scheme, SignRequest,
};

macro_rules! key {
    ($name:literal) => {
        include_bytes!(concat!("../testdata/", $name, ".der")).as_slice()
    };
}

/// Returns the lanes that this machine supports.
fn lanes() -> Vec<Multibuffer> {
    let fast = Multibuffer::detect();
    if fast.is_none() {
        becket_tidy::lacks("needs AVX-512 IFMA");
    }
    fast.into_iter().chain([Multibuffer::portable()]).collect()
}

struct Pair {
    ours: PrivateKey,
    theirs: KeyPair,
}

impl Pair {
    fn of(pkcs8: &[u8]) -> Self {
        Self {
            ours: PrivateKey::from_pkcs8(pkcs8).unwrap(),
            theirs: KeyPair::from_pkcs8(pkcs8).unwrap(),
        }
    }

    fn sign(&self, encoding: &'static dyn RsaEncoding, message: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.theirs.public_modulus_len()];
        let random = SystemRandom::new();
        self.theirs
            .sign(encoding, &random, message, &mut signature)
            .unwrap();
        signature
    }
}

fn sign(
    lanes: Multibuffer,
    key: &PrivateKey,
    scheme: Scheme,
    messages: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let encoded: Vec<_> = messages
        .iter()
        .map(|message| scheme.encode(key, message).unwrap())
        .collect();
    let requests: Vec<_> = encoded
        .iter()
        .map(|message| SignRequest { key, message })
        .collect();
    let signatures = lanes.sign(&requests).into_iter();
    signatures.map(Result::unwrap).collect()
}

fn messages(count: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(count as u64);
    let mut message = || std::iter::repeat_with(|| random.u8(..)).take(100).collect();
    (0..count).map(|_| message()).collect()
}

#[test]
fn pkcs1_signatures_equal_those_of_aws_lc() {
    let hashes: [(Hash, &'static dyn RsaEncoding); 3] = [
        (Hash::Sha256, &signature::RSA_PKCS1_SHA256),
        (Hash::Sha384, &signature::RSA_PKCS1_SHA384),
        (Hash::Sha512, &signature::RSA_PKCS1_SHA512),
    ];
    let keys = [key!("rsa-2048"), key!("rsa-3072"), key!("rsa-4096")];
    for (pkcs8, (hash, encoding)) in keys.into_iter().zip(hashes) {
        let pair = Pair::of(pkcs8);
        let messages = messages(LANES + 1);
        let padding = Padding::Pkcs1;
        let theirs: Vec<_> = messages.iter().map(|m| pair.sign(encoding, m)).collect();
        for lanes in lanes() {
            let ours = sign(lanes, &pair.ours, Scheme { hash, padding }, &messages);
            assert_eq!(ours, theirs, "{hash:?}, {lanes:?}");
        }
    }
}

#[test]
fn pss_signatures_verify_with_aws_lc() {
    let hashes: [(Hash, &'static RsaParameters); 3] = [
        (Hash::Sha256, &signature::RSA_PSS_2048_8192_SHA256),
        (Hash::Sha384, &signature::RSA_PSS_2048_8192_SHA384),
        (Hash::Sha512, &signature::RSA_PSS_2048_8192_SHA512),
    ];
    let pair = Pair::of(key!("rsa-2048"));
    for (hash, parameters) in hashes {
        let public = UnparsedPublicKey::new(parameters, pair.theirs.public_key().as_ref());
        let messages = messages(3);
        let padding = Padding::Pss;
        for lanes in lanes() {
            let ours = sign(lanes, &pair.ours, Scheme { hash, padding }, &messages);
            for (message, signature) in messages.iter().zip(&ours) {
                public.verify(message, signature).unwrap();
            }
            assert!(public.verify(&messages[0], &ours[1]).is_err());
        }
    }
}

/// Random keys, each used more often than one blinding pair, in batches of every size.
#[test]
fn random_keys_sign_in_batches_of_every_size() {
    let pairs: Vec<Pair> = (0..3)
        .map(|_| {
            let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
            let pkcs8 = AsDer::<Pkcs8V1Der<'_>>::as_der(&key).unwrap();
            Pair::of(pkcs8.as_ref())
        })
        .collect();
    let scheme = Scheme {
        hash: Hash::Sha256,
        padding: Padding::Pkcs1,
    };
    for lanes in lanes() {
        for count in (1..=LANES).chain([40, 40, 40]) {
            let messages = messages(count);
            let of = |at: usize| &pairs[at % pairs.len()];
            let encoded: Vec<_> = (0..count)
                .map(|at| scheme.encode(&of(at).ours, &messages[at]).unwrap())
                .collect();
            let requests: Vec<_> = (0..count)
                .map(|at| SignRequest {
                    key: &of(at).ours,
                    message: &encoded[at],
                })
                .collect();
            for (at, signature) in lanes.sign(&requests).into_iter().enumerate() {
                let theirs = of(at).sign(&signature::RSA_PKCS1_SHA256, &messages[at]);
                assert_eq!(signature, Ok(theirs), "request {at} of {count}, {lanes:?}");
            }
        }
    }
}

#[test]
fn a_batch_mixes_key_lengths_and_rejects_unsuitable_messages() {
    let pairs = [key!("rsa-4096"), key!("rsa-2048"), key!("rsa-2048-other")].map(Pair::of);
    let zeros = [0; 512];
    let ones = [0xff; 512];
    let request = |pair: usize, message| SignRequest {
        key: &pairs[pair].ours,
        message,
    };
    let requests = [
        request(0, &zeros[..512]),
        request(1, &zeros[..256]),
        request(2, &zeros[..255]),
        request(2, &ones[..256]),
        request(1, &ones[..512]),
        request(2, &zeros[..256]),
        request(0, &zeros[..256]),
        request(0, &ones[..512]),
        request(0, &[]),
    ];
    for lanes in lanes() {
        let answers = lanes.sign(&requests);
        for (at, answer) in answers.iter().enumerate() {
            let fits = [0, 1, 5].contains(&at);
            let zero = Ok(zeros[..requests[at].key.modulus_len()].to_vec());
            assert_eq!(
                answer,
                if fits { &zero } else { &Err(Error::Message) },
                "{at}"
            );
        }
        assert!(lanes.sign(&[]).is_empty());
    }
}

#[test]
fn swapped_primes_and_pkcs1_keys_are_accepted() {
    let key = PrivateKey::from_pkcs1(key!("rsa-2048-swapped-pkcs1")).unwrap();
    let pair = Pair::of(key!("rsa-2048-other"));
    let scheme = Scheme {
        hash: Hash::Sha256,
        padding: Padding::Pkcs1,
    };
    let messages = messages(2);
    let theirs: Vec<_> = messages
        .iter()
        .map(|message| pair.sign(&signature::RSA_PKCS1_SHA256, message))
        .collect();
    for lanes in lanes() {
        assert_eq!(sign(lanes, &key, scheme, &messages), theirs);
    }
}

#[test]
fn unsupported_and_invalid_keys_are_rejected() {
    let refused = |der| PrivateKey::from_pkcs8(der).unwrap_err();
    assert_eq!(refused(key!("rsa-2560")), KeyError::Length);
    assert_eq!(refused(key!("rsa-2048-exponent-3")), KeyError::Exponent);
    assert_eq!(refused(key!("p256")), KeyError::Rejected);
    assert_eq!(refused(b""), KeyError::Rejected);
    assert_eq!(refused(key!("rsa-2048-three-primes")), KeyError::Rejected);
    // One number does not belong to the others.
    let mut damaged = key!("rsa-2048").to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(refused(&damaged), KeyError::Rejected);
    assert_eq!(
        PrivateKey::from_pkcs1(key!("rsa-2048")).unwrap_err(),
        KeyError::Rejected
    );
    let key = PrivateKey::from_pkcs8(key!("rsa-2048")).unwrap();
    assert_eq!(format!("{key:?}"), "PrivateKey(2048 bits)");
}
