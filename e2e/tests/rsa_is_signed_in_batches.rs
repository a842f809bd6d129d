//! Where the processor can do it, a flood of clients is signed for eight at a time, and no client can tell.

use std::fs;
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Key, OpenSsl, Place, REQUEST, Shape, Signal, Trust, eventually,
};
use becket_tidy::lacks;
use rustls::version::{TLS12, TLS13};

/// Clients of each kind.
const EACH: usize = 20;

fn becket(place: &Place, backend: &Backend) -> Becket {
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"0s\"")
        .process("workers = 1\ncrypto-threads = 1\nrsa-batch = \"auto\"");
    Becket::start(place, &shape)
}

fn place() -> Place {
    let place = Place::new();
    place.issue("site.pem", &["www.example.org"], Key::Rsa);
    place
}

/// Whether there are batches, which must be so where the kernel says that the processor can make them.
fn makes_batches(becket: &Becket) -> bool {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let can = cpus.contains(" avx512f ") && cpus.contains(" avx512ifma ");
    let batches = &becket.status()["rsa_batches"];
    assert_eq!(batches.is_object(), can, "{batches}");
    becket.says(&format!("\"rsa_batches\":{can}"));
    if !can {
        lacks("needs AVX-512 IFMA");
    }
    can
}

/// Clients that all have said their hello when the worker looks, and some by openssl. Returns how many were refused.
fn flood(place: &Place, becket: &Becket) -> u64 {
    becket.queues_are_whole();
    becket.signal(Signal::STOP);
    let trusts = [&TLS12, &TLS13].map(|version| Trust::only(place, version));
    let clients: Vec<_> = (0..2 * EACH)
        .map(|at| {
            let mut client = Client::begin(becket.web, &trusts[at % 2], "www.example.org").unwrap();
            client.tls.write_tls(&mut client.socket).unwrap();
            client
        })
        .collect();
    let openssl = OpenSsl::find();
    thread::scope(|scope| {
        let ask = |version| {
            let (openssl, web) = (openssl.as_ref(), becket.web);
            scope.spawn(move || openssl.map(|it| it.ask(place, web, &[version])))
        };
        let by_openssl: Vec<_> = ["-tls1_2", "-tls1_3"]
            .iter()
            .cycle()
            .take(4)
            .map(|v| ask(v))
            .collect();
        becket.signal(Signal::CONT);
        let ask = |mut client: Client| scope.spawn(move || client.ask(REQUEST).is_err());
        let asking: Vec<_> = clients.into_iter().map(ask).collect();
        let asking = asking.into_iter().map(|one| one.join().unwrap());
        let by_openssl = by_openssl.into_iter().filter_map(|run| {
            let run = run.join().unwrap()?;
            Some(!run.stdout.contains("Verify return code: 0 (ok)"))
        });
        asking.chain(by_openssl).filter(|refused| *refused).count() as u64
    })
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_flood_is_signed_for_in_batches_and_everybody_is_served() {
    let (place, backend) = (place(), Backend::http("well met"));
    let becket = becket(&place, &backend);
    if !makes_batches(&becket) {
        return;
    }
    let count = |what: &str| {
        let name = format!("becket_rsa_batch{what}_total");
        becket.metrics().sum(&name, &[]) as u64
    };
    let mut refused = 0;
    // Where the threads of becket take turns with others, too few may wait at once.
    eventually("a batch was made", || {
        refused += flood(&place, &becket);
        count("es") > 0
    });
    becket.idle();
    // A machine that is slow enough has let some wait for too long, and told them.
    assert_eq!(
        refused,
        becket.metrics().closed("overload"),
        "{}",
        becket.log()
    );
    let (made, signatures) = (count("es"), count("_signatures"));
    assert!(
        (6 * made..=8 * made).contains(&signatures),
        "{made} batches, {signatures} signatures"
    );
    assert_eq!(count("_repeats"), 0);
    assert_eq!(becket.status()["rsa_batches"]["signatures"], signatures);
}
