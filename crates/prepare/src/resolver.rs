//! The resolver of host names: one for a start, a reload, `becket check`, servers and peers.
//!
//! getaddrinfo(3) blocks and cannot be called off: ten seconds where DNS is dead (resolv.conf(5): five, twice), for
//! ever where a module of nsswitch.conf hangs. So it is called on threads that are made when names wait and end when
//! none does, [`MOST_THREADS`] at most. A name that is being looked up is not looked up a second time: whoever asks
//! for it meanwhile gets the same answer, so that reloads one after the other cost no further threads. A name for
//! which nobody waits any more is not looked up. A call that never returns keeps its thread: after [`MOST_THREADS`]
//! *different* names that hang for ever nothing is looked up until the next start, and known addresses stay in use.
//!
//! When a name is looked up again is decided by those who use it: `health/prober.rs` of control and replication.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use becket_keys::files::reason;

/// Looks names up, beside everything else. Its clones share threads and what is under way.
#[derive(Clone)]
pub struct HostResolver(Arc<ResolverState>);

/// Addresses, at least one, each once; or why there are none.
pub type HostAddresses = Result<Arc<[IpAddr]>, String>;

/// Whether this machine has IPv6, so that `:PORT` means both families.
pub fn has_ipv6() -> bool {
    UdpSocket::bind("[::]:0").is_ok()
}

struct ResolverState {
    ask: Box<Ask>,
    lookups: Mutex<PendingLookups>,
}

type Ask = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// What is asked for.
#[derive(Default)]
struct PendingLookups {
    /// By name, all who wait for it.
    asked: HashMap<Arc<str>, Vec<oneshot::Sender<HostAddresses>>>,
    /// Names that no thread has taken yet, in their order.
    waiting: VecDeque<Arc<str>>,
    threads: usize,
}

impl HostResolver {
    /// The system's resolver, the same one for all callers.
    pub fn system() -> Self {
        static OF_PROCESS: OnceLock<HostResolver> = OnceLock::new();
        let made = || Self::by(|host| Ok((host, 0).to_socket_addrs()?.map(|at| at.ip()).collect()));
        OF_PROCESS.get_or_init(made).clone()
    }

    /// Another one, for tests and fuzzing.
    pub fn by(ask: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let (ask, lookups) = (Box::new(ask), Mutex::default());
        Self(Arc::new(ResolverState { ask, lookups }))
    }

    /// Asks for the addresses of a host, at once; the future waits for the answer.
    pub fn look_up(&self, host: &str) -> impl Future<Output = HostAddresses> + Send + 'static {
        let (sender, receiver) = oneshot::channel();
        let mut lookups = self.0.lock();
        lookups.ask(host, sender);
        let has_room = lookups.threads < MOST_THREADS;
        if has_room && !lookups.waiting.is_empty() {
            let inner = Arc::clone(&self.0);
            let thread = thread::Builder::new().name("resolver".to_owned());
            match thread.spawn(move || inner.serve()) {
                Ok(_) => lookups.threads += 1,
                Err(_) if lookups.threads == 0 => *lookups = PendingLookups::default(),
                // It only takes longer.
                Err(_) => {}
            }
        }
        drop(lookups);
        async {
            let lost = |_| Err("no thread for the resolver".to_owned());
            receiver.await.unwrap_or_else(lost)
        }
    }

    /// Asks for all of these hosts and waits for the answers, in all no longer than `patience`. Blocks; not for
    /// tasks of a runtime.
    pub fn wait<'h>(
        &self,
        hosts: impl IntoIterator<Item = &'h str>,
        patience: Duration,
    ) -> HashMap<String, HostAddresses> {
        let asked = hosts.into_iter().map(|host| (host, self.look_up(host)));
        let mut asked: Vec<_> = asked.map(|(host, found)| (host, Box::pin(found))).collect();
        let mut all = HashMap::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        if let Ok(runtime) = runtime {
            let each = async {
                for (host, found) in &mut asked {
                    all.insert((*host).to_owned(), found.await);
                }
            };
            // What is not known by then stays unknown.
            let _late = runtime.block_on(async { timeout(patience, each).await });
        }
        for (host, _) in asked {
            let silent = || Err(format!("the resolver does not answer within {patience:?}"));
            all.entry(host.to_owned()).or_insert_with(silent);
        }
        all
    }
}

