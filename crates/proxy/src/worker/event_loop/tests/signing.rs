//! Soak test of signatures that crypto threads make. Clients connect, leave and time out while
//! their signatures are pending. Signers fail, return wrong signatures or stall, and the
//! configuration changes. At the end, the worker must have no connection and no pending signature.
//!
//! The test itself plays the role of the crypto threads. A seed decides all steps, so the result
//! does not depend on the speed of the host.

use std::fs;

use rustls::{Error, RootCertStore};

use super::soak::{MOST_TURNS, Soak, VERSIONS, lives, server, trust};
use super::*;
use becket_keys::signing::SignatureRequest;
use becket_keys::signing::queue::answer;

#[test]
fn no_state_remains_after_random_events_during_signatures() {
    let mut seen = [0; 4];
    for seed in lives(LIVES) {
        let mut soak = Soak::<Threads>::begin(seed);
        soak.live();
        let counters = &soak.worker.counters;
        let abandoned = counters.signatures_abandoned.value();
        let failed = counters.signatures_failed.value();
        let new = [soak.served, abandoned, failed, soak.resumed()];
        seen = std::array::from_fn(|i| seen[i] + new[i]);
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

/// Replaces the crypto threads: the test signs on its own thread.
struct Threads {
    signatures: Arc<SigningQueue>,
    configs: [Arc<Config>; 2],
    stands_still: bool,
    _folder: tempfile::TempDir,
}

impl Soak<Threads> {
    fn begin(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = server();
        let address = server.local_addr().unwrap();
        let slow = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384);
        let rsa = include_bytes!("../../../../../multibuffer/testdata/rsa-2048.der").as_slice();
        let rsa = rcgen::KeyPair::try_from(rsa);
        let mut roots = RootCertStore::empty();
        let configs = [("slow.pem", slow), ("rsa.pem", rsa)].map(|(name, key)| {
            let (key, path) = (key.unwrap(), folder.path().join(name));
            let params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            roots.add(certificate.der().clone()).unwrap();
            fs::write(&path, certificate.pem() + &key.serialize_pem()).unwrap();
            let path = path.display();
            let keys = format!("certificates = ['{path}']\n[process]\nrsa-batch = 'auto'");
            config(address, &keys)
        });
        let signatures = Arc::new(SigningQueue::new(THREADS, configs[0].batches));
        let worker = worker_with(&configs[0], Arc::clone(&signatures));
        let trusts = VERSIONS.map(|version| Arc::new(trust(version, &roots)));
        let threads = Threads {
            signatures,
            configs,
            stands_still: false,
            _folder: folder,
        };
        Self::new(worker, server, trusts.into(), seed, threads)
    }

    fn live(&mut self) {
        let mut stacks = 0;
        for _ in 0..ROUNDS {
            (0..STEPS).for_each(|_| self.step());
            self.come_to_rest();
            self.nothing_is_left();
            let free = self.worker.newcomers.signing.free_stacks();
            assert!(free >= stacks, "{free} stacks of {stacks}");
            stacks = free;
        }
        (0..STEPS).for_each(|_| self.step());
        self.end();
        self.clients.clear();
        self.nothing_is_left();
        assert!(self.worker.newcomers.signing.free_stacks() >= stacks);
    }

    fn step(&mut self) {
        match self.dice.u8(..40) {
            0..12 => self.come(),
            12..18 => self.leave(),
            18..26 if !self.signer.stands_still => drop(self.sign_somehow()),
            26 => self.signer.stands_still = self.dice.bool(),
            27 => {
                let config = self.dice.choice(&self.signer.configs).unwrap();
                self.reload(&Arc::clone(config));
            }
            _ => self.talk(),
        }
        self.turn(Duration::ZERO);
    }

    /// Answers all queued jobs. Returns `false` if the queue was empty.
    fn sign(&self, sign: impl FnOnce(&[&SignatureRequest]) -> Vec<Result<Vec<u8>, Error>>) -> bool {
        let jobs = self.signer.signatures.try_pop();
        let any = !jobs.is_empty();
        answer(jobs, sign);
        any
    }

    fn sign_well(&self) -> bool {
        self.sign(|requests| requests.iter().map(|it| it.sign()).collect())
    }

    fn sign_somehow(&mut self) -> bool {
        let fails = || Err(Error::General("it fails".into()));
        match self.dice.u8(..8) {
            0 => self.sign(|requests| requests.iter().map(|_| fails()).collect()),
            1 => self.sign(|requests| vec![Ok(vec![7; 70]); requests.len()]),
            // Returns a wrong signature for the first job, and no signature for all further jobs of
            // the batch.
            2 => self.sign(|_| vec![Ok(vec![8; 256])]),
            _ => self.sign_well(),
        }
    }

    /// Runs the worker until no client is left. At random, either all clients are served, or all
    /// clients leave without a signature.
    fn come_to_rest(&mut self) {
        self.signer.stands_still = false;
        if self.dice.bool() {
            self.until(|soak| {
                soak.sign_well();
                soak.talk();
                soak.clients.is_empty()
            });
        }
        self.clients.clear();
        self.until(|soak| soak.is_alone());
        self.until(|soak| {
            soak.sign(|_| panic!("signs for nobody"));
            soak.signatures_under_way() == 0
        });
    }

    fn signatures_under_way(&self) -> u64 {
        let counters = &self.worker.counters;
        counters.signatures_begun.value() - counters.signatures_ended.value()
    }

    /// Ends the worker in one of three ways: a drain, a stop, or an hour without signatures and
    /// data.
    fn end(&mut self) {
        match self.seed % 3 {
            0 => {
                self.worker.mailbox.post(WorkerMessage::Drain([].into()));
                self.until(|soak| {
                    soak.sign_somehow();
                    soak.talk();
                    soak.worker.is_over()
                });
            }
            1 => {
                self.worker.mailbox.post(WorkerMessage::Stop);
                self.turn(TICK);
                assert!(self.worker.is_over());
                self.worker.cut_off();
            }
            _ => {
                for _ in 0..MOST_TURNS {
                    self.worker.clocks.now.running += Duration::from_secs(3600);
                    self.worker.expire();
                }
            }
        }
        self.worker.newcomers.signing.flush();
        while self.sign(|_| panic!("signs for nobody")) {}
        self.worker.read_mail();
        let is_deaf = self.worker.shutdown == Shutdown::Now;
        assert!(is_deaf || self.signatures_under_way() == 0);
    }
}

const LIVES: u64 = 6;
const ROUNDS: usize = 5;
const STEPS: usize = 80;
const THREADS: usize = 2;
