//! Service manager integration: inherited sockets and notifications.

use becket_e2e::{
    Backend, Becket, Client, Notices, Place, REQUEST, Shape, Signal, Tool, Trust, becket_program,
};

/// Opens a listening socket as descriptor 3 and executes becket.
const ACTIVATE: &str = "
import os, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='web')
os.execv(sys.argv[3], sys.argv[3:])
";

#[test]
#[ignore = "slow: .ci/run test"]
fn all_workers_serve_an_inherited_socket() {
    let Some(python) = Tool::find("python3") else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    place.write("becket.toml", &shape.text());
    let (host, port) = (shape.web.ip().to_string(), shape.web.port().to_string());
    let program = becket_program().to_string_lossy();
    let arguments = [
        "-c",
        ACTIVATE,
        &host,
        &port,
        &program,
        "run",
        "--config",
        "becket.toml",
    ];
    let command = Becket::command_of(python.path(), &place, &arguments);
    let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    let trust = Trust::new(&place);
    for _ in 0..8 {
        let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
        assert!(answer.unwrap().ends_with(b"well met"));
    }
    // A reload keeps the socket, although becket could not bind its address again.
    assert!(becket.reload(), "{}", becket.log());
    assert!(
        Client::connect(becket.web, &trust)
            .unwrap()
            .ask(REQUEST)
            .is_ok()
    );
    becket.signal(Signal::TERM);
    assert_eq!(becket.ended(), Some(0));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_service_manager_is_notified_of_start_reload_watchdog_and_exit() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let notices = Notices::bind(&place);
    let mut becket = Becket::start_as(&place, &Shape::new(backend.address), |command| {
        notices.of(command);
        command.env("WATCHDOG_USEC", "2000000");
    });
    notices.next("READY=1");
    notices.next("WATCHDOG=1");
    becket.signal(Signal::HUP);
    let message = notices.next("RELOADING=1");
    assert!(message.contains("MONOTONIC_USEC="), "{message}");
    notices.next("READY=1");
    becket.signal(Signal::TERM);
    notices.next("STOPPING=1");
    assert_eq!(becket.ended(), Some(0));
}
