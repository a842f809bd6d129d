//! The companion is killed at each step of an order, and the authority fails at each step. Orders are counted at the
//! authority.

use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::thread;

use crate::authority_proxy::{AuthorityProxy, Hold, STEPS, Verdict};
use crate::site::{Pebble, certificate, pebble, until};

/// Runs a test for all rows of a table at the same time. A failed row is the name of its thread.
fn for_each<T: Debug + Sync>(rows: &[T], test: impl Fn(&T) + Sync) {
    thread::scope(|scope| {
        for row in rows {
            let thread = thread::Builder::new().name(format!("{row:?}"));
            thread.spawn_scoped(scope, || test(row)).unwrap();
        }
    });
}

fn files(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap();
    let names = files.map(|it| it.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn a_companion_that_is_killed_at_a_step_finishes_its_order() {
    let Some(pebble) = pebble() else { return };
    let again = [("/authZ/", 2), ("/chalZ/", 2), ("/my-order/", 2)];
    let steps = STEPS.map(|path| (path, 1)).into_iter().chain(again);
    let points: Vec<_> = steps
        .flat_map(|(path, nth)| [(path, nth, false), (path, nth, true)])
        .collect();
    for_each(&points, |&(path, nth, is_answered)| {
        let (site, proxy) = pebble.behind_proxy();
        let host = format!("{nth}{is_answered}{}.test", path.replace('/', ""));
        let names = ["a", "b"].map(|name| format!("{name}.{host}"));
        let section = site.section(vec![certificate(&names.each_ref().map(String::as_str))]);
        let hold = proxy.hold(path, nth, is_answered);
        let killed = site.start(&section);
        hold.reached();
        drop(killed);
        drop(hold);
        let _running = site.start(&section);
        site.wait_for_all();
        assert!(files(&site.acme().join("orders")).is_empty());
        let mut orders = proxy.orders();
        orders.sort();
        // The exception: the companion does not know the URL of an order whose response it never received.
        let expected = match (path, is_answered) {
            ("/order-plz", true) => ("pending valid", 2),
            _ => ("valid", 1),
        };
        assert_eq!((&*orders.join(" "), proxy.most_live()), expected);
    });
}

#[test]
fn files_of_a_killed_companion_cause_no_second_live_order() {
    let Some(pebble) = pebble() else { return };
    let (site, proxy) = pebble.behind_proxy();
    let section = site.section(vec![certificate(&["files.test"])]);
    let [orders, bundles] = ["orders", "certificates"].map(|name| site.acme().join(name));
    let (order, bundle) = (
        orders.join("files.test.json"),
        bundles.join("files.test.pem"),
    );
    let hold = proxy.hold("/certZ/", 1, true);
    let killed = site.start(&section);
    hold.reached();
    drop(killed);
    drop(hold);
    // Killed while it wrote a file: half of the file has its temporary name.
    for half in [
        orders.join(".files.test.json.new"),
        bundles.join(".files.test.pem.new"),
    ] {
        fs::write(half, "half").unwrap();
    }
    let left = fs::read(&order).unwrap();
    let killed = site.start(&section);
    site.wait_for_all();
    drop(killed);
    assert_eq!(files(&bundles), ["files.test.pem"]);
    // Killed after it wrote the bundle, and before it removed the order.
    fs::write(&order, &left).unwrap();
    let first = fs::read(&bundle).unwrap();
    let _running = site.start(&section);
    site.wait_for_all();
    assert!(fs::read(&bundle).unwrap() == first);
    assert_eq!(proxy.orders().len(), 1);
    assert_eq!(site.renew("files.test"), None);
    assert_eq!(proxy.orders(), ["valid", "valid"]);
    assert_eq!((files(&orders).len(), proxy.most_live()), (0, 1));
}

/// A fault of the authority at one step.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Answers(&'static str),
    OffersUnknownChallenge,
    Hangs,
}

impl Fault {
    /// Begins the fault. It ends when the result is dropped and the proxy passes everything.
    fn begin(self, proxy: &AuthorityProxy, step: &'static str) -> Option<Hold> {
        match self {
            Self::Hangs => return Some(proxy.hold(step, 1, false)),
            Self::Answers(text) => proxy.set(move |path, _| {
                if path.starts_with(step) {
                    Verdict::Answer(text.to_owned())
                } else {
                    Verdict::Pass
                }
            }),
            Self::OffersUnknownChallenge => proxy.set(|_, answer| {
                let other = answer.map(|it| it.replace("tls-alpn-01", "tls-alpn-99"));
                other.map_or(Verdict::Pass, Verdict::Answer)
            }),
        }
        None
    }
}

/// Renews a certificate during each fault, and after it.
fn renew_through(pebble: &Pebble, step: &'static str, faults: &[(Fault, &str)]) {
    let (site, proxy) = pebble.behind_proxy();
    let name = &format!(
        "{faults}{}.test",
        step.replace('/', "").to_lowercase(),
        faults = faults.len()
    );
    let _running = site.start(&site.section(vec![certificate(&[name])]));
    site.wait_for_all();
    for (fault, expected) in faults {
        until("the renewal window is known", || {
            proxy.answered("/draft-ietf-acme-ari-03/") == proxy.orders().len()
        });
        let held = fault.begin(&proxy, step);
        let (before, error) = loop {
            if step == "/sign-me-up" {
                let accounts = site.acme().join("accounts");
                let remove = |name| fs::remove_file(accounts.join(name)).unwrap();
                files(&accounts).into_iter().for_each(remove);
            }
            let before = site.bundle(name);
            // An order has no challenge if pebble uses the last authorization again.
            if let Some(error) = site.renew(name) {
                break (before, error);
            }
        };
        assert!(error.contains(expected), "{fault:?}: {error}");
        let row = &site.rows()[0];
        assert!(row.expires.is_some() && row.failures > 0, "{row:?}");
        assert_eq!(site.bundle(name), before);
        drop(held);
        proxy.clear();
        assert_eq!(site.renew(name), None, "{fault:?}");
        assert_ne!(site.bundle(name), before);
    }
    let orders = proxy.orders();
    assert!(orders.iter().all(|it| it == "valid"), "{orders:?}");
    assert_eq!(proxy.most_live(), 1);
}

#[test]
fn an_authority_that_fails_at_a_step_costs_no_certificate_and_no_order() {
    let Some(pebble) = pebble() else { return };
    for_each(&STEPS, |step| {
        let mut faults = vec![
            (Fault::Answers(RUBBISH), ""),
            (Fault::Answers(LIMITED), "429"),
            (Fault::Answers(BROKEN), "500"),
        ];
        if *step == "/authZ/" {
            faults.push((Fault::OffersUnknownChallenge, "does not offer tls-alpn-01"));
        }
        renew_through(&pebble, step, &faults);
    });
}

#[test]
fn an_authority_that_hangs_at_a_step_costs_no_certificate_and_no_order() {
    let Some(pebble) = pebble() else { return };
    for_each(&STEPS, |step| {
        renew_through(&pebble, step, &[(Fault::Hangs, "no answer within 30 s")]);
    });
}

const RUBBISH: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>";
const LIMITED: &str = "HTTP/1.1 429 x\r\nretry-after: 7200\r\nconnection: close\r\n\r\n\
    {\"type\":\"urn:ietf:params:acme:error:rateLimited\",\"detail\":\"429\"}";
const BROKEN: &str = "HTTP/1.1 500 x\r\nconnection: close\r\n\r\n<html>";
