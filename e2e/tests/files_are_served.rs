//! A backend with files: curl receives them over HTTPS, a reload changes the folder, and logs and pages show the requests.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use becket_e2e::{
    Becket, PATIENCE, Place, Tool, finish, fresh_address, nobody, open_to_all, until,
};

/// A becket that serves a folder with TLS and without.
struct Site {
    becket: Becket,
    place: Place,
    plain: SocketAddr,
}

fn configuration(at: [SocketAddr; 3], root: &str, more: &str) -> String {
    let [web, plain, admin] = at;
    format!(
        "[[listener]]\nname = 'web'\nbind = ['{web}']\ncertificates = ['site.pem']\nbackend = 'site'\n\
         [[listener]]\nname = 'plain'\nbind = ['{plain}']\ntls = false\nbackend = 'site'\n\
         [[backend]]\nname = 'site'\n[backend.files]\nroot = '{root}'\n{more}\n\
         [process]\nworkers = 2\n[admin]\naddress = '{admin}'\n\
         [log]\nformat = 'json'\nfile = 'becket.log'\naccess = 'access.log'\n"
    )
}

impl Site {
    fn start(more: &str) -> (Self, [SocketAddr; 3]) {
        let place = Place::new();
        fs::create_dir_all(place.path("www/sub")).unwrap();
        place.write("www/index.html", "<p>Welcome");
        place.write("www/sub/a b.txt", "alpha");
        let at = [(); 3].map(|()| fresh_address());
        place.write("becket.toml", &configuration(at, "www", more));
        let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
        let [web, plain, admin] = at;
        let becket = Becket::spawn(command, place.folder(), web, admin);
        becket.ready();
        let site = Self {
            becket,
            place,
            plain,
        };
        (site, at)
    }

    /// Returns a curl command that trusts the site's certificate.
    fn curl(&self, curl: &Tool, arguments: &[&str]) -> Command {
        let ca = self.place.text("ca.pem");
        let web = self.becket.web;
        let connect = format!("www.example.org:{}:{web}", web.port());
        let fixed = [
            "-sS",
            "--max-time",
            "20",
            "--cacert",
            &ca,
            "--connect-to",
            &connect,
        ];
        curl.command([&fixed[..], arguments].concat())
    }

    fn url(&self, target: &str) -> String {
        format!("https://www.example.org:{}{target}", self.becket.web.port())
    }
}

