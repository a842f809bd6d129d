//! `becket-load probe` shows what the configurations of becket, nginx and `openssl s_server` offer.

use std::process::Command;

use becket_e2e::{
    Backend, Becket, Finished, OpenSsl, Place, Shape, Tool, finish, fresh_address, load_program,
    nginx, serve,
};
use serde_json::Value;

fn probe(arguments: &[&str]) -> Finished {
    let mut command = Command::new(load_program());
    command.arg("probe").args(arguments);
    finish(command, "")
}

#[test]
fn the_probe_shows_what_is_configured() {
    let (Some(nginx_tool), Some(openssl)) = (Tool::find("nginx"), OpenSsl::find()) else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let site = place.text("site.pem");
    let [by_nginx, by_openssl, by_none] = [(); 3].map(|()| fresh_address());
    let http = format!(
        "server {{ listen {by_nginx} ssl; ssl_certificate {site}; ssl_certificate_key {site};
           ssl_protocols TLSv1.2 TLSv1.3; ssl_early_data on; ssl_session_timeout 1h;
           ssl_session_cache shared:all:1m; return 204; }}"
    );
    let _nginx = nginx(&nginx_tool, &place, &http, by_nginx);
    let accept = by_openssl.to_string();
    let flags = [
        "s_server", "-accept", &accept, "-www", "-cert", &site, "-key", &site,
    ];
    let old = ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"];
    let command = openssl.0.command([&flags[..], &old].concat());
    let _openssl = serve(command, &place, "s_server", by_openssl);

    let servers = [becket.web, by_nginx, by_openssl, by_none].map(|at| at.to_string());
    let servers = servers.each_ref().map(String::as_str);
    let run = probe(&[&servers[..], &["--json", "--sni", "www.example.org"]].concat());
    assert_eq!(run.code, 1, "one of them does not listen: {}", run.all());
    let rows: Vec<Value> = run
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [becket, nginx, openssl, none] = &rows[..] else {
        panic!("four rows: {}", run.all());
    };
    for row in [becket, nginx] {
        assert_eq!(
            row["versions"],
            serde_json::json!(["TLSv1.3", "TLSv1.2"]),
            "{row}"
        );
        assert_eq!(
            row["resumes_by"],
            serde_json::json!(["psk", "ticket", "id"]),
            "{row}"
        );
        assert_eq!(row["certificate"]["key"], "EC256", "{row}");
        assert_eq!(row["certificate"]["names"][0], "www.example.org", "{row}");
        assert!(
            row["certificate"]["days_left"].is_i64() && row["error"].is_null(),
            "{row}"
        );
    }
    assert_eq!(becket["group"], "X25519MLKEM768");
    assert!(becket["early_data_bytes"].is_null(), "{becket}");
    assert_eq!(nginx["early_data_bytes"], 16384, "{nginx}");
    assert_eq!(
        nginx["ticket_lifetime_s"],
        serde_json::json!({"psk": 3600, "ticket": 3600})
    );
    assert_eq!(
        openssl["versions"],
        serde_json::json!(["TLSv1.1"]),
        "{openssl}"
    );
    assert_eq!(none["error"], "refused", "{none}");

    let page = probe(&[&servers[..2], &["--sni", "www.example.org"]].concat());
    assert_eq!(page.code, 0, "{}", page.all());
    assert_eq!(
        page.stdout.lines().count(),
        3,
        "a heading and two rows: {}",
        page.stdout
    );
    assert!(page.stdout.contains("psk(3600 s)"), "{}", page.stdout);
}
