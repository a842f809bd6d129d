//! A becket that is started as root opens and gives away nothing that its run user could have put
//! in the way of a log.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Place, Shape, Signal, eventually, give, nobody, open_to_all,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

const PRECIOUS: &str = "root's own\n";

/// A place that belongs to `nobody`, and a file of root beside it, for nobody else.
struct Trap {
    user: u32,
    place: Place,
    vault: Place,
    backend: Backend,
}

impl Trap {
    fn new() -> Option<Self> {
        let user = nobody()?;
        let (place, vault) = (Place::new(), Place::new());
        open_to_all(&vault);
        vault.write("precious", PRECIOUS);
        fs::set_permissions(vault.path("precious"), fs::Permissions::from_mode(0o600)).unwrap();
        give(&place, user);
        Some(Self {
            user,
            place,
            vault,
            backend: Backend::http("well met"),
        })
    }

    /// Makes a symbolic link of the user's.
    fn link(&self, target: &Path, name: &str) {
        symlink(target, self.place.path(name)).unwrap();
        lchown(self.place.path(name), Some(self.user), None).unwrap();
    }

    fn fifo(&self, name: &str) -> PathBuf {
        let path = self.place.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        chown(&path, Some(self.user), None).unwrap();
        path
    }

    fn shape(&self) -> Shape {
        Shape::new(self.backend.address).process(AS_NOBODY)
    }

    fn spawn(&self, configuration: &str) -> Becket {
        self.place.write("becket.toml", configuration);
        give(&self.place, self.user);
        let shape = self.shape();
        let command = Becket::command(&self.place, &["run", "--config", "becket.toml"]);
        Becket::spawn(command, self.place.folder(), shape.web, shape.admin)
    }

    /// Starts in vain, says which file is at fault, and root's file is as it was.
    #[track_caller]
    fn refuses(&self, configuration: &str, said: &str) {
        let mut becket = self.spawn(configuration);
        assert_eq!(becket.ended(), Some(2), "{}", becket.logs());
        assert!(becket.log().contains(said), "{}", becket.log());
        self.is_untouched();
    }

    #[track_caller]
    fn is_untouched(&self) {
        let meta = fs::metadata(self.vault.path("precious")).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o600));
        assert_eq!(self.vault.read("precious"), PRECIOUS);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_link_in_the_place_of_a_log_leads_nowhere() {
    let Some(trap) = Trap::new() else { return };
    for name in ["becket.log", "access.log"] {
        trap.link(&trap.vault.path("precious"), name);
        trap.refuses(&trap.shape().text(), name);
        fs::remove_file(trap.place.path(name)).unwrap();
        // Neither does one to a file that is not there yet.
        trap.link(&trap.vault.path("new"), name);
        trap.refuses(&trap.shape().text(), name);
        assert!(!trap.vault.path("new").exists());
        fs::remove_file(trap.place.path(name)).unwrap();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_second_name_of_roots_file_is_not_given_away() {
    let Some(trap) = Trap::new() else { return };
    fs::hard_link(trap.vault.path("precious"), trap.place.path("becket.log")).unwrap();
    trap.refuses(&trap.shape().text(), "becket.log");
    // In a folder of root's it is not, either.
    fs::hard_link(trap.vault.path("precious"), trap.vault.path("again")).unwrap();
    let again = format!("file = \"{}\"", trap.vault.text("again"));
    let text = trap.shape().text();
    trap.refuses(&text.replace("file = \"becket.log\"", &again), "again");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_folder_that_is_a_link_of_the_users_leads_nowhere() {
    let Some(trap) = Trap::new() else { return };
    trap.link(trap.vault.folder(), "logs");
    let text = trap.shape().text();
    for name in ["precious", "new"] {
        let file = format!("file = \"logs/{name}\"");
        trap.refuses(&text.replace("file = \"becket.log\"", &file), name);
    }
    assert!(!trap.vault.path("new").exists());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_fifo_holds_nothing_up_and_works_when_it_is_read() {
    let Some(trap) = Trap::new() else { return };
    let path = trap.fifo("pipe");
    let text = |shape: &Shape| shape.text().replace("\"becket.log\"", "\"pipe\"");
    trap.refuses(&text(&trap.shape()), "needs a reader");
    let mut options = OpenOptions::new();
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut reader = options
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .unwrap();
    let _becket = trap.spawn(&text(&trap.shape()));
    let mut read = Vec::new();
    eventually("lines come through", || {
        // What is not there yet is no fault.
        std::io::Read::read_to_end(&mut reader, &mut read).ok();
        String::from_utf8_lossy(&read).contains("listening")
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn in_a_folder_of_roots_the_log_is_made_for_the_user_and_stays_writable() {
    let Some(trap) = Trap::new() else { return };
    // One is there and root's, the other is not there.
    trap.vault.write("old.log", "");
    let (log, access) = (trap.vault.text("old.log"), trap.vault.text("new.log"));
    let shape = trap.shape();
    let text = shape.text();
    let text = text.replace("file = \"becket.log\"", &format!("file = {log:?}"));
    let text = text.replace("access = \"access.log\"", &format!("access = {access:?}"));
    // The user chose none of it.
    trap.vault.write("becket.toml", &text);
    let config = trap.vault.text("becket.toml");
    let command = Becket::command(&trap.place, &["run", "--config", &config]);
    let becket = Becket::spawn(command, trap.place.folder(), shape.web, shape.admin);
    becket.ready();
    for name in ["old.log", "new.log"] {
        assert_eq!(
            fs::metadata(trap.vault.path(name)).unwrap().uid(),
            trap.user
        );
    }
    becket.signal(Signal::USR1);
    eventually("it says so", || {
        trap.vault.read("old.log").contains("log files reopened")
    });
    assert!(!trap.vault.read("old.log").contains("cannot reopen"));
    trap.is_untouched();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_key_log_is_opened_by_the_user_also_towards_servers() {
    let Some(trap) = Trap::new() else { return };
    trap.link(&trap.vault.path("precious"), "keys");
    trap.link(&trap.vault.path("new"), "more-keys");
    let shape = trap
        .shape()
        .process(&format!("{AS_NOBODY}\nkey-log = true"))
        .backend("tls.verify = \"none\"");
    for name in ["keys", "more-keys"] {
        let becket = Becket::start_as(&trap.place, &shape, |command| {
            command.env("SSLKEYLOGFILE", trap.place.path(name));
        });
        drop(becket);
        trap.is_untouched();
        assert!(!trap.vault.path("new").exists());
    }
}
