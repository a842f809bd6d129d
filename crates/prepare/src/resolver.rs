//! The resolver of host names for starts, reloads, `becket check`, servers and peers.
//!
//! getaddrinfo(3) blocks and cannot be cancelled. It takes ten seconds without DNS (two attempts of
//! five seconds, resolv.conf(5)), and never returns if a module of nsswitch.conf hangs. So each
//! lookup has its own thread, at most [`MOST_THREADS`] at a time, and other lookups wait. A call
//! that never returns occupies its thread. After [`MOST_THREADS`] such calls no name is resolved
//! until the next start, and known addresses stay in use.
//!
//! The callers schedule the lookups: `health/prober.rs` of control, and replication.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::{Semaphore, broadcast};
use tokio::task::JoinSet;
use tokio::time::timeout;

use becket_keys::files::reason;

/// Resolves names on its own threads. Clones share the limit of threads.
#[derive(Clone)]
pub struct HostResolver {
    ask: Arc<Ask>,
    threads: Arc<Semaphore>,
    /// Lookups in progress, by host. Concurrent lookups of a host share one thread.
    running: Arc<Mutex<HashMap<String, broadcast::Sender<HostAddresses>>>>,
}

/// Distinct addresses, at least one, or the error message of the lookup.
pub type HostAddresses = Result<Arc<[IpAddr]>, String>;

/// Returns `true` if this host supports IPv6, so that `:PORT` means both families.
pub fn has_ipv6() -> bool {
    UdpSocket::bind("[::]:0").is_ok()
}

/// Returns the address from which this host sends to the Internet. Sends nothing.
pub(super) fn own_address() -> Option<IpAddr> {
    // Addresses for documentation, which are routed as any other.
    let towards = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    towards("0.0.0.0:0", "192.0.2.1:9").or_else(|| towards("[::]:0", "[2001:db8::1]:9"))
}

type Ask = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

impl HostResolver {
    /// Returns the system's resolver, which all callers share.
    pub fn system() -> Self {
        static OF_PROCESS: OnceLock<HostResolver> = OnceLock::new();
        let made = || Self::by(|host| Ok((host, 0).to_socket_addrs()?.map(|at| at.ip()).collect()));
        OF_PROCESS.get_or_init(made).clone()
    }

    /// Returns a resolver that calls `ask`, for tests and fuzzing.
    pub fn by(ask: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        Self {
            ask: Arc::new(ask),
            threads: Arc::new(Semaphore::new(MOST_THREADS)),
            running: Arc::default(),
        }
    }

    /// Resolves a host. The lookup starts when the future is polled.
    pub fn look_up(&self, host: &str) -> impl Future<Output = HostAddresses> + Send + 'static {
        let Self {
            ask,
            threads,
            running,
        } = self.clone();
        let host = host.to_owned();
        async move {
            let permit = threads.acquire_owned().await;
            let mut answer = {
                let ended = Arc::clone(&running);
                let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(sender) = running.get(&host) {
                    drop(permit);
                    sender.subscribe()
                } else {
                    let (sender, answer) = broadcast::channel(1);
                    let asked = host.clone();
                    let thread = thread::Builder::new().name("resolver".to_owned());
                    let spawned = thread.spawn(move || {
                        let found = found(ask(&asked));
                        let mut running = ended.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(sender) = running.remove(&asked) {
                            // Fails only if all callers have dropped their receivers.
                            let _gone = sender.send(found);
                        }
                        drop(permit);
                    });
                    if spawned.is_ok() {
                        running.insert(host, sender);
                    }
                    answer
                }
            };
            let lost = |_| Err("no thread for the resolver".to_owned());
            answer.recv().await.unwrap_or_else(lost)
        }
    }

    /// Resolves `hosts` in at most `patience` in total. Blocks, so async tasks must not call it.
    pub fn wait<'h>(
        &self,
        hosts: impl IntoIterator<Item = &'h str>,
        patience: Duration,
    ) -> HashMap<String, HostAddresses> {
        let silent = || Err(format!("the resolver does not answer within {patience:?}"));
        let hosts = hosts.into_iter().map(|host| (host.to_owned(), silent()));
        let mut all: HashMap<String, HostAddresses> = hosts.collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        if let Ok(runtime) = runtime {
            let _late = runtime.block_on(async {
                let mut lookups = JoinSet::new();
                for host in all.keys().cloned() {
                    let found = self.look_up(&host);
                    lookups.spawn(async { (host, found.await) });
                }
                let answers = async {
                    while let Some(Ok((host, found))) = lookups.join_next().await {
                        all.insert(host, found);
                    }
                };
                timeout(patience, answers).await
            });
        }
        all
    }
}

impl fmt::Debug for HostResolver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HostResolver").finish_non_exhaustive()
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

/// Maximum number of concurrent lookups. Each occupies a thread and adds load to a DNS server.
const MOST_THREADS: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// A resolver that does not answer until it is released.
    #[derive(Default)]
    struct Hung {
        released: (Mutex<bool>, Condvar),
        calls: AtomicUsize,
    }

    impl Hung {
        /// Returns a resolver that hangs for each name until the release.
        fn resolver(self: &Arc<Self>) -> HostResolver {
            let asked = Arc::clone(self);
            HostResolver::by(move |_| {
                asked.calls.fetch_add(1, SeqCst);
                let (released, rings) = &asked.released;
                let held = released.lock().unwrap();
                drop(rings.wait_while(held, |released| !*released).unwrap());
                Ok(vec![IpAddr::from([192, 0, 2, 9]); 2])
            })
        }

        fn release(&self) {
            *self.released.0.lock().unwrap() = true;
            self.released.1.notify_all();
        }
    }

    #[test]
    fn repeated_lookups_of_a_hanging_name_use_one_thread() {
        let hung = Arc::new(Hung::default());
        let resolver = hung.resolver();
        while hung.calls.load(SeqCst) == 0 {
            let _late = resolver.wait(["a.test"], Duration::from_millis(1));
        }
        for _ in 0..3 {
            let _late = resolver.wait(["a.test"], Duration::from_millis(1));
        }
        assert_eq!(resolver.threads.available_permits(), MOST_THREADS - 1);
        hung.release();
        let all = resolver.wait(["a.test"], Duration::from_secs(60));
        assert!(all["a.test"].is_ok());
    }

    #[test]
    fn a_hanging_resolver_uses_bounded_threads_and_time() {
        let hung = Arc::<Hung>::default();
        let resolver = hung.resolver();
        let names: Vec<String> = (0..50).map(|number| format!("{number}.test")).collect();
        let names = || names.iter().map(String::as_str);
        while hung.calls.load(SeqCst) < MOST_THREADS {
            let all = resolver.wait(names(), Duration::from_millis(1));
            let why = all["1.test"].as_ref().unwrap_err();
            assert_eq!(why, "the resolver does not answer within 1ms");
        }
        assert_eq!(resolver.threads.available_permits(), 0);
        assert_eq!(hung.calls.load(SeqCst), MOST_THREADS);
        hung.release();
        let all = resolver.wait(names(), Duration::from_secs(60));
        assert_eq!(all.len(), 50);
        for found in all.values() {
            assert_eq!(**found.as_ref().unwrap(), [IpAddr::from([192, 0, 2, 9])]);
        }
    }
}
