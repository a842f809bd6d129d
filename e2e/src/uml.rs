//! A guest: another kernel as a process of this machine, on this machine's files (user-mode Linux, hostfs).
//!
//! It runs the test program once more, with the tests of one name, and needs neither root nor KVM. It has one CPU, a
//! loopback of its own, and modules that nobody else loads ([`UserModeLinux::load`]).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io};

use crate::place::Place;
use crate::program::becket_program;
use crate::tool::Tool;

/// A kernel that can be started.
#[derive(Debug)]
pub struct UserModeLinux(Tool);

/// In a guest: the program to test, which is built outside.
pub(crate) fn program() -> Option<PathBuf> {
    env::var_os(PROGRAM).map(PathBuf::from)
}

/// Whether this is a guest.
pub fn is_inside_uml() -> bool {
    program().is_some()
}

impl UserModeLinux {
    /// Looks for it; without it, the test is skipped.
    #[track_caller]
    pub fn find() -> Option<Self> {
        Tool::find("linux.uml").map(Self)
    }

    /// One that replaces keys of TLS (Linux 6.14): `BECKET_NEWER_LINUX` says where it is, and `.ci/run guest` gets it. Without it, the
    /// test is listed as skipped, in CI as well: nobody promises that there is a way to it.
    pub fn newer() -> Option<Self> {
        let path = env::var_os("BECKET_NEWER_LINUX");
        if path.is_none() {
            becket_tidy::lacks("NOT CHECKED: needs BECKET_NEWER_LINUX, a guest of Linux 6.14");
        }
        path.map(|path| Self(Tool::at(path.into())))
    }

    /// Runs the tests of this name in a guest, which ends by itself, and returns what its console said. What they write below
    /// `place` stays.
    #[track_caller]
    pub fn run(&self, place: &Place, test: &str) -> String {
        let program = env::current_exe().expect("a path");
        let script = format!(
            "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin {PROGRAM}={} {KERNEL}={} RUST_BACKTRACE=1\n\
             mount -t proc proc /proc; mkdir -p /dev/shm; mount -t tmpfs tmp /dev/shm; export TMPDIR=/dev/shm\n\
             mknod /dev/shm/disk b 98 16; mkdir {DISK}; mke2fs -qt ext4 /dev/shm/disk && mount /dev/shm/disk {DISK}\n\
             ip link set lo up; cd {}\n\
             timeout 300 {} --exact {test} --include-ignored --test-threads=1 --nocapture\n\
             echo o > /proc/sysrq-trigger; sleep 60\n",
            becket_program().display(),
            self.0.path().display(),
            place.folder().display(),
            program.display(),
        );
        let init = place.path("init.sh");
        fs::write(&init, script).expect("a file");
        let mut chmod = Command::new("chmod");
        assert!(
            chmod
                .arg("+x")
                .arg(&init)
                .status()
                .expect("chmod")
                .success()
        );
        let init = format!("init={}", init.display());
        let disk = place.path("disk");
        let image = File::create(&disk).expect("a file");
        image.set_len(DISK_SIZE).expect("room");
        let disk = format!("ubd1={}", disk.display());
        let fixed = [
            "mem=512M",
            "root=98:0",
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
            "quiet",
        ];
        let consoles = [
            "con=null",
            "con0=null,fd:1",
            "con1=null",
            "ssl=null",
            "console=tty0",
        ];
        let arguments = [&fixed[..], &consoles, &[&init, &disk]].concat();
        let mut command = self.0.command(arguments);
        command
            .current_dir(place.folder())
            .env("HOME", place.folder());
        let ran = command.stdin(Stdio::null()).output().expect("it starts");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    /// In a guest: a folder on a disk of its own (ext4). hostfs cannot tell what is in memory.
    pub fn disk() -> &'static Path {
        Path::new(DISK)
    }

    /// In a guest: loads these modules, and what they need.
    ///
    /// # Errors
    /// What the kernel says, and where the modules are not found.
    pub fn load(names: &[&str]) -> io::Result<()> {
        let kernel = env::var_os(KERNEL).map(PathBuf::from).unwrap_or_default();
        let usr = kernel
            .parent()
            .and_then(Path::parent)
            .unwrap_or(Path::new("/usr"));
        let folder = usr.join("lib/uml/modules").join(release()?);
        let list = fs::read_to_string(folder.join("modules.dep"))?;
        let lines = list.lines().filter_map(|line| line.split_once(':'));
        let wanted = |path: &str| {
            names
                .iter()
                .any(|name| path.ends_with(&format!("/{name}.ko")))
        };
        for (path, needs) in lines.filter(|(path, _)| wanted(path)) {
            // The farthest need is the last.
            for module in needs.split_whitespace().rev().chain([path]) {
                let file = File::open(folder.join(module))?;
                match rustix::system::finit_module(file, c"", 0) {
                    Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn release() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(text.trim().to_owned())
}

/// Mount point of the disk.
const DISK: &str = "/dev/shm/ext4";
/// Its size in bytes.
const DISK_SIZE: u64 = 192 << 20;
/// Where the program to test is.
const PROGRAM: &str = "BECKET_UML_PROGRAM";
/// Where the kernel is.
const KERNEL: &str = "BECKET_UML_KERNEL";