#[test]
fn curl_receives_files_ranges_and_not_modified_responses() {
    let Some(curl) = Tool::find("curl") else {
        return;
    };
    let (site, _) = Site::start("");
    let (first, second) = (site.url("/"), site.url("/sub/a%20b.txt"));
    let both = finish(
        site.curl(
            &curl,
            &[&first, &second, "-w", " %{http_version} %{num_connects}\n"],
        ),
        "",
    );
    assert_eq!(
        both.stdout,
        "<p>Welcome 1.1 1\nalpha 1.1 0\n",
        "{}",
        both.all()
    );
    let part = finish(site.curl(&curl, &["-r", "1-2", &second]), "");
    assert_eq!(part.stdout, "lp");
    let (etag, code) = (
        site.place.text("etag"),
        ["-o", "/dev/null", "-w", "%{http_code}"],
    );
    let keep = [&["--etag-save", &etag][..], &code, &[&second]].concat();
    assert_eq!(finish(site.curl(&curl, &keep), "").stdout, "200");
    let same = [&["--etag-compare", &etag][..], &code, &[&second]].concat();
    assert_eq!(finish(site.curl(&curl, &same), "").stdout, "304");
    let moved = ["-L", "-w", " %{url_effective}", &site.url("/sub")];
    let moved = finish(site.curl(&curl, &moved), "").stdout;
    assert!(
        moved.ends_with("/sub/") && moved.starts_with("403"),
        "{moved}"
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn every_request_is_counted_and_logged() {
    let Some(curl) = Tool::find("curl") else {
        return;
    };
    let (site, _) = Site::start("");
    let urls = ["/sub/a%20b.txt", "/nothing", "/sub", "/"].map(|target| site.url(target));
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let found = finish(site.curl(&curl, &urls), "");
    assert_eq!(found.code, 0, "{}", found.all());
    site.becket.idle();
    let metrics = site.becket.metrics();
    let answered = |status: &str| {
        let label = format!("status=\"{status}\"");
        metrics.sum("becket_file_requests_total", &[&label]) as u64
    };
    assert_eq!(["200", "301", "404", "206"].map(answered), [2, 1, 1, 0]);
    assert_eq!(
        site.becket.status()["backends"][0]["files"],
        site.place.text("www")
    );
    let lines = until("every line is written", || {
        let lines = site.becket.access();
        (lines.len() == 4 + 1).then_some(lines)
    });
    let requests: Vec<_> = lines
        .iter()
        .filter(|line| !line["path"].is_null())
        .collect();
    assert_eq!(requests.len(), 4);
    // Lines of the two workers are not interleaved, so search for the line.
    let mut of_file = requests
        .iter()
        .filter(|line| line["path"] == "/sub/a%20b.txt");
    let first = of_file.find(|line| line["status"] == "200").unwrap();
    assert_eq!(
        (
            &first["method"],
            &first["path"],
            &first["status"],
            &first["bytes"],
            &first["sni"]
        ),
        (
            &"GET".into(),
            &"/sub/a%20b.txt".into(),
            &"200".into(),
            &5.into(),
            &"www.example.org".into()
        )
    );
    let ends = lines.iter().filter_map(|line| line["reason"].as_str());
    assert!(
        ends.into_iter().all(|reason| reason == "finished"),
        "{lines:?}"
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_reload_changes_the_folder_and_a_missing_folder_is_rejected() {
    let Some(curl) = Tool::find("curl") else {
        return;
    };
    let (site, at) = Site::start("");
    let get = || finish(site.curl(&curl, &[&site.url("/")]), "").stdout;
    assert_eq!(get(), "<p>Welcome");
    site.place
        .write("becket.toml", &configuration(at, "nowhere", ""));
    assert!(!site.becket.reload());
    let errors = site.becket.status()["reload"]["errors"].to_string();
    assert!(
        errors.contains("nowhere") && errors.contains("no such file"),
        "{errors}"
    );
    assert_eq!(get(), "<p>Welcome");
    fs::create_dir(site.place.path("other")).unwrap();
    site.place.write("other/index.html", "<p>Moved");
    site.place
        .write("becket.toml", &configuration(at, "other", ""));
    assert!(site.becket.reload());
    assert_eq!(get(), "<p>Moved");
}

/// Client without TLS that sends several requests on one connection.
struct Visitor(BufReader<TcpStream>);

impl Visitor {
    fn connect(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// Requests a file and returns status and body.
    fn get(&mut self, target: &str) -> (String, String) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let lines = self.0.by_ref().lines().map(Result::unwrap);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let length = |line: &String| line.strip_prefix("Content-Length: ")?.parse().ok();
        let mut body = vec![0; head.iter().find_map(length).unwrap()];
        self.0.read_exact(&mut body).unwrap();
        let status = head[0].split(' ').nth(1).unwrap().to_owned();
        (status, String::from_utf8(body).unwrap())
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn few_of_a_hundred_thousand_files_stay_open() {
    let (site, _) = Site::start("open-files = 100");
    let many = site.place.path("www/many");
    fs::create_dir(&many).unwrap();
    for number in 0..100_000 {
        File::create(many.join(number.to_string())).unwrap();
    }
    let mut visitor = Visitor::connect(site.plain);
    for number in (0..100_000).step_by(131) {
        let found = visitor.get(&format!("/many/{number}"));
        assert_eq!(found, ("200".to_owned(), String::new()));
    }
    assert_eq!(visitor.get("/many/100000").0, "404");
    let descriptors = fs::read_dir(format!("/proc/{}/fd", site.becket.child())).unwrap();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let open = targets.filter(|target| target.starts_with(&many)).count();
    assert!((1..=100).contains(&open), "{open} open files of one worker");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn files_are_read_with_the_rights_of_the_process_user() {
    if nobody().is_none() {
        return;
    }
    let place = Place::new();
    open_to_all(&place);
    fs::create_dir_all(place.path("www/closed")).unwrap();
    place.write("www/open.txt", "for all");
    place.write("www/private.txt", "of root");
    place.write("www/closed/file.txt", "of root, too");
    let restrict = |name: &str, mode| {
        fs::set_permissions(place.path(name), Permissions::from_mode(mode)).unwrap();
    };
    restrict("www/private.txt", 0o600);
    restrict("www/closed", 0o700);
    let at = [(); 3].map(|()| fresh_address());
    let text = configuration(at, "www", "");
    let text = text.replace("workers = 2", "workers = 2\nuser = 'nobody'");
    let text = text.replace(
        "file = 'becket.log'\naccess = 'access.log'",
        "file = 'stderr'",
    );
    place.write("becket.toml", &text);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), at[0], at[2]);
    becket.ready();
    let mut visitor = Visitor::connect(at[1]);
    assert_eq!(visitor.get("/open.txt").1, "for all");
    for hidden in ["/private.txt", "/closed/file.txt"] {
        assert_eq!(visitor.get(hidden).0, "403", "{hidden}");
    }
}
