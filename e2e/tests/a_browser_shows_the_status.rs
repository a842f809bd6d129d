//! Uses the status page in Chromium over the Chrome DevTools Protocol: narrow and wide, light and
//! dark, with a pointer and with keys, without console messages.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use becket_e2e::{Backend, Becket, Place, Shape, Tool, Trust, eventually};
use serde_json::{Value, json};

#[test]
#[ignore = "slow: .ci/run test"]
fn the_page_works_narrow_and_wide_in_both_themes_by_mouse_and_keyboard() {
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
    let names = becket.status()["minute"]["names"].clone();
    assert!(names.as_object().is_some_and(|it| it.len() == 1), "{names}");

    let mut tab = Tab::open(&browser, &place, &format!("http://{}/", becket.admin));
    for (scheme, background) in [("dark", "rgb(20, 23, 27)"), ("light", "rgb(255, 255, 255)")] {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        tab.ask(
            "Emulation.setEmulatedMedia",
            &json!({"features": [feature]}),
        );
        let shown = tab.value("getComputedStyle(document.body).backgroundColor");
        assert_eq!(shown, background);
    }
    for width in [420, 1000] {
        tab.ask(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}),
        );
        let needed = tab.value("document.documentElement.scrollWidth");
        assert!(needed.as_u64() <= Some(width), "{needed} pixels of {width}");
    }
    // Pointer and keys show the values of one point in time.
    let area = tab.value("(() => { const box = document.querySelector('svg').getBoundingClientRect(); return [box.x + 60, box.y + 60] })()");
    tab.ask(
        "Input.dispatchMouseEvent",
        &json!({"type": "mouseMoved", "x": area[0], "y": area[1]}),
    );
    let readout = "document.querySelector('output').textContent";
    let pointed = tab.value(readout);
    assert!(is_readout(&pointed), "{pointed}");
    tab.value("document.querySelectorAll('svg')[1].focus()");
    for kind in ["rawKeyDown", "keyUp"] {
        tab.ask("Input.dispatchKeyEvent", &json!({"type": kind, "key": "ArrowLeft", "code": "ArrowLeft", "windowsVirtualKeyCode": 37}));
    }
    let stepped = tab.value("document.activeElement.ariaValueText");
    assert!(is_readout(&stepped), "{stepped}");
    // A refresh replaces the content, but keeps the displayed values, the focus and the script.
    tab.value("window.before = document.querySelector('h1'); refresh()");
    eventually("the content is replaced", || {
        tab.value("!document.contains(window.before)") == true
    });
    assert_eq!(tab.value(readout), pointed);
    let focused = tab.value("document.activeElement === document.querySelectorAll('svg')[1]");
    assert_eq!(focused, true);
    assert_eq!(tab.errors, Vec::<Value>::new());
}

fn is_readout(text: &Value) -> bool {
    text.as_str().is_some_and(|it| it.contains(" UTC: "))
}

/// Browser tab that receives commands of the Chrome DevTools Protocol over a pipe. A zero byte ends each command.
struct Tab {
    browser: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<Value>,
    last: u64,
    /// Script errors and console messages.
    errors: Vec<Value>,
}

impl Tab {
    fn open(browser: &Tool, place: &Place, address: &str) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$@\" 3<&0 4>&1 >&2 </dev/null", "sh"])
            .arg(browser.path())
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .arg("--remote-debugging-pipe")
            .arg(format!("--user-data-dir={}", place.text("profile")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(place.path("browser.log")).unwrap());
        let mut browser = command.spawn().unwrap();
        let (to, from) = (
            browser.stdin.take().unwrap(),
            browser.stdout.take().unwrap(),
        );
        let mut tab = Self {
            browser,
            to,
            from: BufReader::new(from),
            session: None,
            last: 0,
            errors: Vec::new(),
        };
        let target = tab.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = tab.ask("Target.attachToTarget", &target);
        tab.session = Some(session["sessionId"].clone());
        for domain in ["Log", "Runtime", "Page"] {
            tab.ask(&format!("{domain}.enable"), &json!({}));
        }
        tab.ask("Page.navigate", &json!({"url": address}));
        eventually("the page is loaded", || {
            tab.value("location.protocol === 'http:' && document.readyState === 'complete'") == true
        });
        tab
    }

    /// Sends a command and returns its result.
    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = session.clone();
        }
        write!(self.to, "{command}\0").unwrap();
        loop {
            let mut message = Vec::new();
            self.from.read_until(0, &mut message).unwrap();
            message.pop();
            let message: Value =
                serde_json::from_slice(&message).expect("a message of the browser");
            let event = message["method"].as_str().unwrap_or_default();
            if [
                "Runtime.exceptionThrown",
                "Runtime.consoleAPICalled",
                "Log.entryAdded",
            ]
            .contains(&event)
            {
                self.errors.push(message);
            } else if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    /// Evaluates an expression.
    fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.ask("Runtime.evaluate", &parameters);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        // The test started only Chromium's main process. The other processes exit with it.
        self.browser.kill().ok();
        self.browser.wait().ok();
    }
}
