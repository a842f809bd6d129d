//! Log files: SIGUSR1 reopens them after a rotation, and the access log is optional.

use std::fs;

use becket_e2e::{
    Backend, Becket, Client, Place, REQUEST, Shape, Signal, Trust, eventually, fresh_address,
    http_get,
};

#[test]
#[ignore = "slow: .ci/run test"]
fn new_lines_go_to_the_new_files_after_a_rotation() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let trust = Trust::new(&place);
    let visit = || {
        Client::connect(becket.web, &trust)
            .unwrap()
            .ask(REQUEST)
            .unwrap()
    };
    visit();
    becket.next_access();
    for name in ["becket.log", "access.log"] {
        fs::rename(place.path(name), place.path(&format!("{name}.1"))).unwrap();
    }
    becket.signal(Signal::USR1);
    eventually("both log files exist again", || {
        place.path("becket.log").exists() && place.path("access.log").exists()
    });
    visit();
    eventually("a line in the new access log", || {
        becket.access().len() == 1
    });
    let (old, new) = (place.read("access.log.1"), place.read("access.log"));
    assert_eq!((old.lines().count(), new.lines().count()), (1, 1));
    eventually("the reopening is logged", || {
        place.read("becket.log").contains("log files reopened")
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_access_log_is_off_by_default_and_an_option_enables_it() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let trust = Trust::new(&place);
    for flags in [&[][..], &["--access-log", "lines", "--log-format", "json"]] {
        let (web, admin) = (fresh_address(), fresh_address());
        let addresses = [web, backend.address, admin].map(|address| address.to_string());
        let fixed = [
            "run",
            "--frontend",
            &addresses[0],
            "--backend",
            &addresses[1],
        ];
        let rest = ["--admin", &addresses[2], "site.pem"];
        let command = Becket::command(&place, &[&fixed[..], &rest, flags].concat());
        let becket = Becket::spawn(command, place.folder(), web, admin);
        becket.ready();
        Client::connect(web, &trust).unwrap().ask(REQUEST).unwrap();
        if flags.is_empty() {
            becket.idle();
            assert!(http_get(admin, "/metrics").is_ok());
            assert!(
                !becket.log().contains("www.example.org"),
                "{}",
                becket.log()
            );
        } else {
            eventually("a line is written", || {
                place.read("lines").contains("\"reason\":\"finished\"")
            });
        }
    }
}
