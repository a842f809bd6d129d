//! Logs that root opened before it became another user can be opened again by that user.

use std::fs;

use becket_e2e::{AS_NOBODY, Backend, Becket, Place, Shape, Signal, eventually, give, nobody};

#[test]
#[ignore = "slow: .ci/run test"]
fn logs_that_root_opened_are_the_users_so_that_they_can_be_opened_again() {
    let Some(user) = nobody() else { return };
    let place = Place::new();
    give(&place, user);
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address).process(AS_NOBODY));
    for name in ["becket.log", "access.log"] {
        fs::rename(place.path(name), place.path(&format!("{name}.1"))).unwrap();
    }
    becket.signal(Signal::USR1);
    eventually("both are there again", || {
        place.path("becket.log").exists() && place.path("access.log").exists()
    });
    eventually("it says so", || becket.log().contains("log files reopened"));
}
