//! Loads many certificates: one thread reads the files, several threads check them.
//!
//! Only one thread reads, because the supervisor opens files in order. A few files are checked by
//! the calling thread.
//!
//! If there are many files, one signature is verified for each list of issuers. A signature takes 80 % of the
//! time of a check, and the names of issuers and of their keys find all but damaged certificates.

use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::job::{Job, LoadOutcome};
use super::keys::{Loader, Verified};
use super::texts::Texts;

/// Index of a job, and what is known about it so far.
type Numbered<T> = Vec<(usize, T)>;

impl Loader {
    /// Loads certificates. Returns the outcomes in the order of the jobs. Blocks.
    pub fn load(&self, jobs: &[Job]) -> Vec<LoadOutcome> {
        let mut outcomes: Numbered<LoadOutcome> = Vec::with_capacity(jobs.len());
        let mut unknown = Vec::new();
        for (number, job) in jobs.iter().enumerate() {
            match self.reuse(job) {
                Some(outcome) => outcomes.push((number, outcome)),
                None => unknown.push((number, job)),
            }
        }
        if unknown.len() < MANY {
            let check = |job| self.check(job, Texts::read(&self.files, job), Verified::All);
            outcomes.extend(
                unknown
                    .into_iter()
                    .map(|(number, job)| (number, check(job))),
            );
        } else {
            outcomes.append(&mut self.load_many(unknown));
        }
        outcomes.sort_unstable_by_key(|(number, _)| *number);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn load_many(&self, jobs: Numbered<&Job>) -> Numbered<LoadOutcome> {
        let (sender, receiver) = sync_channel(WAITING);
        let (checked, outcomes) = channel();
        let receiver = Mutex::new(receiver);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut own = Vec::new();
        thread::scope(|scope| {
            let mut started = 0;
            for _ in 0..threads.min(MOST_THREADS) {
                let (receiver, checked) = (&receiver, checked.clone());
                let thread = thread::Builder::new().name("becket-loader".into());
                let run = move || self.check_until_end(receiver, &checked);
                started += usize::from(thread.spawn_scoped(scope, run).is_ok());
            }
            for batch in jobs.chunks(BATCH) {
                let batch = batch.iter();
                let batch = batch.map(|&(number, job)| {
                    let texts = Texts::read(&self.files, job);
                    (number, (job, texts))
                });
                let batch = batch.collect();
                if started == 0 {
                    own.extend(self.check_all(batch));
                } else {
                    // Cannot fail, because the receiver outlives the threads.
                    let _queued = sender.send(batch);
                }
            }
            drop(sender);
        });
        drop(checked);
        own.extend(outcomes.into_iter().flatten());
        own
    }

    fn check_until_end(
        &self,
        receiver: &Mutex<Receiver<Numbered<(&Job, Texts)>>>,
        checked: &Sender<Numbered<LoadOutcome>>,
    ) {
        let next = || {
            let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
            receiver.recv().ok()
        };
        while let Some(batch) = next() {
            // Cannot fail, because the outcomes are received after the threads have ended.
            let _queued = checked.send(self.check_all(batch));
        }
    }

    fn check_all(&self, batch: Numbered<(&Job, Texts)>) -> Numbered<LoadOutcome> {
        let verified = if self.verifies_all {
            Verified::All
        } else {
            Verified::OnePerIssuers
        };
        let check = |(number, (job, texts))| (number, self.check(job, texts, verified));
        batch.into_iter().map(check).collect()
    }
}

/// Minimum number of files for which threads are started.
const MANY: usize = 1024;
const MOST_THREADS: usize = 8;
/// Number of files that a thread takes at a time.
const BATCH: usize = 64;
/// Number of batches that wait for a thread.
const WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use base64ct::Encoding;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls_pki_types::UnixTime;

    use super::*;
    use crate::checked::CheckedFiles;
    use crate::files::Files;
    use crate::issuers::IssuerTable;
    use crate::job::ChainSource;

    fn loader(checked: CheckedFiles) -> Loader {
        Loader {
            provider: rustls::crypto::aws_lc_rs::default_provider(),
            // Far in the future, so that the files are old.
            now: UnixTime::since_unix_epoch(Duration::from_secs(4_000_000_000)),
            files: Files::default(),
            batches: false,
            crypto_threads: true,
            tokens: Default::default(),
            issuers: IssuerTable::default(),
            checked,
            verifies_all: false,
        }
    }

    fn write(folder: &Path, count: usize) {
        let key = KeyPair::generate().unwrap();
        for number in 0..count {
            let params = CertificateParams::new([format!("{number}.test")]).unwrap();
            let text = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
            fs::write(folder.join(number.to_string()), text).unwrap();
        }
    }

    fn jobs(folder: &Path, count: usize, before: &[LoadOutcome]) -> Vec<Job> {
        let path = Arc::from("certificates[0]");
        let job = |number: usize| Job {
            before: before.get(number).and_then(|it| it.loaded.clone()),
            ..Job::of(
                0,
                &path,
                ChainSource::Bundle(folder.join(number.to_string())),
            )
        };
        (0..count).map(job).collect()
    }

