//! Log files that root created belong to the user of the worker process, which can reopen them.

use std::fs;

use becket_e2e::{AS_NOBODY, Backend, Becket, Place, Shape, Signal, eventually, give, nobody};

#[test]
#[ignore = "slow: .ci/run test"]
fn log_files_created_by_root_belong_to_the_user_and_can_be_reopened() {
    let Some(user) = nobody() else { return };
    let place = Place::new();
    give(&place, user);
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address).process(AS_NOBODY));
    for name in ["becket.log", "access.log"] {
        fs::rename(place.path(name), place.path(&format!("{name}.1"))).unwrap();
    }
    becket.signal(Signal::USR1);
    eventually("both log files exist again", || {
        place.path("becket.log").exists() && place.path("access.log").exists()
    });
    eventually("the reopening is logged", || {
        becket.log().contains("log files reopened")
    });
}
