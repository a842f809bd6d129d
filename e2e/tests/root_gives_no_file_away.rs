//! If started as root, becket neither opens nor changes the owner of files that its run user could have placed at
//! the path of a log.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Place, Shape, Signal, eventually, give, nobody, open_to_all,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

const PRECIOUS: &str = "root's own\n";

/// A place that belongs to `nobody`, and a private file of root in another folder.
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

    /// Creates a symbolic link that belongs to the user.
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

    /// Checks that becket does not start, that its message names the file, and that root's file is unchanged.
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
fn a_symbolic_link_as_log_is_not_followed() {
    let Some(trap) = Trap::new() else { return };
    for name in ["becket.log", "access.log"] {
        trap.link(&trap.vault.path("precious"), name);
        trap.refuses(&trap.shape().text(), name);
        fs::remove_file(trap.place.path(name)).unwrap();
        // A link to a file that does not exist is not followed either.
        trap.link(&trap.vault.path("new"), name);
        trap.refuses(&trap.shape().text(), name);
        assert!(!trap.vault.path("new").exists());
        fs::remove_file(trap.place.path(name)).unwrap();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_hard_link_to_roots_file_as_log_is_rejected() {
    let Some(trap) = Trap::new() else { return };
    fs::hard_link(trap.vault.path("precious"), trap.place.path("becket.log")).unwrap();
    trap.refuses(&trap.shape().text(), "becket.log");
    // A hard link in a folder of root is rejected as well.
    fs::hard_link(trap.vault.path("precious"), trap.vault.path("again")).unwrap();
    let again = format!("file = \"{}\"", trap.vault.text("again"));
    let text = trap.shape().text();
    trap.refuses(&text.replace("file = \"becket.log\"", &again), "again");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_folder_of_logs_that_is_a_symbolic_link_of_the_user_is_not_followed() {
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
fn a_fifo_as_log_does_not_block_the_start_and_works_with_a_reader() {
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
    eventually("lines arrive", || {
        // Ignore errors: becket may not have written the lines yet.
        std::io::Read::read_to_end(&mut reader, &mut read).ok();
        String::from_utf8_lossy(&read).contains("listening")
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn log_files_in_a_folder_of_root_belong_to_the_user_and_stay_writable() {
    let Some(trap) = Trap::new() else { return };
    // One file exists and belongs to root; the other one does not exist.
    trap.vault.write("old.log", "");
    let (log, access) = (trap.vault.text("old.log"), trap.vault.text("new.log"));
    let shape = trap.shape();
    let text = shape.text();
    let text = text.replace("file = \"becket.log\"", &format!("file = {log:?}"));
    let text = text.replace("access = \"access.log\"", &format!("access = {access:?}"));
    // The configuration is in a folder of root.
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
    eventually("the log reports it", || {
        trap.vault.read("old.log").contains("log files reopened")
    });
    assert!(!trap.vault.read("old.log").contains("cannot reopen"));
    trap.is_untouched();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn both_key_logs_are_opened_with_the_rights_of_the_user() {
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