    #[test]
    fn many_files_are_loaded_in_order_by_several_threads_and_only_changed_ones_again() {
        let folder = tempfile::tempdir().unwrap();
        let count = MANY + 100;
        write(folder.path(), count);
        fs::write(folder.path().join("7"), "none").unwrap();
        let loader = loader(CheckedFiles::default());
        let first = loader.load(&jobs(folder.path(), count, &[]));
        assert_eq!(first.len(), count);
        for (number, outcome) in first.iter().enumerate() {
            if number == 7 {
                assert!(outcome.loaded.is_none() && outcome.report.errors.len() == 1);
                continue;
            }
            let loaded = outcome.loaded.as_ref().unwrap();
            assert_eq!(loaded.file().file_name().unwrap(), &*number.to_string());
            let names = outcome.names.as_ref().unwrap();
            assert_eq!(names[0].to_string(), format!("{number}.test"));
        }
        write(folder.path(), 10);
        let again = loader.load(&jobs(folder.path(), count, &first));
        for (number, (one, other)) in first.iter().zip(&again).enumerate() {
            let both = one.loaded.as_ref().zip(other.loaded.as_ref());
            let is_same = both.is_some_and(|(one, other)| Arc::ptr_eq(one, other));
            assert_eq!(is_same, number >= 10, "{number}");
        }
    }

    fn issuer() -> (Issuer<'static, KeyPair>, String) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let text = params.self_signed(&key).unwrap().pem();
        (Issuer::new(params, key), text)
    }

    /// Writes a bundle whose signature may be damaged.
    fn write_signed(
        file: &Path,
        by: &Issuer<'_, KeyPair>,
        names_key: bool,
        is_damaged: bool,
        issuers: &str,
    ) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = names_key;
        let mut der = params.signed_by(&key, by).unwrap().der().to_vec();
        *der.last_mut().unwrap() ^= u8::from(is_damaged);
        let der = base64ct::Base64::encode_string(&der);
        let text = format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n");
        fs::write(file, text + issuers + &key.serialize_pem()).unwrap();
    }

    #[test]
    fn of_many_files_those_that_name_no_or_another_issuers_key_are_verified() {
        let folder = tempfile::tempdir().unwrap();
        let ((issuer, text), (other, _)) = (issuer(), issuer());
        let count = MANY + 4;
        for number in 0..count {
            let (by, names_key, is_damaged) = match count - number {
                1 => (&issuer, true, true),
                2 => (&issuer, false, true),
                3 => (&other, true, false),
                4 => (&issuer, false, false),
                _ => (&issuer, true, false),
            };
            let file = folder.path().join(number.to_string());
            write_signed(&file, by, names_key, is_damaged, &text);
        }
        for (verifies_all, faults) in [(false, [0, 1, 1, 0]), (true, [0, 1, 1, 1])] {
            let mut loader = loader(CheckedFiles::default());
            loader.verifies_all = verifies_all;
            let outcomes = loader.load(&jobs(folder.path(), count, &[]));
            let (most, last) = outcomes.split_at(MANY);
            assert!(most.iter().all(|it| it.report.errors.is_empty()));
            let found: Vec<_> = last.iter().map(|it| it.report.errors.len()).collect();
            assert_eq!(found, faults);
        }
        let last = &jobs(folder.path(), count, &[])[count - 1..];
        let few = loader(CheckedFiles::default()).load(last);
        assert_eq!(few[0].report.errors.len(), 1);
    }

    #[test]
    fn contents_that_were_checked_are_trusted_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checked");
        write(folder.path(), 2);
        let first = loader(CheckedFiles::read(path.clone()));
        first.load(&jobs(folder.path(), 2, &[]));
        first.checked.save().unwrap();
        // A digest of a file whose key does not fit, as if it had been checked.
        let [one, other] = [0, 1]
            .map(|number: u8| fs::read_to_string(folder.path().join(number.to_string())).unwrap());
        let other_key = KeyPair::generate().unwrap().serialize_pem();
        let (chain, _) = one.split_at(one.find("-----BEGIN PRIVATE").unwrap());
        let wrong = chain.to_owned() + &other_key;
        fs::write(folder.path().join("0"), &wrong).unwrap();
        let load = || {
            let loader = loader(CheckedFiles::read(path.clone()));
            let outcomes = loader.load(&jobs(folder.path(), 2, &[]));
            [0, 1].map(|number: usize| outcomes[number].report.errors.len())
        };
        assert_eq!(load(), [1, 0]);
        let forged = CheckedFiles::append(path.clone());
        forged.insert(forged.digest(wrong.as_bytes(), b"").unwrap());
        forged.save().unwrap();
        assert_eq!(load(), [0, 0]);
        fs::write(folder.path().join("1"), other + "\n").unwrap();
        assert_eq!(load(), [0, 0]);
    }
}
