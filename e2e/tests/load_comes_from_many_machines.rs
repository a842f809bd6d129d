//! Two agents on hosts of their own load a becket on a third, as one run, also for the bench. A host that vanishes ends the
//! run, and is named.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use becket_e2e::{
    Authority, Backend, Becket, Finished, Host, Kept, Key, Network, Place, Shape, becket_program,
    bench_program, eventually, finish, load_program,
};
use serde_json::Value;

/// Adds the certificate that coordinator and agents have.
fn with_identity(mut command: Command, place: &Place) -> Command {
    for (option, file) in [
        ("--certificate", "load.pem"),
        ("--key", "load.key"),
        ("--ca", "load-ca.pem"),
    ] {
        command.arg(option).arg(place.path(file));
    }
    command
}

/// Creates the certificate of coordinator and agents.
fn place_with_identity(agents: [&Host; 2]) -> Place {
    let place = Place::new();
    let authority = Authority::new("load");
    let names = agents.map(|host| host.address.to_string());
    let bundle = authority.issue(&names.each_ref().map(String::as_str), Key::Ecdsa);
    place.write("load.pem", &bundle.certificate);
    place.write("load.key", &bundle.key);
    place.write("load-ca.pem", authority.pem());
    place
}

/// Starts an agent, and returns it with the rest of its log.
fn agent(host: &Host, place: &Place, target: &str) -> (Kept, impl Iterator<Item = String> + use<>) {
    let mut command = Command::new(load_program());
    command.args(["agent", "--listen", &format!("{}:7440", host.address)]);
    let mut command = with_identity(command, place);
    command.args(["--allow", target]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = host.within(|| command.spawn()).expect("an agent");
    let mut ready = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout)
        .read_line(&mut ready)
        .expect("a line");
    assert!(ready.starts_with("listening on"), "{ready}");
    let log = BufReader::new(child.stderr.take().expect("piped"));
    (Kept(child), log.lines().map_while(Result::ok))
}

fn coordinate(network: &Network, place: &Place, args: &str) -> Finished {
    let mut command = with_identity(Command::new(load_program()), place);
    let [one, two] = [1, 2].map(|host| network.hosts[host].address);
    let url = format!("https://{}:443/", network.hosts[0].address);
    command.args(["-q", "--json", &url, "--i-own-this-target"]);
    command.args(["--agents", &format!("{one},{two}:7440")]);
    command.args(args.split(' '));
    network.hub.within(|| finish(command, ""))
}

#[test]
fn agents_on_two_hosts_load_a_becket_on_a_third() {
    let Some(network) = Network::of(3) else {
        return;
    };
    let [target, one, two] = &network.hosts[..] else {
        panic!("three hosts")
    };
    let place = place_with_identity([one, two]);
    let backend = target.within(|| Backend::http("well met"));
    let mut shape = Shape::new(backend.address);
    shape.web = (target.address, 443).into();
    let becket = target.within(|| Becket::start(&place, &shape));

    let allowed = format!("{}:443", target.address);
    let _first = agent(one, &place, &allowed);
    let (_second, mut log) = agent(two, &place, &allowed);
    let run = coordinate(&network, &place, "--sni www.example.org -n 41 -c 4");
    assert_eq!(run.code, 0, "{}", run.all());
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["steps"][0]["succeeded"], 41, "{}", run.all());
    let parts = [0, 1].map(|agent| &report["agents"][agent]["steps"][0]["succeeded"]);
    assert_eq!(parts, [21, 20]);
    target.within(|| becket.idle());
    for (host, share) in [(one, 21), (two, 20)] {
        let prefix = format!("{}:", host.address);
        let is_ours = |record: &Value| {
            let client = record["client"].as_str().unwrap_or_default();
            client.starts_with(&prefix) && record["sni"] == "www.example.org"
        };
        eventually("every client of the agent is logged", || {
            becket.access().iter().filter(|it| is_ours(it)).count() == share
        });
    }

    let run = std::thread::scope(|scope| {
        let run = scope.spawn(|| coordinate(&network, &place, "-R 20 -c 6 -d 5m"));
        log.find(|line| line.contains("3 connections"));
        network.unplug(2);
        run.join().unwrap()
    });
    assert_eq!(run.code, 5, "{}", run.all());
    let lost = format!("agent {}:7440: ", two.address);
    assert!(run.stderr.contains(&lost), "{}", run.all());
    let ended = log.find(|line| line.contains("aborted: lost the coordinator"));
    assert!(ended.is_some(), "an agent without coordinator stops");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_bench_measures_a_becket_with_the_load_of_agents_on_two_hosts() {
    let Some(network) = Network::of(3) else {
        return;
    };
    let [target, one, two] = &network.hosts[..] else {
        panic!("three hosts")
    };
    let place = place_with_identity([one, two]);
    let allowed = format!("{}:*", target.address);
    let (_first, first) = agent(one, &place, &allowed);
    let (_second, second) = agent(two, &place, &allowed);
    let out = place.path("run");
    let mut command = Command::new(bench_program());
    command.args(["run", "key", "latency", "--smoke", "--peers"]);
    command.arg("becket").arg("--peer");
    command.arg(format!("becket={}", becket_program().display()));
    command.args(["--address", &target.address.to_string(), "--agents"]);
    command.arg(format!("{},{}", one.address, two.address));
    command.arg("--out").arg(&out);
    // The starts of many short runs take most of the time, so there is no limit.
    let run = target.within(|| with_identity(command, &place).output());
    let run = run.expect("the bench starts");
    assert!(run.status.success(), "{run:?}");
    let stored: Value = serde_json::from_str(&place.read("run/run.json")).unwrap();
    assert_eq!(stored["agents"].as_array().unwrap().len(), 2);
    let scenarios = stored["scenarios"].as_array().unwrap();
    assert_eq!(scenarios.len(), 2);
    for (scenario, figure) in scenarios.iter().zip(["cpu_us", "added_p50"]) {
        let samples = &scenario["cases"][0]["columns"][0]["samples"];
        let figures = samples[0]["figures"].to_string();
        assert!(figures.contains(figure), "{scenario}");
    }
    for log in [first, second] {
        let begun = log.take(3).filter(|line| line.contains("begins")).count();
        assert!(begun > 0, "each agent has a part of the load");
    }
}
