//! Renders the status page in Chromium: narrow and wide, light and dark, without console messages.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use becket_e2e::{Backend, Becket, Place, Shape, Tool, Trust, eventually};

#[test]
#[ignore = "slow: .ci/run test"]
fn the_page_renders_narrow_and_wide_light_and_dark_without_console_messages() {
    let Some(browser) = Tool::find("chromium") else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    Trust::new(&place).visit(becket.web).unwrap();
    eventually("the status has recent figures", || {
        becket.status()["recent"].is_object()
    });
    let picture = |size: &str, scheme: &str| {
        let picture: PathBuf = place.path(&format!("{size}-{scheme}.png"));
        let mut command = Command::new(browser.path());
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--hide-scrollbars", "--enable-logging=stderr"])
            .arg(format!("--window-size={size}"))
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .arg(format!("--user-data-dir={}", place.text("profile")))
            .arg(format!("--screenshot={}", picture.display()))
            .arg(format!("http://{}/", becket.admin))
            .stdin(Stdio::null());
        let shown = command.output().unwrap();
        let said = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success(), "{said}");
        assert!(
            !said.contains("CONSOLE"),
            "the console is not empty:\n{said}"
        );
        std::fs::read(&picture).unwrap()
    };
    let (light, dark) = (picture("420,900", "1"), picture("420,900", "0"));
    assert!(
        light.len() > 5_000 && dark.len() > 5_000,
        "the page is not empty"
    );
    assert_ne!(light, dark, "the dark page equals the light one");
    assert!(picture("1000,700", "1").len() > 5_000);
}