impl ResolverState {
    /// Looks up what waits, until nothing does.
    fn serve(&self) {
        let mut lookups = self.lock();
        while let Some(host) = lookups.waiting.pop_front() {
            drop(lookups);
            let found = found((self.ask)(&host));
            lookups = self.lock();
            for sender in lookups.asked.remove(&host).into_iter().flatten() {
                // Who has gone needs no answer.
                let _gone = sender.send(found.clone());
            }
        }
        lookups.threads -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, PendingLookups> {
        // Never held while somebody is asked.
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingLookups {
    fn ask(&mut self, host: &str, sender: oneshot::Sender<HostAddresses>) {
        let Self { asked, waiting, .. } = self;
        if let Some(senders) = asked.get_mut(host) {
            senders.retain(|sender| !sender.is_closed());
            return senders.push(sender);
        }
        waiting.retain(|name| {
            let senders = asked.get(name);
            let is_wanted = senders.is_some_and(|all| all.iter().any(|one| !one.is_closed()));
            if !is_wanted {
                asked.remove(name);
            }
            is_wanted
        });
        let host = Arc::<str>::from(host);
        waiting.push_back(Arc::clone(&host));
        asked.insert(host, vec![sender]);
    }
}

impl fmt::Debug for HostResolver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lookups = self.0.lock();
        out.debug_struct("HostResolver")
            .field("threads", &lookups.threads)
            .field("asked", &lookups.asked.len())
            .finish_non_exhaustive()
    }
}

fn found(answer: io::Result<Vec<IpAddr>>) -> HostAddresses {
    let all = answer.map_err(|error| reason(&error).to_lowercase())?;
    let mut seen = HashSet::new();
    let each: Arc<[IpAddr]> = all.into_iter().filter(|ip| seen.insert(*ip)).collect();
    if each.is_empty() {
        Err("it has no address".to_owned())
    } else {
        Ok(each)
    }
}

/// Names that are looked up at a time: a thread each while the system's resolver thinks, and questions that a DNS
/// server has to bear at once.
const MOST_THREADS: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// A resolver that answers nobody before it is told to.
    #[derive(Default)]
    struct Hung {
        told: (Mutex<bool>, Condvar),
        calls: AtomicUsize,
    }

    impl Hung {
        fn resolver(self: &Arc<Self>) -> HostResolver {
            let hung = Arc::clone(self);
            HostResolver::by(move |_| {
                hung.calls.fetch_add(1, SeqCst);
                let (told, rings) = &hung.told;
                let held = told.lock().unwrap();
                drop(rings.wait_while(held, |told| !*told).unwrap());
                Ok(vec![IpAddr::from([192, 0, 2, 9]); 2])
            })
        }

        fn answer(&self) {
            *self.told.0.lock().unwrap() = true;
            self.told.1.notify_all();
        }
    }

    fn wait(future: impl Future<Output = HostAddresses>) -> HostAddresses {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn a_resolver_that_hangs_costs_some_threads_and_no_more() {
        let hung = Arc::<Hung>::default();
        let resolver = hung.resolver();
        let mut round = 0;
        // A thread that begins late finds that nobody waits any more, and goes.
        while round < 50 || hung.calls.load(SeqCst) < MOST_THREADS {
            // As a reload does: it asks anew, and nobody waits for what the last one asked.
            let same = resolver.look_up("same.test");
            let other = resolver.look_up(&format!("{round}.test"));
            drop((same, other));
            round += 1;
        }
        let last = resolver.look_up("last.test");
        let lookups = resolver.0.lock();
        assert_eq!(lookups.threads, MOST_THREADS);
        assert_eq!(
            lookups.waiting.len(),
            1,
            "what nobody waits for is forgotten"
        );
        assert!(lookups.asked.len() <= MOST_THREADS + 1);
        drop(lookups);
        hung.answer();
        let found = wait(last).unwrap();
        assert_eq!(*found, [IpAddr::from([192, 0, 2, 9])]);
        assert!(hung.calls.load(SeqCst) <= MOST_THREADS + 1);
    }

    #[test]
    fn all_who_ask_for_a_name_meanwhile_get_one_answer() {
        let hung = Arc::<Hung>::default();
        let resolver = hung.resolver();
        let (one, two) = (resolver.look_up("a.test"), resolver.look_up("a.test"));
        hung.answer();
        assert_eq!(wait(one), wait(two));
        assert_eq!(hung.calls.load(SeqCst), 1);
        wait(resolver.look_up("a.test")).unwrap();
        assert_eq!(hung.calls.load(SeqCst), 2, "an answer is not kept");
    }

    #[test]
    fn whoever_waits_for_an_answer_waits_for_so_long() {
        let hung = Arc::<Hung>::default();
        let resolver = hung.resolver();
        let all = resolver.wait(["a.test", "b.test"], Duration::from_millis(1));
        assert_eq!(all.len(), 2);
        let why = all["b.test"].as_ref().unwrap_err();
        assert_eq!(why, "the resolver does not answer within 1ms");
        hung.answer();
        let all = resolver.wait(["a.test", "b.test"], Duration::from_secs(60));
        assert!(all.values().all(Result::is_ok));
    }
}
